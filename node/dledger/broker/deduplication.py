"""Recognising retries: a bounded window over (client id, topic, message id).

A producer that got no response sends again with the same id; the window returns the position of the
first copy. Each id is stored with the digest of its message's body (`body_digests`), because an id
alone proves nothing: the same id with another body is a conflict, not a retry (ADR 20).

Each client has its own newest ids per topic, so a busy client does not evict those that a slow one
may still repeat. Of the clients that have sent nothing to a topic for an hour, only `SILENT_KEPT`
are remembered: no SDK retries that long, and clients that make up a new client id at each start
would otherwise stay for ever. Some are kept for a producer that returns with its spool. The hour is
measured by the log's time without its gaps (`active_time`): no client could send in an outage.

When the window is full, the largest holder loses first: in the topic with the most ids, the client
with the most ids loses its oldest; in the topic with the most clients, the one that was silent
longest is forgotten. So a flood of ids, from one client or from many, evicts itself and not a quiet
producer.

The usual batch has ids that count up (`id_runs`): it is stored and looked up as one item, however
many messages it has. A batch of other ids costs two set operations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from dledger.broker.active_time import ActiveTime
from dledger.broker.body_digests import Digests
from dledger.broker.client_ids import QUEUE_BITS, ClientIds, encoded, read_clients
from dledger.broker.editions import Edition
from dledger.broker.id_runs import Ids, has_repeats
from dledger.broker.ranking import Rank, Ranking
from dledger.broker.snapshot_codec import Encoded, Reader, number
from dledger.common.limits import MAX_IDS_OF_CLIENT

MAX_IDS = 1 << 19
MAX_CLIENTS = 1 << 17
"""(client id, topic) pairs, at most: about 170 MB."""
SILENCE_MS = 3_600_000
"""How long a client must be silent before it may be forgotten: longer than any SDK retries."""
MAX_STEP_MS = 60_000
"""The most that the time between two PRODUCEs counts towards `SILENCE_MS`."""
SILENT_KEPT = 1 << 14
"""How many silent clients are remembered all the same: about 16 MB."""
FORGOTTEN_AT_ONCE = 64
"""Silent clients that one PRODUCE forgets, at most: it stays fast, and adds at most one itself."""
_QUEUE_MASK = (1 << QUEUE_BITS) - 1
_CLIENTS_TOGETHER: Final = 1 << 8
_BATCHES_TOGETHER: Final = 1 << 11
"""In a snapshot, clients are encoded together until they have this many batches."""


class Known(NamedTuple):
    """A stored message: its position, and the digest of its body."""

    queue_id: int
    offset: int
    digest: int


class _Share:
    """One topic's part of the window; *window* is the whole, by (client id, topic)."""

    __slots__ = ("_topic", "_window", "by_ids", "by_use", "clients", "ids")

    def __init__(self, topic: str, window: OrderedDict[tuple[str, str], ClientIds]) -> None:
        self._topic, self._window = topic, window
        self.clients = set[str]()
        self.ids = 0
        self.by_ids = Ranking(lambda: self.clients, self._by_ids)
        self.by_use = Ranking(lambda: self.clients, self._by_use)

    def _by_ids(self, client_id: str) -> Rank | None:
        client = self._window.get((client_id, self._topic))
        return None if client is None else (-len(client), client.used_ms)

    def _by_use(self, client_id: str) -> Rank | None:
        client = self._window.get((client_id, self._topic))
        return None if client is None else (client.used_ms,)


class DeduplicationWindow:
    """The window. Its limits affect the replicated state, so all nodes must use the same."""

    __slots__ = (
        "_clients",
        "_max_clients",
        "_max_ids",
        "_max_ids_of_client",
        "_shares",
        "_shares_by_clients",
        "_shares_by_ids",
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
        """The edition of the whole state, set by the window's owner; see `editions`."""
        self._clients: OrderedDict[tuple[str, str], ClientIds] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._shares_by_ids = Ranking(lambda: self._shares, self._by_ids)
        self._shares_by_clients = Ranking(lambda: self._shares, self._by_clients)
        self._max_ids, self._max_ids_of_client = max_ids, max_ids_of_client
        self._max_clients, self._silent_kept = max_clients, silent_kept
        self._time = ActiveTime(MAX_STEP_MS)
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def _by_ids(self, topic: str) -> Rank | None:
        share = self._shares.get(topic)
        return None if share is None else (-share.ids,)

    def _by_clients(self, topic: str) -> Rank | None:
        share = self._shares.get(topic)
        return None if share is None else (-len(share.clients),)

    def heard(self, client_id: str, topic: str, now_ms: int) -> None:
        """Note that a client sent messages with ids, new or not; forget clients silent for long.

        Called first for every batch. *now_ms* is the log's time, which never goes back.
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
        """Forget the ids of a deleted topic: a new topic of that name starts without any."""
        for client in [client for client in self._clients.values() if client.key[1] == topic]:
            self._forget(client)

    def _forget(self, client: ClientIds) -> None:
        client_id, topic = client.key
        share = self._shares[topic]
        self._total -= len(client)
        share.ids -= len(client)
        del self._clients[client.key]
        share.clients.remove(client_id)
        if not share.clients:
            del self._shares[topic]

    def _use(self, key: tuple[str, str]) -> ClientIds:
        """Return a client's ids, to be changed, and mark the client as most recently used."""
        client = self._own(key)
        client.used_ms = self._time.ms
        self._clients.move_to_end(client.key)
        return client

    def is_new(self, client_id: str, topic: str, ids: Ids) -> bool:
        """Whether no id of *ids* is known, and none of them occurs twice."""
        client = self._clients.get((client_id, topic))
        return not has_repeats(ids) and (client is None or not client.knows_any(ids))

    def find(self, client_id: str, topic: str, message_id: bytes) -> Known | None:
        """Return what is known of the message with this id, if it is remembered."""
        client = self._clients.get((client_id, topic))
        found = client.find(message_id) if client else None
        if found is None:
            return None
        return Known(found.position & _QUEUE_MASK, found.position >> QUEUE_BITS, found.digest)

    def remember(
        self,
        client_id: str,
        topic: str,
        ids: Ids,
        digests: Digests,
        *,
        queue_id: int,
        first: int,
    ) -> None:
        """Remember new *ids* as the messages at offsets *first*, *first* + 1, ... of a queue.

        *digests* has an item for each of them.
        """
        client = self._use((client_id, topic))
        self._add(client, client.remember(ids, digests, first << QUEUE_BITS | queue_id))
        self._shrink(client)

    def _own(self, key: tuple[str, str]) -> ClientIds:
        """Return a client's ids, to be changed."""
        client = self._clients.get(key)
        if client is None:
            client = ClientIds(key, self.edition.number)
            self._enter(client)
        elif client.edition != self.edition.number:
            client = self._clients[client.key] = client.copy(self.edition.number)
        return client

    def _enter(self, client: ClientIds) -> None:
        """Add a client that is not in the window."""
        client_id, topic = client.key
        self._clients[client.key] = client
        share = self._shares.get(topic)
        if share is None:
            share = self._shares[topic] = _Share(topic, self._clients)
        share.clients.add(client_id)
        share.by_use.sank(client_id)
        self._shares_by_clients.sank(topic)

    def _add(self, client: ClientIds, ids: int) -> None:
        """Adjust the totals by *ids*, the change in a client's number of ids; may be negative."""
        client_id, topic = client.key
        share = self._shares[topic]
        self._total += ids
        share.ids += ids
        if ids > 0:
            share.by_ids.sank(client_id)
            self._shares_by_ids.sank(topic)

    def _shrink(self, client: ClientIds) -> None:
        while len(client) > self._max_ids_of_client:
            self._add(client, -client.forget_oldest())
        while self._total > self._max_ids:
            topic = self._shares_by_ids.first()
            largest = self._own((self._shares[topic].by_ids.first(), topic))
            self._add(largest, -largest.forget_oldest())
            if not largest:
                self._forget(largest)
        if len(self._clients) > self._max_clients:
            topic = self._shares_by_clients.first()
            self._forget(self._clients[self._shares[topic].by_use.first(), topic])

    def freeze(self) -> Encoded:
        """Return a function that encodes the present window, least recently used client first."""
        return partial(_encoded, self._time.encoded(), list(self._clients.values()))

    def read(self, source: Reader) -> None:
        """Read the window from a snapshot into this empty one. Raises MalformedStateError."""
        self._time.read(source)
        left, used_ms = source.number(high=self._max_clients), 0
        while left > 0:
            for client in read_clients(source):
                if client.key in self._clients or client.used_ms < used_ms:
                    raise source.malformed(f"client {client.key[0]!r} occurs twice, or too late")
                used_ms = client.used_ms
                self._enter(client)
                self._add(client, len(client))
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
    """Group *clients* lazily, so that the first piece is ready before all have been visited."""
    some, batches = list[ClientIds](), 0
    for client in clients:
        some.append(client)
        batches += len(client.batches())
        if len(some) == _CLIENTS_TOGETHER or batches >= _BATCHES_TOGETHER:
            yield some
            some, batches = [], 0
    if some:
        yield some
