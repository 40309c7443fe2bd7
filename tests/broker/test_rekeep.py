"""REKEEP and a topic's own retention: what is refused, on all nodes alike, and what follows."""

from __future__ import annotations

import struct

import pytest

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import CreateTopic, DeleteTopic, SetRetention
from dledger.broker.kept_blocks import KeptBlock, KeptBlocks, block_of
from dledger.broker.produce import ProduceFrame
from dledger.broker.rekeep import Origin, Rekeep, alone_since, origins
from dledger.broker.results import Rekept, RetentionSet
from dledger.broker.snapshot_codec import MalformedStateError, Reader
from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument, NewerCommand, OffsetOutOfRange, UnknownTopic
from tests.broker.log import Log, offsets
from tests.broker.rekept import kept as _kept
from tests.broker.rekept import say as _say
from tests.broker.rekept import there as _there


def _keeping(count: int, hours: int | None = 0) -> Log:
    """Return a log with *count* messages of a topic, each in an entry of its own from 3 on."""
    log = Log()
    log.create()
    log.append(SetRetention(name="t", hours=hours).encode())
    for number in range(count):
        log.produce(f"{number}")
    return log


def _blocks(log: Log) -> list[KeptBlock]:
    return list(log.state.topics.queue("t", 0).blocks or KeptBlocks())


def test_what_is_copied_is_kept_when_the_log_behind_it_goes() -> None:
    """With its offset, time, host and id of then, though it lies elsewhere."""
    log = _keeping(4)
    assert _say(log, _kept(log, 0, 3, (0, 1, 2))) == Rekept(0)
    at = len(log.entries)

    log.retain(len(log.entries) + 1)

    assert log.state.first_index == 6, "the entry of what is not copied yet"
    assert _there(log) == [0, 1, 2, 3]
    place = log.state.topics.queue("t", 0).locate(1)
    entry = log.entries[place.payload.index - 1]
    assert (place.payload.index, place.row) == (at, 1)
    message = ProduceFrame(entry.data, place.payload.start, place.payload.end).message(1)
    assert (message.message_id, message.body) == ("id 1", b"1")
    assert origins(entry, place.payload.start, place.payload.end)[1] == Origin(7, 501, "host")


def test_retention_waits_where_a_topic_keeps_its_messages() -> None:
    """Whoever proposes RETAIN: it goes as far as it may, and no further, and is no error."""
    log = _keeping(2)
    log.create(topic="u")
    log.produce("x", topic="u")

    log.retain(len(log.entries) + 1)

    assert log.state.first_index == 3
    assert _there(log) == [0, 1]


@pytest.mark.parametrize(
    ("first", "to", "rows"),
    [
        (1, 3, (1, 2)),  # a hole would be left before it
        (0, 5, (0, 1)),  # behind the end
        (2, 4, (2, 3)),
    ],
)
def test_the_logs_runs_are_cut_from_their_front_only(
    first: int, to: int, rows: tuple[int, ...]
) -> None:
    """They have no gaps, ever."""
    log = _keeping(4)

    assert isinstance(_say(log, _kept(log, first, to, rows)), InvalidArgument)
    assert _there(log) == [0, 1, 2, 3]


def test_a_block_is_not_cut() -> None:
    """Only the whole of it can be written anew: the rest would have no place."""
    log = _keeping(6)
    _say(log, _kept(log, 0, 4, (0, 1, 2, 3)))

    for first, to, rows in ((0, 2, (0,)), (2, 4, (2, 3)), (1, 6, (1, 4)), (1, 3, ())):
        assert isinstance(_say(log, _kept(log, first, to, rows)), InvalidArgument)
    assert _there(log) == [0, 1, 2, 3, 4, 5]


def test_what_is_gone_never_comes_back() -> None:
    """A REKEEP that is late names a row that another has let go: it is refused as a whole."""
    log = _keeping(4)
    late = _kept(log, 0, 4, (0, 1, 2, 3))
    assert _say(log, _kept(log, 0, 4, (1, 3))) == Rekept(2)

    assert isinstance(_say(log, late), InvalidArgument)
    assert _there(log) == [1, 3]
    assert log.state.topics.messages("t") == 2


def test_another_topics_rows_are_not_taken() -> None:
    """Not by generation, not by name: a topic that was made anew has nothing of the one before."""
    log = _keeping(2)
    late = _kept(log, 0, 2, (0, 1))
    log.append(DeleteTopic(name="t", generation=1).encode())
    log.append(CreateTopic(name="t", type="NORMAL", queues=1).encode())
    log.append(SetRetention(name="t", hours=0).encode())
    log.produce("new", "newer")

    assert isinstance(_say(log, late), UnknownTopic)
    assert isinstance(_say(log, _kept(log, 0, 2, (0, 1), topic="u")), InvalidArgument)
    assert log.state.topics.queue("t", 0).blocks is None


def test_a_topic_that_keeps_nothing_longer_has_no_blocks() -> None:
    """A REKEEP is refused, and what it had is gone with its own retention."""
    log = _keeping(3)
    _say(log, _kept(log, 0, 2, (0, 1)))
    held = log.receive(1)

    (done,) = log.append(SetRetention(name="t", hours=None).encode())

    assert done == RetentionSet(before=0, dropped=2)
    assert _there(log) == [2]
    assert isinstance(_say(log, _kept(log, 2, 3, (2,))), UnknownTopic)
    assert log.ack(held) == (True,)
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()


@pytest.mark.parametrize("hours", [-1, 1_000_001])
def test_no_other_retention_is_taken(hours: int) -> None:
    """And it does not make a topic."""
    log = _keeping(1, hours=5)

    assert isinstance(_say(log, SetRetention(name="t", hours=hours).encode()), InvalidArgument)
    assert isinstance(_say(log, SetRetention(name="u", hours=5).encode()), UnknownTopic)
    assert log.state.topics.named("t").retention_hours == 5


def test_a_lease_on_a_message_that_vanishes_stops_nobody() -> None:
    """When it ends it is forgotten; the same attempt gets what is left of it."""
    log = _keeping(4)
    log.receive(4, attempt_id="a")
    _say(log, _kept(log, 0, 4, (1, 3)))

    assert offsets(log.receive(4, attempt_id="a")) == [1, 3]
    log.now_ms += 5_000
    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) > 0
    again = log.receive(9)
    assert offsets(again) == [1, 3]
    log.ack(again)
    log.now_ms += 5_000
    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) == 0


def test_gaps_do_not_count_as_unread() -> None:
    """A group that comes later has as much to read as there is, and its backlog ends."""
    log = _keeping(6)
    _say(log, _kept(log, 0, 6, (1, 4)))

    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=99) == 2
    received = log.receive(1)
    assert log.state.groups.backlog("g", "t").unread == 1
    assert offsets(received) + offsets(log.receive(9)) == [1, 4]
    assert log.state.groups.backlog("g", "t").unread == 0
    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) == 0


def test_filters_pass_over_gaps() -> None:
    """What was passed over for another filter, and is gone by now, is not delivered."""
    log = Log()
    log.create()
    log.append(SetRetention(name="t", hours=0).encode())
    log.receive(1, tags=("b",))
    for number in range(6):
        log.produce(f"{number}", tag="ab"[number % 2])
    assert offsets(log.receive(9, tags=("a",))) == [0, 2, 4]
    _say(log, _kept(log, 0, 6, (0, 3)))

    assert offsets(log.receive(9, tags=("b",))) == [3]
    assert log.state.groups.backlog("g", "t").unread == 0


def test_a_retry_of_a_message_that_is_gone_is_answered() -> None:
    """As one that retention has dropped: it was stored, and is not stored again."""
    log = _keeping(0)
    log.produce("a", "b", ids=("1", "2"))
    _say(log, _kept(log, 0, 2, (1,)))

    again = log.produce("a", ids=("1",))

    assert (again.stored, list(again.offsets), again.index) == (0, [0], 0)
    assert log.state.topics.messages("t") == 1


def test_entries_that_are_lost_take_what_was_copied_with_them() -> None:
    """`log discard` forgets them, whoever keeps them: a block has no other place."""
    log = _keeping(4)
    _say(log, _kept(log, 0, 2, (0, 1)))
    lost = len(log.entries) + 1
    log.produce("behind")

    assert log.state.forget_before(lost) == 4
    assert _there(log) == [4]
    assert log.state.topics.queue("t", 0).blocks is None


def test_a_snapshot_without_kept_rows_has_the_bytes_of_before() -> None:
    """Nothing is written for a topic that keeps nothing longer, also if it did once."""
    never, once = Log(), Log()
    for log in (never, once):
        log.create()
    once.append(SetRetention(name="t", hours=3).encode())
    with_it = once.state.encode()
    once.append(SetRetention(name="t", hours=None).encode())
    never.append(SetRetention(name="t", hours=None).encode())
    never.append(SetRetention(name="t", hours=None).encode())

    assert once.state.encode() == never.state.encode()
    assert with_it != never.state.encode()
    assert BrokerState.decode(with_it).topics.named("t").retention_hours == 3


def _damaged(part: str) -> bytes:
    command = _kept(_keeping(2), 0, 2, (0, 1))
    payload = bytearray(command[5:])
    match part:
        case "zero":
            payload[2] = 1
        case "version":
            payload[0] = 0
        case "order":
            payload[36:52] = struct.pack("<2Q", 1, 0)
        case "outside":
            payload[36:52] = struct.pack("<2Q", 0, 2)
        case "rows":
            payload[32:36] = struct.pack("<I", 3)
        case "host":
            payload[payload.index(b"host")] = 0xFF
        case "place":
            payload[payload.index(b"hosthost") + 8] ^= 1
        case "short":
            del payload[-1]
    return frame(CommandType.REKEEP, bytes(payload))


@pytest.mark.parametrize(
    "part", ["zero", "version", "order", "outside", "rows", "host", "place", "short"]
)
def test_what_is_no_rekeep_is_refused_and_changes_nothing(part: str) -> None:
    """The bytes come from a peer's log: each part is checked before anything is changed."""
    log = _keeping(2)
    before = log.state.topics.canonical()

    assert isinstance(_say(log, _damaged(part)), InvalidArgument)
    assert log.state.topics.canonical() == before


@pytest.mark.parametrize(
    "marks",
    [(0, 0, 1), (3, 0, 1), (2, 0, 2), (2, 1, 0), (2, 0, 0), (1 << 31, 0, 1)],
    ids=["none", "more than rows", "no row", "out of order", "one twice", "beyond the end"],
)
def test_lone_tombstones_that_cannot_be_are_refused(marks: tuple[int, int, int]) -> None:
    """How many there are, and of which rows."""
    log = _keeping(2)
    payload = bytearray(_kept(log, 0, 2, (0, 1), alone={0: -7, 1: 1 << 40})[5:])
    struct.pack_into("<3I", payload, payload.index(b"hosthost") + 8, *marks)
    before = log.state.topics.canonical()

    assert isinstance(_say(log, frame(CommandType.REKEEP, bytes(payload))), InvalidArgument)
    assert log.state.topics.canonical() == before


@pytest.mark.parametrize(("at", "value"), [(5, 2), (6, 4)])
def test_a_newer_rekeep_stops_the_node(at: int, value: int) -> None:
    """Version and flags are looked at before anything else."""
    log = _keeping(2)
    command = bytearray(_kept(log, 0, 2, (0, 1)))
    command[at] = value

    with pytest.raises(NewerCommand, match="REKEEP"):
        log.append(bytes(command))


@pytest.mark.parametrize("alone", [{}, {1: -5}, {0: 1 << 40, 2: 9}])
def test_a_copy_says_since_when_tombstones_are_alone(alone: dict[int, int]) -> None:
    """By row, beside what it says of all; a copy without any has no byte for it."""
    log = _keeping(3)
    command = _kept(log, 0, 3, (0, 1, 2), alone=alone)
    assert _say(log, command) == Rekept(0)
    (block,), entry = _blocks(log), log.entries[-1]

    assert alone_since(entry, block.start, block.stop) == alone
    assert origins(entry, block.start, block.stop)[1] == Origin(7, 501, "host")
    marks = 4 + 12 * len(alone) if alone else 0
    assert len(command) == len(_kept(log, 0, 3, (0, 1, 2))) + marks


def test_a_block_without_gaps_takes_no_bytes_for_them() -> None:
    """As most have none: what is rolled whole."""
    log = _keeping(300)
    _say(log, _kept(log, 0, 300, range(300)))

    (block,) = _blocks(log)

    assert (block.gaps, block.codes, block.length) == (b"", b"", 300)


def test_a_damaged_block_is_no_state() -> None:
    """What it says of gaps is checked when it is opened."""
    log = _keeping(4)
    _say(log, _kept(log, 0, 4, (1, 3)))
    (block,) = _blocks(log)

    wrong = {"length": 3}, {"end": 3}, {"gaps": b"123"}, {"gaps": b"123456"}
    for changed in wrong:
        with pytest.raises(MalformedStateError):
            block._replace(**changed).offsets()


@pytest.mark.parametrize(("gap", "size_bytes"), [(0xFF, 1), (0x100, 2), (1 << 16, 4), (1 << 32, 8)])
def test_a_gap_takes_no_more_bytes_than_the_largest_of_its_block(gap: int, size_bytes: int) -> None:
    """The rows are where they were, in a snapshot, too."""
    rows = [5, 6, 7 + gap, 9 + gap]

    block = block_of(2, 20 + gap, (1, 5, 99), rows, [0] * 4, newest_ms=0)

    assert list(block.offsets()) == rows
    assert len(block.gaps) == 4 * size_bytes
    assert KeptBlock.read(Reader(b"".join(block.encode()))) == block


def test_a_gap_is_no_offset() -> None:
    """Who asks for one is told, as for what retention has dropped."""
    log = _keeping(4)
    _say(log, _kept(log, 0, 4, (1, 3)))
    queue = log.state.topics.queue("t", 0)

    for offset in (0, 2, 4):
        with pytest.raises(OffsetOutOfRange):
            queue.locate(offset)
    with pytest.raises(OffsetOutOfRange):
        queue.code(2)


def test_an_empty_rekeep_has_a_head_only() -> None:
    """It says that all of the range is gone."""
    log = _keeping(3)
    command = _kept(log, 0, 2, ())
    assert Rekeep(command, 5, len(command)).offsets == ()

    assert _say(log, command) == Rekept(2)
    assert _there(log) == [2]
    assert log.state.topics.queue("t", 0).first == 2
