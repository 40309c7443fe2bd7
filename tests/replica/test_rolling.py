"""What is copied next, and how much of it: pure."""

from __future__ import annotations

from dledger.broker.commands import SetRetention
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.kept_blocks import MAX_ROWS
from dledger.broker.message import Columns, Encoding, Message, id_of_place
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.rekeep import Origin, origins
from dledger.broker.results import Rekept
from dledger.broker.topics import Topic
from dledger.replica.rolling import (
    MAX_BYTES,
    Due,
    effective_hours,
    held_bytes,
    next_roll,
    past_blocks,
    rekeep_of,
)
from dledger.types import Entry, MovedFrom, Typed
from tests.broker.log import Log


def _log() -> Log:
    log = Log()
    log.create()
    log.append(SetRetention(name="t", hours=0).encode())
    return log


def _topic(log: Log) -> Topic:
    return log.state.topics.named("t")


def _queue(log: Log) -> ConsumeQueue:
    return log.state.topics.queue("t", 0)


def _read(log: Log, index: int) -> Entry:
    return log.entries[index - 1]


def _roll(log: Log, before: int) -> int:
    """Roll all that is due; return how many commands that were."""
    commands = 0
    while (roll := next_roll(_topic(log), 0, _queue(log), Due.below(before))) is not None:
        command, _ = rekeep_of(roll, lambda index: _read(log, index), lambda *_: True)
        (result,) = log.append(command)
        assert result == Rekept(0)
        commands += 1
    return commands


def _lengths(log: Log) -> list[int]:
    return [block.length for block in _queue(log).blocks or ()]


def test_blocks_do_not_rise_with_time() -> None:
    """Ten messages a day, and a retention of three: after 400 days there are a few blocks."""
    log = _log()
    days, most = list[int](), 0
    for _ in range(400):
        log.produce(*"0123456789")
        days.append(len(log.entries))
        if len(days) > 3:
            _roll(log, days[-4] + 1)
            log.retain(days[-4] + 1)
            most = max(most, len(_lengths(log)))

    assert log.state.topics.messages("t") == 4_000
    assert most <= 12
    assert sum(_lengths(log)) > 3_900


def test_a_command_has_no_more_rows_than_it_may() -> None:
    """Of single messages, and of one batch that is larger."""
    for sizes in ([1] * (MAX_ROWS + 10), [2 * MAX_ROWS + 5]):
        log = _log()
        for size in sizes:
            log.produce(*["x"] * size)

        _roll(log, len(log.entries) + 1)

        assert max(_lengths(log)) <= MAX_ROWS
        assert sum(_lengths(log)) == sum(sizes)


def test_a_command_is_no_larger_than_it_may_be() -> None:
    """But for a single message that is; one batch is cut where it gets too large."""
    log = _log()
    body = b"x" * (MAX_BYTES // 3)
    batch = Columns(message_ids=["", "", "", "", ""], bodies=[body] * 5, born_at_ms=[0] * 5)
    log.append(encode_produce(batch, client_id="c", topic="t", queue_id=0))
    log.produce("y" * (3 * MAX_BYTES))
    log.produce("z")
    first = len(log.entries) + 1

    _roll(log, first)

    rolls = [entry.data for entry in log.entries[first - 1 :]]
    assert all(len(data) < 2 * MAX_BYTES for data in rolls if b"yyy" not in data)
    assert sum(_lengths(log)) == 7
    assert len(_lengths(log)) >= 3


def test_two_payloads_of_one_entry_are_told_apart() -> None:
    """Each row is copied from its own, whichever entry both are in."""
    log, bodies = _log(), [b"a", b"b", b"c", b"d"]
    pairs = [
        Columns(message_ids=["", ""], bodies=pair, born_at_ms=[0, 0])
        for pair in (bodies[:2], bodies[2:])
    ]
    log.append(*(encode_produce(p, client_id="c", topic="t", queue_id=0) for p in pairs))

    _roll(log, len(log.entries) + 1)

    (copy,) = _queue(log).stretches(0)
    frame = ProduceFrame(_read(log, copy.entry).data, copy.start, copy.end)
    assert [frame.message(row).body for row in range(4)] == bodies


def test_the_first_block_goes_by_its_own_retention() -> None:
    """Not by how long its neighbours are kept, nor by when it was copied."""
    log = _log()
    stored = []
    for _ in range(3):
        stored.append(log.now_ms)
        log.produce(*["x"] * 3_000)
        log.now_ms += 1_000
        _roll(log, len(log.entries) + 1)
    log.now_ms += 100_000
    assert _lengths(log) == [3_000] * 3

    command = past_blocks(_topic(log), 0, _queue(log), lambda at_ms: at_ms <= stored[0])

    assert command is not None
    assert log.append(command) == [Rekept(3_000)]
    assert _queue(log).first == 3_000
    assert past_blocks(_topic(log), 0, _queue(log), lambda at_ms: at_ms <= stored[0]) is None


def test_a_retention_is_never_shorter_than_the_groups() -> None:
    """Zero is for ever, whosever it is."""
    assert effective_hours(100, 72) == 100
    assert effective_hours(10, 72) == 72
    assert effective_hours(0, 72) == effective_hours(100, 0) == 0


_MOVED_FROM = MovedFrom(topic="o", generation=2, queue_id=3, offset=4, stored_at_ms=5)


def test_a_copy_has_all_that_its_message_had() -> None:
    """Keys, properties, trace, encoding, and its producer's clock and address; however often.

    Also what only some types of topics know.
    """
    log = _log()
    message = Message(
        message_id="id",
        body=b"packed",
        tag="t\u00fcr",
        keys=("a", "b"),
        properties={"x": "1", "y": ""},
        born_at_ms=77,
        encoding=Encoding.GZIP,
        trace_context="00-1",
        typed=Typed(message_group="g", priority=3, moved_from=_MOVED_FROM),
    )
    batch = Columns.of([message, Message(message_id="", body=b"plain")])
    log.append(encode_produce(batch, client_id="c", topic="t", queue_id=0, born_host="10.0.0.9:1"))
    stored = log.entries[-1]

    for _ in range(2):
        log.now_ms += 1_000
        _roll(log, len(log.entries) + 1)

    place = _queue(log).locate(0)
    entry = _read(log, place.payload.index)
    start, end = place.payload.start, place.payload.end
    frame = ProduceFrame(entry.data, start, end)
    assert frame.message(0) == message
    assert frame.message(1).message_id == id_of_place(stored.index, 5, 1)
    assert set(origins(entry, start, end)) == {
        Origin(stored.index, stored.timestamp_ms, "10.0.0.9:1")
    }


def test_a_message_that_cannot_be_decoded_goes_alone() -> None:
    """Nobody ever got it; the others of its batch are copied as they were."""
    log, keys = _log(), ["good", "broken", "fine"]
    batch = Columns(
        message_ids=["1", "", "3"],
        bodies=[b"a", b"b", b"c"],
        born_at_ms=[7, 8, 9],
        keys=[(key,) for key in keys],
    )
    command = encode_produce(batch, client_id="c", topic="t", queue_id=0)
    log.append(command.replace(b"broken", b"\xffroken"))

    roll = next_roll(_topic(log), 0, _queue(log), Due.below(len(log.entries) + 1))
    assert roll is not None
    copy, kept = rekeep_of(roll, lambda index: _read(log, index), lambda *_: True)

    assert (kept, log.append(copy)) == (2, [Rekept(1)])
    (block,) = tuple(_queue(log).blocks or ())
    frame = ProduceFrame(log.entries[-1].data, block.start, block.stop)
    assert list(block.offsets()) == [0, 2]
    assert [
        (each.message_id, each.body, each.keys, each.born_at_ms)
        for each in map(frame.message, range(2))
    ] == [("1", b"a", ("good",), 7), ("3", b"c", ("fine",), 9)]


def test_what_would_have_to_be_copied_is_counted_once_a_payload() -> None:
    """Whatever tags cut it into runs."""
    log = _log()
    for number in range(4):
        log.produce("x" * 1_000, "y", tag="ab"[number % 2])

    part = _queue(log).part(1, len(log.entries))

    assert part is not None
    assert 4_000 < held_bytes([part]) < 4_600
