"""FIFO by message group: against a model that knows only which messages are not done yet."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.broker import fifo_deliveries as rules
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.fifo_deliveries import FifoDeliveries
from dledger.broker.filters import tag_code
from dledger.broker.held_leases import MAX_RUNS_SCANNED
from dledger.broker.queue_positions import Payload
from dledger.broker.snapshot_codec import MalformedStateError, Reader

_TAGS = frozenset({tag_code(b"a")})
_MAX_ATTEMPTS = 3
_STEP = st.one_of(
    st.tuples(st.just("produce"), st.lists(st.integers(0, 3), min_size=1, max_size=8)),
    st.tuples(st.just("produce_other"), st.integers(0, 3)),
    st.tuples(st.just("receive"), st.integers(1, 5), st.sampled_from([10, 10, 100])),
    st.tuples(st.just("receive"), st.integers(1, 5), st.sampled_from([10, 10, 100])),
    st.tuples(st.just("ack"), st.integers(0, 99)),
    st.tuples(st.just("ack"), st.integers(0, 99)),
    st.tuples(st.just("extend"), st.integers(0, 99), st.sampled_from([0, 5, 50])),
    st.tuples(st.just("change"), st.integers(0, 99), st.sampled_from([0, 5]), st.booleans()),
    st.tuples(st.just("late"), st.integers(0, 99)),
    st.tuples(st.just("elapse"), st.sampled_from([1, 10, 101])),
    st.tuples(st.just("retain"), st.integers(1, 3)),
    st.tuples(st.just("release")),
    st.tuples(st.just("freeze")),
    st.tuples(st.just("restore")),
)


class Queue:
    """A queue of a FIFO topic, with one entry for each batch."""

    def __init__(self) -> None:
        self.queue = ConsumeQueue(has_groups=True)
        self.entries: list[int] = []

    def produce(self, codes: list[int], tag: str = "a") -> None:
        payload = Payload(len(self.entries) + 1, 0, 9)
        self.queue.append(payload, range(len(codes)), [tag.encode()] * len(codes))
        assert self.queue.groups is not None
        self.queue.groups.extend(array("I", codes))
        self.entries += [payload.index]


class Model:
    """What is not done, in order, by group; and the handles that consumers have."""

    def __init__(self, window: int, *, filtered: bool) -> None:
        self.window, self.now, self.receives, self.first = window, 0, 0, 0
        self.scanned = 5 if window == 3 else MAX_RUNS_SCANNED
        self.of, self.tags = Queue(), _TAGS if filtered else None
        self.codes: list[int] = []
        self.undone: dict[int, list[int]] = {}
        self.live: dict[int, tuple[int, int]] = {}  # offset: (receive, until), as handed out
        self.old: list[tuple[int, int]] = []  # stale handles
        self.tries: dict[int, int] = {}
        self.real = FifoDeliveries(max_waiting=window)
        self.frozen: list[tuple[FifoDeliveries, bytes]] = []

    def produce(self, codes: list[int]) -> None:
        for code in codes:
            self.undone.setdefault(code, []).append(len(self.codes))
            self.codes.append(code)
        self.of.produce(codes)

    def produce_other(self, code: int) -> None:
        if self.tags is None:
            self.produce([code])
        else:  # it is nobody's
            self.codes.append(code)
            self.of.produce([code], tag="b")

    def _busy(self) -> set[int]:
        return {self.codes[o] for o, (_, end) in self.live.items() if end > self.now}

    def receive(self, limit: int, lasts: int) -> None:
        self.receives += 1
        until, queue = self.now + lasts, self.of.queue
        promised = self.real.groups_to(self.tags, queue, self.now, enough=99)
        before, busy = self.real.next_offset, self._busy()
        spent: list[int] = []
        taken = self.real.take(
            queue,
            limit=limit,
            codes=self.tags,
            now_ms=self.now,
            lease_until_ms=until,
            receive_id=self.receives,
            client_id="c" if lasts == 100 else "",
            max_attempts=_MAX_ATTEMPTS,
            spent=spent,
        )
        went_on = self.real.next_offset - before >= self.scanned or self.tags
        assert len(taken) <= limit
        assert len(set(taken)) == len(taken)
        assert bool(promised) or not (taken or spent), "what nobody would have asked for"
        assert bool(taken or spent) or not promised or went_on, "an empty RECEIVE"
        groups = {self.codes[offset] for offset in taken}
        assert len(groups) <= rules.MAX_GROUPS_AT_ONCE
        for code in groups:
            mine = [offset for offset in taken if self.codes[offset] == code]
            assert code not in busy, "two receives have messages of one group"
            assert mine == self.undone[code][: len(mine)], "in order, from the oldest undone on"
            self.tries[mine[0]] = self.tries.get(mine[0], 0) + 1
            for offset in self.undone[code]:
                if offset in self.live:
                    self.old.append((offset, self.live.pop(offset)[0]))
        self.live.update(dict.fromkeys(taken, (self.receives, until)))
        self._check_conserved(taken, spent, limit, busy)
        for offset in spent:
            self._bury(offset)

    def _check_conserved(
        self, taken: list[int], spent: list[int], limit: int, busy: set[int]
    ) -> None:
        groups = {self.codes[offset] for offset in taken}
        is_full = len(taken) == limit or len(groups) == rules.MAX_GROUPS_AT_ONCE
        is_far = self.real.next_offset < len(self.codes) and limit + 5 > self.scanned
        if not (is_full or spent or is_far) and self.real.room:
            idle = [
                code
                for code, undone in self.undone.items()
                if undone and code not in busy and code not in groups
            ]
            assert not idle, f"work is not conserved: {idle}"

    def _bury(self, offset: int) -> None:
        """What the leader does with what it is told: a dead letter."""
        assert self.real.leases[offset].attempt >= _MAX_ATTEMPTS
        assert offset == self.undone[self.codes[offset]][0], "one behind it was never tried"
        lease = self.real.leases[offset]
        assert self.real.ack(offset, lease.receive_id)
        self.live.pop(offset, None)
        self.undone[self.codes[offset]].remove(offset)

    def ack(self, which: int) -> None:
        if self.live:
            offset = sorted(self.live)[which % len(self.live)]
            assert self.real.ack(offset, self.live.pop(offset)[0])
            self.undone[self.codes[offset]].remove(offset)

    def late(self, which: int) -> None:
        if self.old:
            offset, receive = self.old[which % len(self.old)]
            is_done = offset not in self.undone[self.codes[offset]]
            assert self.real.ack(offset, receive) == is_done, "a stale handle"

    def extend(self, which: int, more: int) -> None:
        if self.live:
            offset = sorted(self.live)[which % len(self.live)]
            receive, _ = self.live[offset]
            assert self.real.extend(offset, receive, self.now + more)
            self.live[offset] = receive, self.now + more

    def change(self, which: int, more: int, suspend: bool) -> None:
        if self.live:
            offset = sorted(self.live)[which % len(self.live)]
            receive, _ = self.live[offset]
            later = self.real.change(offset, receive, self.now + more, suspend=suspend)
            assert later is not None
            assert later != receive
            self.live[offset] = later, self.now + more

    def release(self) -> None:
        """Client "c" is gone: its leases end now."""
        gone = [o for o, lease in self.real.leases.items() if lease.client_id == "c"]
        assert self.real.release("c", self.now) == len(gone)
        for offset in gone:
            self.live[offset] = self.live[offset][0], self.now

    def elapse(self, ms: int) -> None:
        self.now += ms

    def retain(self, more: int) -> None:
        """Drop the oldest entries, as RETAIN does."""
        entry = min(self.of.entries[0] + more, len(self.of.entries)) if self.of.entries else 0
        self.of.queue.drop_before(entry)
        self.first = self.of.queue.first
        self.real.drop_before(self.first)
        for code, undone in self.undone.items():
            self.undone[code] = [offset for offset in undone if offset >= self.first]
        self.live = {offset: x for offset, x in self.live.items() if offset >= self.first}
        self.old = [each for each in self.old if each[0] >= self.first]

    def freeze(self) -> None:
        """A snapshot keeps this object; from now on a copy is changed."""
        self.frozen.append((self.real, b"".join(self.real.encoded())))
        self.real = self.real.copy(1)

    def restore(self) -> None:
        data = b"".join(self.real.encoded())
        queue = ConsumeQueue.read(Reader(b"".join(self.of.queue.encoded())), has_groups=True)
        again = FifoDeliveries.read(Reader(data), queue, max_waiting=self.window)
        assert again.canonical() == self.real.canonical()
        assert queue.canonical() == self.of.queue.canonical()
        self.real, self.of.queue = again, queue

    def check(self) -> None:
        """What holds after every step."""
        undone = [offset for offsets in self.undone.values() for offset in offsets]
        assert self.real.committed <= min(undone, default=self.real.next_offset), "lost"
        assert self.real.passed_count <= self.window
        for frozen, data in self.frozen:
            assert b"".join(frozen.encoded()) == data, "a snapshot changed"

    def drain(self) -> None:
        """One consumer gets it all."""
        for _ in range(1000):
            if not any(self.undone.values()):
                return
            self.now += 1000
            self.receive(3, 10)
            while self.live:
                self.ack(0)
        raise AssertionError(f"never delivered: {self.undone}")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_STEP, min_size=10, max_size=60),
    st.sampled_from([3, 1000]),
    st.sampled_from([2, 8]),
    st.booleans(),
)
def test_messages_of_a_group_come_one_after_the_other_whatever_happens(
    steps: list[tuple[Any, ...]], window: int, groups: int, filtered: bool
) -> None:
    """Never two receives at once, always the oldest undone first, and all of it in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "MAX_GROUPS_AT_ONCE", groups)
        model = Model(window, filtered=filtered)
        patch.setattr(rules, "MAX_RUNS_SCANNED", model.scanned)
        for name, *args in steps:
            getattr(model, name)(*args)
            model.check()
        model.drain()


class Direct:
    """Deliveries of a queue that has messages of these groups, at time 0."""

    def __init__(self, *codes: int, window: int = 1000) -> None:
        self.of = Queue()
        self.of.produce(list(codes))
        self.real = FifoDeliveries(max_waiting=window)
        self.receives = 0

    def take(self, limit: int, now: int = 0, *, until: int = 0, spent: Any = None) -> list[int]:
        self.receives += 1
        return self.real.take(
            self.of.queue,
            limit=limit,
            codes=None,
            now_ms=now,
            lease_until_ms=until or now + 10,
            receive_id=self.receives,
            client_id="",
            max_attempts=_MAX_ATTEMPTS,
            spent=spent,
        )

    def groups_to(self, now: int = 0, *, enough: int = 99) -> int:
        return self.real.groups_to(None, self.of.queue, now, enough=enough)


def test_what_a_smaller_receive_leaves_of_a_batch_is_nobodys() -> None:
    """Its earlier holder cannot acknowledge it before what is delivered again in front of it."""
    one = Direct(7, 7, 7)
    assert one.take(3) == [0, 1, 2]
    assert one.take(1, 10) == [0]

    assert not one.real.ack(2, 1)
    assert one.real.ack(0, 2)
    assert one.take(9, 20) == [1, 2]


def test_a_group_comes_again_after_the_last_end_of_its_leases() -> None:
    """One message of a batch that is given back does not come while others are out."""
    one = Direct(7, 7)
    one.take(2)
    assert one.real.extend(0, 1, 3)

    assert one.take(2, 5) == []
    assert one.take(2, 10) == [0, 1]


def test_an_ack_makes_the_next_of_a_group_ready() -> None:
    """What was passed is delivered before newer messages of others."""
    one = Direct(7, 8)
    assert one.take(2) == [0, 1]
    one.of.produce([7, 9])
    assert one.take(1) == [3]
    assert one.groups_to() == 0

    assert one.real.ack(0, 1)
    assert one.groups_to() == 1
    assert one.take(1) == [2]


def test_a_new_message_waits_behind_one_that_waits_though_its_group_comes_again() -> None:
    """The receive that gets what comes again of a group gets nothing of it over a gap."""
    one = Direct(7)
    assert one.take(1) == [0]
    one.of.produce([7, 8])
    assert one.take(1) == [2]
    one.of.produce([7])

    assert one.take(9, 10) == [0, 2]
    assert one.real.ack(0, 3)
    assert one.take(9, 11) == [1, 3]


def test_new_messages_of_busy_groups_are_worth_no_receive() -> None:
    """However many come; each is looked at once."""
    one = Direct(7)
    one.take(1)
    for _ in range(50):
        one.of.produce([7])
        assert one.groups_to() == 0

    one.of.produce([8])
    assert one.groups_to() == 1
    assert one.real.ack(0, 1)
    assert one.groups_to() == 2


def test_a_handle_of_what_waits_is_none() -> None:
    """A message that was never delivered is nobody's to end, as after a seek back."""
    one = Direct(7)
    one.take(1)
    one.of.produce([7])
    one.take(1)
    assert one.real.passed_count == 1

    assert not one.real.ack(1, 1)
    assert not one.real.extend(1, 1, 99)
    assert one.real.ack(0, 1)
    assert one.take(1) == [1]


def test_a_look_counts_groups_and_not_messages() -> None:
    """A second receive would get nothing of a group of which the first leaves something."""
    one = Direct(7, 7, 7, 8, 8)

    assert one.groups_to() == 2
    assert Direct(7, 8).groups_to(enough=1) == 1


def test_a_full_window_stops_the_queue_until_a_group_goes_on() -> None:
    """Then nothing is worth a receive, though an idle group lies behind."""
    one = Direct(7, window=2)
    one.take(1)
    one.of.produce([7, 7, 7, 8])
    assert one.groups_to() == 0
    assert one.take(5) == []

    assert one.real.ack(0, 1)
    assert one.take(5) == [1, 2, 3, 4]


def test_many_messages_of_busy_groups_are_passed_for_those_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look that sees no further has one receive pass what it saw."""
    monkeypatch.setattr(rules, "MAX_RUNS_SCANNED", 3)
    one = Direct(7)
    one.take(1)
    one.of.produce([7, 7, 7, 8])

    assert one.groups_to() == 1
    assert one.take(5) == []
    assert one.groups_to() == 1
    assert one.take(5) == [4]


def test_a_receive_takes_from_few_groups() -> None:
    """Its consumer may work through them one by one."""
    one = Direct(*range(20))

    assert one.take(32) == list(range(rules.MAX_GROUPS_AT_ONCE))
    assert one.take(32) == list(range(8, 16))


def test_attempts_count_for_the_oldest_of_its_group_only() -> None:
    """A message behind one that nobody can take is not thrown away with it."""
    one, spent = Direct(7, 7), list[int]()
    for now in range(0, 10 * _MAX_ATTEMPTS, 10):
        assert one.take(2, now) == [0, 1]
    assert [one.real.leases[o].attempt for o in (0, 1)] == [_MAX_ATTEMPTS, 1]

    assert one.take(2, 1000, spent=spent) == []
    assert spent == [0]
    assert one.take(2, 1001, spent=spent) == [], "it waits for the dead letter"
    assert one.real.ack(0, one.real.leases[0].receive_id)
    assert one.take(2, 1002) == [1]


def test_a_suspended_delivery_does_not_count() -> None:
    """As its consumer says."""
    one = Direct(7)
    one.take(1)
    assert one.real.change(0, 1, 0, suspend=True)
    one.take(1)

    assert one.real.leases[0].attempt == 1


@pytest.mark.parametrize("passed", [[3, 2], [9], [0]])
def test_a_snapshot_whose_waiting_messages_cannot_be_so_is_refused(passed: list[int]) -> None:
    """Not ascending, beyond what was looked at, or leased."""
    one = Direct(7)
    one.take(1)
    one.of.produce([7, 7, 7])
    one.take(1)
    data = b"".join(one.real.encoded())
    cut = data[: -8 * (1 + one.real.passed_count)]
    changed = cut + len(passed).to_bytes(8, "little") + array("Q", passed).tobytes()

    FifoDeliveries.read(Reader(data), one.of.queue)
    with pytest.raises(MalformedStateError):
        FifoDeliveries.read(Reader(changed), one.of.queue)
