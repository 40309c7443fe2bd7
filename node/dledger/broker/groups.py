"""Consumer groups: their deliveries, and the receives they may ask for again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from dledger.broker.columns import Reader, column, number, text
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.deliveries import QueueDeliveries
from dledger.errors import Refused

MAX_GROUPS = 10_000
MAX_ATTEMPTS_REMEMBERED = 1_024
"""Attempt ids of a group that are answered as before; a poller needs only its newest."""

Place = tuple[int, int]
"""(queue id, queue offset)."""
QueueOf = Callable[[str, int], ConsumeQueue]
"""Returns the queue of a (topic, queue id), or raises Refused."""


class Group:
    """One consumer group, over all the topics it reads."""

    __slots__ = ("_attempts", "_deliveries", "edition", "name")

    def __init__(self, name: str, edition: int = 0) -> None:
        self.name = name
        self.edition = edition
        """Which edition of the state this is of; see `editions`."""
        self._deliveries: dict[tuple[str, int], QueueDeliveries] = {}
        self._attempts: OrderedDict[tuple[str, str], tuple[int, tuple[Place, ...]]] = OrderedDict()

    def copy(self, edition: int) -> Group:
        """Return the same group, to be changed while this one stays as it is.

        What it did with queues is copied when it is changed: see `own`.
        """
        other = Group(self.name, edition)
        other._deliveries, other._attempts = self._deliveries.copy(), self._attempts.copy()
        return other

    def deliveries(self, topic: str, queue_id: int, *, first: int) -> QueueDeliveries:
        """Return what this group did with a queue, to be changed; new ones start at *first*."""
        found = self.own(topic, queue_id)
        if found is None:
            found = self._deliveries[topic, queue_id] = QueueDeliveries(first, self.edition)
        return found

    def own(self, topic: str, queue_id: int) -> QueueDeliveries | None:
        """Return what this group did with a queue, to be changed, if it did anything.

        The group itself is one that may be changed.
        """
        found = self._deliveries.get((topic, queue_id))
        if found is not None and found.edition != self.edition:
            found = self._deliveries[topic, queue_id] = found.copy(self.edition)
        return found

    def peek(self, topic: str, queue_id: int) -> QueueDeliveries | None:
        """Return what this group did with a queue, if anything."""
        return self._deliveries.get((topic, queue_id))

    def all_deliveries(self) -> list[tuple[str, int, QueueDeliveries]]:
        """Return (topic, queue id, deliveries) of every queue this group has read."""
        return [(topic, queue_id, d) for (topic, queue_id), d in self._deliveries.items()]

    def remember(
        self, topic: str, attempt_id: str, receive_id: int, places: tuple[Place, ...]
    ) -> None:
        """Keep what an attempt was given, in case it asks again; the oldest attempts go."""
        self._attempts[topic, attempt_id] = (receive_id, places)
        self._attempts.move_to_end((topic, attempt_id))
        if len(self._attempts) > MAX_ATTEMPTS_REMEMBERED:
            self._attempts.popitem(last=False)

    def recall(self, topic: str, attempt_id: str) -> tuple[int, list[Place]] | None:
        """Return the receive id of an earlier attempt and what it still holds; None: nothing."""
        receive_id, places = self._attempts.get((topic, attempt_id), (0, ()))
        held = [place for place in places if self._holds(topic, place, receive_id)]
        return (receive_id, held) if held else None

    def lease_anew(self, topic: str, receive_id: int, held: Iterable[Place], until_ms: int) -> None:
        """Let what `recall` found end at *until_ms*: the attempt is answered again."""
        for queue_id, offset in held:
            if (deliveries := self.own(topic, queue_id)) is not None:
                deliveries.extend(offset, receive_id, until_ms)

    def _holds(self, topic: str, place: Place, receive_id: int) -> bool:
        queue_id, offset = place
        deliveries = self._deliveries.get((topic, queue_id))
        lease = deliveries.leases.get(offset) if deliveries else None
        return lease is not None and lease.receive_id == receive_id

    def encoded(self) -> Iterator[bytes]:
        """Yield the group, without its name, for a snapshot: deliveries by queue, then attempts."""
        yield number(len(self._deliveries))
        for (topic, queue_id), deliveries in sorted(self._deliveries.items()):
            yield text(topic)
            yield number(queue_id)
            yield from deliveries.encoded()
        yield number(len(self._attempts))
        for (topic, attempt_id), (receive_id, places) in self._attempts.items():
            yield text(topic)
            yield text(attempt_id)
            yield number(receive_id)
            yield from column("Q", 2 * len(places), (part for place in places for part in place))

    @classmethod
    def read(cls, name: str, source: Reader, queue: QueueOf) -> Group:
        """Take a group from a snapshot; *queue* finds queues. Raises MalformedStateError."""
        group = cls(name)
        for _ in range(source.number()):
            topic, queue_id = source.text(), source.number()
            try:
                found = queue(topic, queue_id)
            except Refused as error:
                raise source.malformed(f"deliveries of group {name!r}: {error}") from error
            group._deliveries[topic, queue_id] = QueueDeliveries.read(source, found)
        for _ in range(source.number(high=MAX_ATTEMPTS_REMEMBERED)):
            key, receive_id = (source.text(), source.text()), source.number()
            flat = source.column("Q")
            if len(flat) % 2:
                raise source.malformed(f"{len(flat)} numbers are no places")
            group._attempts[key] = (receive_id, tuple(zip(flat[::2], flat[1::2], strict=True)))
        return group

    def canonical(self) -> list[object]:
        """Return the group as plain values, in one order on every node."""
        deliveries = sorted(self._deliveries.items())
        return [
            [[*key, found.canonical()] for key, found in deliveries],
            [[*key, receive_id, places] for key, (receive_id, places) in self._attempts.items()],
        ]
