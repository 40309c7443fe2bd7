"""Which messages were stored already: a bounded window over (client id, topic, message id).

A producer that got no answer sends again with the same id; the window answers with the place the
first one got. Each client keeps its own newest ids per topic, so a busy client does not push out
what a slow one may still repeat; the least recently used clients give way when the whole is full.
The usual batch has ids that count up (`id_runs`): it is one thing to remember and to look for,
however many messages it has. Other ids cost two operations on whole sets for a batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from dledger.broker.client_ids import (
    QUEUE_BITS,
    ClientIds,
    read_batches,
    read_batches_of_format_1,
)
from dledger.broker.columns import Reader, Writer
from dledger.broker.id_runs import Ids, has_repeats

MAX_IDS = 1 << 19
MAX_IDS_OF_CLIENT = 1 << 16
_QUEUE_MASK = (1 << QUEUE_BITS) - 1


class DedupeWindow:
    """The window; its limits are part of the replicated state, so all nodes must use the same."""

    __slots__ = ("_clients", "_max_ids", "_max_ids_of_client", "_total")

    def __init__(
        self, *, max_ids: int = MAX_IDS, max_ids_of_client: int = MAX_IDS_OF_CLIENT
    ) -> None:
        self._clients: OrderedDict[tuple[str, str], ClientIds] = OrderedDict()
        self._max_ids, self._max_ids_of_client = max_ids, max_ids_of_client
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def is_new(self, client_id: str, topic: str, ids: Ids) -> bool:
        """Whether no id of *ids* is known, and none of them occurs twice."""
        client = self._clients.get((client_id, topic))
        return not has_repeats(ids) and (client is None or not client.knows_any(ids))

    def find(self, client_id: str, topic: str, message_id: bytes) -> tuple[int, int] | None:
        """Return (queue id, queue offset) of the message with this id, if it is remembered."""
        client = self._clients.get((client_id, topic))
        place = client.place(message_id) if client else None
        return None if place is None else (place & _QUEUE_MASK, place >> QUEUE_BITS)

    def remember(self, client_id: str, topic: str, ids: Ids, *, queue_id: int, first: int) -> None:
        """Remember new *ids* as the messages at offsets *first*, *first* + 1, ... of a queue."""
        key = (client_id, topic)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientIds()
        self._clients.move_to_end(key)
        self._total += client.remember(ids, first << QUEUE_BITS | queue_id)
        self._shrink(client)

    def _shrink(self, client: ClientIds) -> None:
        while len(client) > self._max_ids_of_client:
            self._total -= client.forget_oldest()
        while self._total > self._max_ids:
            key, oldest = next(iter(self._clients.items()))
            if oldest:
                self._total -= oldest.forget_oldest()
            if not oldest:
                del self._clients[key]

    def write(self, out: Writer) -> None:
        """Add the window to a snapshot: clients from the least recently used on.

        Only what there is of each batch is copied here; columns are made of it later.
        """
        out.number(len(self._clients))
        for (client_id, topic), client in self._clients.items():
            out.text(client_id)
            out.text(topic)
            client.write(out)

    def read(self, source: Reader) -> None:
        """Take the window from a snapshot; this one is empty. Raises MalformedStateError."""
        self._read(source, read_batches)

    def read_spelled_out(self, source: Reader) -> None:
        """Do as `read` with a snapshot of format 1, which has every id by itself."""
        self._read(source, read_batches_of_format_1)

    def _read(self, source: Reader, batches: Callable[[Reader], Iterable[tuple[Ids, int]]]) -> None:
        for _ in range(source.number()):
            key, client = (source.text(), source.text()), ClientIds()
            if key in self._clients:
                raise source.malformed(f"client {key[0]!r} occurs twice")
            starts = set[int]()
            for ids, start in batches(source):
                if has_repeats(ids) or client.knows_any(ids) or start in starts:
                    raise source.malformed(f"an id or a place of client {key[0]!r} occurs twice")
                client.remember(ids, start)
                starts.add(start)
            self._clients[key] = client
            self._total += len(client)
        if self._total > self._max_ids:
            raise source.malformed(f"{self._total} message ids, {self._max_ids} at most")

    def canonical(self) -> list[object]:
        """Return the window as plain values, oldest first."""
        return [[*key, *client.canonical()] for key, client in self._clients.items()]
