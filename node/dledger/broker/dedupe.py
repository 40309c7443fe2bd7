"""Which messages were stored already: a bounded window over (client id, topic, message id).

A producer that got no answer sends again with the same id; the window answers with the place the
first one got. Each client keeps its own newest ids per topic, so a busy client does not push out
what a slow one may still repeat. Of clients that have sent nothing to a topic for an hour, only so
many are remembered: no SDK retries that long, and ids that are new at each start would otherwise
stay for ever. Some are, for a producer that comes back with its spool. That hour is one of the
log's time, without its gaps (`active_time`): in an outage no client could have sent. The least
recently used ones give way when the whole is full.
The usual batch has ids that count up (`id_runs`): it is one thing to remember and to look for,
however many messages it has. Other ids cost two operations on whole sets for a batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from dledger.broker.active_time import ActiveTime
from dledger.broker.client_ids import QUEUE_BITS, ClientIds, encoded, read_clients
from dledger.broker.columns import Encoded, Reader, number
from dledger.broker.editions import Edition
from dledger.broker.id_runs import Ids, has_repeats

MAX_IDS = 1 << 19
MAX_IDS_OF_CLIENT = 1 << 16
MAX_CLIENTS = 1 << 17
"""(client id, topic) pairs; some 140 MB."""
SILENCE_MS = 3_600_000
"""How long a client may be silent before it may be forgotten."""
MAX_STEP_MS = 60_000
"""What the time between two PRODUCEs counts of that at most."""
SILENT_KEPT = 1 << 14
"""How many clients there must be for that: some 16 MB."""
FORGOTTEN_AT_ONCE = 64
"""Silent clients that a PRODUCE forgets at most, so that none takes long; it brings one at most."""
_QUEUE_MASK = (1 << QUEUE_BITS) - 1
_CLIENTS_TOGETHER: Final = 1 << 8
_BATCHES_TOGETHER: Final = 1 << 11
"""Clients whose ids are columns together in a snapshot: as many as have this many batches."""


class DedupeWindow:
    """The window; its limits are part of the replicated state, so all nodes must use the same."""

    __slots__ = (
        "_clients",
        "_max_clients",
        "_max_ids",
        "_max_ids_of_client",
        "_silent_kept",
        "_time",
        "_total",
        "edition",
    )

    def __init__(
        self,
        *,
        max_ids: int = MAX_IDS,
        max_ids_of_client: int = MAX_IDS_OF_CLIENT,
        max_clients: int = MAX_CLIENTS,
        silent_kept: int = SILENT_KEPT,
    ) -> None:
        self.edition = Edition()
        """The state's; whoever owns the window says which."""
        self._clients: OrderedDict[tuple[str, str], ClientIds] = OrderedDict()
        self._max_ids, self._max_ids_of_client = max_ids, max_ids_of_client
        self._max_clients, self._silent_kept = max_clients, silent_kept
        self._time = ActiveTime(MAX_STEP_MS)
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def heard(self, client_id: str, topic: str, now_ms: int) -> None:
        """Note that a client sends messages with ids, new or not; forget who is silent for long.

        Comes before all else about a batch. *now_ms* is the log's time, and never goes back.
        """
        self._time.advance(now_ms)
        if (client_id, topic) in self._clients:
            self._use((client_id, topic))
        for _ in range(min(FORGOTTEN_AT_ONCE, len(self._clients) - self._silent_kept)):
            oldest = next(iter(self._clients.values()))
            if oldest.used_ms + SILENCE_MS > self._time.ms:
                break
            self._forget(oldest)

    def forget_topic(self, topic: str) -> None:
        """Forget what was sent to a topic: one of that name that is made anew has none of it."""
        for client in [client for client in self._clients.values() if client.key[1] == topic]:
            self._forget(client)

    def _forget(self, client: ClientIds) -> None:
        self._total -= len(client)
        del self._clients[client.key]

    def _use(self, key: tuple[str, str]) -> ClientIds:
        """Return a client's ids, to be changed; it is the most recently used one now."""
        client = self._own(key)
        client.used_ms = self._time.ms
        self._clients.move_to_end(client.key)
        return client

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
        client = self._use((client_id, topic))
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
                self._forget(oldest)
        if len(self._clients) > self._max_clients:
            self._forget(next(iter(self._clients.values())))

    def freeze(self) -> Encoded:
        """Return what makes the window as it is now: clients from the least recently used on."""
        return partial(_encoded, self._time.encoded(), list(self._clients.values()))

    def read(self, source: Reader) -> None:
        """Take the window from a snapshot; this one is empty. Raises MalformedStateError."""
        self._time.read(source)
        left, used_ms = source.number(high=self._max_clients), 0
        while left > 0:
            for client in read_clients(source):
                if client.key in self._clients or client.used_ms < used_ms:
                    raise source.malformed(f"client {client.key[0]!r} occurs twice, or too late")
                used_ms = client.used_ms
                self._clients[client.key] = client
                self._total += len(client)
                left -= 1
        if left or self._total > self._max_ids:
            raise source.malformed(f"{self._total} message ids, {self._max_ids} at most")

    def canonical(self) -> list[object]:
        """Return the window as plain values, oldest first."""
        return [[*key, *client.canonical()] for key, client in self._clients.items()]


def _encoded(time: bytes, clients: list[ClientIds]) -> Iterator[bytes]:
    yield time + number(len(clients))
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
