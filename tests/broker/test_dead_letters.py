"""Dead letters: what was delivered too often leaves its queue in one step, and blocks nobody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import topic_store
from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    CreateTopic,
    DeleteTopic,
    LeaseRef,
    SetGroup,
)
from dledger.broker.dead_letter import encode_dead_letter
from dledger.broker.message import Message
from dledger.broker.redelivery import (
    DEFAULT,
    DEFAULT_ATTEMPTS,
    MAX_ATTEMPTS,
    MAX_DELAYS,
    Retries,
)
from dledger.broker.results import Acked, DeadLettered, GroupSet, LeaseChanged, Received, Spent
from dledger.broker.state import BrokerState
from dledger.errors import (
    InvalidArgument,
    InvalidReceiptHandle,
    LimitReached,
    UnknownGroup,
    UnknownTopic,
)
from dledger.types import MovedFrom, Typed
from tests.broker.log import Log, attempts, offsets

_DEAD = "%DLQ%g"


@pytest.fixture
def log() -> Log:
    """A topic of three messages; its group delivers each twice."""
    log = Log()
    log.create()
    log.produce("0", "1", "2")
    _limit(log, 2)
    return log


def _limit(log: Log, max_attempts: int) -> object:
    retries = Retries(max_attempts, DEFAULT.backoff_ms)
    return log.append(SetGroup(name="g", retries=retries).encode())[0]


def _again(log: Log, limit: int = 10, topic: str = "t") -> Received:
    """Receive after all leases have ended."""
    log.now_ms += 1_000
    return log.receive(limit, topic=topic)


def _move(spent: Spent, *, topic: str = "t", generation: int = 1, group: str = "g") -> bytes:
    lease = spent.lease
    moved = MovedFrom(
        topic=topic,
        generation=generation,
        queue_id=lease.queue_id,
        offset=lease.offset,
        stored_at_ms=7,
        attempts=spent.attempts,
    )
    message = Message(message_id="m", body=b"x", typed=Typed(moved_from=moved))
    return encode_dead_letter(group, lease.receive_id, message, born_host="h")


def _dead(log: Log) -> int:
    topics = log.state.topics
    return topics.messages(_DEAD) if topics.get(_DEAD) else 0


def test_a_message_is_delivered_as_often_as_its_group_says_and_then_told(log: Log) -> None:
    """And the others that lie with it are delivered meanwhile."""
    first = log.receive(3)
    log.ack(first, 1, 2)
    assert attempts(_again(log)) == [2]
    log.produce("3")

    received = _again(log)

    assert offsets(received) == [3]
    assert [(each.lease.offset, each.attempts) for each in received.spent] == [(0, 2)]


def test_what_is_told_and_not_moved_is_told_again(log: Log) -> None:
    """The leader that was told may be gone; nobody gets the message meanwhile."""
    log.receive(3)
    _again(log)
    assert len(_again(log).spent) == 3
    assert not _again(log).spent

    log.now_ms += 30_000
    received = log.receive(10)

    assert [each.lease.offset for each in received.spent] == [0, 1, 2]
    assert not received.deliveries


def test_no_receive_is_told_more_than_it_asks_for(log: Log) -> None:
    """So that no command takes long, however many there are."""
    log.receive(3)
    _again(log)

    assert [each.lease.offset for each in _again(log, limit=2).spent] == [0, 1]


def test_a_move_ends_the_lease_and_appends_once(log: Log) -> None:
    """Two leaders may both propose it."""
    log.receive(1)
    _again(log, 1)
    (spent,) = _again(log, 1).spent

    ((first,), (second,)) = (log.append(_move(spent)), log.append(_move(spent)))

    assert isinstance(first, DeadLettered)
    assert first.stored is not None
    assert second == DeadLettered(None)
    assert log.state.topics.messages(_DEAD) == 1
    assert log.state.topics.named(_DEAD).queues == 1
    log.now_ms += 60_000
    assert 0 not in offsets(log.receive(10))


def test_a_late_ack_wins_over_the_move(log: Log) -> None:
    """Its holder has worked it off after all: it is no dead letter then."""
    log.receive(1)
    second = _again(log, 1)
    (spent,) = _again(log, 1).spent

    assert log.ack(second) == (True,)

    assert log.append(_move(spent)) == [DeadLettered(None)]
    assert log.state.topics.get(_DEAD) is None


def test_a_move_of_a_lease_that_is_anothers_is_refused(log: Log) -> None:
    """It was delivered again since: somebody works on it."""
    lease = LeaseRef(0, 0, log.receive(1).receive_id)
    payload = log.state.groups.find_leased("g", "t", lease)
    assert payload is not None
    _again(log, 1)

    (refused,) = log.append(_move(payload))

    assert isinstance(refused, InvalidReceiptHandle)
    assert log.state.topics.get(_DEAD) is None


def test_a_move_is_refused_as_a_whole_at_the_limit_of_topics(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message stays, and is told again."""
    log.receive(1)
    _again(log, 1)
    (spent,) = _again(log, 1).spent
    monkeypatch.setattr(topic_store, "MAX_TOPICS", 1)

    (refused,) = log.append(_move(spent))

    assert isinstance(refused, LimitReached)
    log.now_ms += 30_000
    assert [each.lease.offset for each in log.receive(10).spent] == [0]


def test_a_move_out_of_a_topic_that_is_gone_is_refused(log: Log) -> None:
    """Another topic of its name has other messages at that offset."""
    log.receive(1)
    _again(log, 1)
    (spent,) = _again(log, 1).spent
    log.append(DeleteTopic(name="t", generation=1).encode())
    assert isinstance(log.append(_move(spent))[0], UnknownTopic)
    log.append(CreateTopic(name="t", type="NORMAL", queues=1).encode())

    assert isinstance(log.append(_move(spent))[0], UnknownTopic)
    assert isinstance(log.append(_move(spent, group="no", generation=2))[0], UnknownGroup)


def test_dead_letters_are_delivered_without_end_and_never_moved(log: Log) -> None:
    """There is no topic of dead letters of dead letters."""
    log.receive(1)
    _again(log, 1)
    (spent,) = _again(log, 1).spent
    log.append(_move(spent))
    for attempt in range(1, 5):
        assert attempts(_again(log, topic=_DEAD)) == [attempt]
    generation = log.state.topics.named(_DEAD).generation
    held = log.state.groups.find_leased("g", _DEAD, LeaseRef(0, 0, log.state.groups._receives))
    assert held is not None

    (refused,) = log.append(_move(held, topic=_DEAD, generation=generation))

    assert isinstance(refused, InvalidArgument)
    assert "dead letters already" in str(refused)


def test_a_group_without_end_has_no_dead_letters(log: Log) -> None:
    """As its user wishes; so has one whose name leaves no room for that of the topic."""
    _limit(log, 0)
    log.create(group="g" * 127)

    for attempt in range(1, DEFAULT_ATTEMPTS + 3):
        assert attempts(_again(log, 1)) == [attempt]
        assert attempts(log.receive(1, group="g" * 127)) == [attempt]


def test_the_default_is_rocketmqs() -> None:
    """The first delivery and 16 more."""
    log = Log()
    log.create()
    log.produce("0")
    for attempt in range(1, 18):
        assert attempts(_again(log)) == [attempt]

    assert [each.attempts for each in _again(log).spent] == [17]


@pytest.mark.parametrize(
    "retries",
    [
        Retries(-1, (1,)),
        Retries(MAX_ATTEMPTS + 1, (1,)),
        Retries(1, ()),
        Retries(1, (1,) * (MAX_DELAYS + 1)),
        Retries(1, (-1,)),
        Retries(1, (43_200_001,)),
    ],
)
def test_retries_out_of_bounds_are_refused(log: Log, retries: Retries) -> None:
    """And change nothing."""
    (refused,) = log.append(SetGroup(name="g", retries=retries).encode())

    assert isinstance(refused, InvalidArgument)
    assert log.state.groups.retries("g").max_attempts == 2


def test_what_was_set_is_told_and_kept_in_snapshots(log: Log) -> None:
    """A restored replica moves the same messages."""
    assert _limit(log, 3) == GroupSet(Retries(2, DEFAULT.backoff_ms))
    (refused,) = log.append(SetGroup(name="no", retries=DEFAULT).encode())
    assert isinstance(refused, UnknownGroup)

    restored = BrokerState.decode(log.state.encode())

    assert restored.groups.retries("g") == Retries(3, DEFAULT.backoff_ms)
    assert restored.digest() == log.state.digest()


# -- receipt handles -------------------------------------------------------------------------------


def _change(log: Log, receive_id: int, *, ms: int = 50, suspend: bool = False) -> object:
    lease = LeaseRef(0, 0, receive_id)
    change = ChangeInvisible(group="g", topic="t", lease=lease, invisible_ms=ms, suspend=suspend)
    return log.append(change.encode())[0]


def test_a_change_answers_another_handle_and_the_old_one_is_stale(log: Log) -> None:
    """Whoever has the old one has given the message back."""
    received = log.receive(1)

    changed = _change(log, received.receive_id)

    assert isinstance(changed, LeaseChanged)
    assert changed.receive_id != received.receive_id
    assert log.ack(received) == (False,)
    again = _change(log, changed.receive_id)
    assert isinstance(again, LeaseChanged)
    assert isinstance(_change(log, received.receive_id), InvalidReceiptHandle)


def test_a_change_that_is_sent_again_is_answered_as_the_first(log: Log) -> None:
    """Its answer was lost with a leader: the end stays, and the handle is the same."""
    received = log.receive(1)
    first = _change(log, received.receive_id, ms=5_000)

    assert _change(log, received.receive_id, ms=5_000) == first
    assert _change(log, received.receive_id, ms=0) == first
    assert offsets(log.receive(1)) == [1]


def test_a_suspended_delivery_does_not_count(log: Log) -> None:
    """However often it is said; said no more, it counts."""
    for _ in range(4):
        received = _again(log, 1)
        assert attempts(received) == [1]
        _change(log, received.receive_id, suspend=True)
    received = _again(log, 1)
    changed = _change(log, received.receive_id, suspend=True)
    assert isinstance(changed, LeaseChanged)
    _change(log, changed.receive_id, suspend=False)

    assert attempts(_again(log, 1)) == [2]


def test_a_suspended_lease_comes_through_a_snapshot(log: Log) -> None:
    """It counts as little on a replica that was restored."""
    _change(log, log.receive(1).receive_id, suspend=True)
    restored = BrokerState.decode(log.state.encode())
    assert restored.digest() == log.state.digest()

    log.state = restored

    assert attempts(_again(log, 1)) == [1]


# -- histories -------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["receive", "ack", "change", "suspend", "move", "move twice", "restore"]),
        st.integers(0, 4),
    ),
    max_size=60,
)


class _History:
    """What members, and two leaders, do with three messages, and what must be true meanwhile."""

    def __init__(self, max_attempts: int) -> None:
        self.log, self._max_attempts = Log(), max_attempts
        self.log.create()
        self.log.produce("0", "1", "2")
        _limit(self.log, max_attempts)
        self._counted = dict.fromkeys(range(3), 0)
        self._held: list[LeaseRef] = []
        self._told: list[Spent] = []
        self._acked, self.dead = set[int](), set[int]()

    def step(self, what: str, number: int) -> None:
        if what == "receive":
            self._receive(number)
        elif what == "restore":
            self._restore()
        elif what in {"move", "move twice"}:
            for spent in self._told[number : number + 1] * (1 + (what == "move twice")):
                self._move(spent)
        elif self._held and what == "ack":
            self._ack(self._held[number % len(self._held)])
        elif self._held:
            self._change(self._held[number % len(self._held)], suspend=what == "suspend")

    def _receive(self, number: int) -> None:
        self.log.now_ms += (0, 500, 1_000, 31_000, 0)[number]
        received = self.log.receive(number + 1)
        for each in received.deliveries:
            assert each.offset not in self._acked | self.dead
            self._counted[each.offset] += 1
            assert each.attempt == self._counted[each.offset] <= self._max_attempts
            self._held.append(LeaseRef(0, each.offset, received.receive_id))
        assert all(self._counted[x.lease.offset] == self._max_attempts for x in received.spent)
        self._told += received.spent

    def _restore(self) -> None:
        before = self.log.state.digest()
        self.log.state = BrokerState.decode(self.log.state.encode())
        assert self.log.state.digest() == before

    def _move(self, spent: Spent) -> None:
        (result,) = self.log.append(_move(spent))
        if isinstance(result, DeadLettered) and result.stored is not None:
            assert spent.lease.offset not in self._acked | self.dead
            self.dead.add(spent.lease.offset)

    def _ack(self, lease: LeaseRef) -> None:
        if _ack(self.log, lease) and lease.offset not in self.dead:
            self._acked.add(lease.offset)

    def _change(self, lease: LeaseRef, *, suspend: bool) -> None:
        before = self.log.state.groups.lease("g", "t", lease)
        change = ChangeInvisible(group="g", topic="t", lease=lease, invisible_ms=0, suspend=suspend)
        (result,) = self.log.append(change.encode())
        if isinstance(result, LeaseChanged) and before is not None:
            self._held.append(LeaseRef(0, lease.offset, result.receive_id))
            self._counted[lease.offset] += before.is_suspended - suspend


@settings(deadline=None)
@given(_STEPS, st.integers(1, 3))
def test_each_message_ends_once(steps: list[tuple[str, int]], max_attempts: int) -> None:
    """Acknowledged or a dead letter, never both; delivered so often, and no oftener."""
    history = _History(max_attempts)

    for what, number in steps:
        history.step(what, number)

    assert _dead(history.log) == len(history.dead)
    assert history.log.replay().digest() == history.log.state.digest()


def _ack(log: Log, lease: LeaseRef) -> bool:
    (result,) = log.append(Ack(group="g", topic="t", leases=(lease,)).encode())
    assert isinstance(result, Acked)
    return result.outcomes == (True,)
