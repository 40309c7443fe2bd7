"""Which messages were stored already: a bounded window over (client id, topic, message id).

A producer that got no answer sends again with the same id; the window answers with the place the
first one got. Each client keeps its own newest ids per topic, so a busy client does not push out
what a slow one may still repeat; the least recently used clients give way when the whole is full.
The usual batch has only new ids, and costs two operations on whole sets rather than one a message.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from itertools import accumulate, chain, pairwise

from dledger.broker.columns import Reader, Writer, sliced_batches

MAX_IDS = 1 << 19
MAX_IDS_OF_CLIENT = 1 << 16
_QUEUE_BITS = 16
_QUEUE_MASK = (1 << _QUEUE_BITS) - 1


class _Client:
    """One client's ids in one topic, as batches, oldest first.

    A batch's messages follow each other in a queue, so it has one place, that of its first
    message; what finds a message is the place of its batch, a number that its ids share.
    """

    __slots__ = ("_ids_at", "_start_of", "batches", "starts")

    def __init__(self) -> None:
        self.batches: deque[tuple[bytes, ...]] = deque()
        self.starts: deque[int] = deque()
        self._start_of: dict[bytes, int] = {}
        self._ids_at: dict[int, tuple[bytes, ...]] = {}

    def __len__(self) -> int:
        return len(self._start_of)

    def knows_none_of(self, ids: Set[bytes]) -> bool:
        return self._start_of.keys().isdisjoint(ids)

    def place(self, message_id: bytes) -> int | None:
        start = self._start_of.get(message_id)
        if start is None:
            return None
        ids = self._ids_at.get(start)
        return start + (ids.index(message_id) << _QUEUE_BITS) if ids else start

    def remember(self, ids: tuple[bytes, ...], start: int) -> None:
        self._start_of.update(dict.fromkeys(ids, start))
        if len(ids) > 1:
            self._ids_at[start] = ids
        self.batches.append(ids)
        self.starts.append(start)

    def forget_oldest(self) -> int:
        ids = self.batches.popleft()
        self._ids_at.pop(self.starts.popleft(), None)
        for message_id in ids:
            del self._start_of[message_id]
        return len(ids)


def _places(count: int, start: int) -> range:
    """Return the places of *count* messages that follow each other in a queue."""
    return range(start, start + (count << _QUEUE_BITS), 1 << _QUEUE_BITS)


def _all_places(batches: Iterable[Sequence[bytes]], starts: Iterable[int]) -> Iterable[int]:
    return chain.from_iterable(map(_places, map(len, batches), starts))


def _places_in_turn(
    batches: Sequence[Sequence[bytes]], starts: Sequence[int]
) -> Iterator[array[int]]:
    cut = zip(sliced_batches(batches), sliced_batches(starts), strict=True)
    return (array("Q", _all_places(some, places)) for some, places in cut)


def _lengths(batches: Sequence[Sequence[bytes]]) -> Iterator[array[int]]:
    return (array("I", map(len, some)) for some in sliced_batches(batches))


class DedupeWindow:
    """The window; its limits are part of the replicated state, so all nodes must use the same."""

    __slots__ = ("_clients", "_max_ids", "_max_ids_of_client", "_total")

    def __init__(
        self, *, max_ids: int = MAX_IDS, max_ids_of_client: int = MAX_IDS_OF_CLIENT
    ) -> None:
        self._clients: OrderedDict[tuple[str, str], _Client] = OrderedDict()
        self._max_ids, self._max_ids_of_client = max_ids, max_ids_of_client
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def is_new(self, client_id: str, topic: str, ids: Sequence[bytes]) -> bool:
        """Whether no id of *ids* is known, and none of them occurs twice."""
        client = self._clients.get((client_id, topic))
        batch = set(ids)
        return len(batch) == len(ids) and (client is None or client.knows_none_of(batch))

    def find(self, client_id: str, topic: str, message_id: bytes) -> tuple[int, int] | None:
        """Return (queue id, queue offset) of the message with this id, if it is remembered."""
        client = self._clients.get((client_id, topic))
        place = client.place(message_id) if client else None
        return None if place is None else (place & _QUEUE_MASK, place >> _QUEUE_BITS)

    def remember(
        self, client_id: str, topic: str, ids: tuple[bytes, ...], *, queue_id: int, first: int
    ) -> None:
        """Remember new *ids* as the messages at offsets *first*, *first* + 1, ... of a queue."""
        key = (client_id, topic)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _Client()
        self._clients.move_to_end(key)
        client.remember(ids, first << _QUEUE_BITS | queue_id)
        self._total += len(ids)
        self._shrink(client)

    def _shrink(self, client: _Client) -> None:
        while len(client) > self._max_ids_of_client:
            self._total -= client.forget_oldest()
        while self._total > self._max_ids:
            key, oldest = next(iter(self._clients.items()))
            if oldest.batches:
                self._total -= oldest.forget_oldest()
            if not oldest.batches:
                del self._clients[key]

    def write(self, out: Writer) -> None:
        """Add the window to a snapshot: clients from the least recently used on.

        Only what there is of each batch is copied here; its ids and places are spread out later.
        """
        out.number(len(self._clients))
        for (client_id, topic), client in self._clients.items():
            out.text(client_id)
            out.text(topic)
            batches, starts = tuple(client.batches), array("Q", client.starts)
            out.pieces(len(batches), partial(_lengths, batches))
            out.strings(len(client), batches)
            out.pieces(len(client), partial(_places_in_turn, batches, starts))

    def read(self, source: Reader) -> None:
        """Take the window from a snapshot; this one is empty. Raises MalformedStateError."""
        for _ in range(source.number()):
            key = (source.text(), source.text())
            lengths, client = source.column("I"), _Client()
            ids = source.strings(sum(lengths))
            places = source.column("Q", len(ids))
            for a, b in pairwise(accumulate(lengths, initial=0)):
                if a == b or list(places[a:b]) != list(_places(b - a, places[a])):
                    raise source.malformed(f"a batch of client {key[0]!r} is not in one place")
                client.remember(tuple(ids[a:b]), places[a])
            self._clients[key] = client
            self._total += len(ids)
            if len(client) < len(ids) or len(set(client.starts)) < len(client.starts):
                raise source.malformed(f"an id or a place of client {key[0]!r} occurs twice")
        if self._total > self._max_ids:
            raise source.malformed(f"{self._total} message ids, {self._max_ids} at most")

    def canonical(self) -> list[object]:
        """Return the window as plain values, oldest first."""
        return [
            [
                *key,
                list(map(len, client.batches)),
                [str(message_id, "latin-1") for ids in client.batches for message_id in ids],
                list(_all_places(client.batches, client.starts)),
            ]
            for key, client in self._clients.items()
        ]
