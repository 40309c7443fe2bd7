"""What one consumer group has done with one queue: handed out, acked, to be handed out again.

`QueueDeliveries` owns the rules of invisibility. A message that is handed out has a *lease*: until
it ends nobody else gets the message; then it is handed out again, with the next attempt number.
Time is the log's, passed in by `state`; so every node comes to the same decisions.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from copy import copy
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from dledger.broker.columns import Reader, TypeCode, ascends, column, number, text
from dledger.broker.consume_queue import ConsumeQueue

MAX_LEASES = 16_384
"""Messages of one queue that a group may hold unacked; more are handed out as these are acked."""
MAX_RUNS_SCANNED = 4_096
"""Stretches that one RECEIVE may skip because of its filter, so that no command takes long."""

_LEASE_COLUMNS: Final[tuple[TypeCode, ...]] = ("Q", "q", "Q", "I")


class Lease(NamedTuple):
    """A message on loan; a snapshot may refer to it, so another one takes its place.

    Attributes:
        receive_id: The RECEIVE that handed it out last; a handle of an earlier one is stale.
        visible_at_ms: When it may be handed out again.
        attempt: How often it was handed out.
        client_id: Whose it is; empty: nobody renews it.
        arrived: Whether that client is known to have the message, and keeps it by being alive.
    """

    receive_id: int
    visible_at_ms: int
    attempt: int
    client_id: str
    arrived: bool = False


class QueueDeliveries:
    """The deliveries of one (group, topic, queue id).

    Every offset below `next_offset` is either leased or done (acked, or passed by a filter).
    """

    __slots__ = ("_expiry", "edition", "leases", "next_offset")

    def __init__(self, first: int = 0, edition: int = 0) -> None:
        self.edition = edition
        """Which edition of the state this is of; see `editions`."""
        self.next_offset = first
        """The first offset that was never handed out; a new group starts at the oldest message."""
        self.leases: dict[int, Lease] = {}
        self._expiry: list[tuple[int, int]] = []

    def copy(self, edition: int) -> QueueDeliveries:
        """Return the same deliveries, to be changed while these only wait to be `encoded`.

        What is derived, and not encoded, goes over to the copy.
        """
        other = copy(self)
        other.edition, other.leases = edition, self.leases.copy()
        return other

    @property
    def committed(self) -> int:
        """The lowest offset that is not done: everything before it never comes again."""
        return min(self.leases, default=self.next_offset)

    def available(self, end: int, now_ms: int) -> int:
        """Return how many messages a RECEIVE at *now_ms* could hand out, before filters.

        Args:
            end: The queue's end offset.
            now_ms: The time that the RECEIVE would have.
        """
        fresh = min(end - self.next_offset, MAX_LEASES - len(self.leases))
        return max(fresh, 0) + self._expired_count(now_ms)

    def _expired_count(self, now_ms: int) -> int:
        if self.next_expiry() > now_ms:
            return 0
        return sum(lease.visible_at_ms <= now_ms for lease in self.leases.values())

    def next_expiry(self) -> float:
        """Return when the next lease ends, Unix milliseconds; infinity when there is none."""
        while self._expiry and not self._is_current(*self._expiry[0]):
            heappop(self._expiry)
        return self._expiry[0][0] if self._expiry else float("inf")

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
        """Hand out up to *limit* messages: those whose lease ended first, then new ones.

        Returns:
            Their offsets; each is leased until *lease_until_ms*.
        """
        taken: list[int] = []
        while len(taken) < limit and self.next_expiry() <= now_ms:
            _, offset = heappop(self._expiry)
            if codes is not None and queue.code(offset) not in codes:
                del self.leases[offset]
                continue
            taken.append(offset)
            self._grant(offset, receive_id, lease_until_ms, client_id)
        room = min(limit - len(taken), MAX_LEASES - len(self.leases))
        fresh = self._advance(queue, room, codes)
        for offset in fresh:
            self._grant(offset, receive_id, lease_until_ms, client_id)
        return taken + fresh

    def _grant(self, offset: int, receive_id: int, until_ms: int, client_id: str) -> None:
        earlier = self.leases.get(offset)
        attempt = earlier.attempt + 1 if earlier else 1
        lease = Lease(
            receive_id=receive_id, visible_at_ms=until_ms, attempt=attempt, client_id=client_id
        )
        self._lease(offset, lease)

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
        """Mark a message as consumed; False when the handle is stale or was never given.

        Acking again is fine: a client whose answer was lost asks twice.
        """
        lease = self.leases.get(offset)
        if lease is None:
            return 0 <= offset < self.next_offset
        if lease.receive_id != receive_id:
            return False
        del self.leases[offset]
        return True

    def extend(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Let a lease end at another time; False when the handle is stale."""
        lease = self.leases.get(offset)
        if lease is None or lease.receive_id != receive_id:
            return False
        self._lease(offset, lease._replace(visible_at_ms=visible_at_ms))
        return True

    def renew(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Let a client's lease end later, now that it has the message.

        False when the handle is stale, or the client has let the message go.
        """
        lease = self.leases.get(offset)
        if lease is None or not lease.client_id:
            return False
        found = self.extend(offset, receive_id, visible_at_ms)
        if found:
            self.leases[offset] = self.leases[offset]._replace(arrived=True)
        return found

    def give_back(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Let a lease end at the time its holder asked for: from now on nobody renews it.

        False when the handle is stale.
        """
        found = self.extend(offset, receive_id, visible_at_ms)
        if found:
            self.leases[offset] = self.leases[offset]._replace(client_id="", arrived=False)
        return found

    def release(self, client_id: str, now_ms: int) -> int:
        """End the leases that *client_id* kept; return how many."""
        held = [o for o, lease in self.leases.items() if lease.client_id == client_id]
        for offset in held:
            self.extend(offset, self.leases[offset].receive_id, now_ms)
        return len(held)

    def renewable(self, before_ms: int) -> Iterator[tuple[int, Lease]]:
        """Yield the leases that some client keeps and that end before *before_ms*."""
        if self.next_expiry() < before_ms:
            for offset, lease in self.leases.items():
                if lease.client_id and lease.arrived and lease.visible_at_ms < before_ms:
                    yield offset, lease

    def handed_out(self, receive_ids: Container[int]) -> Iterator[tuple[int, Lease]]:
        """Yield what clients still hold of these RECEIVEs and was not renewed yet."""
        for offset, lease in self.leases.items():
            if lease.client_id and not lease.arrived and lease.receive_id in receive_ids:
                yield offset, lease

    def reaches_below(self, first: int) -> bool:
        """Whether `drop_before` has anything to forget."""
        return self.next_offset < first or any(offset < first for offset in self.leases)

    def drop_before(self, first: int) -> None:
        """Forget what is below *first*: the queue does not keep it any longer."""
        self.next_offset = max(self.next_offset, first)
        for offset in [offset for offset in self.leases if offset < first]:
            del self.leases[offset]

    def encoded(self) -> Iterator[bytes]:
        """Yield everything for a snapshot; the leases by columns, ascending."""
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
        """Take what `write` added for *queue* from a snapshot. Raises MalformedStateError."""
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
            found._lease(
                offset,
                Lease(
                    receive_id=receive_id,
                    visible_at_ms=until_ms,
                    attempt=attempt,
                    client_id=client_id,
                    arrived=arrived,
                ),
            )
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

    def _lease(self, offset: int, lease: Lease) -> None:
        self.leases[offset] = lease
        heappush(self._expiry, (lease.visible_at_ms, offset))
        if len(self._expiry) > 2 * len(self.leases) + 64:
            self._expiry = [(x.visible_at_ms, o) for o, x in self.leases.items()]
            heapify(self._expiry)


def _holder(source: Reader) -> tuple[str, bool]:
    """Take whose a lease is, and whether it is known to have arrived there."""
    return source.text(), source.number(high=1) == 1
