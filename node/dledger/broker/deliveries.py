"""One consumer group's deliveries of one queue: delivered, acked, due for redelivery.

`QueueDeliveries` owns the rules of invisibility. A delivered message has a *lease*: until the lease
ends no other member gets the message; then it is delivered again, with the next attempt number.
Time is the log's, passed in by `state`, so every node makes the same decisions.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Final, NamedTuple

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.snapshot_codec import Reader, ascends, column, number, text
from dledger.common.byte_order import TypeCode

MAX_LEASES = 16_384
"""Unacked messages of one queue that a group may hold; more are delivered as these are acked."""
MAX_RUNS_SCANNED = 4_096
"""Runs that one RECEIVE may skip because of its filter, so that no command takes long."""

_STALE_IN_A_ROW: Final = 64
"""After this many stale ends in a row, all stale ends are removed at once."""

_LEASE_COLUMNS: Final[tuple[TypeCode, ...]] = ("Q", "q", "Q", "I")


class Lease(NamedTuple):
    """The lease of a delivered message; immutable, because a snapshot may share it.

    Its end, and all times here, are lived time (`lived_time`).

    Attributes:
        receive_id: The RECEIVE that delivered it last; a handle of an earlier one is stale.
        visible_at_ms: When it may be delivered again.
        attempt: How often it was delivered.
        client_id: The client that it is renewed for; empty if it is not renewed.
        arrived: Whether that client is known to have the message, so that its lease is renewed for
            as long as the client is alive.
    """

    receive_id: int
    visible_at_ms: int
    attempt: int
    client_id: str
    arrived: bool = False


class QueueDeliveries:
    """The deliveries of one (group, topic, queue id).

    Every offset below `next_offset` is either leased or done (acked, or passed by a filter).

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
        "_held",
        "_looked_ms",
        "edition",
        "leases",
        "next_offset",
    )

    def __init__(self, first: int = 0, edition: int = 0) -> None:
        self.edition = edition
        """The edition of the state that this belongs to; see `editions`."""
        self.next_offset = first
        """The first offset never delivered; a new group starts at the oldest message."""
        self.leases: dict[int, Lease] = {}
        """By offset, ascending: offsets get their first lease in order, and one that is done is
        never leased again."""
        self._expiry: list[tuple[int, int]] = []
        self._ended: list[tuple[int, int]] = []
        self._counted: set[int] = set()
        self._looked_ms = 0
        self._held: dict[str, set[int]] = {}

    def copy(self, edition: int) -> QueueDeliveries:
        """Return a copy that may be changed; this object may then only be `encoded`.

        Derived data, which is not encoded, moves to the copy.
        """
        other = copy(self)
        other.edition, other.leases = edition, self.leases.copy()
        return other

    @property
    def committed(self) -> int:
        """The lowest offset that is not done: nothing before it is ever delivered again."""
        return next(iter(self.leases), self.next_offset)

    def available(self, end: int, now_ms: int, *, enough: int) -> int:
        """Return how many messages a RECEIVE at *now_ms* could deliver, before filters.

        Args:
            end: The queue's end offset.
            now_ms: When the RECEIVE would be applied.
            enough: Counting stops here: a result that reaches this may be too low.
        """
        fresh = max(min(end - self.next_offset, MAX_LEASES - len(self.leases)), 0)
        return fresh if fresh >= enough else fresh + self._count_ended(now_ms, enough - fresh)

    def lacks_room(self, end: int) -> bool:
        """Whether new messages of a queue that ends at *end* must wait until others are acked."""
        return MAX_LEASES - len(self.leases) < end - self.next_offset

    def _count_ended(self, now_ms: int, enough: int) -> int:
        while len(self._counted) < enough and self._first_of(self._expiry) <= now_ms:
            visible_at_ms, offset = heappop(self._expiry)
            heappush(self._ended, (visible_at_ms, offset))
            self._counted.add(offset)
        if now_ms >= self._looked_ms:
            self._looked_ms = now_ms
            return len(self._counted)
        # The clock is behind that of an earlier call, as can happen after two changes of leader.
        return len({o for t, o in self._ended if t <= now_ms and self._is_current(t, o)})

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
    ) -> list[int]:
        """Deliver up to *limit* messages: those whose lease ended first, then new ones.

        Returns:
            Their offsets; each is leased until *lease_until_ms*.
        """
        taken: list[int] = []
        while len(taken) < limit and self.next_expiry() <= now_ms:
            offset = self._pop_end()
            if codes is not None and queue.code(offset) not in codes:
                self._forget(offset)
                continue
            taken.append(offset)
            self._grant(offset, receive_id, lease_until_ms, client_id)
        room = min(limit - len(taken), MAX_LEASES - len(self.leases))
        fresh = self._advance(queue, room, codes)
        for offset in fresh:
            self._grant(offset, receive_id, lease_until_ms, client_id)
        return taken + fresh

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
            attempt=earlier.attempt + 1 if earlier else 1,
            client_id=client_id,
        )
        self._follow(offset, lease)

    def _advance(self, queue: ConsumeQueue, room: int, codes: frozenset[int] | None) -> list[int]:
        """Move `next_offset` over up to *room* matching messages and return their offsets."""
        offsets: list[int] = []
        if room <= 0:
            return offsets
        for scanned, run in enumerate(queue.runs(self.next_offset)):
            if scanned == MAX_RUNS_SCANNED or len(offsets) >= room:
                break
            if codes is not None and run.code not in codes:
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
            return 0 <= offset < self.next_offset
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

    def renew(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Extend a client's lease, now that the client is known to have the message.

        Returns:
            False if the handle is stale or the client has given the message back.
        """
        lease = self.leases.get(offset)
        if lease is None or not lease.client_id:
            return False
        found = self.extend(offset, receive_id, visible_at_ms)
        if found:
            self.leases[offset] = self.leases[offset]._replace(arrived=True)
        return found

    def give_back(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Set the end of a lease that its holder gives up; it is not renewed any more.

        Returns:
            False if the handle is stale.
        """
        found = self.extend(offset, receive_id, visible_at_ms)
        if found:
            lease = self.leases[offset]
            self._let_go(offset, lease)
            self.leases[offset] = lease._replace(client_id="", arrived=False)
        return found

    def keeps_for(self, client_id: str) -> bool:
        """Whether `release` would end any lease of *client_id*."""
        return client_id in self._held

    def release(self, client_id: str, now_ms: int) -> int:
        """End the leases that are renewed for *client_id*; return their number."""
        held = tuple(self._held.get(client_id, ()))
        for offset in held:
            self.extend(offset, self.leases[offset].receive_id, now_ms)
        return len(held)

    def renewable(self, before_ms: int) -> Iterator[tuple[int, Lease]]:
        """Yield the renewed leases that end before *before_ms*, as (offset, lease)."""
        if self._held and self.next_expiry() < before_ms:
            for offset, lease in self._kept_by_clients():
                if lease.arrived and lease.visible_at_ms < before_ms:
                    yield offset, lease

    def handed_out(self, receive_ids: Container[int]) -> Iterator[tuple[int, Lease]]:
        """Yield the leases of these RECEIVEs that were not renewed yet, as (offset, lease)."""
        for offset, lease in self._kept_by_clients():
            if not lease.arrived and lease.receive_id in receive_ids:
                yield offset, lease

    def _kept_by_clients(self) -> Iterator[tuple[int, Lease]]:
        for offsets in self._held.values():
            for offset in offsets:
                yield offset, self.leases[offset]

    def reaches_below(self, first: int) -> bool:
        """Whether `drop_before` has anything to forget."""
        return self.committed < first

    def drop_before(self, first: int) -> int:
        """Forget offsets below *first*, which the queue has dropped; return the leases removed."""
        self.next_offset = max(self.next_offset, first)
        dropped = [*takewhile(lambda offset: offset < first, self.leases)]
        for offset in dropped:
            self._forget(offset)
        return len(dropped)

    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot; the leases as columns, by ascending offset."""
        offsets = sorted(self.leases)
        yield number(self.next_offset)
        yield from column("Q", len(offsets), offsets)
        if not offsets:
            return
        leases = [self.leases[offset] for offset in offsets]
        holders = sorted({(lease.client_id, lease.arrived) for lease in leases})
        numbers = {holder: number for number, holder in enumerate(holders)}
        yield from column("Q", len(leases), (lease.receive_id for lease in leases))
        yield from column("q", len(leases), (lease.visible_at_ms for lease in leases))
        yield from column("Q", len(leases), (lease.attempt for lease in leases))
        yield from column("I", len(leases), (numbers[x.client_id, x.arrived] for x in leases))
        yield number(len(holders))
        for client_id, arrived in holders:
            yield text(client_id)
            yield number(arrived)

    @classmethod
    def read(cls, source: Reader, queue: ConsumeQueue) -> QueueDeliveries:
        """Read the deliveries of *queue* from a snapshot. Raises MalformedStateError."""
        found = cls(source.number(queue.first, queue.end))
        offsets = source.column("Q")
        if not ascends(offsets, found.next_offset) or any(o < queue.first for o in offsets[:1]):
            raise source.malformed(f"leases outside [{queue.first}, {found.next_offset})")
        if not offsets:
            return found
        columns = [source.column(code, len(offsets)) for code in _LEASE_COLUMNS]
        holders = [_holder(source) for _ in range(source.number())]
        if any(number >= len(holders) for number in columns[-1]):
            raise source.malformed(f"a lease of another than {len(holders)} holders")
        for offset, receive_id, until_ms, attempt, holder in zip(offsets, *columns, strict=True):
            client_id, arrived = holders[holder]
            lease = found.leases[offset] = Lease(
                receive_id=receive_id,
                visible_at_ms=until_ms,
                attempt=attempt,
                client_id=client_id,
                arrived=arrived,
            )
            found._follow(offset, lease)
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
        ]

    def _is_current(self, visible_at_ms: int, offset: int) -> bool:
        lease = self.leases.get(offset)
        return lease is not None and lease.visible_at_ms == visible_at_ms

    def _follow(self, offset: int, lease: Lease) -> None:
        """Index a lease by its end and by its client."""
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
        self._let_go(offset, lease)

    def _let_go(self, offset: int, lease: Lease) -> None:
        held = self._held.get(lease.client_id)
        if held is not None:
            held.discard(offset)
            if not held:
                del self._held[lease.client_id]

    def _forget(self, offset: int) -> None:
        """Remove the lease of a message that is done."""
        self._settle(offset, self.leases.pop(offset))
        self._sort_out_if_due()

    def _sort_out_if_due(self) -> None:
        """Keep fewer stale ends than leases, so that no single call has to skip very many."""
        if len(self._expiry) + len(self._ended) > 2 * len(self.leases) + _STALE_IN_A_ROW:
            self._sort_out(self._expiry)
            self._sort_out(self._ended)


def _holder(source: Reader) -> tuple[str, bool]:
    """Read a lease's client and whether the message is known to have arrived there."""
    return source.text(), source.number(high=1) == 1
