"""The commands on held messages: their bytes, their bounds, and what they leave alone."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from dledger.broker import held_bucket, held_messages
from dledger.broker.command_frame import HEADER_BYTES, CommandType, UnknownCommandError, frame
from dledger.broker.commands import (
    CancelHeld,
    CreateTopic,
    DeleteTopic,
    PauseHeld,
    ResumeHeld,
    Retain,
)
from dledger.broker.held_commands import (
    ProduceHeld,
    ReleaseHeld,
    What,
    encode_produce_held,
    encode_release_held,
)
from dledger.broker.held_refs import HELD_QUEUE, HOUR_MS, Fate, Kind, Ref
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.results import HeldCancelled, HeldMoved, HeldPaused, HeldReleased, Produced
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.broker.topics import Compaction
from dledger.common.replay_mark import ReplayMark
from dledger.errors import InvalidArgument, LimitReached, NewerCommand, UnknownTopic
from dledger.types import Typed
from tests.broker.log import Log

_TWO = (Message(message_id="a", body=b"1"), Message(message_id="b", body=b"22"))
_MARK = ReplayMark(b"k" * 16, 1)


def _log(kind: str = "DELAY") -> Log:
    log = Log(now_ms=500_000 * HOUR_MS)
    log.append(CreateTopic(name="t", type=kind, queues=2).encode())
    return log


def _held(
    log: Log,
    *messages: Message,
    after_ms: int = 1000,
    kind: Kind = Kind.TIMER,
    mark: ReplayMark | None = None,
) -> bytes:
    due_ms = [log.now_ms + after_ms] * len(messages)
    produce = encode_produce(Columns.of(messages), client_id="c", topic="t", replay=mark)
    return encode_produce_held(kind, due_ms, produce)


def _hold(log: Log, *messages: Message, after_ms: int = 1000) -> list[Ref]:
    (found,) = log.append(_held(log, *messages, after_ms=after_ms))
    assert isinstance(found, Produced), found
    assert set(found.queue_ids) == {HELD_QUEUE}
    return [Ref.unpack(offset) for offset in found.offsets]


def _release(refs: list[Ref], *messages: Message, what: What = What.DELIVER) -> bytes:
    return encode_release_held(what, refs, Columns.of(messages), topic="t", generation=1)


def _payload(command: bytes) -> bytes:
    return command[HEADER_BYTES:]


# -- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1])
def test_a_newer_version_or_kind_stops_a_node(at: int) -> None:
    """Before anything else of it is read; the state stays as it was."""
    log = _log()
    for command in (_held(log, *_TWO), _release([Ref(1, 2), Ref(1, 3)], *_TWO)):
        newer = bytearray(command)
        newer[HEADER_BYTES + at] = 9
        before = log.state.digest()

        with pytest.raises(NewerCommand):
            log.append(bytes(newer))

        log.entries.pop()
        assert log.state.digest() == before


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0), (1, 0), (2, 1), (4, 3), (4, 0), (7, 255), (24, 17)],
    ids=["version", "kind", "zero", "count", "none", "far too many", "back"],
)
def test_a_malformed_hold_is_refused(at: int, value: int) -> None:
    """Whatever is wrong with its head; nothing is held."""
    log = _log()
    command = bytearray(_held(log, *_TWO))
    assert command[HEADER_BYTES + 24] == CommandType.PRODUCE_HELD
    command[HEADER_BYTES + at] = value

    (found,) = log.append(bytes(command))

    assert isinstance(found, InvalidArgument)
    assert log.state.held.count == 0


def test_a_command_that_is_cut_short_is_refused() -> None:
    """At each byte."""
    log = _log()
    for command in (_held(log, *_TWO), _release([Ref(1, 2), Ref(1, 3)], *_TWO)):
        kind, payload = CommandType(command[HEADER_BYTES - 1]), _payload(command)
        for size in range(len(payload)):
            (found,) = log.append(frame(kind, payload[:size]))
            assert isinstance(found, InvalidArgument)


@pytest.mark.parametrize("due_ms", [-1, HOUR_MS << 20])
def test_what_is_due_in_no_hour_is_refused(due_ms: int) -> None:
    """The number of the hour has 20 bits: to the year 2089."""
    log = _log()
    produce = encode_produce(Columns.of(_TWO[:1]), client_id="c", topic="t")

    (found,) = log.append(encode_produce_held(Kind.TIMER, [due_ms], produce))

    assert isinstance(found, InvalidArgument)


def test_a_release_names_each_message_once_and_no_producer() -> None:
    """A name that cannot be, or twice, is malformed; so is a payload of somebody's."""
    release = _release([Ref(1, 2), Ref(1, 2)], *_TWO)
    assert isinstance(_log().append(release)[0], InvalidArgument)
    assert isinstance(_log().append(_release([Ref(1 << 20, 0)], _TWO[0]))[0], InvalidArgument)
    theirs = encode_produce(Columns.of(_TWO[:1]), client_id="c", topic="t")
    head = _payload(_release([Ref(1, 2)], _TWO[0]))[: struct.calcsize("<BBHIQ") + 8 + 1]
    command = frame(CommandType.RELEASE_HELD, head, _payload(theirs))
    assert isinstance(_log().append(command)[0], InvalidArgument)


def test_what_is_read_is_what_was_written() -> None:
    """Of both."""
    log = _log()
    command = _payload(_held(log, *_TWO, kind=Kind.HALF))
    held = ProduceHeld(command, 0, len(command))
    assert (held.kind, held.due_ms) == (Kind.HALF, (log.now_ms + 1000,) * 2)
    command = _payload(_release([Ref(1, 2), Ref(3, 4)], *_TWO, what=What.MOVE))
    released = ReleaseHeld(command, 0, len(command))
    assert (released.what, released.refs, released.generation) == (
        *(What.MOVE, [Ref(1, 2), Ref(3, 4)]),
        1,
    )
    with pytest.raises(UnknownCommandError):
        ReleaseHeld(b"\x02", 0, 1)


# -- bounds and refusals ---------------------------------------------------------------------------


def test_no_more_than_so_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that would go beyond holds nothing of its own; a repeat is answered as ever."""
    monkeypatch.setattr(held_messages, "MAX_HELD", 3)
    log = _log()
    refs = _hold(log, *_TWO)
    more = [Message(message_id=each, body=b"x") for each in "xyz"]

    (found,) = log.append(_held(log, *more[:2]))

    assert isinstance(found, LimitReached)
    assert log.state.held.count == 2
    assert _hold(log, *_TWO) == refs
    log.append(CancelHeld(refs=tuple(refs)).encode())
    _hold(log, *more)


def test_an_hour_has_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never given twice, so a flood of recalled ones uses them up."""
    monkeypatch.setattr(held_messages, "SLOT_BITS", 1)
    log = _log()
    log.append(CancelHeld(refs=tuple(_hold(log, *_TWO))).encode())

    (found,) = log.append(_held(log, Message(message_id="x", body=b"x")))

    assert isinstance(found, LimitReached)
    _hold(log, Message(message_id="x", body=b"x"), after_ms=2 * HOUR_MS)


def test_nothing_is_held_for_a_topic_that_keeps_by_key() -> None:
    """Its keys are checked when they come, and what is delivered later was not."""
    log = Log()
    log.append(
        CreateTopic(name="t", type="NORMAL", queues=2, compaction=Compaction()).encode(),
    )

    assert isinstance(log.append(_held(log, *_TWO))[0], InvalidArgument)


def test_nothing_is_held_for_an_unknown_topic_or_queue() -> None:
    """As a PRODUCE would be refused."""
    log = Log()
    assert isinstance(log.append(_held(log, *_TWO))[0], UnknownTopic)
    log = _log()
    produce = encode_produce(Columns.of(_TWO[:1]), client_id="c", topic="t", queue_id=2)
    command = encode_produce_held(Kind.TIMER, [log.now_ms], produce)
    assert isinstance(log.append(command)[0], InvalidArgument)
    assert log.state.held.count == 0


# -- what a release, a recall and a pause do -------------------------------------------------------


def test_what_is_delivered_goes_on_in_the_order_of_its_queues() -> None:
    """Rows that are held no longer leave no gap; tags and times come along."""
    log = _log()
    messages = [
        Message(message_id=each, body=each.encode(), tag=each, typed=Typed(deliver_at_ms=7))
        for each in "abcd"
    ]
    refs = _hold(log, *messages)
    log.append(CancelHeld(refs=(refs[1],)).encode())

    (found,) = log.append(_release(refs, *messages))

    assert isinstance(found, HeldReleased)
    assert found.before == (Fate.HELD, Fate.CANCELLED, Fate.HELD, Fate.HELD)
    assert found.stored is not None
    assert (found.stored.queue_ids, found.stored.offsets) == ((0, -1, 0, 0), (0, -1, 1, 2))
    assert log.state.topics.messages("t") == 3
    queue = log.state.topics.queue("t", 0)
    assert [queue.locate(offset).row for offset in range(3)] == [0, 2, 3]
    assert log.state.take_changes().arrived == {("t", 0)}


def test_what_is_held_no_longer_is_passed_over() -> None:
    """Two leaders let the same go; one message was recalled before."""
    log = _log()
    refs = _hold(log, *_TWO)
    log.append(CancelHeld(refs=(refs[0],)).encode())

    (first,) = log.append(_release(refs, *_TWO))
    (again,) = log.append(_release(refs, *_TWO))

    assert isinstance(first, HeldReleased)
    assert isinstance(again, HeldReleased)
    assert first.before == (Fate.CANCELLED, Fate.HELD)
    assert again == HeldReleased(before=(Fate.CANCELLED, Fate.DELIVERED), stored=None)
    assert sum(queue.count for queue in log.state.topics.queues("t")) == 1


def test_a_queue_that_is_not_there_refuses_the_release() -> None:
    """Nothing is taken away then."""
    log = _log()
    refs = _hold(log, *_TWO)
    command = encode_release_held(
        What.DELIVER, refs, Columns.of(_TWO), topic="t", generation=1, queue_id=5
    )

    assert isinstance(log.append(command)[0], InvalidArgument)
    assert all(map(log.state.held.holds, refs))


def test_what_a_deleted_topic_left_goes_to_no_topic_of_its_name() -> None:
    """It is cancelled by whoever would deliver it."""
    log = _log()
    refs = _hold(log, *_TWO)
    log.append(
        DeleteTopic(name="t", generation=1).encode(),
        CreateTopic(name="t", type="DELAY", queues=1).encode(),
    )

    (found,) = log.append(_release(refs, *_TWO))

    assert found == HeldReleased(before=(Fate.HELD, Fate.HELD), stored=None)
    assert [log.state.held.fate(ref) for ref in refs] == [Fate.CANCELLED] * 2
    assert log.state.topics.messages("t") == 0


def test_what_became_of_a_message_is_known_for_an_hour_after_its_own() -> None:
    """Not a minute less, however it ended; then its name says nothing any more."""
    log = _log()
    refs = _hold(log, *_TWO, after_ms=0)
    log.append(CancelHeld(refs=(refs[0],)).encode(), _release([refs[1]], _TWO[1]))
    late = CancelHeld(refs=tuple(refs)).encode()

    log.now_ms = (refs[0].hour + 2) * HOUR_MS - 1
    before = log.append(late)
    log.now_ms += 1
    after = log.append(late)

    assert before == [HeldCancelled((Fate.CANCELLED, Fate.DELIVERED))]
    assert after == [HeldCancelled((Fate.UNKNOWN, Fate.UNKNOWN))]
    assert not log.state.held.buckets()


def test_an_hour_of_which_something_is_held_is_never_forgotten() -> None:
    """Whoever recalls it a month late is told the truth."""
    log = _log()
    (ref,) = _hold(log, _TWO[0], after_ms=0)
    log.now_ms += 30 * 24 * HOUR_MS

    assert log.append(CancelHeld(refs=(ref,)).encode()) == [HeldCancelled((Fate.HELD,))]
    assert log.state.held.fate(ref) is Fate.CANCELLED, "whoever says it again is told the same"
    log.now_ms += 3 * HOUR_MS
    _hold(log, _TWO[1], after_ms=HOUR_MS)
    assert log.state.held.fate(ref) is Fate.UNKNOWN, "an hour after its last one went"


def test_a_name_is_given_once_also_for_an_hour_that_is_long_over() -> None:
    """The log's time was a day ahead: the hour's names are forgotten, and a later one's used."""
    log = _log()
    (first,) = _hold(log, _TWO[0], after_ms=0)
    log.append(CancelHeld(refs=(first,)).encode())
    due_ms, log.now_ms = log.now_ms, log.now_ms + 24 * HOUR_MS
    produce = encode_produce(Columns.of(_TWO[1:]), client_id="c", topic="t")

    (found,) = log.append(encode_produce_held(Kind.TIMER, [due_ms], produce))

    assert isinstance(found, Produced)
    ref = Ref.unpack(found.offsets[0])
    assert ref != first
    held = log.state.held.find(ref)
    assert held is not None
    assert held.due_ms == due_ms, "when it is due is as it was"


def test_moving_keeps_all_but_the_place() -> None:
    """Who is held no longer is not moved, and not held again."""
    log = _log()
    refs = _hold(log, *_TWO)
    before = log.state.held.find(refs[0])
    log.append(CancelHeld(refs=(refs[1],)).encode())

    assert log.append(_release(refs, *_TWO, what=What.MOVE)) == [HeldMoved(1)]

    after = log.state.held.find(refs[0])
    assert before is not None
    assert after is not None
    assert after._replace(payload=before.payload) == before
    assert after.payload.index == len(log.entries)
    assert not log.state.held.holds(refs[1])
    assert log.state.held.first_entry == len(log.entries)


def test_retention_stops_at_what_is_held() -> None:
    """Whatever a leader has forgotten to copy; what is let go holds nothing."""
    log = _log()
    (ref,) = _hold(log, _TWO[0])
    entry = len(log.entries)
    for number in range(3):
        log.produce(f"{number}")

    log.append(Retain(before_index=len(log.entries)).encode())
    assert log.state.first_index == entry

    log.append(CancelHeld(refs=(ref,)).encode())
    log.append(Retain(before_index=entry + 2).encode())
    assert log.state.first_index == entry + 2


def test_a_restored_replica_lets_go_of_the_same_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a piece of which nothing is left, whatever was remembered of it before."""
    monkeypatch.setattr(held_bucket, "PIECE", 8)
    log = _log()
    messages = [Message(message_id=f"{n}", body=b"x") for n in range(9)]
    refs = _hold(log, *messages[:8])
    _hold(log, messages[8])
    log.append(CancelHeld(refs=tuple(refs)).encode())
    other = BrokerState.decode(log.state.encode())

    log.append(Retain(before_index=len(log.entries)).encode())
    other.apply(log.entries[-1])

    assert log.state.first_index == other.first_index == 3
    assert log.state.digest() == other.digest()


def test_what_lies_in_lost_entries_is_held_no_longer() -> None:
    """Of a disk whose oldest entries are gone: nobody can deliver it."""
    log = _log()
    (lost,) = _hold(log, _TWO[0])
    (there,) = _hold(log, _TWO[1])

    log.state.forget_before(len(log.entries))

    assert log.state.held.fate(lost) is Fate.CANCELLED
    assert log.state.held.holds(there)


def test_a_pause_counts_once_and_what_comes_later_does_not_wait() -> None:
    """The same restore may say it at each start; a word ends it for all that have waited."""
    log = _log()
    (first,) = _hold(log, _TWO[0])
    pause = PauseHeld(pause_id="r").encode()
    assert log.append(pause) == [HeldPaused(1)]
    (second,) = _hold(log, _TWO[1])
    assert log.append(pause) == [HeldPaused(0)]
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()
    held = log.state.held
    assert (held.is_waiting(first), held.is_waiting(second), held.waiting) == (True, False, 1)

    log.append(ResumeHeld(cancels=True).encode(), pause)

    assert (held.fate(first), held.fate(second)) == (Fate.CANCELLED, Fate.HELD)
    assert not held.is_paused
    assert (held.count, held.size_bytes > 0) == (1, True)


@pytest.mark.parametrize("pause_id", ["", "x" * 65])
def test_a_pause_has_a_short_name(pause_id: str) -> None:
    """It is in each snapshot from then on."""
    assert isinstance(_log().append(PauseHeld(pause_id=pause_id).encode())[0], InvalidArgument)


# -- repeats ---------------------------------------------------------------------------------------


def test_another_time_or_body_is_another_message() -> None:
    """Refused by its row; those beside it are held."""
    log = _log()
    _hold(log, *_TWO)
    other = Message(message_id="c", body=b"3")

    (found,) = log.append(_held(log, _TWO[0], other, after_ms=1001))

    assert isinstance(found, Produced)
    assert (tuple(found.conflicts), found.stored) == ((0,), 1)


def test_a_half_is_the_same_whenever_its_producer_is_asked() -> None:
    """Its time is the broker's own."""
    log = _log("TRANSACTION")
    log.append(_held(log, *_TWO, kind=Kind.HALF))

    (found,) = log.append(_held(log, *_TWO, after_ms=5000, kind=Kind.HALF))

    assert isinstance(found, Produced)
    assert tuple(found.repeats) == (0, 1)
    assert log.state.held.halves == 2


def test_a_batch_of_which_some_are_held_goes_to_a_queue_that_is_there() -> None:
    """Where the others were is no queue."""
    log = _log()
    message = Message(message_id="a", body=b"1", typed=Typed(deliver_at_ms=log.now_ms + 1000))
    _hold(log, message)
    batch = [message, Message(message_id="n", body=b"new")]

    (found,) = log.append(encode_produce(Columns.of(batch), client_id="c", topic="t"))

    assert isinstance(found, Produced)
    assert (found.queue_ids, found.stored, found.index) == ((HELD_QUEUE, 0), 1, 0)


def test_a_spool_that_replays_what_is_held_stores_it_once() -> None:
    """Also when the window has forgotten the ids: the lane says how far it came."""
    log = _log()
    log.append(_held(log, *_TWO, mark=_MARK))
    nameless = [Message(message_id="", body=each.body) for each in _TWO]

    (found,) = log.append(_held(log, *nameless, mark=_MARK))

    assert isinstance(found, Produced)
    assert (found.stored, tuple(found.repeats)) == (0, (0, 1))
    assert log.state.held.count == 2


# -- snapshots -------------------------------------------------------------------------------------


def test_a_state_that_never_held_anything_has_the_bytes_that_it_had() -> None:
    """From its first recall on, be it of nothing, it says which hours have passed."""
    log = _log()
    before = log.state.encode()
    assert BrokerState.decode(before).encode() == before

    log.append(CancelHeld(refs=(Ref(1, 1),)).encode())

    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()


def test_a_snapshot_that_is_written_later_is_of_its_moment() -> None:
    """Whatever is held, moved, let go and paused meanwhile."""
    log = _log()
    refs = _hold(log, *_TWO)
    frozen, before = log.state.freeze(), log.state.encode()

    log.append(CancelHeld(refs=(refs[0],)).encode())
    log.append(_release([refs[1]], _TWO[1], what=What.MOVE))
    _hold(log, Message(message_id="x", body=b"x"))
    log.append(PauseHeld(pause_id="r").encode())

    assert frozen.encode() == before
    assert log.state.encode() != before


def test_a_snapshot_with_changed_bytes_of_what_is_held_is_malformed_or_read() -> None:
    """Nothing but MalformedStateError comes out of it."""
    log = _log()
    for number in range(20):
        _hold(log, Message(message_id=f"{number}", body=b"x"), after_ms=number * HOUR_MS // 7)
    held = b"".join(log.state.held.freeze()())
    whole = log.state.encode()
    at = whole.index(held)
    for position in range(at, at + len(held)):
        changed = bytearray(whole[:-4])
        changed[position] ^= 0x80
        _read(bytes(changed))


def _read(body: bytes) -> None:
    try:
        state = BrokerState.decode(body + struct.pack("<I", crc32c(body)))
        state.held.canonical()
    except MalformedStateError:
        pass
