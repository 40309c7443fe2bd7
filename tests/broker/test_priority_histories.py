"""PRIORITY topics: a priority is a queue, and a receive takes the highest queue first.

Histories are compared with a plain model: a list of messages for each priority that is told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker.commands import (
    Ack,
    CreateGroup,
    CreateTopic,
    GrowTopic,
    LeaseRef,
    SeekGroup,
)
from dledger.broker.message import Columns, Message
from dledger.broker.priorities import queue_of_priorities, queue_of_priority
from dledger.broker.produce import ProduceFrame, encode_produce
from dledger.broker.queue_choice import queue_of_record
from dledger.broker.results import GroupSought, Produced, Received
from dledger.broker.state import BrokerState
from dledger.broker.topics import PRIORITY, Topic
from dledger.errors import InvalidArgument, SeveralQueues, TopicTypeMismatch
from dledger.types import Record, Typed
from tests.broker.log import Log, attempts

_LEASE_MS = 1_000
_TOPIC = Topic(name="p", type="PRIORITY", queues=4)


def _log(queues: int = 4) -> Log:
    log = Log()
    log.append(
        CreateTopic(name="p", type="PRIORITY", queues=queues).encode(),
        CreateGroup(name="g").encode(),
    )
    return log


def _send(log: Log, *priorities: int) -> list[Produced]:
    """Store messages as a node does: each in the queue of its priority."""
    queues = log.state.topics.named("p").queues
    stored = []
    for number in priorities:
        message = Message(message_id="", body=b"%d" % number, typed=Typed(priority=number))
        command = encode_produce(
            Columns.of([message]),
            client_id="c",
            topic="p",
            queue_id=queue_of_priority(number, queues),
        )
        (result,) = log.append(command)
        assert isinstance(result, Produced), result
        stored.append(result)
    return stored


def _receive(log: Log, limit: int = 10) -> Received:
    return log.receive(limit, topic="p", any_queue=True, queue_id=1, invisible_ms=_LEASE_MS)


def _queues(received: Received) -> list[int]:
    return [each.queue_id for each in received.deliveries]


# -- which queue -----------------------------------------------------------------------------------


def test_a_queue_is_a_priority_and_the_last_one_all_above() -> None:
    """As in RocketMQ: so a topic may grow, and a priority that is too high is no mistake."""
    assert [queue_of_priority(each, 4) for each in (0, 1, 3, 4, 2**31 - 1)] == [0, 1, 3, 3, 3]
    assert queue_of_priority(7, 1) == 0


def _batch(*priorities: int, queue_id: int = -1) -> ProduceFrame:
    messages = [
        Message(message_id="", body=b"x", typed=Typed(priority=each) if each >= 0 else None)
        for each in priorities
    ]
    command = encode_produce(Columns.of(messages), client_id="c", topic="p", queue_id=queue_id)
    return ProduceFrame(command, 5, len(command))


def test_a_batch_is_of_one_queue() -> None:
    """Priorities that are not told apart may be in one; the refusal says how many queues are."""
    assert queue_of_priorities(_batch(2, 2), _TOPIC) == 2
    assert queue_of_priorities(_batch(3, 9, queue_id=3), _TOPIC) == 3
    with pytest.raises(SeveralQueues, match=r"\(row 0 in queue 2, row 2 in queue 3\)") as refused:
        queue_of_priorities(_batch(2, 2, 9), _TOPIC)
    assert refused.value.queues == 4
    with pytest.raises(InvalidArgument, match="is of queue 2, not of 1: name no queue"):
        queue_of_priorities(_batch(2, queue_id=1), _TOPIC)


def test_each_message_has_a_priority() -> None:
    """One without would be nobody's idea of urgent: its producer says so, or sends it elsewhere."""
    for batch, row in ((_batch(1, -1), 1), (_batch(-1), 0)):
        with pytest.raises(TopicTypeMismatch, match=f"row {row} has none: give each one from 0"):
            queue_of_priorities(batch, _TOPIC)


def test_a_producer_can_tell_the_queue_of_its_record() -> None:
    """By its priority, else by its only key: then the topic is a compacted one."""
    urgent = Record(body=b"x", keys=("k",), typed=Typed(priority=9))
    assert queue_of_record(urgent, 4) == 3
    assert queue_of_record(Record(body=b"x", keys=("k",)), 4) in range(4)
    assert queue_of_record(Record(body=b"x", typed=Typed(deliver_at_ms=1)), 4) is None


# -- which message first ---------------------------------------------------------------------------


def test_the_highest_comes_first_whatever_queue_was_named() -> None:
    """A simple consumer names one at random."""
    log = _log()
    _send(log, 0, 3, 1, 9, 2)

    assert _queues(_receive(log, 2)) == [3, 3]
    assert _queues(_receive(log)) == [2, 1, 0]


def test_what_is_delivered_again_keeps_its_priority() -> None:
    """It comes before all that is lower, and before what is new of its own."""
    log = _log()
    _send(log, 2)
    _receive(log)
    _send(log, 2, 1, 3)
    log.now_ms += _LEASE_MS

    received = _receive(log)

    assert _queues(received) == [3, 2, 2, 1]
    assert attempts(received) == [1, 2, 1, 1]


def test_a_queue_that_is_named_alone_is_read_alone() -> None:
    """As those that work off dead letters do; no client's receive asks so of this type."""
    log = _log()
    _send(log, 0, 3)

    assert _queues(log.receive(topic="p", queue_id=0)) == [0]
    assert PRIORITY.highest_first


# -- histories -------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "send", "receive", "receive", "ack", "wait", "grow", "seek", "restore"]
        ),
        st.integers(0, 9),
    ),
    max_size=60,
)


@dataclass
class _Level:
    """The messages of one queue: until when each that was delivered is on loan, or that it is done.

    Those from *next* on were never delivered.
    """

    count: int = 0
    next: int = 0
    until_ms: dict[int, int] = field(default_factory=dict)

    def ended(self, now_ms: int) -> set[int]:
        return {offset for offset, until_ms in self.until_ms.items() if until_ms <= now_ms}


class _History:
    def __init__(self) -> None:
        self.log = _log(2)
        self._levels = [_Level(), _Level()]
        self._held: list[tuple[int, int, int]] = []

    def step(self, what: str, number: int) -> None:
        getattr(self, f"_{what}")(number)

    def _send(self, number: int) -> None:
        (stored,) = _send(self.log, number)
        level = self._levels[min(number, len(self._levels) - 1)]
        assert stored.offsets[0] == level.count
        level.count += 1

    def _receive(self, number: int) -> None:
        limit = number % 4 + 1
        received = _receive(self.log, limit)
        got = [(each.queue_id, each.offset) for each in received.deliveries]
        assert len(got) == min(limit, sum(map(self._open, self._levels)))
        assert [queue_id for queue_id, _ in got] == sorted((q for q, _ in got), reverse=True)
        for queue_id, offset in got:
            self._take(queue_id, offset)
            self._held.append((queue_id, offset, received.receive_id))
        lowest = got[-1][0] if got else -1
        assert not any(map(self._open, self._levels[lowest + 1 :])), "a higher one was left"

    def _open(self, level: _Level) -> int:
        return len(level.ended(self.log.now_ms)) + level.count - level.next

    def _take(self, queue_id: int, offset: int) -> None:
        level = self._levels[queue_id]
        if ended := level.ended(self.log.now_ms):
            assert offset in ended, "a new one came before one that came again"
        else:
            assert offset == level.next, "they came out of their order"
            level.next += 1
        level.until_ms[offset] = self.log.now_ms + _LEASE_MS

    def _ack(self, number: int) -> None:
        if self._held:
            queue_id, offset, receive_id = self._held.pop(number % len(self._held))
            lease = LeaseRef(queue_id, offset, receive_id)
            held = self.log.state.groups.lease("g", "p", lease) is not None
            if held:
                del self._levels[queue_id].until_ms[offset]
            self.log.append(_ack_of(lease))

    def _wait(self, number: int) -> None:
        self.log.now_ms += number * 200

    def _grow(self, number: int) -> None:
        queues = max(len(self._levels), min(number, 6))
        self.log.append(GrowTopic(name="p", queues=queues).encode())
        self._levels += [_Level() for _ in range(queues - len(self._levels))]

    def _seek(self, number: int) -> None:
        queue_id = number % len(self._levels)
        level = self._levels[queue_id]
        level.next = level.count // 2
        level.until_ms.clear()
        generation = self.log.state.topics.named("p").generation
        offsets = ((queue_id, level.next),)
        command = SeekGroup(group="g", topic="p", generation=generation, offsets=offsets)
        assert isinstance(self.log.append(command.encode())[0], GroupSought)

    def _restore(self, _: int) -> None:
        before = self.log.state.digest()
        self.log.state = BrokerState.decode(self.log.state.encode())
        assert self.log.state.digest() == before


def _ack_of(lease: LeaseRef) -> bytes:
    return Ack(group="g", topic="p", leases=(lease,)).encode()


@settings(deadline=None)
@given(_STEPS)
def test_histories_equal_a_plain_model(steps: list[tuple[str, int]]) -> None:
    """Nothing is left behind that is higher, nothing overtakes its own priority, none is lost."""
    history = _History()

    for what, number in steps:
        history.step(what, number)
    history.log.now_ms += _LEASE_MS
    for _ in range(len(steps) + 1):
        history.step("receive", 3)

    assert history.log.replay().digest() == history.log.state.digest()
