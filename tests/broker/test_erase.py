"""ERASE: what is refused, on all nodes alike, who is shown nothing any more, and what is told."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from dledger.broker import erasures, log_runs
from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import DeleteTopic, SetRetention
from dledger.broker.erase import Erase
from dledger.broker.erased_offsets import ErasedOffsets
from dledger.broker.erasures import Erasure, Erasures
from dledger.broker.results import Erased, Rekept
from dledger.broker.snapshot_codec import MalformedStateError, Reader
from dledger.broker.state import BrokerState
from dledger.errors import InvalidArgument, NewerCommand, OffsetOutOfRange, UnknownTopic
from tests.broker.compacted import compact_topics
from tests.broker.log import Log, offsets
from tests.broker.rekept import kept, say, there


@pytest.fixture(autouse=True)
def _compacted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compact_topics(patch)
        yield


def _erase(
    rows: Sequence[int], *, generation: int = 1, queue_id: int = 0, first_entry: int = 1
) -> bytes:
    return Erase(
        generation=generation, queue_id=queue_id, first_entry=first_entry, offsets=tuple(rows)
    ).encode()


def _log(*batches: int) -> Log:
    """Return a log whose entries from 3 on have so many messages each of a compacted topic."""
    log = Log()
    log.create()
    log.append(SetRetention(name="t", hours=0).encode())
    first = 0
    for size in batches:
        log.produce(*(f"{first + row}" for row in range(size)))
        first += size
    return log


def _round_trip(log: Log) -> None:
    data = log.state.encode()
    again = BrokerState.decode(data)
    assert again.digest() == log.state.digest() == log.replay().digest()
    assert again.encode() == data


@pytest.mark.parametrize("copied", [0, 3, 8], ids=["in runs", "in both", "in a block"])
def test_nobody_is_shown_what_was_erased(copied: int) -> None:
    """Not by position, in slices, by tag or by number; whether it lies in the log or in a block."""
    log = _log(1, 4, 3)
    if copied:
        assert say(log, kept(log, 0, copied, range(copied))) == Rekept(0)

    assert say(log, _erase((0, 2, 3, 7))) == Erased(4, len(log.entries))

    queue, left = log.state.topics.queue("t", 0), [1, 4, 5, 6]
    assert there(log) == left
    assert [s.first + i for s in queue.stretches(queue.first) for i in range(s.length)] == left
    assert [o for run in queue.runs(queue.first) for o in range(run.first, run.end)] == left
    assert [queue.count_from(offset) for offset in range(9)] == [4, 4, 3, 3, 3, 2, 1, 0, 0]
    assert log.state.topics.messages("t") == 4
    for offset in (0, 2, 3, 7):
        for ask in (queue.locate, queue.stretch, queue.code):
            with pytest.raises(OffsetOutOfRange):
                ask(offset)
    assert queue.stretch(1)[1] == 1
    _round_trip(log)


def test_a_slice_keeps_the_rows_of_its_payload() -> None:
    """What is behind a gap lies as many rows further on."""
    log = _log(5)
    say(log, _erase((1, 2)))
    queue = log.state.topics.queue("t", 0)

    assert [(s.first, s.length, s.row) for s in queue.stretches(0)] == [(0, 1, 0), (3, 2, 3)]
    assert queue.locate(3).row == 3


def test_places_have_no_gaps_and_no_erased_messages() -> None:
    """An export says where the others are: its runs end before what was erased."""
    log = _log(4, 4)
    say(log, _erase((1, 2, 6)))

    part = log.state.topics.queue("t", 0).part(1, 9)

    assert part is not None
    assert [
        (list(columns.firsts), list(columns.rows), list(columns.indexes), columns.end)
        for columns in part.columns()
    ] == [([0], [0], [3], 1), ([3, 4], [3, 0], [3, 4], 6), ([7], [3], [4], 8)]


def test_where_nothing_is_nothing_is_erased() -> None:
    """Neither what is gone, nor what the queue has not come to: not even when it comes."""
    log = _log(4)
    say(log, kept(log, 0, 3, (0, 2)))

    assert say(log, _erase((1, 2, 4, 99))) == Erased(1, len(log.entries))
    assert say(log, _erase((1, 2, 4))) == Erased(0, len(log.entries))
    log.produce("4")

    assert there(log) == [0, 3, 4]
    assert [each.messages for each in log.state.erasures] == [1]


def test_other_topics_are_not_touched() -> None:
    """A topic that is not compacted, a queue that it has not, one that was made anew: refused."""
    log = _log(2)
    topic = log.state.topics.named("t")
    log.state.topics._topics["t"] = replace(topic, compaction=None)
    assert isinstance(say(log, _erase((0,))), InvalidArgument)
    assert isinstance(say(log, _erase((0,), generation=2)), UnknownTopic)
    log = _log(2)
    assert isinstance(say(log, _erase((0,), queue_id=1)), InvalidArgument)
    log.append(DeleteTopic(name="t", generation=1).encode())
    log.create()
    log.append(SetRetention(name="t", hours=0).encode())
    log.produce("new")
    assert isinstance(say(log, _erase((0,))), UnknownTopic)
    assert there(log) == [0]


def test_what_was_erased_is_not_copied() -> None:
    """A REKEEP that names it is late, and refused; another takes its bytes along with it."""
    log = _log(4)
    late = kept(log, 0, 4, (0, 1, 2, 3))
    say(log, _erase((1, 3)))

    assert isinstance(say(log, late), InvalidArgument)
    assert say(log, kept(log, 0, 3, (0, 2))) == Rekept(0)

    queue = log.state.topics.queue("t", 0)
    assert list(queue.erased or ()) == [3]
    assert there(log) == [0, 2]
    assert log.state.topics.messages("t") == 2
    _round_trip(log)


def test_a_block_goes_with_the_last_of_its_messages() -> None:
    """Else its entry would hold retention back for nothing."""
    log = _log(1, 1, 1, 1)
    say(log, kept(log, 0, 2, (0, 1)))
    queue = log.state.topics.queue("t", 0)
    say(log, _erase((0,)))
    assert queue.blocks is not None

    say(log, _erase((1,)))

    assert log.state.topics.queue("t", 0).blocks is None
    assert log.state.topics.queue("t", 0).erased is None
    assert log.state.topics.lowest_held() == 5
    _round_trip(log)


def test_retention_does_not_wait_for_what_was_erased() -> None:
    """The log behind it goes, and then nothing is left of it in the state either."""
    log = _log(2, 1, 1)
    say(log, _erase((0, 1, 2)))
    assert log.state.topics.lowest_held() == 5

    log.retain(len(log.entries) + 1)

    assert log.state.first_index == 5
    queue = log.state.topics.queue("t", 0)
    assert (queue.erased, queue.log_first, there(log)) == (None, 3, [3])
    say(log, _erase((3,)))
    assert log.state.topics.lowest_held() is None
    log.produce("4")
    assert log.state.topics.lowest_held() == len(log.entries)
    _round_trip(log)


def test_entries_that_are_lost_take_erased_offsets_with_them() -> None:
    """`log discard` drops blocks, too: what was erased of them is nowhere any more."""
    log = _log(1, 1, 1, 1)
    say(log, kept(log, 0, 2, (0, 1)))
    say(log, _erase((0, 2)))

    assert log.state.forget_before(len(log.entries) + 1) == 2
    assert log.state.topics.messages("t") == 0
    assert log.state.topics.queue("t", 0).erased is None


def test_leases_and_attempts_on_erased_messages_stop_nobody() -> None:
    """In the middle of a run of the log: a lease that ends is forgotten, an attempt gets the rest.

    And a retry goes to what is left.
    """
    log = _log(6)
    log.receive(4, attempt_id="a")
    say(log, _erase((1, 2, 5)))

    assert offsets(log.receive(4, attempt_id="a")) == [0, 3]
    log.now_ms += 5_000
    again = log.receive(9)
    assert offsets(again) == [0, 3, 4]
    assert log.ack(again) == (True, True, True)
    log.now_ms += 5_000
    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) == 0
    assert log.state.groups.backlog("g", "t").unread == 0
    _round_trip(log)


def test_a_lease_on_an_erased_message_goes_when_a_copy_passes_it() -> None:
    """The REKEEP lets go of no message, and yet the queue may begin behind what was leased."""
    log = _log(4)
    log.receive(2)
    say(log, _erase((0, 1)))

    assert say(log, kept(log, 0, 3, (2,))) == Rekept(0)

    _round_trip(log)
    assert offsets(log.receive(9)) == [2, 3]


def test_a_group_that_comes_later_gets_what_is_left() -> None:
    """With erased messages at both ends and in between, and it comes to an end."""
    log = _log(6)
    say(log, _erase((0, 3, 5)))

    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=99) == 3
    assert log.state.groups.backlog("g", "t").unread == 3
    assert offsets(log.receive(2)) == [1, 2]
    assert offsets(log.receive(9)) == [4]
    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=99) == 0
    log.produce("6")
    assert offsets(log.receive(9)) == [6]


def test_what_a_filter_passed_over_is_not_delivered_when_it_was_erased() -> None:
    """It was kept for another filter of the group."""
    log = _log()
    log.receive(1, tags=("b",))
    for number in range(6):
        log.produce(f"{number}", tag="ab"[number % 2])
    assert offsets(log.receive(9, tags=("a",))) == [0, 2, 4]

    say(log, _erase((1, 5)))

    assert offsets(log.receive(9, tags=("b",))) == [3]


def test_a_retry_of_an_erased_message_is_answered() -> None:
    """As of one that retention has dropped: it was stored, and is not stored again."""
    log = _log()
    log.produce("a", ids=("1",))
    say(log, _erase((0,)))

    again = log.produce("a", ids=("1",))

    assert (again.stored, list(again.offsets), again.index) == (0, [0], 0)
    assert log.state.topics.messages("t") == 0


def test_a_snapshot_is_not_touched_by_what_comes_behind_it() -> None:
    """What was erased is shared with it, and never changed."""
    log = _log(4, 4)
    say(log, _erase((1,)))
    frozen, before = log.state.freeze(), log.state.digest()

    say(log, _erase((2, 6)))
    assert there(log) == [0, 3, 4, 5, 7]
    say(log, kept(log, 0, 4, (0, 3)))

    assert BrokerState.decode(frozen.encode()).digest() == before
    assert there(log) == [0, 3, 4, 5, 7]


@pytest.mark.parametrize("copied", [0, 7])
def test_erased_offsets_lie_over_sealed_pieces(
    copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece that is sealed is not written anew, and its columns are cut where they are asked."""
    monkeypatch.setattr(log_runs, "_SEALED", 3)
    log = _log(*[1] * 20)
    if copied:
        say(log, kept(log, 0, copied, range(copied)))
    gone = {0, 1, 5, 6, 7, 8, 12, 19}

    say(log, _erase(sorted(gone)))

    queue, left = log.state.topics.queue("t", 0), [o for o in range(20) if o not in gone]
    assert [o for run in queue.runs(0) for o in range(run.first, run.end)] == left
    assert [s.first + i for s in queue.stretches(queue.first) for i in range(s.length)] == left
    part = queue.part(1, 99)
    assert part is not None
    found = [o for c in part.columns() for o in range(c.firsts[0], c.end)]
    assert found == [o for o in left if o >= copied]
    _round_trip(log)


# -- what is remembered --------------------------------------------------------------------------


def test_an_erasure_is_remembered_until_the_log_begins_behind_it() -> None:
    """All of the key's bytes lie below it: also older ones that compaction let go, and copies."""
    log = _log(1, 1)
    log.now_ms = 7_000_000
    say(log, _erase((0,), first_entry=4))
    entry = len(log.entries)
    assert [*log.state.erasures] == [Erasure(entry, 7_000_000, "t", 1, 4)]
    say(log, kept(log, 0, 2, (1,)))

    log.state.forget_before(entry - 1)
    assert len(log.state.erasures) == 1
    _round_trip_alone(log)
    log.state.forget_before(entry)
    assert len(log.state.erasures) == 0


def _round_trip_alone(log: Log) -> None:
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()


def test_an_erasure_outlives_its_topic() -> None:
    """The topic is deleted; what its messages were still lies in the log."""
    log = _log(1)
    say(log, _erase((0,)))
    log.append(DeleteTopic(name="t", generation=1).encode())

    assert [each.topic for each in log.state.erasures] == ["t"]
    _round_trip(log)


def test_many_erasures_become_one_that_says_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two oldest: it lasts as long as the later, and lies from the lower entry on."""
    monkeypatch.setattr(erasures, "MAX_ERASURES", 2)
    found = Erasures()
    for entry, topic, first in ((5, "t", 2), (6, "t", 1), (7, "u", 3)):
        found.remember(Erasure(entry, 10 * entry, topic, 1, first))
    assert [*found] == [Erasure(6, 60, "t", 2, 1), Erasure(7, 70, "u", 1, 3)]

    found.remember(Erasure(8, 80, "u", 1, 3))

    assert [*found] == [Erasure(7, 70, "", 3, 1), Erasure(8, 80, "u", 1, 3)]
    found.forget_before(7)
    assert [each.entry for each in found] == [8]


def test_a_snapshot_without_erased_messages_has_the_bytes_of_before() -> None:
    """Nothing is written of what is not there, nor of what is over."""
    log, same = _log(1, 1), _log(1, 1)
    say(log, _erase((0,)))
    same.append(Erase(generation=9, queue_id=0, first_entry=1, offsets=(0,)).encode())
    with_it = log.state.encode()
    for each in (log, same):
        each.state.forget_before(len(log.entries))

    assert len(with_it) > len(log.state.encode())
    assert log.state.encode() == same.state.encode()


def test_a_damaged_snapshot_of_erasures_is_no_state() -> None:
    """Each number is bounded: by what the log has, and by the order of the entries."""
    good = Erasure(5, 50, "t", 1, 2)

    for wrong in (
        [good._replace(entry=1)],
        [good._replace(entry=10)],
        [good._replace(messages=0)],
        [good, good._replace(entry=4)],
    ):
        said = Erasures()
        for each in wrong:
            said.remember(each)
        with pytest.raises(MalformedStateError):
            Erasures().read(Reader(b"".join(said.freeze())), first_index=1, applied_index=9)


@pytest.mark.parametrize("wrong", [(), (3, 3), (4, 3), (8,)])
def test_erased_offsets_of_a_snapshot_ascend_below_the_end(wrong: tuple[int, ...]) -> None:
    """The bytes come from a peer."""
    with pytest.raises(MalformedStateError):
        ErasedOffsets.read(Reader(b"".join(ErasedOffsets(wrong).encode())), 8)


def test_an_erased_offset_in_a_gap_is_no_state() -> None:
    """Numbers are taken by subtraction, so each stands for a message that would be there."""
    log = _log(4)
    say(log, kept(log, 0, 3, (0, 2)))
    queue = log.state.topics._own("t", 0)
    queue.erased = ErasedOffsets((1,))

    with pytest.raises(MalformedStateError, match="where no message was"):
        BrokerState.decode(log.state.encode())


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "new"),
    [
        (0, b"\0"),
        (2, b"\1"),
        (24, struct.pack("<I", 3)),
        (24, struct.pack("<I", 0)),
        (28, struct.pack("<2Q", 1, 1)),
        (28, struct.pack("<2Q", 1, 0)),
    ],
)
def test_what_is_no_erase_is_refused_and_changes_nothing(at: int, new: bytes) -> None:
    """The bytes come from a peer's log: each part is checked before anything is changed."""
    log = _log(2)
    payload = bytearray(_erase((0, 1))[5:])
    payload[at : at + len(new)] = new
    before = log.state.topics.canonical()

    assert isinstance(say(log, frame(CommandType.ERASE, bytes(payload))), InvalidArgument)
    assert isinstance(say(log, frame(CommandType.ERASE, bytes(payload[:20]))), InvalidArgument)
    assert log.state.topics.canonical() == before


@pytest.mark.parametrize("at", [5, 6])
def test_a_newer_erase_stops_the_node(at: int) -> None:
    """Version and flags are looked at before anything else."""
    log = _log(1)
    command = bytearray(_erase((0,)))
    command[at] = 2

    with pytest.raises(NewerCommand, match="ERASE"):
        log.append(bytes(command))


def test_no_more_is_erased_in_one_turn() -> None:
    """Who has more says it in several commands."""
    log = _log(1)

    assert isinstance(say(log, _erase(range(4_097))), InvalidArgument)
    assert say(log, _erase(range(4_096))) == Erased(1, len(log.entries))
