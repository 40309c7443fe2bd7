"""The leases of one queue that a consumer group holds: who renews them, and who gives them back.

What a lease is does not depend on the order in which messages are handed out, which is the subject
of its subclasses: `deliveries` for topics without an order, `fifo_deliveries` for those with one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from typing import Self

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.group_filters import TopicFilters
from dledger.broker.kept_messages import Codes, KeptMessages
from dledger.broker.lease_columns import Lease

MAX_LEASES = 16_384
"""Unacked messages of one queue that a group may hold; more are delivered as these are acked."""
MOVE_AGAIN_MS = 30_000
"""After so long a message that was to become a dead letter, and did not, is told again."""
MAX_RUNS_SCANNED = 4_096
"""Runs that one RECEIVE may skip because of its filter, so that no command takes long."""


class HeldLeases(ABC):
    """The deliveries of one (group, topic, queue id), of whatever type the topic is."""

    __slots__ = ("_held", "edition", "kept", "leases", "next_offset")

    def __init__(self, first: int = 0, edition: int = 0) -> None:
        self.edition = edition
        """The edition of the state that this belongs to; see `editions`."""
        self.next_offset = first
        """The first offset never looked at; a new group starts at the oldest message."""
        self.leases: dict[int, Lease] = {}
        """By offset."""
        self.kept: KeptMessages | None = None
        """What filters passed over for others; None if there is nothing, as with one filter."""
        self._held: dict[str, set[int]] = {}

    @abstractmethod
    def copy(self, edition: int) -> Self:
        """Return a copy that may be changed; this object may then only be `encoded`.

        Derived data, which is not encoded, moves to the copy.
        """

    @property
    @abstractmethod
    def committed(self) -> int:
        """The lowest offset that is not done: nothing before it is ever delivered again."""

    @property
    def passed_count(self) -> int:
        """How many messages were passed over and never delivered, though they are to be."""
        return 0 if self.kept is None else self.kept.passed(None)

    @abstractmethod
    def lacks_room(self, end: int) -> bool:
        """Whether messages of a queue that ends at *end* must wait until others are acked."""

    @abstractmethod
    def next_expiry(self) -> float:
        """Return when the next lease ends, in lived time; infinity when there is none."""

    @abstractmethod
    def take(
        self,
        queue: ConsumeQueue,
        *,
        limit: int,
        codes: Codes,
        now_ms: int,
        lease_until_ms: int,
        receive_id: int,
        client_id: str,
        filters: TopicFilters | None,
        max_attempts: int,
        spent: list[int],
    ) -> list[int]:
        """Deliver up to *limit* messages.

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

    def waits(self, codes: Codes, queue: ConsumeQueue, filters: TopicFilters) -> bool:  # noqa: ARG002
        """Whether a filter waits for slower ones; see `deliveries`."""
        return False

    @abstractmethod
    def ack(self, offset: int, receive_id: int) -> bool:
        """Mark a message as consumed; return False if the handle is stale or was never issued.

        Acking twice succeeds, because a client whose response was lost acks again.
        """

    @abstractmethod
    def extend(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Change the end of a lease; return False if the handle is stale."""

    @abstractmethod
    def drop_before(self, first: int) -> int:
        """Forget offsets below *first*, which the queue has dropped; return how many it knew."""

    def end_unnamed(self, is_named: Callable[[int], bool]) -> int:  # noqa: ARG002
        """Forget what is kept for filters that are gone; return how many messages that was."""
        return 0

    @abstractmethod
    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot."""

    @abstractmethod
    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""

    # -- what holders do with their leases ---------------------------------------------------------

    def renew(self, offset: int, receive_id: int, visible_at_ms: int, *, arrived: bool) -> bool:
        """Extend a client's lease: it is known to have the message, or is still being sent it.

        Returns:
            False if the handle is stale, the client has given the message back, or what was still
            under way has arrived meanwhile.
        """
        lease = self.leases.get(offset)
        if lease is None or not lease.client_id or (lease.arrived and not arrived):
            return False
        found = self.extend(offset, receive_id, visible_at_ms)
        if found and arrived:
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

    def change(
        self, offset: int, receive_id: int, visible_at_ms: int, *, suspend: bool
    ) -> int | None:
        """Set the end of a lease that its holder gives up, which gets another receipt handle.

        A change with the handle that the one before was made with is that one, sent again because
        its answer was lost: it changes nothing, and is answered alike.

        Args:
            offset: Of the message.
            receive_id: Of its receipt handle.
            visible_at_ms: When the message may be delivered again.
            suspend: Its delivery does not count as an attempt.

        Returns:
            The new receive id; None if the handle is stale.
        """
        lease = self.leases.get(offset)
        if lease is None:
            return None
        if lease.comes_after(receive_id):
            return lease.receive_id
        if not self.give_back(offset, receive_id, visible_at_ms):
            return None
        later = self.leases[offset].after_change(suspended=suspend)
        self.leases[offset] = later
        return later.receive_id

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
        """Yield these RECEIVEs' leases that are not known to have arrived, as (offset, lease)."""
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

    def _let_go(self, offset: int, lease: Lease) -> None:
        held = self._held.get(lease.client_id)
        if held is not None:
            held.discard(offset)
            if not held:
                del self._held[lease.client_id]

    def _hold(self, offset: int, client_id: str) -> None:
        """Index a lease by the client that it is renewed for."""
        held = self._held.get(client_id)
        if held is None:
            held = self._held[client_id] = set()
        held.add(offset)

    def _canonical_leases(self) -> list[list[object]]:
        return [
            [o, x.receive_id, x.visible_at_ms, x.attempt, x.client_id, x.arrived]
            for o, x in sorted(self.leases.items())
        ]
