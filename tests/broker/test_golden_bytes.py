"""The bytes of everything that lies in a log or in a snapshot's state, as files in ``golden``.

Whoever changes one of them says so in the diff of that file. After the first release a line that is
there never changes, only new ones come (docs/adr/0019).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dledger.broker import commands
from dledger.broker.beginnings import Beginning
from dledger.broker.command_frame import CommandType, frame, split
from dledger.broker.dead_letter import DeadLetter, encode_dead_letter
from dledger.broker.erase import Erase
from dledger.broker.held_commands import (
    ProduceHeld,
    ReleaseHeld,
    What,
    encode_produce_held,
    encode_release_held,
)
from dledger.broker.held_refs import Kind, Ref
from dledger.broker.message import Columns, Encoding, Message
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.redelivery import Retries
from dledger.broker.rekeep import Kept, Origin, Rekeep
from dledger.broker.state import BrokerState
from dledger.broker.topics import TYPES, Compaction
from dledger.common.replay_mark import ReplayMark
from dledger.types import Member, Membership, MovedFrom, NodeId, Typed
from tests.broker.log import Log

_GOLDEN: Final = Path(__file__).parent / "golden"
_MARK: Final = ReplayMark(bytes(range(16)), 9)
_PLAIN: Final = (Message(message_id="1", body=b"one"), Message(message_id="2", body=b"two"))
_MOVED: Final = MovedFrom(
    topic="o", generation=2, queue_id=3, offset=4, stored_at_ms=5, born_host="h", attempts=6
)
_FULL: Final = Message(
    message_id="é",
    body=b"\x1f\x8b",
    tag="t",
    keys=("k", "l"),
    properties={"n": "v"},
    born_at_ms=7,
    encoding=Encoding.GZIP,
    trace_context="00-1",
    typed=Typed(message_group="g", deliver_at_ms=8, priority=9, moved_from=_MOVED),
)
_LEASES: Final = (commands.LeaseRef(0, 5, 7), commands.LeaseRef(1, 6, 8))


def _produced(*messages: Message, mark: ReplayMark | None = None) -> bytes:
    return encode_produce(
        Columns.of(messages), client_id="c", topic="t", queue_id=3, born_host="h", replay=mark
    )


def _typed(typed: Typed) -> bytes:
    return _produced(_PLAIN[0], Message(message_id="2", body=b"two", typed=typed))


_HELD: Final = encode_produce_held(
    Kind.HALF, (7, 8), encode_produce(Columns.of(_PLAIN), client_id="c", topic="TRANSACTION")
)
_COMMANDS: Final = {
    "PRODUCE": _produced(*_PLAIN),
    "PRODUCE with everything": _produced(_PLAIN[0], _FULL, mark=_MARK),
    "PRODUCE with message groups": _typed(Typed(message_group="g")),
    "PRODUCE with delivery times": _typed(Typed(deliver_at_ms=8)),
    "PRODUCE with priorities": _typed(Typed(priority=9)),
    "PRODUCE of what was moved": _typed(Typed(moved_from=_MOVED)),
    **{
        f"CREATE_TOPIC of type {kind}": commands.CreateTopic(
            name="t", type=kind, queues=8
        ).encode()
        for kind in sorted(TYPES)
    },
    "CREATE_TOPIC that is compacted": commands.CreateTopic(
        name="t", type="NORMAL", queues=8, compaction=Compaction(min_lag_ms=1, tombstone_ms=2)
    ).encode(),
    "CREATE_GROUP": commands.CreateGroup(name="g").encode(),
    "CREATE_GROUP that begins elsewhere": commands.CreateGroup(
        name="g", beginning=Beginning(entry=6, stored_ms=7)
    ).encode(),
    "RECEIVE": commands.Receive(
        group="g", topic="t", queue_id=2, any_queue=True, limit=3, invisible_ms=4, tags=("a",),
        attempt_id="b", client_id="c",
    ).encode(),
    "ACK": commands.Ack(group="g", topic="t", leases=_LEASES).encode(),
    "CHANGE_INVISIBLE": commands.ChangeInvisible(
        group="g", topic="t", lease=_LEASES[0], invisible_ms=5
    ).encode(),
    "CHANGE_INVISIBLE that suspends": commands.ChangeInvisible(
        group="g", topic="t", lease=_LEASES[0], invisible_ms=5, suspend=True
    ).encode(),
    "RENEW": commands.Renew(
        group="g", topic="t", leases=_LEASES, invisible_ms=5, arrived=True
    ).encode(),
    "RELEASE": commands.Release(group="g", client_id="c").encode(),
    "RETAIN": commands.Retain(before_index=1).encode(),
    "EXPIRE_GROUPS": commands.ExpireGroups(before_ms=1).encode(),
    "DELETE_TOPIC": commands.DeleteTopic(name="t", generation=3).encode(),
    "DELETE_GROUP": commands.DeleteGroup(name="g").encode(),
    "SET_SECRET": commands.SetSecret(secret=bytes(range(32))).encode(),
    "GROW_TOPIC": commands.GrowTopic(name="t", queues=16).encode(),
    "LEAP": commands.Leap(from_ms=1, to_ms=2).encode(),
    "USE_FILTER": commands.UseFilter(group="g", topic="t", tags=("a", "b")).encode(),
    "REKEEP": Kept(
        topic="t", generation=1, queue_id=0, first=0, to=3, offsets=(0, 2),
        origins=[Origin(3, 5, "h"), Origin(4, 6, "")], messages=Columns.of(_PLAIN),
    ).encode(),
    "REKEEP of nothing": Kept(topic="t", generation=1, queue_id=0, first=0, to=3).encode(),
    "SET_RETENTION": commands.SetRetention(name="t", hours=2160).encode(),
    "SEEK_GROUP": commands.SeekGroup(
        group="g", topic="t", generation=3, offsets=((0, 4), (2, 5))
    ).encode(),
    "USE_FILTER of an expression": commands.UseFilter(
        group="g", topic="t", tags=None, sql="a = 1"
    ).encode(),
    "RECEIVE_AT": commands.ReceiveAt(
        group="g", topic="t", generation=3, queue_id=0, sql="a = 1", start=1, stop=5, take=(2, 4),
        again=(0,), done=(), invisible_ms=9, attempt_id="b", client_id="c",
    ).encode(),
    "SET_GROUP": commands.SetGroup(name="g", retries=Retries(5, (1000, 2000))).encode(),
    "DEAD_LETTER": encode_dead_letter("g", 7, _FULL, born_host="h"),
    "PRODUCE_HELD of timers": encode_produce_held(
        Kind.TIMER, (7, 8), _produced(*_PLAIN, mark=_MARK)
    ),
    "PRODUCE_HELD of halves": encode_produce_held(Kind.HALF, (7, 8), _produced(*_PLAIN)),
    **{
        f"RELEASE_HELD that does {what.name}": encode_release_held(
            what, (Ref(1, 2), Ref(3, 4)), Columns.of(_PLAIN), topic="t", generation=5, queue_id=6,
            born_host="h",
        )
        for what in What
    },
    "CANCEL_HELD": commands.CancelHeld(refs=(Ref(1, 2), Ref(3, 4))).encode(),
    "PAUSE_HELD": commands.PauseHeld(pause_id="r").encode(),
    "RESUME_HELD": commands.ResumeHeld(cancels=True).encode(),
    "CHECK_HELD": commands.CheckHeld(refs=(Ref(1, 2), Ref(3, 4)), next_ms=5).encode(),
    "ERASE": Erase(generation=1, queue_id=0, first_entry=3, offsets=(0, 2)).encode(),
}  # fmt: skip


def _held_to(name: str, found: dict[str, bytes], request: pytest.FixtureRequest) -> None:
    """Compare with a golden file, which has a line for each; `--rewrite` writes it."""
    golden = _GOLDEN / name
    text = "".join(f"{what}: {data.hex()}\n" for what, data in found.items())
    if request.config.getoption("--rewrite", default=False):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_commands_have_these_bytes(request: pytest.FixtureRequest) -> None:
    """Each type of command, with each of its columns."""
    _held_to("commands.txt", _COMMANDS, request)

    found = {kind for command in _COMMANDS.values() for kind, _, _ in split(command)}
    assert found == set(CommandType)


@pytest.mark.parametrize("name", _COMMANDS)
def test_these_bytes_are_read_as_they_were_written(name: str) -> None:
    """By the decoders of this version."""
    ((kind, start, end),) = split(data := _COMMANDS[name])

    if kind == CommandType.PRODUCE:
        batch = ProduceFrame(data, start, end)
        both = [batch.message(row) for row in range(batch.count)]
        assert _produced(*both, mark=batch.replay) == data
    elif kind == CommandType.REKEEP:
        assert Rekeep(data, start, end).to == 3
    elif kind == CommandType.DEAD_LETTER:
        letter = DeadLetter(data, start, end)
        again = encode_dead_letter(
            letter.group,
            letter.lease.receive_id,
            letter.batch.message(0),
            born_host=letter.batch.born_host,
        )
        assert again == data
    elif kind == CommandType.PRODUCE_HELD:
        held = ProduceHeld(data, start, end)
        assert (held.due_ms, held.batch.count) == ((7, 8), 2)
        produce = frame(CommandType.PRODUCE, data[held.inner : held.end])
        assert encode_produce_held(held.kind, held.due_ms, produce) == data
    elif kind == CommandType.RELEASE_HELD:
        released = ReleaseHeld(data, start, end)
        assert data == encode_release_held(
            released.what,
            released.refs,
            released.batch.columns(range(2)),
            topic=released.batch.topic,
            generation=released.generation,
            queue_id=released.batch.queue_id,
            born_host=released.batch.born_host,
        )
    elif kind == CommandType.ERASE:
        assert Erase.decode(data, start, end).encode() == data
    else:
        command = commands.decode(kind, data[start:end])
        assert isinstance(command, commands.Command)
        assert command.encode() == data


def test_a_membership_has_these_bytes(request: pytest.FixtureRequest) -> None:
    """It has a say before it is committed."""
    a, b, c = (Member(id=NodeId(i), name=f"orders-{i}", address=f"{i}:1") for i in "abc")
    both = Membership.of([a], outgoing=[b], learners=[c], epoch=1)

    _held_to("membership.txt", {"MEMBERSHIP": both.encode()}, request)


def test_a_state_has_these_bytes(request: pytest.FixtureRequest) -> None:
    """Topics of each type, what a group has done with them, repeats, and the highest level."""
    log = Log()
    log.create(queues=2)
    for kind in sorted(TYPES):
        log.append(commands.CreateTopic(name=kind, type=kind, queues=1).encode())
    log.append(_COMMANDS["CREATE_TOPIC that is compacted"].replace(b'"t"', b'"u"'))
    log.append(commands.SetRetention(name="FIFO", hours=9).encode())
    log.append(_COMMANDS["SET_SECRET"])
    log.produce("a", "b", tag="x", ids=("1", "2"))
    log.receive(1)
    log.append(_COMMANDS["SET_GROUP"])
    data = log.state.encode()
    log.append(_HELD)
    log.append(commands.CancelHeld(refs=(Ref(0, 1),)).encode())
    log.append(_COMMANDS["PRODUCE_HELD of halves"])
    log.append(_COMMANDS["PAUSE_HELD"])
    refs = tuple(ref for ref, _ in log.state.held.open_halves.items())
    log.append(commands.CheckHeld(refs=refs, next_ms=9).encode())
    assert refs
    held = log.state.encode()

    states = {"empty": BrokerState().encode(), "state": data, "state with messages held": held}
    _held_to("state.txt", states, request)
    assert BrokerState.decode(held).digest() == log.state.digest()
