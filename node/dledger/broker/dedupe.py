"""Which messages were stored already: a bounded window over (client id, topic, message id).

A producer that got no answer sends again with the same id; the window answers with the place the
first one got. Each client keeps its own newest ids per topic, so a busy client does not push out
what a slow one may still repeat; the least recently used clients give way when the whole is full.
The usual batch has ids that count up (`id_runs`): it is one thing to remember and to look for,
however many messages it has. Other ids cost two operations on whole sets for a batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from dledger.broker.client_ids import QUEUE_BITS, ClientIds, encoded, read_clients
from dledger.broker.columns import Encoded, Reader, number
from dledger.broker.editions import Edition
from dledger.broker.id_runs import Ids, has_repeats

MAX_IDS = 1 << 19
MAX_IDS_OF_CLIENT = 1 << 16
_QUEUE_MASK = (1 << QUEUE_BITS) - 1
_CLIENTS_TOGETHER: Final = 1 << 10
_BATCHES_TOGETHER: Final = 1 << 12
"""Clients whose ids are columns together in a snapshot: as many as have this many batches."""


class DedupeWindow:
    """The window; its limits are part of the replicated state, so all nodes must use the same."""

    __slots__ = ("_clients", "_max_ids", "_max_ids_of_client", "_total", "edition")

    def __init__(
        self, *, max_ids: int = MAX_IDS, max_ids_of_client: int = MAX_IDS_OF_CLIENT
    ) -> None:
        self.edition = Edition()
        """The state's; whoever owns the window says which."""
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
        client = self._own((client_id, topic))
        self._clients.move_to_end(client.key)
        self._total += client.remember(ids, first << QUEUE_BITS | queue_id)
        self._shrink(client)

    def _own(self, key: tuple[str, str]) -> ClientIds:
        """Return a client's ids, to be changed."""
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientIds(key, self.edition.number)
        elif client.edition != self.edition.number:
            client = self._clients[client.key] = client.copy(self.edition.number)
        return client

    def _shrink(self, client: ClientIds) -> None:
        while len(client) > self._max_ids_of_client:
            self._total -= client.forget_oldest()
        while self._total > self._max_ids:
            oldest = self._own(next(iter(self._clients)))
            if oldest:
                self._total -= oldest.forget_oldest()
            if not oldest:
                del self._clients[oldest.key]

    def freeze(self) -> Encoded:
        """Return what makes the window as it is now: clients from the least recently used on."""
        return partial(_encoded, list(self._clients.values()))

    def read(self, source: Reader) -> None:
        """Take the window from a snapshot; this one is empty. Raises MalformedStateError."""
        left = source.number()
        while left > 0:
            for client in read_clients(source):
                if client.key in self._clients:
                    raise source.malformed(f"client {client.key[0]!r} occurs twice")
                self._clients[client.key] = client
                self._total += len(client)
                left -= 1
        if left or self._total > self._max_ids:
            raise source.malformed(f"{self._total} message ids, {self._max_ids} at most")

    def canonical(self) -> list[object]:
        """Return the window as plain values, oldest first."""
        return [[*key, *client.canonical()] for key, client in self._clients.items()]


def _encoded(clients: list[ClientIds]) -> Iterator[bytes]:
    yield number(len(clients))
    for some in _together(clients):
        yield from encoded(some)


def _together(clients: Iterable[ClientIds]) -> Iterator[list[ClientIds]]:
    """Cut *clients* up, so that not all are looked at before the first piece is there."""
    some, batches = list[ClientIds](), 0
    for client in clients:
        some.append(client)
        batches += len(client.batches())
        if len(some) == _CLIENTS_TOGETHER or batches >= _BATCHES_TOGETHER:
            yield some
            some, batches = [], 0
    if some:
        yield some
