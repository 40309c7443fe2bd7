"""Deliveries: what a group gets, when it gets it again, and when never any more."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker import deliveries as deliveries_module
from dledger.broker.commands import ChangeInvisible, LeaseRef, Release, Renew
from dledger.broker.consume_queue import ConsumeQueue, Payload
from dledger.broker.deliveries import QueueDeliveries
from dledger.broker.filters import tag_code
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


def _renew(log: Log, received: Received, *more: LeaseRef) -> None:
    leases = tuple(LeaseRef(0, d.offset, received.receive_id) for d in received.deliveries)
    command = Renew(group="g", topic="t", leases=(*leases, *more), invisible_ms=1000)
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
    assert log.state.groups.available("g", "t", [0], log.now_ms) == 2
    assert offsets(log.receive(1, tags=("wanted",))) == [4]


def test_unacked_messages_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that never acks is not given more and more."""
    monkeypatch.setattr(deliveries_module, "MAX_LEASES", 2)

    received = log.receive(9)
    assert offsets(received) == [0, 1]
    assert log.state.groups.available("g", "t", [0], log.now_ms) == 0
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
class _Model:
    """The slow, obvious version: one row a message."""

    tags: list[str] = field(default_factory=list)
    next_offset: int = 0
    held: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def take(
        self, limit: int, tags: set[str] | None, now_ms: int, until_ms: int, receive_id: int
    ) -> list[int]:
        due = sorted((until, o) for o, (_, until, _) in self.held.items() if until <= now_ms)
        taken: list[int] = []
        for _, offset in due:
            if len(taken) == limit:
                break
            if tags is not None and self.tags[offset] not in tags:
                del self.held[offset]
                continue
            self.held[offset] = (receive_id, until_ms, self.held[offset][2] + 1)
            taken.append(offset)
        while len(taken) < limit and self.next_offset < len(self.tags):
            offset = self.next_offset
            self.next_offset += 1
            if tags is None or self.tags[offset] in tags:
                self.held[offset] = (receive_id, until_ms, 1)
                taken.append(offset)
        return taken

    def available(self, now_ms: int) -> int:
        due = sum(until <= now_ms for _, until, _ in self.held.values())
        return len(self.tags) - self.next_offset + due


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from("abc"), min_size=1, max_size=4)),
        st.tuples(
            st.just("take"),
            st.integers(1, 4),
            st.sampled_from([None, "a", "ab"]),
            st.integers(0, 20),
        ),
        st.tuples(st.just("ack"), st.integers(0, 12), st.integers(0, 8)),
        st.tuples(st.just("extend"), st.integers(0, 12), st.integers(0, 8), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(0, 15)),
    ),
    max_size=40,
)


@given(_STEPS)
def test_deliveries_are_those_of_the_obvious_model(steps: list[tuple[object, ...]]) -> None:
    """Any sequence of batches, receives, acks, changes and waits gives the same answers."""
    queue, found, model = ConsumeQueue(), QueueDeliveries(), _Model()
    now_ms, receive_id, entries = 0, 0, 0

    for step in steps:
        match step:
            case ("add", list() as tags):
                entries += 1
                queue.append(
                    Payload(entries, 0, 1), range(len(tags)), [tag.encode() for tag in tags]
                )
                model.tags += tags
            case ("take", int(limit), wanted, int(invisible_ms)):
                receive_id += 1
                until_ms = now_ms + invisible_ms + 1
                tags_set = None if wanted is None else set(str(wanted))
                codes = (
                    None if wanted is None else frozenset(tag_code(t.encode()) for t in str(wanted))
                )
                got = found.take(
                    queue,
                    limit=limit,
                    codes=codes,
                    now_ms=now_ms,
                    lease_until_ms=until_ms,
                    receive_id=receive_id,
                    client_id="",
                )
                assert got == model.take(limit, tags_set, now_ms, until_ms, receive_id)
            case ("ack", int(offset), int(age)):
                held = model.held.get(offset)
                current = held is not None and held[0] == receive_id - age
                done = held is None and offset < model.next_offset
                assert found.ack(offset, receive_id - age) == (current or done)
                if current:
                    del model.held[offset]
            case ("extend", int(offset), int(age), int(delay_ms)):
                held = model.held.get(offset)
                current = held is not None and held[0] == receive_id - age
                assert found.extend(offset, receive_id - age, now_ms + delay_ms) == current
                if current and held is not None:
                    model.held[offset] = (held[0], now_ms + delay_ms, held[2])
            case ("wait", int(ms)):
                now_ms += ms
        assert found.available(queue.end, now_ms) == model.available(now_ms)
        assert found.next_offset == model.next_offset
        assert found.committed == min(model.held, default=model.next_offset)
        expected = {o: (lease, until, n) for o, (lease, until, n) in model.held.items()}
        assert {
            o: (x.receive_id, x.visible_at_ms, x.attempt) for o, x in found.leases.items()
        } == expected
