"""Which messages were stored already: a bounded window over (client id, topic, message id).

A producer that got no answer sends again with the same id; the window answers with the position the
first one got. An id says who sends again, not what: with each is the digest of its message's body
(`body_digests`), and an id that comes with another body is no retry (ADR 20).

Each client keeps its own newest ids per topic, so a busy client does not push out
what a slow one may still repeat. Of clients that have sent nothing to a topic for an hour, only so
many are remembered: no SDK retries that long, and ids that are new at each start would otherwise
stay for ever. Some are, for a producer that comes back with its spool. That hour is one of the
log's time, without its gaps (`active_time`): in an outage no client could have sent.

When the whole is full, who holds most gives way: of the topic with the most ids the client with the
most, by its oldest ones; of the topic with the most clients the one that was silent longest. So
junk pushes out junk, whether it comes from one client or from many, and not a quiet producer.

The usual batch has ids that count up (`id_runs`): it is one thing to remember and to look for,
however many messages it has. Other ids cost two operations on whole sets for a batch.
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
"""(client id, topic) pairs; some 170 MB."""
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


class Known(NamedTuple):
    """A message that was stored: where, and the digest of its body."""

    queue_id: int
    offset: int
    digest: int


class _Share:
    """What the window holds of one topic; *window* is all of it, by (client id, topic)."""

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
    """The window; its limits are part of the replicated state, so all nodes must use the same."""

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
        """The state's; whoever owns the window says which."""
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
        client_id, topic = client.key
        share = self._shares[topic]
        self._total -= len(client)
        share.ids -= len(client)
        del self._clients[client.key]
        share.clients.remove(client_id)
        if not share.clients:
            del self._shares[topic]

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
        """Take a client in that is not there."""
        client_id, topic = client.key
        self._clients[client.key] = client
        share = self._shares.get(topic)
        if share is None:
            share = self._shares[topic] = _Share(topic, self._clients)
        share.clients.add(client_id)
        share.by_use.sank(client_id)
        self._shares_by_clients.sank(topic)

    def _add(self, client: ClientIds, ids: int) -> None:
        """Take note of *ids* that a client has now; if fewer than before, by a negative number."""
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
