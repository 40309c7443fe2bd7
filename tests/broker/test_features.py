"""What a feature level brings: the table is whole, and what is not in it stops the broker."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.broker import commands, produce, snapshot_codec
from dledger.broker import state as broker_state
from dledger.broker.beginnings import Beginning
from dledger.broker.command_frame import CommandType, MalformedCommandError, frame, split
from dledger.broker.commands import CreateGroup, CreateTopic
from dledger.broker.held_refs import Ref
from dledger.broker.message import Columns, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.redelivery import DEFAULT
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.broker.topics import Compaction
from dledger.common.features import FEATURE_LEVEL, FEATURES, CommandForm, MemberLevels, since
from dledger.errors import (
    FeatureNotReady,
    InvalidArgument,
    NewerCommand,
    NewerFormat,
    OlderFormat,
)
from dledger.types import EntryKind, Member, Membership, NodeId, Typed
from tests.broker.log import Log
from tests.broker.next_version import NEXT, CloneTopic, NextState

_DOCS = (Path(__file__).parents[2] / "docs/internals/message-format.md").read_text("utf-8")
_LEASE = commands.LeaseRef(0, 5, 7)
_COMMANDS: list[commands.Command] = [
    CreateTopic(name="t", type="NORMAL", queues=8, compaction=Compaction()),
    CreateGroup(name="g", beginning=Beginning(7, 9)),
    commands.Receive(group="g", topic="t", queue_id=2, any_queue=True, limit=3, invisible_ms=1),
    commands.Ack(group="g", topic="t", leases=(_LEASE,)),
    commands.ChangeInvisible(group="g", topic="t", lease=_LEASE, invisible_ms=5),
    commands.SetGroup(name="g", retries=DEFAULT),
    commands.Renew(group="g", topic="t", leases=(_LEASE,), invisible_ms=5, arrived=True),
    commands.Release(group="g", client_id="c"),
    commands.Retain(before_index=1),
    commands.ExpireGroups(before_ms=1),
    commands.DeleteTopic(name="t", generation=3),
    commands.DeleteGroup(name="g"),
    commands.SetSecret(secret=bytes(range(32))),
    commands.GrowTopic(name="t", queues=16),
    commands.Leap(from_ms=1, to_ms=2),
    commands.UseFilter(group="g", topic="t", tags=("a", "b"), sql="a = 1"),
    commands.SetRetention(name="t", hours=2160),
    commands.SeekGroup(group="g", topic="t", generation=1, offsets=((0, 5),)),
    commands.CancelHeld(refs=(Ref(1, 2),)),
    commands.PauseHeld(pause_id="r"),
    commands.ResumeHeld(cancels=True),
    commands.CheckHeld(refs=(Ref(1, 2),), next_ms=3),
    commands.ReceiveAt(
        group="g",
        topic="t",
        generation=1,
        queue_id=0,
        sql="a = 1",
        start=1,
        stop=5,
        take=(2, 4),
        again=(0,),
        done=(),
        invisible_ms=9,
    ),
]
_A, _B, _C = (Member(id=NodeId(i), name=f"orders-{i}", address=f"{i}:1") for i in "abc")
_GROUP = Membership.of([_A, _B], learners=[_C])


def _row(command: bytes) -> tuple[int, dict[str, Any]]:
    ((kind, start, end),) = split(command)
    return kind, json.loads(command[start:end])


def _framed(kind: int, row: object) -> bytes:
    data = json.dumps(row).encode()
    return len(data).to_bytes(4, "little") + bytes([kind]) + data


# -- the table -----------------------------------------------------------------------------------


def test_each_type_of_command_has_a_row_and_a_decoder() -> None:
    """Who adds one adds it to the table: an older version must be able to tell."""
    rows = {number: form.name for number, form in FEATURES.commands.items()}

    assert rows == {kind.value: kind.name for kind in CommandType}
    of_columns = {
        CommandType.PRODUCE,
        CommandType.REKEEP,
        CommandType.ERASE,
        CommandType.DEAD_LETTER,
        CommandType.PRODUCE_HELD,
        CommandType.RELEASE_HELD,
    }
    assert set(commands.DECODERS) == set(rows) - of_columns
    assert {_row(command.encode())[0] for command in _COMMANDS} == set(commands.DECODERS)


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: type(command).__name__)
def test_the_table_has_the_fields_that_are_written_and_no_others(command: commands.Command) -> None:
    """A field that is written and not in the table would stop this very version."""
    kind, row = _row(command.encode())

    assert set(row) == set(FEATURES.commands[kind].fields)


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: type(command).__name__)
def test_each_field_in_the_table_is_asked_for(command: commands.Command) -> None:
    """One that is missing is malformed in all versions; only what few topics have may be.

    Where a group begins is two fields: both or none.
    """
    kind, row = _row(command.encode())

    optional = {"compaction", *(("sql",) if kind == CommandType.USE_FILTER else ())}
    for name in row.keys() - optional:
        less = {key: value for key, value in row.items() if key != name}
        with pytest.raises(MalformedCommandError, match=name):
            commands.decode(kind, json.dumps(less).encode())


def test_the_table_has_what_else_lies_in_the_log() -> None:
    """PRODUCE's flags, kinds of entries, the fields of a membership, formats of the state."""
    everything = Membership.of([_A], outgoing=[_B], learners=[_C], epoch=1)
    membership = json.loads(everything.encode())
    flags = FEATURES.commands[CommandType.PRODUCE].flags
    assert FEATURES.commands[CommandType.PRODUCE].further_at == produce.FURTHER_AT

    assert sum(flags) == produce.FLAGS
    assert set(FEATURES.entry_kinds) == set(EntryKind)
    assert set(FEATURES.membership) == set(membership)
    assert set(FEATURES.member) == set(membership["voters"][0])
    assert max(FEATURES.snapshots) == snapshot_codec.FORMAT


def test_nothing_in_the_table_is_above_this_versions_level() -> None:
    """Who adds something of a new level raises `FEATURE_LEVEL`."""
    levels = [form.highest for form in FEATURES.commands.values()]
    for rows in (FEATURES.entry_kinds, FEATURES.membership, FEATURES.member, FEATURES.snapshots):
        levels += rows.values()

    assert max(levels) == FEATURES.level == FEATURE_LEVEL


def test_the_documents_have_the_table() -> None:
    """Each type, its fields and its level, for those who read the log without this program."""
    found = re.findall(r"^\| (\d+) \| (\w+) \| (.+?) \| (\d+) \|$", _DOCS, re.MULTILINE)

    assert {(int(number), name, int(level)) for number, name, _, level in found} == {
        (number, form.name, form.level) for number, form in FEATURES.commands.items()
    }
    for number, _, payload, _ in found:
        fields = re.match(r"JSON `([^`]+)`", payload)
        if fields is not None:
            assert set(fields[1].split()) == set(FEATURES.commands[int(number)].fields)


# -- what is not known ---------------------------------------------------------------------------


def _produced(body: bytes = b"x") -> bytearray:
    batch = Columns.of([Message(message_id="1", body=body)])
    return bytearray(encode_produce(batch, client_id="c", topic="t", queue_id=0))


def _version_2() -> bytes:
    command = _produced()
    command[5] = 2
    return bytes(command)


def _with_flag() -> bytes:
    command = _produced()
    command[6] |= 64
    return bytes(command)


def _with_further_flag() -> bytes:
    command = _produced()
    command[10] |= 16
    return bytes(command)


_NEWER = [
    (_framed(77, {"a": 1}), "a command of type 77"),
    (_framed(0, {}), "a command of type 0"),
    (b"\x00\x00\x00\x00\xff", "a command of type 255"),
    (_framed(3, {"name": "g2", "note": "n"}), "CREATE_GROUP with 'note'"),
    (_framed(3, {"note": "n"}), "CREATE_GROUP with 'note'"),
    (_framed(2, {"name": 3, "b": 0, "a": 0}), "CREATE_TOPIC with 'a', 'b'"),
    (_version_2(), "PRODUCE of version 2"),
    (b"\x01\x00\x00\x00\x01\x02", "PRODUCE of version 2"),
    (_with_flag(), "PRODUCE with flags 0x40"),
    (_with_further_flag(), "PRODUCE with flags 0x1000"),
]


@pytest.mark.parametrize(("command", "what"), _NEWER, ids=[what for _, what in _NEWER])
def test_a_command_that_is_not_known_is_never_skipped(command: bytes, what: str) -> None:
    """It stops, by name, and nothing of its entry is applied, on whichever side it stands."""
    log = Log()
    log.create()
    before, known = log.state.digest(), CreateTopic(name="new", type="NORMAL", queues=1).encode()

    for entry in ((command,), (known, command), (command, known), (known, command, b"\x09")):
        with pytest.raises(NewerCommand, match=rf"^entry \d+ is of a newer version: {what} is unk"):
            log.append(*entry)
        log.entries.pop()

    assert log.state.digest() == before


def test_the_error_says_which_entry_and_what_to_do() -> None:
    """It is the node's last word, and an operator's first."""
    log = Log()
    log.create()

    with pytest.raises(NewerCommand, match=r"feature level 1.*upgrade this node's image") as raised:
        log.append(_framed(77, {}))

    assert (raised.value.index, raised.value.what) == (2, "a command of type 77")


_MALFORMED = [
    frame(CommandType.PRODUCE, b""),
    frame(CommandType.PRODUCE, b"\x00\x20 of no version"),
    frame(CommandType.PRODUCE, b"\x01\x1f\x01\x00\x01\x00 short"),
    frame(CommandType.ACK, b"junk"),
    frame(CommandType.ACK, b"[]"),
    frame(CommandType.ACK, b"[" * 100_000),
    frame(CommandType.ACK, b"{}"),
    _framed(3, {"name": 3}),
    _framed(9, {"before": 1 << 62}),
    b"\xff\xff\xff\xff\x4d",
]


@pytest.mark.parametrize("command", _MALFORMED)
def test_what_no_version_reads_is_refused_alike_by_all(command: bytes) -> None:
    """A later level widens nothing that an earlier one refused: replicas would part."""
    log, later = Log(), Log(state=NextState())

    for each in (log, later):
        each.create()
        (result,) = each.append(command)
        assert isinstance(result, InvalidArgument)

    assert log.state.digest() == later.state.digest()


def test_the_next_version_goes_on_where_the_older_one_stopped() -> None:
    """From the very entry: the older one's state is a prefix of the newer one's."""
    log, newer = Log(), NextState()
    log.create(queues=3)
    with pytest.raises(NewerCommand):
        log.append(CloneTopic(topic="t", copy="t2").encode())
    older = log.state.digest()

    newer.apply(log.entries[0])
    assert newer.digest() == older
    newer.apply(log.entries[1])

    assert [topic.name for topic in newer.topics.all()] == ["t", "t2"]
    assert len(newer.topics.queues("t2")) == 3


# -- what a group of mixed versions may be given --------------------------------------------------

_CLONE = CloneTopic(topic="t", copy="u").encode()
_NOTED = _framed(3, {"name": "g", "note": "n"})


def _levels(**told: int) -> MemberLevels:
    levels = MemberLevels(NodeId("a"), NEXT)
    for name, level in told.items():
        levels.told(NodeId(name), level)
    return levels


@pytest.mark.parametrize("command", [_CLONE, _NOTED], ids=["type", "field"])
@pytest.mark.parametrize(
    ("told", "held_by", "known"),
    [
        ({"b": 2, "c": 1}, "orders-c", "is of level 1"),
        ({"b": 1, "c": 2}, "orders-b", "is of level 1"),
        ({"b": 2}, "orders-c", "has not told its level"),
    ],
)
def test_what_one_member_does_not_know_is_held_back(
    command: bytes, told: dict[str, int], held_by: str, known: str
) -> None:
    """Voter or learner; one that was not heard from counts as the lowest."""
    with pytest.raises(FeatureNotReady, match=rf"level 2, and member {held_by} {known}") as raised:
        _levels(**told).admit(command, _GROUP)

    assert (raised.value.needed, raised.value.member) == (2, held_by)


@pytest.mark.parametrize("command", [_CLONE, _NOTED], ids=["type", "field"])
def test_what_all_members_know_goes_into_the_log(command: bytes) -> None:
    """As soon as the last one told; who is no member holds nothing back."""
    _levels(b=2, c=3, other=1).admit(command, _GROUP)


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: type(command).__name__)
def test_what_the_lowest_level_knows_is_never_held_back(command: commands.Command) -> None:
    """Also where nobody was heard from: a group just begins so."""
    _levels().admit(command.encode(), _GROUP)


def test_a_member_that_comes_back_older_holds_back_again() -> None:
    """What it told last counts, also while it is away."""
    levels = _levels(b=2, c=2)
    levels.admit(_CLONE, _GROUP)

    levels.told(NodeId("b"), 1)

    with pytest.raises(FeatureNotReady):
        levels.admit(_CLONE, _GROUP)


def test_of_an_open_command_the_highest_level_of_its_type_counts() -> None:
    """Its bytes are not made yet, and then it is too late."""

    class Open:
        def __init__(self, kind: int) -> None:
            self.kind = kind

    _levels(b=1, c=1).admit(Open(CommandType.ACK), _GROUP)
    with pytest.raises(FeatureNotReady):
        _levels(b=1, c=1).admit(Open(CommandType.CREATE_GROUP), _GROUP)


def test_the_level_of_a_batch_is_that_of_its_columns() -> None:
    """Seen in its flags; the messages are not looked at."""
    form = replace(FEATURES.commands[CommandType.PRODUCE], flags={1: 1, 2: 1, 64: 2})
    features = replace(NEXT, commands={**NEXT.commands, CommandType.PRODUCE: form})

    assert features.level_of(bytes(_produced())) == 1
    assert features.level_of(_with_flag()) == 2
    with pytest.raises(MalformedCommandError):
        ProduceFrame(_with_flag(), 5, len(_with_flag()))


def test_the_level_of_a_batch_is_that_of_its_further_columns_too() -> None:
    """They stand in another byte."""
    flags = {**FEATURES.commands[CommandType.PRODUCE].flags, 4096: 2}
    form = replace(FEATURES.commands[CommandType.PRODUCE], flags=flags)
    features = replace(NEXT, commands={**NEXT.commands, CommandType.PRODUCE: form})
    message = Message(message_id="1", body=b"x", typed=Typed(message_group="g"))
    typed = encode_produce(Columns.of([message]), client_id="c", topic="t")

    assert features.level_of(bytes(_produced())) == 1
    assert features.level_of(typed) == 1
    assert features.level_of(_with_further_flag()) == 2


@pytest.mark.parametrize(
    ("payload", "by_flags"),
    [
        (b"", 2),
        (b"\x01", 2),
        (b"\x01\x01", 2),
        (b"\xff" * 40, 3),
        (b"\x01\0\0\0\0\x01", 3),
        (b"[]", 2),
        (b"[" * 100_000, 3),
        (b'{"name":"g"', 3),
    ],
    ids=range(8),
)
def test_any_bytes_have_a_level(payload: bytes, by_flags: int) -> None:
    """Columns are no JSON, nor is all that lies in the place of it: nothing but a number comes."""
    binary = CommandForm(name="HOLD", level=2)
    grown = CommandForm(name="GROWN", level=2, flags={1: 2, 2: 3, 256: 3}, further_at=5)
    features = replace(NEXT, level=3, commands={**NEXT.commands, 201: binary, 202: grown})

    assert features.level_of(_bytes(201, payload)) == 2
    assert features.level_of(_bytes(202, payload)) == by_flags
    assert features.level_of(_bytes(3, payload)) == 1
    assert features.level_of(_bytes(200, payload)) == 2
    levels = MemberLevels(NodeId("a"), features)
    with pytest.raises(FeatureNotReady, match="level 2"):
        levels.admit(_bytes(201, payload), _GROUP)


def _bytes(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + bytes([kind]) + payload


# -- the highest level that was applied ------------------------------------------------------------


def test_the_state_has_the_highest_level_that_was_applied() -> None:
    """Of a type or a field, whether it was refused when it was applied, or malformed."""
    for command in (
        _CLONE,
        _NOTED,
        _bytes(200, b"junk"),
        _framed(200, {"topic": "no", "copy": "c"}),
    ):
        log = Log(state=NextState())
        log.create()
        assert log.state.level == 1
        log.append(command)
        assert log.state.level == 2
        log.append(CreateGroup(name="h").encode())
        assert log.state.level == 2


def test_the_level_is_part_of_the_state_and_of_its_snapshots() -> None:
    """A node that has only the snapshot knows it as well as one that has the log."""
    log, plain = Log(state=NextState()), Log(state=NextState())
    for each in (log, plain):
        each.create()
    log.append(_framed(3, {"name": "g", "note": ""}))
    plain.append(_framed(3, {"name": "g"}))

    assert log.state.digest() != plain.state.digest()
    restored = NextState.decode(log.state.encode())
    assert (restored.level, restored.digest()) == (2, log.state.digest())
    taker = NextState()
    taker.replace(restored)
    assert taker.level == 2


def test_a_snapshot_of_a_higher_level_is_of_a_newer_version() -> None:
    """What its state means is not known here, whatever its format: it is no damage."""
    log = Log(state=NextState())
    log.create()
    log.append(_NOTED)

    with pytest.raises(NewerFormat, match="feature level 2, and this one reads up to feature lev"):
        BrokerState.decode(log.state.encode())


def test_a_member_that_was_not_heard_counts_as_of_the_level_that_was_applied() -> None:
    """It cannot apply the log without that: a younger leader would hold all back until it is up."""
    state = NextState()
    levels = _levels(b=2)
    levels.count_on(lambda: state.level)
    with pytest.raises(FeatureNotReady, match="orders-c has not told its level"):
        levels.admit(_CLONE, _GROUP)

    log = Log(state=state)
    log.create()
    log.append(_CLONE)

    levels.admit(_CLONE, _GROUP)
    levels.told(NodeId("c"), 1)
    with pytest.raises(FeatureNotReady, match="orders-c is of level 1"):
        levels.admit(_CLONE, _GROUP)


def test_a_row_of_fields_is_divided_by_blanks() -> None:
    """So that a line of the table is short."""
    form = CommandForm(name="X", level=1, fields=since(1, "a b") | since(3, "c"))

    assert (form.highest, form.unknown(["a", "d", "c"])) == (3, ["d"])


# -- snapshots -----------------------------------------------------------------------------------


def test_a_state_of_a_newer_format_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage would be left out, and the log is gone in front of it."""
    log = Log()
    log.create()
    with monkeypatch.context() as newer:
        newer.setattr(broker_state, "_MAGIC", b"DLGRBRK%d" % (snapshot_codec.FORMAT + 1))
        data = log.state.encode()

    with pytest.raises(
        NewerFormat, match=f"format {snapshot_codec.FORMAT + 1}.*format {snapshot_codec.FORMAT}"
    ):
        BrokerState.decode(data)
    with pytest.raises(MalformedStateError):
        BrokerState.decode(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_state_of_an_older_format_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no damage either: what it says is not what this version would have made of its log."""
    log = Log()
    log.create()
    monkeypatch.setattr(broker_state, "_MAGIC", b"DLGRBRK%d" % (snapshot_codec.FORMAT - 1))
    data = log.state.encode()

    with pytest.raises(
        OlderFormat, match=f"format {snapshot_codec.FORMAT - 1}, .*format {snapshot_codec.FORMAT}"
    ):
        BrokerState.decode(data)
