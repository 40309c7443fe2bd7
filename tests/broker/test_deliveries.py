"""Deliveries: what a group gets, when it gets it again, and when never any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import deliveries as deliveries_module
from dledger.broker.commands import ChangeInvisible, LeaseRef, Release, Renew
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.filters import tag_code
from dledger.broker.lease_columns import Lease
from dledger.broker.queue_positions import Payload
from dledger.broker.results import Received
from dledger.errors import InvalidReceiptHandle
from tests.broker.log import Log, attempts, offsets


@pytest.fixture
def log() -> Log:
    """A topic of one queue with five messages, and a group that has read nothing."""
    log = Log()
    log.create()
    log.produce("0", "1", "2", "3", "4")
    return log


def _change(log: Log, received: Received, row: int, invisible_ms: int) -> object:
    delivery = received.deliveries[row]
    lease = LeaseRef(delivery.queue_id, delivery.offset, received.receive_id)
    command = ChangeInvisible(group="g", topic="t", lease=lease, invisible_ms=invisible_ms)
    return log.append(command.encode())[0]


def test_a_new_group_starts_at_the_oldest_message(log: Log) -> None:
    """Nothing that was sent before the group existed is skipped."""
    assert offsets(log.receive(3)) == [0, 1, 2]


def test_a_message_is_given_to_one_member_at_a_time(log: Log) -> None:
    """The second receive goes on where the first ended."""
    log.receive(3)

    assert offsets(log.receive(3)) == [3, 4]
    assert offsets(log.receive(3)) == []


def test_groups_do_not_share_messages(log: Log) -> None:
    """Each group gets everything."""
    log.create(topic="other", group="h")
    log.receive(5)

    assert offsets(log.receive(5, group="h")) == [0, 1, 2, 3, 4]


def test_an_unacked_message_comes_again_after_its_time_with_the_next_attempt(log: Log) -> None:
    """Not a millisecond earlier, and only what was not acked."""
    first = log.receive(3, invisible_ms=1000)
    log.ack(first, 1)

    log.now_ms += 999
    assert offsets(log.receive(1)) == [3]
    log.now_ms += 1
    again = log.receive(5)

    assert offsets(again) == [0, 2, 4]
    assert attempts(again) == [2, 2, 1]


def test_an_acked_message_never_comes_again(log: Log) -> None:
    """However long one waits."""
    log.ack(log.receive(5))
    log.now_ms += 10**9

    assert offsets(log.receive(5)) == []


def test_acking_twice_is_fine(log: Log) -> None:
    """A client whose answer was lost in a failover asks again."""
    received = log.receive(1)

    assert log.ack(received) == (True,)
    assert log.ack(received) == (True,)


def test_a_handle_is_stale_once_its_message_was_given_to_another(log: Log) -> None:
    """The first holder is too late; the second one's handle counts."""
    first = log.receive(1)
    log.now_ms += 1000
    second = log.receive(1)

    assert log.ack(first) == (False,)
    assert log.ack(second) == (True,)


def test_a_late_ack_counts_while_nobody_else_got_the_message(log: Log) -> None:
    """The work is done; delivering it once more would only do harm."""
    first = log.receive(1)
    log.now_ms += 5000

    assert log.ack(first) == (True,)
    assert offsets(log.receive(1)) == [1]


def test_the_committed_offset_is_the_lowest_unacked_one(log: Log) -> None:
    """Acks out of order move it only when the gap closes."""
    received = log.receive(4)

    log.ack(received, 1, 2)
    assert log.state.groups.committed("g", "t", 0) == 0
    log.ack(received, 0)
    assert log.state.groups.committed("g", "t", 0) == 3


def test_changing_the_invisible_time_moves_the_next_delivery(log: Log) -> None:
    """Sooner or later, counted from the change."""
    received = log.receive(2, invisible_ms=1000)
    _change(log, received, 0, 10)
    _change(log, received, 1, 5000)

    log.now_ms += 10
    assert offsets(log.receive(1)) == [0]
    log.now_ms += 4989
    assert 1 not in offsets(log.receive(1))
    log.now_ms += 1
    assert 1 in offsets(log.receive(9))


def test_changing_the_invisible_time_needs_a_handle_that_counts(log: Log) -> None:
    """An acked message is gone."""
    received = log.receive(1)
    log.ack(received)

    assert isinstance(_change(log, received, 0, 10), InvalidReceiptHandle)


def _renew(
    log: Log, received: Received, *more: LeaseRef, invisible_ms: int = 1000, arrived: bool = True
) -> None:
    leases = tuple(LeaseRef(0, d.offset, received.receive_id) for d in received.deliveries)
    command = Renew(
        group="g",
        topic="t",
        leases=(*leases, *more),
        invisible_ms=invisible_ms,
        arrived=arrived,
    )
    log.append(command.encode())


def _due(log: Log, within_ms: int) -> list[tuple[int, str]]:
    found = log.state.groups.renewable(log.now_ms + within_ms)
    return [(offset, lease.client_id) for _, offset, lease in found]


def test_renewed_messages_stay_with_a_live_client(log: Log) -> None:
    """Renewal starts a new term of the lease; a stale handle is passed over."""
    received = log.receive(2, invisible_ms=1000, client_id="alive")
    _renew(log, received)
    log.now_ms += 900
    due = _due(log, within_ms=200)
    _renew(log, received, LeaseRef(0, 0, 999))

    log.now_ms += 999
    assert due == [(0, "alive"), (1, "alive")]
    assert offsets(log.receive(9)) == [2, 3, 4]


def test_what_still_moves_is_prolonged_and_not_taken_for_arrived(log: Log) -> None:
    """And what has arrived meanwhile keeps its longer lease."""
    received = log.receive(1, invisible_ms=1000, client_id="alive")
    log.now_ms += 900
    _renew(log, received, arrived=False)
    log.now_ms += 900
    assert _due(log, within_ms=200) == []
    assert offsets(log.receive(1)) == [1]

    _renew(log, received, invisible_ms=5000)
    _renew(log, received, arrived=False)

    log.now_ms += 1001
    assert 0 not in offsets(log.receive(9))
    assert _due(log, within_ms=4000) == [(0, "alive")]


def test_what_may_not_have_arrived_is_not_renewed_unasked(log: Log) -> None:
    """Only the first renewal says that a client has what it was given: an answer may be lost."""
    lost = log.receive(1, invisible_ms=1000, client_id="alive")
    answered = log.receive(2, invisible_ms=1000, client_id="alive")
    log.ack(answered, 1)
    receives = {("g", "t", 0): {answered.receive_id}, ("g", "t", 7): {lost.receive_id}}

    handed_out = [(offset, *key) for key, offset, _ in log.state.groups.handed_out(receives)]
    due = _due(log, within_ms=5000)
    _renew(log, answered)

    assert handed_out == [(1, "g", "t", 0)]
    assert due == []
    assert _due(log, within_ms=5000) == [(1, "alive")]
    assert not list(log.state.groups.handed_out(receives))
    log.now_ms += 1000
    assert offsets(log.receive(1)) == [0]


def test_what_a_repeated_attempt_is_given_again_is_leased_anew(log: Log) -> None:
    """The client has it from now on, not from when its first answer was lost."""
    log.receive(2, invisible_ms=1000, attempt_id="x")
    log.now_ms += 900
    again = log.receive(2, invisible_ms=1000, attempt_id="x")

    log.now_ms += 999
    assert (offsets(again), offsets(log.receive(9))) == ([0, 1], [2, 3, 4])
    log.now_ms += 1
    assert offsets(log.receive(9)) == [0, 1]


def test_a_message_that_was_given_back_is_renewed_no_more(log: Log) -> None:
    """A nack names the time; a renewal on its way, or the next one, must not put it off."""
    received = log.receive(2, client_id="alive", invisible_ms=60_000)
    _renew(log, received)
    _change(log, received, 0, 100)
    due = _due(log, within_ms=60_001)
    _renew(log, received)

    log.now_ms += 101

    assert due == [(1, "alive")]
    assert offsets(log.receive(9)) == [0, 2, 3, 4]


def test_what_a_parted_client_held_is_delivered_at_once(log: Log) -> None:
    """Only its own renewed messages; those of others stay."""
    log.receive(1, client_id="parted", invisible_ms=60_000)
    log.receive(1, client_id="other", invisible_ms=60_000)
    log.receive(1, invisible_ms=60_000)

    log.append(Release(group="g", client_id="parted").encode())

    again = log.receive(1)
    assert (offsets(again), attempts(again)) == ([0], [2])
    assert offsets(log.receive(9)) == [3, 4]


def test_an_attempt_that_asks_again_gets_the_same_messages(log: Log) -> None:
    """A receive whose answer was lost does not hide messages until they expire."""
    first = log.receive(2, attempt_id="x")
    again = log.receive(2, attempt_id="x")

    assert (again.receive_id, again.deliveries) == (first.receive_id, first.deliveries)
    assert attempts(again) == [1, 1]
    assert log.ack(again) == (True, True)


def test_an_attempt_that_holds_nothing_any_more_gets_new_messages(log: Log) -> None:
    """An SDK that reuses an attempt id is not stuck."""
    log.ack(log.receive(2, attempt_id="x"))

    assert offsets(log.receive(2, attempt_id="x")) == [2, 3]


def test_a_filter_passes_over_other_tags_for_good() -> None:
    """What a group does not want counts as done."""
    log = Log()
    log.create()
    log.produce("0", "1", tag="a")
    log.produce("2", tag="b")
    log.produce("3")
    log.produce("4", tag="b")

    received = log.receive(9, tags=("b",))

    assert offsets(received) == [2, 4]
    log.ack(received)
    assert log.state.groups.committed("g", "t", 0) == 5


def test_a_receive_passes_over_a_bounded_number_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A filter that finds nothing does not make one command take for ever; the next goes on."""
    monkeypatch.setattr(deliveries_module, "MAX_RUNS_SCANNED", 3)
    log = Log()
    log.create()
    for n in range(5):
        log.produce(str(n), tag="wanted" if n == 4 else f"tag-{n}")

    assert offsets(log.receive(1, tags=("wanted",))) == []
    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) == 2
    assert offsets(log.receive(1, tags=("wanted",))) == [4]


def test_unacked_messages_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that never acks is not given more and more."""
    monkeypatch.setattr(deliveries_module, "MAX_LEASES", 2)

    received = log.receive(9)
    assert offsets(received) == [0, 1]
    assert log.state.groups.available("g", "t", [0], log.now_ms, enough=9) == 0
    log.ack(received, 0)
    assert offsets(log.receive(9)) == [2]


def test_any_queue_fills_a_receive_from_all_queues() -> None:
    """It starts at the asked one and goes round."""
    log = Log()
    log.create(queues=3)
    for queue_id in range(3):
        log.produce("x", "y", queue_id=queue_id)

    received = log.receive(5, queue_id=2, any_queue=True)

    places = [(delivery.queue_id, delivery.offset) for delivery in received.deliveries]
    assert places == [(2, 0), (2, 1), (0, 0), (0, 1), (1, 0)]


def test_expiry_says_when_a_waiting_reader_should_look_again(log: Log) -> None:
    """The earliest end of a lease, and infinity when there is none."""
    assert log.state.groups.next_expiry("g", "t", [0]) == float("inf")
    received = log.receive(5, invisible_ms=700)
    assert log.state.groups.next_expiry("g", "t", [0]) == log.now_ms + 700
    log.ack(received)
    assert log.state.groups.next_expiry("g", "t", [0]) == float("inf")


@dataclass
class _Held:
    receive_id: int
    until_ms: int
    attempt: int
    client_id: str


@dataclass
class _Model:
    """The slow, obvious version: one row a message."""

    tags: list[str] = field(default_factory=list)
    next_offset: int = 0
    held: dict[int, _Held] = field(default_factory=dict)

    def take(
        self, limit: int, tags: set[str] | None, now_ms: int, until_ms: int, by: tuple[int, str]
    ) -> list[int]:
        due = sorted((x.until_ms, o) for o, x in self.held.items() if x.until_ms <= now_ms)
        taken: list[int] = []
        for _, offset in due:
            if len(taken) == limit:
                break
            if tags is not None and self.tags[offset] not in tags:
                del self.held[offset]
                continue
            attempt = self.held[offset].attempt + 1
            self.held[offset] = _Held(by[0], until_ms, attempt, by[1])
            taken.append(offset)
        while len(taken) < limit and self.next_offset < len(self.tags):
            offset = self.next_offset
            self.next_offset += 1
            if tags is None or self.tags[offset] in tags:
                self.held[offset] = _Held(by[0], until_ms, 1, by[1])
                taken.append(offset)
        return taken

    def current(self, offset: int, receive_id: int) -> bool:
        held = self.held.get(offset)
        return held is not None and held.receive_id == receive_id

    def available(self, now_ms: int) -> int:
        due = sum(x.until_ms <= now_ms for x in self.held.values())
        return len(self.tags) - self.next_offset + due


class _Pair:
    """The shipped deliveries and the model, which are told the same."""

    def __init__(self) -> None:
        self.queue, self.found, self.model = ConsumeQueue(), QueueDeliveries(), _Model()
        self.now_ms = self.receive_id = self.entries = 0

    def add(self, tags: list[str]) -> None:
        self.entries += 1
        payload = Payload(self.entries, 0, 1)
        self.queue.append(payload, range(len(tags)), [tag.encode() for tag in tags])
        self.model.tags += tags

    def take(self, limit: int, wanted: str | None, invisible_ms: int, client_id: str) -> None:
        self.receive_id += 1
        until_ms = self.now_ms + invisible_ms + 1
        codes = None if wanted is None else frozenset(tag_code(t.encode()) for t in wanted)
        got = self.found.take(
            self.queue,
            limit=limit,
            codes=codes,
            now_ms=self.now_ms,
            lease_until_ms=until_ms,
            receive_id=self.receive_id,
            client_id=client_id,
        )
        tags = None if wanted is None else set(wanted)
        by = (self.receive_id, client_id)
        assert got == self.model.take(limit, tags, self.now_ms, until_ms, by)

    def ack(self, offset: int, age: int) -> None:
        receive_id = self.receive_id - age
        current = self.model.current(offset, receive_id)
        done = offset not in self.model.held and offset < self.model.next_offset
        assert self.found.ack(offset, receive_id) == (current or done)
        if current:
            del self.model.held[offset]

    def extend(self, offset: int, age: int, delay_ms: int, gives_back: bool) -> None:
        receive_id, until_ms = self.receive_id - age, self.now_ms + delay_ms
        change = self.found.give_back if gives_back else self.found.extend
        current = self.model.current(offset, receive_id)
        assert change(offset, receive_id, until_ms) == current
        if current:
            held = self.model.held[offset]
            held.until_ms = until_ms
            held.client_id = "" if gives_back else held.client_id

    def release(self, client_id: str) -> None:
        mine = [held for held in self.model.held.values() if held.client_id == client_id]
        assert self.found.release(client_id, self.now_ms) == len(mine)
        for held in mine:
            held.until_ms = self.now_ms

    def look(self, enough: int, ago_ms: int) -> None:
        """Look; the clock of another leader may be a little behind."""
        now_ms = max(self.now_ms - ago_ms, 0)
        seen = self.found.available(self.queue.end, now_ms, enough=enough)
        assert min(seen, enough) == min(self.model.available(now_ms), enough)

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def assert_equal(self) -> None:
        found, held = self.found, self.model.held
        assert found.next_offset == self.model.next_offset
        assert found.committed == min(held, default=self.model.next_offset)
        assert found.next_expiry() == min((x.until_ms for x in held.values()), default=_NEVER)
        assert {
            o: _Held(x.receive_id, x.visible_at_ms, x.attempt, x.client_id)
            for o, x in found.leases.items()
        } == held


_NEVER = float("inf")
_OFFSET, _AGE, _CLIENT = st.integers(0, 12), st.integers(0, 4), st.sampled_from(["", "c", "d"])
_TAGS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)
_DELAY_MS, _WANTED = st.integers(0, 6), st.sampled_from([None, None, "a", "ab"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _TAGS),
        st.tuples(st.just("take"), st.integers(1, 4), _WANTED, st.integers(0, 8), _CLIENT),
        st.tuples(st.just("ack"), _OFFSET, _AGE),
        st.tuples(st.just("extend"), _OFFSET, _AGE, _DELAY_MS, st.booleans()),
        st.tuples(st.just("release"), st.sampled_from("cd")),
        st.tuples(st.just("look"), st.integers(1, 12), st.sampled_from([0, 0, 0, 3])),
        st.tuples(st.just("wait"), st.integers(0, 6)),
    ),
    max_size=60,
)


@settings(max_examples=400)
@given(_STEPS)
def test_deliveries_are_those_of_the_obvious_model(steps: list[tuple[Any, ...]]) -> None:
    """Any sequence of batches, receives, acks, changes, looks and waits gives the same answers."""
    pair = _Pair()

    for name, *arguments in steps:
        getattr(pair, name)(*arguments)

        pair.assert_equal()


def test_what_was_given_back_is_its_clients_no_more() -> None:
    """A client that parts ends what it holds, not what it gave back for a time that it chose."""
    pair = _Pair()
    pair.add(["a"] * 2)
    pair.take(2, None, 4, "c")

    pair.extend(0, 0, 50, True)
    pair.release("c")

    pair.assert_equal()
    assert pair.found.leases[0].visible_at_ms == 50


def test_a_leaders_looks_do_not_change_what_is_handed_out() -> None:
    """What ended first comes first, also if only what ended later was looked at: as elsewhere."""
    looked, other = _Pair(), _Pair()
    for pair in (looked, other):
        pair.add(["a"] * 3)
        pair.take(2, None, 9, "")
        pair.take(1, None, 20, "")
    looked.wait(15)
    looked.look(2, 0)

    for pair in (looked, other):
        pair.now_ms = 10
        pair.extend(2, 0, -5, False)
        pair.now_ms = 15
        pair.take(3, None, 9, "")
        pair.assert_equal()


def test_a_look_may_be_behind_an_earlier_one() -> None:
    """A node that leads again may have a clock behind the one of its first time: it is no error."""
    pair = _Pair()
    pair.add(["a"] * 3)
    pair.take(2, None, 4, "")
    pair.wait(5)
    pair.look(9, 0)

    pair.look(9, 3)
    pair.extend(0, 0, 1, False)
    pair.look(9, 0)


class _Unwalked(dict[int, Lease]):
    """Leases that nobody may go through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("walks all leases")

    keys = values = items = __iter__  # type: ignore[assignment]


def _many_leases(*clients: str) -> QueueDeliveries:
    queue, found, total = ConsumeQueue(), QueueDeliveries(), 1_000 * len(clients)
    queue.append(Payload(1, 0, 1), range(total), [b""] * total)
    for number, client_id in enumerate(clients):
        found.take(
            queue,
            limit=1_000,
            codes=None,
            now_ms=0,
            lease_until_ms=10,
            receive_id=number,
            client_id=client_id,
        )
    found.leases = _Unwalked(found.leases)
    return found


def test_a_look_counts_what_ended_no_further_than_it_is_asked() -> None:
    """A thousand leases end at once: a look that asks for five touches five."""
    found = _many_leases("")
    end = found.next_offset

    seen = [found.available(end, 10, enough=enough) for enough in (5, 5, 7)]

    assert seen == [5, 5, 7]
    assert len(found._counted) == 7


def test_a_parting_client_costs_what_it_held() -> None:
    """Not what all others hold; and who looks for renewals passes over what no client keeps."""
    found = _many_leases("", "")
    assert found.release("nobody", 5) == 0
    assert list(found.renewable(1_000)) == []

    found = _many_leases("one", "other")
    assert found.release("one", 5) == 1_000
    assert found.available(found.next_offset, 5, enough=3_000) == 1_000


def test_ends_that_are_none_any_more_do_not_pile_up() -> None:
    """Leases that are renewed for ever, and then acked, leave nothing behind to pass over."""
    found = _many_leases("c")
    for until_ms in range(20, 40):
        for offset in range(1_000):
            found.renew(offset, 0, until_ms, arrived=True)
    renewed = len(found._expiry) + len(found._ended)
    for offset in range(1_000):
        found.ack(offset, 0)

    assert renewed <= 3_000
    assert len(found._expiry) + len(found._ended) <= 64
