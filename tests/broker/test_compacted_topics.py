"""Compacted topics in the state: made so once, from offset 0 on for ever, queues by key."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import pytest
from crc32c import crc32c

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import (
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    LeaseRef,
    Renew,
    SetRetention,
)
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns, Message
from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.broker.rekeep import Kept, Origin
from dledger.broker.results import Produced, Rekept, TopicCreated
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.broker.topics import MAX_COMPACTION_MS, Compaction
from dledger.common.replay_mark import ReplayMark
from dledger.errors import (
    IllegalKey,
    InvalidArgument,
    NewerCommand,
    OffsetOutOfRange,
    SeveralQueues,
    UnknownTopic,
)
from tests.broker.log import Log, attempts, offsets

_COMPACTION = Compaction(min_lag_ms=5, tombstone_ms=7)


def _create(queues: int = 1, compaction: Compaction | None = _COMPACTION) -> bytes:
    return CreateTopic(name="t", type="NORMAL", queues=queues, compaction=compaction).encode()


def _compacted(count: int = 0, *, queues: int = 1, tag: str = "") -> Log:
    """Return a log with *count* messages of a compacted topic, each in an entry of its own."""
    log = Log()
    log.create(topic="other")
    log.append(_create(queues))
    for number in range(count):
        assert isinstance(_say(log, _batch((f"key {number}",), tag=tag)), Produced)
    return log


def _batch(
    *keys: tuple[str, ...],
    queue_id: int = 0,
    ids: Sequence[str] = (),
    tag: str = "",
    mark: ReplayMark | None = None,
) -> bytes:
    messages = [
        Message(message_id=message_id, body=b"x", keys=each, tag=tag)
        for each, message_id in zip(keys, ids or ("",) * len(keys), strict=True)
    ]
    return encode_produce(
        Columns.of(messages), client_id="c", topic="t", queue_id=queue_id, replay=mark
    )


def _say(log: Log, command: bytes) -> object:
    (result,) = log.append(command)
    return result


def _let_go(log: Log, first: int, to: int, rows: Sequence[int] = ()) -> None:
    """Keep only *rows* of ``[first, to)``."""
    messages = [Message(message_id=f"id {o}", body=b"x", keys=(f"key {o}",)) for o in rows]
    kept = Kept(
        topic="t",
        generation=log.state.topics.named("t").generation,
        queue_id=0,
        first=first,
        to=to,
        offsets=rows,
        origins=[Origin(7, 500 + o, "host") for o in rows],
        messages=Columns.of(messages) if rows else None,
    )
    assert isinstance(_say(log, kept.encode()), Rekept)


def _queue(log: Log) -> ConsumeQueue:
    return log.state.topics.queue("t", 0)


def _available(log: Log, group: str = "g") -> int:
    return log.state.groups.available(group, "t", [0], log.now_ms, enough=99)


# -- how it is made --------------------------------------------------------------------------------


def test_it_is_made_once_and_found_with_the_same_settings() -> None:
    """Its messages are kept for ever from its first one on: it has a retention of 0 hours."""
    log = Log()

    made, found = _say(log, _create()), _say(log, _create())

    assert isinstance(made, TopicCreated)
    assert made.created
    assert made.topic.compaction == _COMPACTION
    assert made.topic.retention_hours == 0
    assert log.state.topics.keeping_longer() == [made.topic]
    assert found == TopicCreated(made.topic, created=False)


_PLAIN = "type NORMAL and 1 queues"
_THIS = "type NORMAL and 1 queues, compacted with a lag of 5 ms and tombstones of 7 ms"
_OTHER = "type NORMAL and 1 queues, compacted with a lag of 5 ms and tombstones of 8 ms"


@pytest.mark.parametrize(
    ("before", "then", "said"),
    [
        (None, _COMPACTION, f"{_PLAIN}, not {_THIS}"),
        (_COMPACTION, None, f"{_THIS}, not {_PLAIN}"),
        (_COMPACTION, Compaction(min_lag_ms=5, tombstone_ms=8), f"{_THIS}, not {_OTHER}"),
    ],
)
def test_it_is_never_made_so_later(
    before: Compaction | None, then: Compaction | None, said: str
) -> None:
    """Nor otherwise: older messages may have no key, and lie in any queue."""
    log = Log()
    log.append(_create(compaction=before))

    refused = _say(log, _create(compaction=then))

    assert isinstance(refused, InvalidArgument)
    assert str(refused) == f"topic 't' exists with {said}"


@pytest.mark.parametrize("time_ms", [-1, MAX_COMPACTION_MS + 1])
@pytest.mark.parametrize("name", ["min_lag_ms", "tombstone_ms"])
def test_its_times_have_bounds(name: str, time_ms: int) -> None:
    """From nothing to what a retention may be."""
    log = Log()
    times = {"min_lag_ms": 0, "tombstone_ms": MAX_COMPACTION_MS, name: time_ms}

    refused = _say(log, _create(compaction=Compaction(**times)))

    assert isinstance(refused, InvalidArgument)
    said = f"{name} of a compacted topic is 0 to {MAX_COMPACTION_MS}, not {time_ms}"
    assert str(refused) == said
    assert log.state.topics.get("t") is None


@pytest.mark.parametrize("hours", [None, 0, 5])
def test_it_has_no_other_retention(hours: int | None) -> None:
    """On all nodes alike: what goes is decided by key."""
    log = _compacted(3)
    _let_go(log, 0, 2, (1,))
    before = log.state.topics.canonical()

    refused = _say(log, SetRetention(name="t", hours=hours).encode())

    assert isinstance(refused, InvalidArgument)
    assert str(refused).startswith("topic 't' is compacted: the newest message of each key is kept")
    assert log.state.topics.canonical() == before


@pytest.mark.parametrize("queues", [1, 2, 16])
def test_it_does_not_grow(queues: int) -> None:
    """A key's queue would be another one then, and its newest message one of two."""
    log = _compacted(1, queues=1)

    refused = _say(log, GrowTopic(name="t", queues=queues).encode())

    assert isinstance(refused, InvalidArgument)
    assert "and its keys lie in its 1 queues for ever: it does not grow" in str(refused)
    assert log.state.topics.named("t").queues == 1


def test_its_command_says_so_and_that_of_others_is_as_before() -> None:
    """A field that is not set is not there."""
    assert _create(compaction=None)[5:] == b'{"name":"t","type":"NORMAL","queues":1}'
    assert _create()[5:] == (
        b'{"name":"t","type":"NORMAL","queues":1,"compaction":{"minLagMs":5,"tombstoneMs":7}}'
    )


@pytest.mark.parametrize(
    ("compaction", "refusal"),
    [
        (b"null", "is not an object"),
        (b"{}", "minLagMs"),
        (b'{"minLagMs":1}', "tombstoneMs"),
        (b'{"minLagMs":"1","tombstoneMs":2}', "is not a whole number of 62 bits"),
    ],
)
def test_a_malformed_compaction_is_refused(compaction: bytes, refusal: str) -> None:
    """As any command of another shape: the same on all nodes."""
    row = b'{"name":"t","type":"NORMAL","queues":1,"compaction":%s}' % compaction

    refused = _say(Log(), frame(CommandType.CREATE_TOPIC, row))

    assert isinstance(refused, InvalidArgument)
    assert refusal in str(refused)


def test_a_newer_compaction_stops_the_node() -> None:
    """What it does not know, it does not make otherwise than others do."""
    row = b'{"name":"t","type":"NORMAL","queues":1,"compaction":{"by":"tag"}}'

    with pytest.raises(NewerCommand, match="a compaction with 'by'"):
        Log().append(frame(CommandType.CREATE_TOPIC, row))


# -- snapshots -------------------------------------------------------------------------------------


def test_a_snapshot_without_one_has_the_bytes_of_before() -> None:
    """Of a group with a topic that goes by the group's retention, and one with its own."""
    log = Log()
    log.create()
    log.append(CreateTopic(name="u", type="NORMAL", queues=2).encode())
    log.append(SetRetention(name="u", hours=9).encode())
    log.produce("a", "b", tag="x", ids=("1", "2"))
    log.receive(1)

    assert sha256(log.state.encode()).hexdigest() == _BEFORE


_BEFORE = "f517247f75f82da16c9924d007ba79f9d1077ae9ed95c99f5e0ce75ba3cbe537"


def test_a_snapshot_has_its_settings_and_where_it_begins() -> None:
    """A state that was read is the one that was written, also of emptied queues."""
    log = _compacted(4, queues=1)
    log.receive(2, topic="t")
    _let_go(log, 0, 4)
    data = log.state.encode()

    state = BrokerState.decode(data)

    assert state.encode() == data
    assert state.digest() == log.state.digest() == log.replay().digest()
    assert state.topics.named("t").compaction == _COMPACTION
    assert state.topics.named("t").retention_hours == 0
    assert state.topics.queue("t", 0).first == 0
    assert state.topics.keeping_longer() == [state.topics.named("t")]


def test_a_state_that_keeps_one_for_hours_is_damaged() -> None:
    """It is kept for ever; bytes that say otherwise are none that were written."""
    log = Log()
    log.append(_create(3))
    data = log.state.encode()
    mark = (3 | 1 << 17).to_bytes(8, "little")
    assert mark in data

    wrong = data.replace(mark, (3 | 1 << 17 | 1 << 16).to_bytes(8, "little"))

    with pytest.raises(MalformedStateError):
        BrokerState.decode(_with_crc(wrong))


def _with_crc(data: bytes) -> bytes:
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "little")


# -- where it begins -------------------------------------------------------------------------------

_FRONTS = [
    ("a gap at the very beginning", 6, [(0, 4, (1, 3))], [1, 3, 4, 5]),
    ("an emptied front", 6, [(0, 4, ())], [4, 5]),
    ("an emptied front before a block", 6, [(0, 2, ()), (2, 5, (3,))], [3, 5]),
    ("a front emptied later", 6, [(0, 4, (0, 1)), (0, 4, ())], [4, 5]),
    ("an empty queue with an end", 6, [(0, 6, ())], []),
    ("only a block, with gaps at both ends", 6, [(0, 6, (2, 3))], [2, 3]),
]
_EACH_FRONT = pytest.mark.parametrize(
    ("count", "gone", "left"), [each[1:] for each in _FRONTS], ids=[each[0] for each in _FRONTS]
)


@_EACH_FRONT
def test_offset_0_is_where_a_reader_begins_for_ever(
    count: int, gone: list[tuple[int, int, tuple[int, ...]]], left: list[int]
) -> None:
    """He gets what is left, from wherever he goes on; so in a copy and from a snapshot."""
    log = _compacted(count)
    for first, to, rows in gone:
        _let_go(log, first, to, rows)
    frozen = log.state.freeze()
    log.retain(len(log.entries))
    read = BrokerState.decode(frozen.encode())

    for queue in (_queue(log), _queue(log).copy(9), read.topics.queue("t", 0)):
        assert (queue.first, queue.end, queue.count) == (0, count, len(left))
        for offset in range(count + 1):
            later = [o for o in left if o >= offset]
            there = [o for s in queue.stretches(offset) for o in range(s.first, s.first + s.length)]
            tagged = [o for run in queue.runs(offset) for o in range(run.first, run.end)]
            assert there == tagged == later
            assert queue.count_from(offset) == len(later)
            assert queue.has(offset) == (offset in left)
            if offset not in left:
                with pytest.raises(OffsetOutOfRange):
                    queue.locate(offset)
                if offset < count:
                    with pytest.raises(OffsetOutOfRange):
                        queue.code(offset)


@_EACH_FRONT
def test_a_group_gets_what_is_left_and_comes_to_an_end(
    count: int, gone: list[tuple[int, int, tuple[int, ...]]], left: list[int]
) -> None:
    """One that comes later, and one that had leases on what is gone: gaps are no messages."""
    log = _compacted(count)
    early = log.receive(3, topic="t", attempt_id="a")
    for first, to, rows in gone:
        _let_go(log, first, to, rows)
    log.state = BrokerState.decode(log.state.encode())

    assert _available(log, "late") == len(left)
    assert log.state.groups.committed("late", "t", 0) == 0
    assert log.state.groups.backlog("g", "t").unread == len([o for o in left if o >= 3])
    again = log.receive(9, topic="t", attempt_id="a")
    held = [o for o in left if o < 3]
    assert offsets(again) == (held or [o for o in left if o >= 3])
    assert all(log.ack(early, 0))
    log.now_ms += 5_000
    got = set(offsets(again)) | {0}
    for _ in range(5):
        if not _available(log):
            break
        received = log.receive(9, topic="t")
        got |= set(offsets(received))
        log.ack(received)
    else:
        raise AssertionError("receives go on for ever")
    assert got >= set(left)
    backlog = log.state.groups.backlog("g", "t")
    assert (backlog.unread, backlog.held) == (0, 0)
    assert log.state.digest() == BrokerState.decode(log.state.encode()).digest()


def test_a_lease_on_a_message_that_vanishes_can_be_renewed_and_acked() -> None:
    """Its holder is not disturbed: it consumes what it got, as if it was there."""
    log = _compacted(2)
    received = log.receive(2, topic="t", client_id="who")
    _let_go(log, 0, 2)
    ref = LeaseRef(0, 0, received.receive_id)

    log.append(
        Renew(group="g", topic="t", leases=(ref,), invisible_ms=9_000, arrived=True).encode()
    )
    log.now_ms += 5_000
    assert offsets(log.receive(9, topic="t")) == []
    assert log.ack(received) == (True, True)
    assert log.state.groups.backlog("g", "t").held == 0


def test_filters_pass_over_what_is_gone() -> None:
    """What was kept for another filter, and is gone with all that was before the log's runs."""
    log = _compacted(0)
    log.receive(1, topic="t", tags=("b",))
    for number in range(4):
        _say(log, _batch((f"{number}",), tag="ab"[number % 2]))
    first = log.receive(9, topic="t", tags=("a",))
    assert offsets(first) == [0, 2]
    _let_go(log, 0, 4)
    _say(log, _batch(("new",), tag="b"))

    assert offsets(log.receive(9, topic="t", tags=("b",))) == [4]
    log.now_ms += 5_000
    second = log.receive(9, topic="t", tags=("a",))
    assert offsets(second) == []
    assert attempts(first) == [1, 1]
    filters = log.state.groups.backlog("g", "t").filters
    assert [each.unread for each in filters] == [0, 0]


def test_the_next_message_follows_in_an_emptied_queue() -> None:
    """At the offset behind the last one, in the log's runs, and it is copied like others."""
    log = _compacted(3)
    _let_go(log, 0, 3)
    assert log.state.topics.messages("t") == 0

    produced = _say(log, _batch(("key 3",)))

    assert isinstance(produced, Produced)
    assert list(produced.offsets) == [3]
    _let_go(log, 0, 4, (3,))
    assert offsets(log.receive(9, topic="t", group="g")) == [3]
    assert _queue(log).first == 0


def test_retention_drops_nothing_of_it_and_waits() -> None:
    """As of any topic that keeps its messages longer."""
    log = _compacted(3)
    log.produce("x", topic="other")
    index = _queue(log).lowest_index

    log.retain(len(log.entries) + 1)

    assert log.state.first_index == index
    assert log.state.topics.messages("t") == 3
    assert log.state.topics.messages("other") == 1


def test_lost_entries_take_what_lies_in_them() -> None:
    """`log discard`: blocks there dangle, and go; the queue begins where it did."""
    log = _compacted(4)
    _let_go(log, 0, 2, (1,))
    lost = len(log.entries) + 1
    _say(log, _batch(("behind",)))

    assert log.state.forget_before(lost) == 3
    queue = _queue(log)
    assert (queue.first, queue.count, queue.blocks) == (0, 1, None)
    assert offsets(log.receive(9, topic="t")) == [4]
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()


def test_a_retry_of_a_message_that_is_gone_is_answered() -> None:
    """It was stored, and is not stored again: else an old value would be the newest."""
    log = _compacted(0)
    again = _batch(("key",), ids=("1",))
    _say(log, again)
    _let_go(log, 0, 1)

    produced = _say(log, again)

    assert isinstance(produced, Produced)
    assert (produced.stored, list(produced.offsets), produced.index) == (0, [0], 0)


def test_one_that_was_made_anew_has_nothing_of_the_one_before() -> None:
    """Neither its settings nor its front."""
    log = _compacted(2)
    log.append(DeleteTopic(name="t", generation=2).encode())
    log.append(CreateTopic(name="t", type="NORMAL", queues=1).encode())

    assert log.state.topics.keeping_longer() == []
    log.produce("without a key")
    log.retain(len(log.entries) + 1)
    assert _queue(log).first == 1
    assert isinstance(_say(log, DeleteTopic(name="t", generation=2).encode()), UnknownTopic)


# -- keys ------------------------------------------------------------------------------------------


def test_a_keys_queue_is_its_crc32c_modulo_the_queues() -> None:
    """For ever: the check value is that of the CRC's definition."""
    assert queue_of_key(b"123456789", 1 << 32) == 0xE3069283
    assert queue_of_key(b"123456789", 8) == 3
    assert queue_of_key("schlüssel".encode(), 1) == 0


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (_batch(("a",), ()), IllegalKey, "and row 1 has 0"),
        (_batch(("a", "b")), IllegalKey, "and row 0 has 2"),
        (_batch(("",)), IllegalKey, "that of row 0 is empty"),
        (_batch(("c",), queue_id=NO_QUEUE), InvalidArgument, "its queue 3 names none"),
        (_batch(("c",), queue_id=0), InvalidArgument, "are of queue 3, not of 0"),
        (_batch(("c",), ("d",), queue_id=3), SeveralQueues, "(row 0 in queue 3, row 1 in queue 0)"),
        (
            _batch(("a",), (), ids=("1", "2"), queue_id=1, mark=ReplayMark(bytes(16), 1)),
            IllegalKey,
            "and row 1 has 0",
        ),
    ],
    ids=["no key", "two keys", "empty key", "no queue", "other queue", "two queues", "a replay"],
)
def test_nothing_else_gets_in(command: bytes, error: type[InvalidArgument], said: str) -> None:
    """Whoever proposed it, and whatever the topic was then: it is refused on all nodes alike."""
    log = _compacted(queues=4)
    before = log.state.topics.canonical()

    refused = _say(log, command)

    assert type(refused) is error
    assert said in str(refused)
    assert str(refused).startswith("topic 't' is compacted")
    assert log.state.topics.canonical() == before
