"""Several filters in one consumer group: what each gets, what is kept, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dledger.broker import filter_room, group_filters, kept_messages
from dledger.broker.commands import (
    ChangeInvisible,
    DeleteGroup,
    DeleteTopic,
    LeaseRef,
    Renew,
    UseFilter,
)
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.filters import tag_code, tag_codes
from dledger.broker.group_filters import FILTER_GONE_MS, USE_IS_SAID_MS, FilterUse, TopicFilters
from dledger.broker.kept_messages import Codes
from dledger.broker.results import FilterUsed, Received
from dledger.broker.state import BrokerState
from dledger.common.status import FilterBacklog
from dledger.errors import InvalidArgument, LimitReached, UnknownGroup, UnknownTopic
from tests.broker.log import Log, attempts, offsets

_A, _B, _AB = ("a",), ("b",), ("a", "b")


@pytest.fixture
def log() -> Log:
    """A topic of one queue, and a group that has read nothing."""
    log = Log()
    log.create()
    return log


def _use(log: Log, *filters: tuple[str, ...] | None, group: str = "g") -> None:
    for tags in filters:
        log.append(UseFilter(group=group, topic="t", tags=tags).encode())


def _tags(log: Log, tags: str) -> None:
    """Store one message of each tag."""
    for tag in tags:
        log.produce("x", tag=tag)


def _deliveries(log: Log) -> QueueDeliveries:
    found = log.state.groups._peek("g", "t", 0)
    assert isinstance(found, QueueDeliveries)
    return found


def _available(log: Log, tags: tuple[str, ...] | None) -> int:
    return log.state.groups.available("g", "t", [0], log.now_ms, enough=99, codes=tag_codes(tags))


def _unread(log: Log) -> dict[str, int]:
    backlog = log.state.groups.backlog("g", "t")
    return {"": backlog.unread} | {each.filter: each.unread for each in backlog.filters}


def _pass(log: Log, ms: int, *filters: tuple[str, ...] | None) -> None:
    """Let time go on, while somebody asks with these filters now and then."""
    until_ms = log.now_ms + ms
    while log.now_ms < until_ms:
        log.now_ms = min(log.now_ms + USE_IS_SAID_MS // 2, until_ms)
        _use(log, *filters)


# -- what is kept, and for whom ------------------------------------------------------------------


@pytest.mark.found
def test_a_rolling_change_of_a_filter_loses_nothing(log: Log) -> None:
    """The old version of a service asks for a, the new one for a and b: each b reaches the new."""
    _use(log, _A, _AB)
    _tags(log, "abab" * 5)

    old = log.receive(20, tags=_A)
    new = log.receive(20, tags=_AB)

    assert offsets(old) == [*range(0, 20, 2)]
    assert offsets(new) == [*range(1, 20, 2)]
    assert all(log.ack(old) + log.ack(new))
    assert log.state.groups.committed("g", "t", 0) == 20
    assert _deliveries(log).kept is None


def test_what_was_passed_over_before_a_filters_first_use_is_not_for_it(log: Log) -> None:
    """A group with one filter keeps nothing, for nobody can know who is still to come."""
    _tags(log, "bab")
    log.receive(1, tags=_A)
    log.receive(9, tags=_A)
    _use(log, _B)
    _tags(log, "b")

    assert offsets(log.receive(9, tags=_B)) == [3]


def test_a_filter_that_only_waits_is_in_use(log: Log) -> None:
    """A poll that finds nothing proposes no RECEIVE; its use is said, so that it loses nothing."""
    _use(log, _B)
    _tags(log, "ab")

    assert offsets(log.receive(9, tags=_A)) == [0]
    assert offsets(log.receive(9, tags=_B)) == [1]


def test_a_use_is_of_a_group_and_a_topic_that_exist(log: Log) -> None:
    """Others are refused by name, and one is no use of another topic."""
    log.create("u")

    (nobody,) = log.append(UseFilter(group="h", topic="t", tags=_A).encode())
    (nowhere,) = log.append(UseFilter(group="g", topic="v", tags=_A).encode())
    _use(log, _A)

    assert isinstance(nobody, UnknownGroup)
    assert isinstance(nowhere, UnknownTopic)
    groups = log.state.groups
    assert groups.is_filter_said("g", "t", _A, log.now_ms)
    assert not groups.is_filter_said("g", "u", _A, log.now_ms)
    assert not groups.is_filter_said("g", "t", _B, log.now_ms)


def test_one_for_all_tags_gets_what_the_others_pass_over(log: Log) -> None:
    """However many tags there are: they take one column of what is kept."""
    _use(log, _A, None)
    for number in range(50):
        log.produce("x", tag=f"tag-{number}")
    _tags(log, "a")

    assert offsets(log.receive(9, tags=_A)) == [50]
    kept = _deliveries(log).kept
    assert kept is not None
    assert [*kept.passed_by_key()] == [(kept_messages.OTHERS, 50)]
    assert offsets(log.receive(99, tags=None)) == [*range(50)]


def test_the_lowest_come_first_of_all_that_is_kept(log: Log) -> None:
    """Before newer ones, whatever their tags."""
    _use(log, ("z",), ("a", "b", "c"))
    _tags(log, "cabcabz")
    log.receive(1, tags=("z",))
    _tags(log, "a")

    assert offsets(log.receive(4, tags=("a", "b", "c"))) == [0, 1, 2, 3]
    assert offsets(log.receive(4, tags=("a", "b", "c"))) == [4, 5, 7]


def test_the_committed_offset_is_the_lowest_that_is_not_done(log: Log) -> None:
    """Also of leases that did not begin in the order of their offsets."""
    _use(log, _A, _B)
    _tags(log, "baa")
    later = log.receive(9, tags=_A)
    assert log.state.groups.committed("g", "t", 0) == 0

    earlier = log.receive(9, tags=_B)

    assert [*_deliveries(log).leases] == [1, 2, 0]
    assert log.state.groups.committed("g", "t", 0) == 0
    log.ack(earlier)
    assert log.state.groups.committed("g", "t", 0) == 1
    log.ack(later)
    assert log.state.groups.committed("g", "t", 0) == 3


def test_retention_drops_what_is_kept(log: Log) -> None:
    """Leases that did not begin in order, passed ones and ones put aside, and nothing else."""
    _use(log, _A, _B)
    for tag in "bab":
        log.produce("x", "y", tag=tag)
    log.receive(2, tags=_A)
    log.receive(1, tags=_B)

    log.retain(before_index=len(log.entries) - 2)

    first = log.state.topics.queue("t", 0).first
    found = _deliveries(log)
    assert first == 4
    assert (found.leases, found.committed) == ({}, 4)
    assert offsets(log.receive(9, tags=_B)) == [4, 5]
    assert found.drop_before(first) == 0


# -- redelivery ----------------------------------------------------------------------------------


@pytest.fixture
def unacked(log: Log) -> tuple[Log, Received]:
    """The holder of b was late, and a asked meanwhile."""
    _use(log, _A, _B)
    _tags(log, "b")
    received = log.receive(9, tags=_B, client_id="c", attempt_id="x", invisible_ms=1_000)
    log.now_ms += 1_000
    assert offsets(log.receive(9, tags=_A)) == []
    return log, received


def test_an_unacked_message_comes_again_to_who_names_it(unacked: tuple[Log, Received]) -> None:
    """With its next attempt, whoever asked in between."""
    log, _ = unacked
    log.receive(9, tags=_A)

    again = log.receive(9, tags=_B)

    assert (offsets(again), attempts(again)) == ([0], [2])


def test_a_late_ack_of_what_was_put_aside_is_believed(unacked: tuple[Log, Received]) -> None:
    """And then it does not come again."""
    log, received = unacked

    assert log.ack(received) == (True,)
    assert offsets(log.receive(9, tags=_B)) == []
    assert log.state.groups.committed("g", "t", 0) == 1


def test_a_stale_ack_of_what_was_put_aside_is_not(unacked: tuple[Log, Received]) -> None:
    """An earlier delivery's handle does not make a message done that another one had since."""
    log, received = unacked
    log.receive(9, tags=_B, invisible_ms=1_000)
    log.now_ms += 1_000
    log.receive(9, tags=_A)

    assert log.ack(received) == (False,)
    assert attempts(log.receive(9, tags=_B)) == [3]


def test_who_holds_what_was_put_aside_may_still_keep_it(unacked: tuple[Log, Received]) -> None:
    """A late renewal, or another invisible time: as of a message nobody else asked for."""
    log, received = unacked
    lease = LeaseRef(0, 0, received.receive_id)
    renewal = Renew(group="g", topic="t", leases=(lease,), invisible_ms=500, arrived=True)
    log.append(renewal.encode())
    assert offsets(log.receive(9, tags=_B)) == []
    log.now_ms += 500
    log.receive(9, tags=_A)

    change = ChangeInvisible(group="g", topic="t", lease=lease, invisible_ms=500)
    log.append(change.encode())

    assert offsets(log.receive(9, tags=_B)) == []
    log.now_ms += 500
    assert offsets(log.receive(9, tags=_B)) == [0]


def test_an_attempt_that_asks_again_gets_what_was_put_aside(unacked: tuple[Log, Received]) -> None:
    """Its answer was lost; the lease goes on."""
    log, received = unacked

    again = log.receive(9, tags=_B, attempt_id="x")

    assert (again.receive_id, attempts(again)) == (received.receive_id, [1])
    assert log.ack(received) == (True,)


def test_what_was_passed_over_and_never_delivered_cannot_be_acknowledged(log: Log) -> None:
    """A made-up handle does not make it done."""
    _use(log, _A, _B)
    _tags(log, "ba")
    received = log.receive(9, tags=_A)

    made_up = replace(received.deliveries[0], offset=0)
    assert log.ack(replace(received, deliveries=(made_up,))) == (False,)
    assert offsets(log.receive(9, tags=_B)) == [0]


# -- how long ------------------------------------------------------------------------------------


def test_a_filter_that_nobody_uses_for_ten_minutes_is_gone(log: Log) -> None:
    """Not before; then what was kept for it alone goes, and that is told."""
    _use(log, _A, _B)
    _tags(log, "bba")
    log.receive(9, tags=_A)
    _pass(log, FILTER_GONE_MS - 1, _A)
    assert _unread(log)["b"] == 2
    log.state.take_changes()

    log.now_ms += 1
    _use(log, _A)

    changes = log.state.take_changes()
    assert changes.filters_gone == [("g", "t", "b", 2)]
    assert ("g", "t", 0) in changes.leases
    assert _deliveries(log).kept is None
    assert _unread(log) == {"": 0}
    assert log.state.groups.committed("g", "t", 0) == 2


def test_what_another_filter_names_stays_when_one_is_gone(log: Log) -> None:
    """Also what was put aside."""
    _use(log, _A, _B, ("b", "c"))
    _tags(log, "bcb")
    log.receive(1, tags=_B, invisible_ms=1)
    log.now_ms += 1
    log.receive(9, tags=_A)

    _pass(log, FILTER_GONE_MS, _A, _B)

    assert log.state.take_changes().filters_gone == [("g", "t", "b || c", 1)]
    again = log.receive(9, tags=_B)
    assert (offsets(again), attempts(again)) == ([0, 2], [2, 1])


def test_the_only_filter_does_not_age(log: Log) -> None:
    """It begins to when another comes: a member that has waited for an hour is no dead one."""
    _use(log, _B)
    for _ in range(20):
        log.now_ms += USE_IS_SAID_MS
        log.produce("x", topic="t", tag="b")
        log.ack(log.receive(1, tags=_B))
    assert log.state.groups.is_filter_said("g", "t", _B, log.now_ms)
    log.now_ms += FILTER_GONE_MS

    _use(log, _A)
    _tags(log, "ba")
    log.receive(9, tags=_A)

    assert offsets(log.receive(9, tags=_B)) == [20]


def test_a_pause_of_the_whole_group_ends_no_filter(log: Log) -> None:
    """A night in which no node was up: whose member asks first does not take it from the other."""
    _use(log, _A, _B)
    _tags(log, "b")
    log.now_ms += 10 * 3_600_000

    log.receive(9, tags=_A)
    log.now_ms += FILTER_GONE_MS - USE_IS_SAID_MS - 1
    log.receive(9, tags=_A)

    assert offsets(log.receive(9, tags=_B)) == [0]


def test_a_use_is_to_be_said_each_third_of_that_time_and_only_among_several(log: Log) -> None:
    """A group with one filter has nothing to say after its first poll."""
    groups = log.state.groups
    _use(log, _A)
    assert groups.is_filter_said("g", "t", _A, log.now_ms + 10**9)

    _use(log, _B)

    assert groups.is_filter_said("g", "t", _A, log.now_ms + USE_IS_SAID_MS - 1)
    assert not groups.is_filter_said("g", "t", _A, log.now_ms + USE_IS_SAID_MS)


def test_what_was_deleted_gives_its_room_back(log: Log) -> None:
    """The topic, or the group, with what was kept of it and the filters themselves."""
    room = log.state.groups._room
    for delete in (
        DeleteTopic(name="t", generation=1).encode(),
        DeleteGroup(name="g").encode(),
    ):
        _use(log, _A, None)
        _tags(log, "bacda")
        log.receive(9, tags=_A)
        assert log.state.groups.kept_bytes == 2 * filter_room.RUN_BYTES + filter_room.COLUMN_BYTES
        assert room.codes == 3

        log.append(delete)

        assert (room.kept_bytes, room.codes) == (0, 0)
        log.create()


# -- bounds --------------------------------------------------------------------------------------


def test_at_the_bound_the_faster_filter_waits_for_the_slower(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses nothing; that is told, and it goes on as the other takes what is its own."""
    monkeypatch.setattr(kept_messages, "MAX_KEPT_RUNS", 2)
    _use(log, _A, _B)
    _tags(log, "ba" * 5)

    assert offsets(log.receive(9, tags=_A)) == [1, 3]
    assert log.state.take_changes().filters_full == {("g", "t", 0)}
    assert _available(log, _A) == 0
    assert log.state.groups.backlog("g", "t").filters == (
        FilterBacklog(filter="a", unread=3, waits=True),
        FilterBacklog(filter="b", unread=5, waits=False),
    )
    assert offsets(log.receive(1, tags=_B)) == [0]
    assert ("g", "t", 0) in log.state.take_changes().leases
    assert _available(log, _A) > 0
    assert offsets(log.receive(9, tags=_A)) == [5]
    assert offsets(log.receive(9, tags=_B)) == [2, 4, 6, 8]


def test_at_the_bound_the_faster_filter_waits_for_the_end_of_one_that_is_gone(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes at most, and its own polls bring that about."""
    monkeypatch.setattr(kept_messages, "MAX_KEPT_RUNS", 2)
    _use(log, _A, _B)
    _tags(log, "ba" * 5)
    log.receive(9, tags=_A)

    _pass(log, FILTER_GONE_MS, _A)

    assert offsets(log.receive(9, tags=_A, any_queue=True))[-3:] == [5, 7, 9]


def test_all_groups_share_one_bound(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes: a run is 16, a column some more."""
    monkeypatch.setattr(filter_room, "MAX_KEPT_BYTES", 1 + 2 * filter_room.COLUMN_BYTES)
    log.create(group="h")
    for group in "gh":
        _use(log, _A, _B, group=group)
    _tags(log, "bcbcba")

    assert offsets(log.receive(9, tags=_A)) == [5]
    assert log.state.groups.kept_bytes == filter_room.COLUMN_BYTES + 3 * filter_room.RUN_BYTES
    assert offsets(log.receive(9, tags=_A, group="h")) == []
    assert _available(log, _A) == 0


def test_a_kept_run_takes_16_bytes_in_memory_and_in_a_snapshot(log: Log) -> None:
    """At the bound of alternating tags: 65,536 runs are a mebibyte."""
    log.create()
    _use(log, _A, _B)
    tags = ["b", "c"] * kept_messages.MAX_KEPT_RUNS
    filters = log.state.groups._group("g").filters("t")
    assert filters is not None
    kept = kept_messages.KeptMessages(filters.room)
    code = tag_code(b"b")

    for offset in range(0, len(tags), 2):
        assert kept.has_room
        kept.keep(code, offset, offset + 1)

    assert not kept.has_room
    size = 16 * kept_messages.MAX_KEPT_RUNS
    assert 0 <= filters.room.kept_bytes - size <= 512
    assert 0 <= len(b"".join(kept.encoded())) - size <= 512
    copied = kept.copy()
    assert copied.canonical() == kept.canonical()


def test_filters_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a group and topic, of all, and each by its tags; one more is refused by name."""
    monkeypatch.setattr(group_filters, "MAX_FILTERS", 2)
    _use(log, _A, _B)

    (third,) = log.append(UseFilter(group="g", topic="t", tags=_AB).encode())
    assert isinstance(third, LimitReached)
    (broad,) = log.append(
        UseFilter(group="g", topic="t", tags=tuple(map(str, range(257)))).encode()
    )
    assert isinstance(broad, InvalidArgument)
    monkeypatch.setattr(group_filters, "MAX_CODES", 5)
    log.create("u")
    (other,) = log.append(UseFilter(group="g", topic="u", tags=_AB).encode())
    assert isinstance(other, LimitReached)
    assert log.append(UseFilter(group="g", topic="t", tags=_A).encode()) == [FilterUsed()]


# -- what a look and a report say ----------------------------------------------------------------


def test_a_look_counts_what_its_filter_would_get(log: Log) -> None:
    """Else a polls in a circle over what is kept for b, or b sleeps over it."""
    _use(log, _A, _B)
    _tags(log, "bbb")
    assert (_available(log, _A), _available(log, _B)) == (3, 3)  # nobody has read of the queue yet
    log.receive(9, tags=_A)
    _tags(log, "ab")

    assert (_available(log, _A), _available(log, _B), _available(log, None)) == (1, 4, 5)
    log.receive(1, tags=_B, invisible_ms=1)
    log.now_ms += 1
    assert (_available(log, _A), _available(log, _B)) == (1, 4)


def test_a_look_does_not_see_very_far_and_then_says_yes(log: Log) -> None:
    """The RECEIVE passes over what the look could not see past; the next look is right."""
    _use(log, _A, _B)
    log.receive(9, tags=_A)
    _tags(log, "bc" * 40)

    assert _available(log, _A) > 0
    log.receive(9, tags=_A)
    assert _available(log, _A) == 0

    for _ in range(40):
        log.receive(2, tags=_B, invisible_ms=1)
    _tags(log, "b" * 70)
    log.receive(99, tags=_B, invisible_ms=1)
    log.now_ms += 1
    assert _available(log, _A) > 0
    log.receive(9, tags=_A)
    assert _available(log, _A) == 0
    assert len(offsets(log.receive(999, tags=_B))) == 110


def test_unread_is_told_by_filter_and_of_the_slowest(log: Log) -> None:
    """Kept for it, and new ones that it names; with one filter it is all that was not passed."""
    _tags(log, "ab")
    assert _unread(log) == {"": 2}
    _use(log, _A, _AB, None)
    _tags(log, "abc")

    log.receive(9, tags=_A)

    assert _unread(log) == {"": 3, "a": 0, "a || b": 2, "*": 3}
    log.receive(9, tags=None)
    assert _unread(log) == {"": 0, "a": 0, "a || b": 0, "*": 0}


def test_a_filters_text_is_cut_for_a_table(log: Log) -> None:
    """256 tags of a kilobyte each are not shown, nor kept."""
    assert group_filters.filter_text(None) == "*"
    assert group_filters.filter_text(("x" * 1_000,)) == "x" * 124 + "..."


# -- many ----------------------------------------------------------------------------------------


class _Unwalked(dict[Codes, FilterUse]):
    """Filters that nobody may go through."""

    def __iter__(self) -> Iterator[Codes]:
        raise AssertionError("walks all filters")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_what_a_tag_is_kept_under_does_not_go_through_all_filters(log: Log) -> None:
    """It is asked for each run that is passed over."""
    filters = TopicFilters(filter_room.FilterRoom())
    for tag in ("a", "b"):
        filters.use(tag_codes((tag,)), (tag,), 0)
    filters._uses = _Unwalked(filters._uses)

    found = [filters.key_of(code) for code in tag_codes(("a", "b", "c")) or ()]

    assert found.count(None) == 1


@pytest.mark.found
def test_a_thousand_filters_in_one_group_lose_nothing() -> None:
    """Each gets what it names, in any order of polls; then nothing is left, nor kept."""
    log, filters = Log(), [(f"tag-{number:03}", "all") for number in range(1_000)]
    log.create(queues=2)
    _use(log, *filters)
    for number in range(1_000):
        log.produce("x", "y", tag=f"tag-{number * 37 % 1_000:03}", queue_id=number % 2)
    log.produce("z", tag="all")

    got: list[tuple[int, int]] = []
    for tags in filters[::-1]:
        received = log.receive(9, tags=tags, any_queue=True)
        got += [(each.queue_id, each.offset) for each in received.deliveries]
        log.ack(received)

    assert len(got) == len(set(got)) == 2_001
    assert log.state.groups.kept_bytes == 0
    assert [log.state.groups.committed("g", "t", each) for each in (0, 1)] == [1_001, 1_000]
    assert BrokerState.decode(log.state.encode()).digest() == log.state.digest()
    backlog = log.state.groups.backlog("g", "t")
    assert (backlog.unread, len(backlog.filters)) == (0, 1_000)
