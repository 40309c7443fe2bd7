"""RECEIVE_AT: whatever a leader believes when it proposes, no match is passed, none comes twice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import deliveries as rules
from dledger.broker.commands import (
    Ack,
    ChangeInvisible,
    DeleteTopic,
    LeaseRef,
    ReceiveAt,
    UseFilter,
)
from dledger.broker.group_filters import FILTER_GONE_MS, USE_IS_SAID_MS
from dledger.broker.results import FilterUsed, Received
from dledger.broker.state import BrokerState
from dledger.errors import FilterInUse, InvalidArgument
from tests.broker.log import Log, attempts, offsets

_SQL = "a = 1"
_LONG_MS = 1 << 40


def _command(
    log: Log, take: tuple[int, ...] = (), *, start: int = 0, stop: int, **more: Any
) -> bytes:
    return _receive_at(log, take, start=start, stop=stop, **more).encode()


def _receive_at(
    log: Log, take: tuple[int, ...] = (), *, start: int = 0, stop: int, **more: Any
) -> ReceiveAt:
    topic = log.state.topics.named("t")
    made = ReceiveAt(
        group="g",
        topic="t",
        generation=topic.generation,
        queue_id=0,
        sql=_SQL,
        start=start,
        stop=stop,
        take=take,
        again=(),
        done=(),
        invisible_ms=1_000,
    )
    return replace(made, **more)


def _given(log: Log, *args: Any, **more: Any) -> Received:
    (received,) = log.append(_command(log, *args, **more))
    assert isinstance(received, Received), received
    return received


@pytest.fixture
def log() -> Log:
    """A topic with ten messages, and a group."""
    log = Log()
    log.create()
    log.produce(*"0123456789")
    return log


def _next(log: Log) -> int:
    found = log.state.groups.peek("g", "t", 0)
    return found.next_offset if found else 0


def test_what_matches_is_handed_out_and_the_rest_is_done(log: Log) -> None:
    """UNREAD has what was not looked at, and no more."""
    received = _given(log, (1, 4), stop=6)

    assert offsets(received) == [1, 4]
    assert log.state.groups.backlog("g", "t").unread == 4
    log.ack(received)
    assert log.state.groups.committed("g", "t", 0) == 6


def test_of_two_that_overlap_each_message_comes_once(log: Log) -> None:
    """As two leaders propose, one after the other."""
    assert offsets(_given(log, (1, 4), stop=6)) == [1, 4]
    assert offsets(_given(log, (1, 4, 7), stop=9)) == [7]
    assert _next(log) == 9


def test_what_was_not_looked_at_before_the_range_is_not_passed(log: Log) -> None:
    """The one before came to nothing, or a seek went back."""
    assert offsets(_given(log, (7,), start=6, stop=9)) == []
    assert _next(log) == 0


def test_a_lease_that_has_ended_comes_again_or_is_done(log: Log) -> None:
    """The leader has looked at it; while the lease lasts, it is nobody else's."""
    _given(log, (1, 2, 3), stop=4)
    assert offsets(_given(log, stop=4, start=4, again=(1, 2), done=(3,))) == []
    log.now_ms += 1_000

    received = _given(log, stop=4, start=4, again=(1, 1, 9), done=(3,))

    assert (offsets(received), attempts(received)) == ([1], [2])
    assert log.state.groups.committed("g", "t", 0) == 1
    log.ack(received)
    assert log.state.groups.committed("g", "t", 0) == 2


def test_at_the_bound_of_leases_what_matches_waits(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not passed over."""
    monkeypatch.setattr(rules, "MAX_LEASES", 2)

    assert offsets(_given(log, (1, 3, 5), stop=8)) == [1, 3]
    assert _next(log) == 5


def test_a_repeated_attempt_gets_what_it_holds(log: Log) -> None:
    """Whatever it proposes by then."""
    first = _given(log, (1, 4), stop=6, attempt_id="x")

    again = _given(log, stop=0, attempt_id="x")

    assert (offsets(again), again.receive_id) == ([1, 4], first.receive_id)


def test_a_topic_that_was_made_anew_has_other_messages(log: Log) -> None:
    """The leader has looked at those of the old one."""
    command = _command(log, (1,), stop=6)
    topic = log.state.topics.named("t")
    log.append(DeleteTopic(name="t", generation=topic.generation).encode())
    log.create()
    log.produce(*"0123456789")

    (refused,) = log.append(command)

    assert isinstance(refused, InvalidArgument)
    assert _next(log) == 0


def test_nothing_is_passed_beyond_the_end(log: Log) -> None:
    """What comes there was not looked at."""
    (refused,) = log.append(_command(log, stop=11))

    assert isinstance(refused, InvalidArgument)
    assert "up to 11" in str(refused)


@pytest.mark.parametrize(
    "wrong",
    [
        {"take": (4, 4)}, {"take": (4, 1)}, {"take": (9,)}, {"take": (-1,)},
        {"start": 5, "stop": 4}, {"start": -1}, {"sql": ""}, {"sql": "a" * 4_097},
    ],
)  # fmt: skip
def test_a_malformed_one_changes_nothing(log: Log, wrong: dict[str, Any]) -> None:
    """Offsets that do not ascend or lie outside, and no expression."""
    command = replace(_receive_at(log, stop=6), **wrong)
    before = log.state.groups.canonical()

    (refused,) = log.append(command.encode())

    assert isinstance(refused, InvalidArgument)
    assert log.state.groups.canonical() == before


def test_no_more_at_once_than_by_receive(log: Log) -> None:
    """A result is bounded."""
    log.produce(*"x" * 1_100)

    (refused,) = log.append(_command(log, tuple(range(1_025)), stop=1_100))

    assert isinstance(refused, InvalidArgument)


# -- other filters of the group ------------------------------------------------------------------


def _use(log: Log, **filters: Any) -> object:
    (result,) = log.append(UseFilter(group="g", topic="t", **filters).encode())
    return result


def _served(log: Log, sql: str = _SQL) -> bool:
    return log.state.groups.filter_beside("g", "t", sql) is None


def test_another_expression_is_refused_while_one_is_in_use(log: Log) -> None:
    """What it passes over would be lost to the first."""
    _given(log, (1,), stop=2)

    (refused,) = log.append(_command(log, (2,), start=2, stop=5, sql="b = 2"))

    assert isinstance(refused, FilterInUse)
    assert repr(_SQL) in str(refused)
    assert _next(log) == 2


@pytest.mark.parametrize("tags", [None, ("a",)])
def test_tags_are_refused_while_an_expression_is_in_use(log: Log, tags: Any) -> None:
    """By RECEIVE and by USE_FILTER."""
    assert isinstance(_use(log, sql=_SQL), FilterUsed)

    assert isinstance(_use(log, tags=tags), FilterInUse)
    with pytest.raises(AssertionError, match="asks for the topic"):
        log.receive(tags=tags)
    assert _next(log) == 0


def test_an_expression_ends_when_nobody_asks_with_it_for_ten_minutes(log: Log) -> None:
    """Though it is the only one: who comes after it is served then."""
    _use(log, sql=_SQL)
    for _ in range(3):
        log.now_ms += USE_IS_SAID_MS
        assert not _served(log, "b = 2")
        log.append()

    _use(log, sql="b = 2")

    assert _served(log, "b = 2")
    assert not _served(log)


def test_an_outage_of_the_whole_group_ends_no_expression(log: Log) -> None:
    """Of a time without entries 200 s count at most."""
    _use(log, sql=_SQL)
    log.now_ms += 10 * FILTER_GONE_MS

    assert isinstance(_use(log, tags=("a",)), FilterInUse)


def test_an_expression_waits_until_nobody_asks_for_tags(log: Log) -> None:
    """The only filter by tags begins to age when it comes, and lives while it is used."""
    log.receive(1, tags=("a",))
    for _ in range(5):
        log.now_ms += USE_IS_SAID_MS
        _use(log, sql=_SQL)
        assert not _served(log)
        log.receive(1, tags=("a",))
    for _ in range(3):
        assert not _served(log)
        (refused,) = log.append(_command(log, stop=2))
        assert isinstance(refused, FilterInUse)
        log.now_ms += USE_IS_SAID_MS

    _use(log, sql=_SQL)

    assert _served(log)
    assert isinstance(_use(log, tags=("a",)), FilterInUse)


def test_an_expression_that_waited_in_vain_is_forgotten(log: Log) -> None:
    """Then the only filter by tags does not age any more."""
    log.receive(1, tags=("a",))
    _use(log, sql=_SQL)
    for _ in range(4):
        log.now_ms += USE_IS_SAID_MS
        log.receive(1, tags=("a",))

    assert log.state.groups.is_filter_said("g", "t", ("a",), log.now_ms + 10 * FILTER_GONE_MS)
    codes = log.state.groups._room.codes
    assert codes == 2  # the tag, and its filter


def test_what_is_kept_for_tags_goes_with_them(log: Log) -> None:
    """And is told, when an expression takes their place."""
    log.produce("a", tag="a")
    log.receive(1, tags=("a",))
    log.receive(1, tags=("b",))
    log.produce("a", tag="a")
    log.receive(1, tags=("b",))
    assert log.state.groups.kept_bytes
    _use(log, sql=_SQL)
    for _ in range(3):
        log.now_ms += USE_IS_SAID_MS
        _use(log, sql=_SQL)

    assert _served(log)
    assert not log.state.groups.kept_bytes
    assert sum(row[3] for row in log.state.take_changes().filters_gone) == 1


def test_an_expression_is_in_a_snapshot(log: Log) -> None:
    """Served, or waiting beside tags."""
    log.receive(1, tags=("a",))
    for sql in ("b = 2", _SQL):
        _use(log, sql=sql)
        state = BrokerState.decode(log.state.encode())
        assert state.digest() == log.state.digest() == log.replay().digest()
        assert state.groups._room.codes == log.state.groups._room.codes
    assert log.state.groups.filter_beside("g", "t", "b = 2") == "a"


def test_expressions_count_by_their_length(log: Log) -> None:
    """Ten thousand groups with 4 KiB each are bounded like their tags."""
    before = log.state.groups._room.codes
    _use(log, sql="a" * 4_096)
    assert log.state.groups._room.codes == before + 65
    log.append(DeleteTopic(name="t", generation=log.state.topics.named("t").generation).encode())
    assert log.state.groups._room.codes == before


# -- random histories ----------------------------------------------------------------------------


@dataclass
class _Scanner:
    """A leader's view of the queue: what it claims next, how far it looked, what it found."""

    claim: int = 0
    scanned: int = 0
    found: list[int] = field(default_factory=list)


@dataclass
class _History:
    """Three scanners that know nothing of each other, and a member whose lease may end."""

    one_in: int
    log: Log = field(default_factory=Log)
    end: int = 0
    scanners: list[_Scanner] = field(default_factory=lambda: [_Scanner() for _ in range(3)])
    seen: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log.create()

    def produce(self, count: int) -> None:
        self.log.produce(*("x",) * count)
        self.end += count

    def scan(self, number: int, most: int) -> None:
        scanner = self.scanners[number]
        stop = max(min(scanner.scanned + most, self.end), scanner.scanned)
        scanner.found += [o for o in range(scanner.scanned, stop) if o % self.one_in == 0]
        scanner.scanned = stop

    def command(self, number: int, limit: int) -> bytes:
        scanner = self.scanners[number]
        take, scanner.found = scanner.found[:limit], scanner.found[limit:]
        start, stop = scanner.claim, scanner.found[0] if scanner.found else scanner.scanned
        scanner.claim = stop
        return _command(self.log, tuple(take), start=start, stop=stop, invisible_ms=_LONG_MS)

    def propose(self, number: int, limit: int) -> None:
        (received,) = self.log.append(self.command(number, limit))
        self.take(received)

    def lose(self, number: int, limit: int) -> None:
        """A command that never came into the log."""
        self.command(number, limit)

    def twice(self, number: int, limit: int) -> None:
        """A leader's commands may come late, and the other way round."""
        commands = [self.command(number, limit), self.command(number, limit)]
        for each in reversed(commands):
            (received,) = self.log.append(each)
            self.take(received)

    def take(self, received: object) -> None:
        assert isinstance(received, Received), received
        self.seen += offsets(received)
        for each in received.deliveries:
            self.held[each.offset] = received.receive_id

    def give_back(self) -> None:
        """A lease ends at once; the leader looks at it, and it comes again once."""
        for offset, receive_id in list(self.held.items())[:2]:
            change = ChangeInvisible(
                group="g", topic="t", lease=LeaseRef(0, offset, receive_id), invisible_ms=0
            )
            self.log.append(change.encode())
            command = _command(self.log, stop=0, again=(offset,), invisible_ms=_LONG_MS)
            (first,), (second,) = self.log.append(command), self.log.append(command)
            assert isinstance(first, Received)
            assert isinstance(second, Received)
            assert (offsets(first), offsets(second)) == ([offset], [])
            self.held[offset] = first.receive_id

    def ack(self) -> None:
        for offset, receive_id in list(self.held.items())[:3]:
            self.log.append(
                Ack(group="g", topic="t", leases=(LeaseRef(0, offset, receive_id),)).encode()
            )
            del self.held[offset]

    def plain(self, limit: int) -> None:
        """A member without a filter is refused while the expression is in use."""
        if _next(self.log) or self.seen:
            with pytest.raises(AssertionError, match="asks for the topic"):
                self.log.receive(limit)

    def leader(self, number: int) -> None:
        at = _next(self.log)
        self.scanners[number] = _Scanner(at, at)

    def restore(self) -> None:
        digest = self.log.state.digest()
        self.log.state = BrokerState.decode(self.log.state.encode())
        assert self.log.state.digest() == digest


_STEP = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 9)),
    st.tuples(st.just("scan"), st.integers(0, 2), st.integers(1, 20)),
    st.tuples(st.just("propose"), st.integers(0, 2), st.integers(0, 4)),
    st.tuples(st.just("propose"), st.integers(0, 2), st.integers(0, 4)),
    st.tuples(st.just("twice"), st.integers(0, 2), st.integers(0, 4)),
    st.tuples(st.just("lose"), st.integers(0, 2), st.integers(0, 4)),
    st.tuples(st.just("plain"), st.integers(1, 3)),
    st.tuples(st.just("leader"), st.integers(0, 2)),
    st.tuples(st.just("give_back")),
    st.tuples(st.just("ack")),
    st.tuples(st.just("restore")),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(_STEP, min_size=10, max_size=50), st.integers(1, 5))
def test_each_match_comes_once_and_in_order(steps: list[tuple[Any, ...]], one_in: int) -> None:
    """Several scanners, late commands, lost ones, new leaders, redeliveries, restores."""
    history = _History(one_in)
    for name, *args in steps:
        getattr(history, name)(*args)

    history.leader(0)
    while history.scanners[0].claim < history.end:
        history.scan(0, 20)
        history.propose(0, 5)

    assert history.seen == [o for o in range(history.end) if o % one_in == 0]
    assert history.log.replay().digest() == history.log.state.digest()
