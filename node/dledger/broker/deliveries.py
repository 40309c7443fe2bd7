"""One consumer group's deliveries of one queue: delivered, acked, due for redelivery.

`QueueDeliveries` owns the rules of invisibility. A delivered message has a *lease*: until the lease
ends no other member gets the message; then it is delivered again, with the next attempt number.
Time is the log's, passed in by `state`, so every node makes the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Final

from dledger.broker.commands import ReceiveAt
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.filter_room import FilterRoom
from dledger.broker.group_filters import TopicFilters
from dledger.broker.held_leases import (
    MAX_LEASES,
    MAX_RUNS_SCANNED,
    MOVE_AGAIN_MS,
    HeldLeases,
)
from dledger.broker.kept_messages import Codes, KeptMessages
from dledger.broker.lease_columns import Lease, encoded_leases, read_leases
from dledger.broker.queue_positions import Run
from dledger.broker.redelivery import WITHOUT_END
from dledger.broker.snapshot_codec import Reader, number

_LOOKED_AT: Final = 64
"""Runs, and leases that have ended, of which a look sees the tags; more count as if named."""
_ASIDE_MS: Final = -(1 << 63)
"""The end of a lease that was put aside: it is in neither heap, and no other end is this early."""
_STALE_IN_A_ROW: Final = 64
"""After this many stale ends in a row, all stale ends are removed at once."""


class QueueDeliveries(HeldLeases):
    """The deliveries of one (group, topic, queue id).

    Every offset below `next_offset` is leased, kept (passed by a filter while another one that is
    in use names it: `kept_messages`) or done (acked, or passed by a filter).

    The end of a lease is in `_expiry` until `available` counts it, then in `_ended`. So a call of
    `available` costs only what has ended since the one before, and counts no further than asked,
    however many leases there are; only if the clock went back does it go through `_ended`. Both
    heaps may hold stale ends, which are skipped. `take` uses both together, so the calls of
    `available`, which only a leader makes, do not change what any node delivers.
    """

    __slots__ = (
        "_counted",
        "_ended",
        "_expiry",
        "_in_order",
        "_looked_ms",
    )

    def __init__(self, first: int = 0, edition: int = 0) -> None:
        super().__init__(first, edition)
        self._in_order = True
        """Whether leases ascend: unless some were kept before they were first leased."""
        self._expiry: list[tuple[int, int]] = []
        self._ended: list[tuple[int, int]] = []
        self._counted: set[int] = set()
        self._looked_ms = 0

    def copy(self, edition: int) -> QueueDeliveries:
        """Return a copy that may be changed; this object may then only be `encoded`.

        Derived data, which is not encoded, moves to the copy.
        """
        other = copy(self)
        other.edition, other.leases = edition, self.leases.copy()
        other.kept = None if self.kept is None else self.kept.copy()
        return other

    @property
    def committed(self) -> int:
        """The lowest offset that is not done: nothing before it is ever delivered again."""
        if self._in_order:
            lowest = next(iter(self.leases), self.next_offset)
        else:
            lowest = min(self.leases, default=self.next_offset)
        first = None if self.kept is None else self.kept.first
        return lowest if first is None else min(lowest, first)

    def available(self, end: int, now_ms: int, *, enough: int) -> int:
        """Return how many messages a RECEIVE at *now_ms* could deliver, before filters.

        For a group with one filter, for which nothing is kept; else `available_to`.

        Args:
            end: The queue's end offset.
            now_ms: When the RECEIVE would be applied.
            enough: Counting stops here: a result that reaches this may be too low.
        """
        fresh = max(min(end - self.next_offset, MAX_LEASES - len(self.leases)), 0)
        if fresh >= enough:
            return fresh
        return fresh + len(self._ended_by(now_ms, enough - fresh))

    def available_to(
        self, codes: Codes, queue: ConsumeQueue, now_ms: int, *, enough: int, filters: TopicFilters
    ) -> int:
        """Return how many messages a RECEIVE with a filter could deliver at *now_ms*.

        Messages that another filter names do not count: a poll would ask for them in vain, again
        and again. Where more lie there than a look may see, the rest counts as if it was named;
        the RECEIVE then passes over it, so the next look sees further.

        Args:
            codes: The filter; None for all messages.
            queue: The queue of these deliveries.
            now_ms: The timestamp that the RECEIVE would have.
            enough: Counting stops here: a result that reaches this may be too low.
            filters: The filters of the group in use.
        """
        room, kept = MAX_LEASES - len(self.leases), self.kept
        new = 0 if kept is None else kept.passed(codes)
        if new < enough:
            new += self._fresh_to(codes, queue, filters)
        found = max(min(new, room), 0) + (0 if kept is None else kept.aside(codes))
        if found >= enough:
            return found
        ended = self._ended_by(now_ms, _LOOKED_AT)
        if len(ended) >= _LOOKED_AT:
            return enough
        # A message may be gone while it is leased: it counts, so that a RECEIVE forgets its lease.
        return found + sum(
            codes is None or not queue.has(o) or queue.code(o) in codes for o in ended
        )

    def _fresh_to(self, codes: Codes, queue: ConsumeQueue, filters: TopicFilters) -> int:
        """Return how many messages from `next_offset` on a RECEIVE could get to and deliver."""
        if codes is None:
            return queue.count_from(self.next_offset)
        found, seen = 0, self.next_offset
        for run in islice(queue.runs(seen), _LOOKED_AT):
            seen = run.end
            if run.code in codes:
                found += run.end - run.first
            elif not self._has_room_for(run, filters):
                return found
        return found + queue.count_from(seen)

    def lacks_room(self, end: int) -> bool:
        """Whether new messages of a queue that ends at *end* must wait until others are acked."""
        new = end - self.next_offset + (0 if self.kept is None else self.kept.passed(None))
        return MAX_LEASES - len(self.leases) < new

    def _ended_by(self, now_ms: int, enough: int) -> Collection[int]:
        """Return the offsets whose leases have ended at *now_ms*; some if there are *enough*."""
        while len(self._counted) < enough and self._first_of(self._expiry) <= now_ms:
            visible_at_ms, offset = heappop(self._expiry)
            heappush(self._ended, (visible_at_ms, offset))
            self._counted.add(offset)
        if now_ms >= self._looked_ms:
            self._looked_ms = now_ms
            return self._counted
        # The clock is behind that of an earlier call, as can happen after two changes of leader.
        return {o for t, o in self._ended if t <= now_ms and self._is_current(t, o)}

    def next_expiry(self) -> float:
        """Return when the next lease ends, in lived time; infinity when there is none."""
        return min(self._first_of(self._ended), self._first_of(self._expiry))

    def _first_of(self, ends: list[tuple[int, int]]) -> float:
        """Return the first end in a heap that is not stale; drop the stale ones before it."""
        stale = 0
        while ends and not self._is_current(*ends[0]):
            heappop(ends)
            stale += 1
            if stale == _STALE_IN_A_ROW:
                self._sort_out(ends)
        return ends[0][0] if ends else float("inf")

    def _sort_out(self, ends: list[tuple[int, int]]) -> None:
        ends[:] = {(t, o) for t, o in ends if self._is_current(t, o)}
        heapify(ends)

    def take(
        self,
        queue: ConsumeQueue,
        *,
        limit: int,
        codes: frozenset[int] | None,
        now_ms: int,
        lease_until_ms: int,
        receive_id: int,
        client_id: str,
        filters: TopicFilters | None = None,
        max_attempts: int = WITHOUT_END,
        spent: list[int] | None = None,
    ) -> list[int]:
        """Deliver up to *limit* messages: those whose lease ended first, then new ones.

        What the filter does not name is done, unless another one of *filters* names it: that is
        kept, and delivered to who names it before newer ones.

        Args:
            queue: The queue of these deliveries.
            limit: The most messages.
            codes: The filter; None for all messages.
            now_ms: The log's time.
            lease_until_ms: When the leases end.
            receive_id: The RECEIVE.
            client_id: The client that they are renewed for.
            filters: The filters in use; None if the group has one for this topic.
            max_attempts: A message that was delivered so often is not any more; 0: always.
            spent: Gets the offsets of such messages, up to *limit*. Their leases begin once more,
                so that they are told again if nobody moves them.

        Returns:
            Their offsets; each is leased until *lease_until_ms*.
        """
        taken: list[int] = []
        while len(taken) < limit and self.next_expiry() <= now_ms:
            offset = self._pop_end()
            if queue.has_gaps and not queue.has(offset):
                self._forget(offset)
                continue
            if max_attempts and self._is_spent(offset, max_attempts) and spent is not None:
                self.give_back(offset, self.leases[offset].receive_id, now_ms + MOVE_AGAIN_MS)
                spent.append(offset)
                if len(spent) >= limit:
                    break
                continue
            if codes is not None and (code := queue.code(offset)) not in codes:
                self._pass_on(offset, code, filters)
                continue
            taken.append(offset)
            self._grant(offset, receive_id, lease_until_ms, client_id)
        if self.kept is not None:
            for offset in self._take_kept(self.kept, queue, codes, limit - len(taken)):
                taken.append(offset)
                self._grant(offset, receive_id, lease_until_ms, client_id)
            self._free_kept()
        room = min(limit - len(taken), MAX_LEASES - len(self.leases))
        fresh = self._advance(queue, room, codes, filters)
        for offset in fresh:
            self._grant(offset, receive_id, lease_until_ms, client_id)
        return taken + fresh

    def take_at(
        self,
        queue: ConsumeQueue,
        command: ReceiveAt,
        *,
        now_ms: int,
        lease_until_ms: int,
        receive_id: int,
        max_attempts: int,
        spent: list[int],
    ) -> list[int]:
        """Deliver what the leader chose, of what is still there and nobody was given meanwhile.

        Nothing new if `next_offset` is below the range: a seek went back since, or what was to come
        before this command never came; what lies before the range was not looked at. If it is
        above, others with the same expression were faster, and what they passed over is no match.

        What was delivered *max_attempts* times is not any more: *spent* gets its offset, as of
        `take`.

        Returns:
            Offsets; each is leased until *lease_until_ms*.
        """
        taken = []
        for offset in (*command.again, *command.done):
            if not self._has_ended(offset, now_ms):
                continue
            if offset in command.done or not queue.has(offset):
                self._forget(offset)
            elif max_attempts and self._is_spent(offset, max_attempts):
                self.give_back(offset, self.leases[offset].receive_id, now_ms + MOVE_AGAIN_MS)
                spent.append(offset)
            elif offset not in taken:
                taken.append(offset)
        if command.start <= self.next_offset < command.stop:
            stop, room = command.stop, MAX_LEASES - len(self.leases)
            fresh = [each for each in command.take if each >= self.next_offset and queue.has(each)]
            if len(fresh) > room:
                stop = fresh[max(room, 0)]
            self.next_offset = stop
            taken += fresh[: max(room, 0)]
        for offset in taken:
            self._grant(offset, receive_id, lease_until_ms, command.client_id)
        return taken

    def find_ended(self, now_ms: int, enough: int) -> list[int]:
        """Return up to *enough* offsets whose leases have ended at *now_ms*, the oldest end first.

        Among very many the oldest of some: the others come when these are gone.
        """
        found = self._ended_by(now_ms, enough)
        return sorted(found, key=lambda offset: self.leases[offset].visible_at_ms)[:enough]

    def _has_ended(self, offset: int, now_ms: int) -> bool:
        lease = self.leases.get(offset)
        return lease is not None and lease.visible_at_ms <= now_ms

    def _take_kept(
        self, kept: KeptMessages, queue: ConsumeQueue, codes: Codes, limit: int
    ) -> list[int]:
        """Return up to *limit* kept messages that a filter names: redeliveries, then new ones.

        Fewer if some are gone by now: they are forgotten.
        """
        taken = kept.first_aside(codes, limit)
        passed = kept.take_passed(codes, min(limit - len(taken), MAX_LEASES - len(self.leases)))
        if queue.has_gaps:
            for offset in taken:
                if not queue.has(offset):
                    self._forget(offset)
            taken, passed = [*filter(queue.has, taken)], [*filter(queue.has, passed)]
        if passed and self.leases:
            self._in_order = False
        return taken + passed

    def _pass_on(self, offset: int, code: int, filters: TopicFilters | None) -> None:
        """Keep a message whose lease has ended for who names it; if nobody does, it is done."""
        if filters is None or filters.key_of(code) is None:
            self._forget(offset)
            return
        self._counted.discard(offset)
        self.leases[offset] = self.leases[offset]._replace(visible_at_ms=_ASIDE_MS)
        self._kept_in(filters.room).put_aside(code, offset)

    def _kept_in(self, room: FilterRoom) -> KeptMessages:
        if self.kept is None:
            self.kept = KeptMessages(room)
        return self.kept

    def waits(self, codes: Codes, queue: ConsumeQueue, filters: TopicFilters) -> bool:
        """Whether a filter waits for slower ones: what comes next is theirs, and no more is kept.

        It goes on when who names what is kept has taken some of it, or is gone.
        """
        run = None if codes is None else next(queue.runs(self.next_offset), None)
        return (
            run is not None
            and codes is not None
            and run.code not in codes
            and not self._has_room_for(run, filters)
        )

    def _has_room_for(self, run: Run, filters: TopicFilters) -> bool:
        """Whether a filter that does not name a run may pass over it: it is not full of others."""
        if filters.key_of(run.code) is None:
            return True
        return not filters.room.is_full if self.kept is None else self.kept.has_room

    def _keep(self, run: Run, filters: TopicFilters) -> bool:
        """Keep a run that is passed over, if a filter names it; return False: there is no room."""
        if not self._has_room_for(run, filters):
            return False
        key = filters.key_of(run.code)
        if key is not None:
            self._kept_in(filters.room).keep(key, run.first, run.end)
        return True

    def _is_spent(self, offset: int, max_attempts: int) -> bool:
        lease = self.leases[offset]
        return lease.attempt >= max_attempts and not lease.is_suspended

    def _pop_end(self) -> int:
        """Remove and return the offset of the lease that ended first; `next_expiry` found one."""
        ended, expiry = self._ended, self._expiry
        in_ended = ended and (not expiry or ended[0] <= expiry[0])
        _, offset = heappop(ended if in_ended else expiry)
        return offset

    def _grant(self, offset: int, receive_id: int, until_ms: int, client_id: str) -> None:
        earlier = self.leases.get(offset)
        if earlier is not None:
            self._settle(offset, earlier)
        lease = self.leases[offset] = Lease(
            receive_id=receive_id,
            visible_at_ms=until_ms,
            attempt=earlier.attempt + (not earlier.is_suspended) if earlier else 1,
            client_id=client_id,
        )
        self._follow(offset, lease)

    def _advance(
        self, queue: ConsumeQueue, room: int, codes: Codes, filters: TopicFilters | None
    ) -> list[int]:
        """Move `next_offset` over up to *room* matching messages and return their offsets."""
        offsets: list[int] = []
        if room <= 0:
            return offsets
        for scanned, run in enumerate(queue.runs(self.next_offset)):
            if scanned == MAX_RUNS_SCANNED or len(offsets) >= room:
                break
            if codes is not None and run.code not in codes:
                if filters is not None and not self._keep(run, filters):
                    break
                self.next_offset = run.end
                continue
            self.next_offset = min(run.end, run.first + room - len(offsets))
            offsets.extend(range(run.first, self.next_offset))
        return offsets

    def ack(self, offset: int, receive_id: int) -> bool:
        """Mark a message as consumed; return False if the handle is stale or was never issued.

        Acking twice succeeds, because a client whose response was lost acks again.
        """
        lease = self.leases.get(offset)
        if lease is None:
            is_kept = self.kept is not None and self.kept.has_passed(offset)
            return 0 <= offset < self.next_offset and not is_kept
        if lease.receive_id != receive_id:
            return False
        self._forget(offset)
        return True

    def extend(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Change the end of a lease; return False if the handle is stale."""
        lease = self.leases.get(offset)
        if lease is None or lease.receive_id != receive_id:
            return False
        self._settle(offset, lease)
        later = self.leases[offset] = lease._replace(visible_at_ms=visible_at_ms)
        self._follow(offset, later)
        return True

    def drop_before(self, first: int) -> int:
        """Forget offsets below *first*, which the queue has dropped; return the leases removed."""
        self.next_offset = max(self.next_offset, first)
        offsets = self.leases if self._in_order else sorted(self.leases)
        dropped = [*takewhile(lambda offset: offset < first, offsets)]
        for offset in dropped:
            self._forget(offset)
        if self.kept is not None:
            self.kept.drop_before(first)
            self._free_kept()
        return len(dropped)

    def end_unnamed(self, is_named: Callable[[int], bool]) -> int:
        """Forget what is kept for filters that are gone; return how many messages that were."""
        if self.kept is None:
            return 0
        gone, aside = self.kept.drop_unnamed(is_named)
        for offset in aside:
            self._forget(offset)
        self._free_kept()
        return gone + len(aside)

    def _free_kept(self) -> None:
        if not self.kept:
            self.kept = None

    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot: the leases, and what is kept."""
        yield number(self.next_offset)
        yield from encoded_leases(self.leases)
        yield number(bool(self.kept))
        if self.kept:
            yield from self.kept.encoded()

    @classmethod
    def read(
        cls, source: Reader, queue: ConsumeQueue, filters: TopicFilters | None
    ) -> QueueDeliveries:
        """Read the deliveries of *queue* from a snapshot. Raises MalformedStateError.

        *filters* are those of the group that are in use; None if it has none for this topic.
        """
        found = cls(source.number(queue.first, queue.end))
        for offset, lease in read_leases(source, queue.first, found.next_offset):
            found.leases[offset] = lease
            found._follow(offset, lease)
        aside = {o for o, x in found.leases.items() if x.visible_at_ms == _ASIDE_MS}
        if not source.number(high=1):
            if aside:
                raise source.malformed(f"{len(aside)} leases put aside, and nothing is kept")
            return found
        if filters is None:
            raise source.malformed("messages are kept for a topic without filters")
        found.kept = KeptMessages.read(
            source,
            filters.room,
            first=queue.first,
            end=found.next_offset,
            aside=aside,
            is_named=filters.names,
        )
        if any(map(found.kept.has_passed, found.leases)):
            raise source.malformed("a kept message has a lease")
        return found

    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""
        leases = sorted(self.leases.items())
        return [
            self.next_offset,
            [
                [o, x.receive_id, x.visible_at_ms, x.attempt, x.client_id, x.arrived]
                for o, x in leases
            ],
            self.kept.canonical() if self.kept else [],
        ]

    def _is_current(self, visible_at_ms: int, offset: int) -> bool:
        lease = self.leases.get(offset)
        return lease is not None and lease.visible_at_ms == visible_at_ms

    def _follow(self, offset: int, lease: Lease) -> None:
        """Index a lease by its end, unless it was put aside, and by its client."""
        if lease.visible_at_ms != _ASIDE_MS:
            heappush(self._expiry, (lease.visible_at_ms, offset))
        if lease.client_id:
            held = self._held.get(lease.client_id)
            if held is None:
                held = self._held[lease.client_id] = set()
            held.add(offset)
        self._sort_out_if_due()

    def _settle(self, offset: int, lease: Lease) -> None:
        """Undo `_follow`; the end stays in its heap and is stale once the lease has changed."""
        self._counted.discard(offset)
        if self.kept is not None:
            self.kept.take_back(offset)
        self._let_go(offset, lease)

    def _forget(self, offset: int) -> None:
        """Remove the lease of a message that is done."""
        self._settle(offset, self.leases.pop(offset))
        if not self.leases:
            self._in_order = True
        self._sort_out_if_due()

    def _sort_out_if_due(self) -> None:
        """Keep fewer stale ends than leases, so that no single call has to skip very many."""
        if len(self._expiry) + len(self._ended) > 2 * len(self.leases) + _STALE_IN_A_ROW:
            self._sort_out(self._expiry)
            self._sort_out(self._ended)
