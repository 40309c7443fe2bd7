"""Recognising replays of a spool, also after days: the last sequence of each of its lanes.

The deduplication window knows a repeated message by its id for an hour or so. A host that was cut
off for days replays what it had spooled, and of some of it the answer was lost before: so each call
of a replay has a mark (`replay_mark`), and the state keeps the last sequence of each lane for
`KEPT_MS` of lived time after its last use. What is not behind that sequence was stored before. The
sequence rises in the command that stores (`topic_store`), and never past a message that is not
stored. A sequence that is left out stays out: a spool sets aside what is refused for good.

A lane is a number of bytes that does not depend on what was sent, where the window has ids and
digests. There are bounds all the same, since marks cost their sender nothing. A client has
`LANES_OF_CLIENT` lanes of a topic: one, as spools are, and some of directories that were lost. When
there are `MAX_LANES` in all, the topic with the most gives way, by the lane whose last use is the
longest ago: so a flood of lanes in one topic leaves those of other topics alone (ADR 66).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from dledger.broker.ranking import Rank, Ranking
from dledger.broker.snapshot_codec import Encoded, Reader, column, number, strings, text_bytes
from dledger.common.replay_mark import KEY_BYTES

KEPT_MS: Final = 30 * 24 * 3_600_000
"""How long a lane is kept at least after its last use, in lived time; unless bounds are reached."""
MAX_LANES: Final = 1 << 16
LANES_OF_CLIENT: Final = 16
"""Of one topic."""
FORGOTTEN_AT_ONCE: Final = 64
"""Lanes whose time is up that one use of a lane forgets, at most: it adds at most one itself."""
_KEYS_TOGETHER: Final = 1 << 12


class _Lane(NamedTuple):
    """One lane.

    Attributes:
        topic: Where its messages go.
        client: A digest of the client's id, 64 bits: enough to count the lanes of a client.
        last: The last sequence that is stored, or was left out.
        used_ms: The lived time of its last use.
    """

    topic: str
    client: int
    last: int
    used_ms: int


class _Share:
    """One topic's lanes; *lanes* are those of all topics."""

    __slots__ = ("_lanes", "by_use", "keys")

    def __init__(self, lanes: OrderedDict[bytes, _Lane]) -> None:
        self._lanes = lanes
        self.keys = set[bytes]()
        self.by_use: Ranking[bytes] = Ranking(lambda: self.keys, self._by_use)

    def _by_use(self, key: bytes) -> Rank | None:
        return (self._lanes[key].used_ms,) if key in self.keys else None


class ReplayedLanes:
    """The lanes. Their bounds affect the replicated state, so all nodes must use the same."""

    __slots__ = ("_lanes", "_max_lanes", "_of_client", "_of_clients", "_shares", "_shares_by_lanes")

    def __init__(self, *, max_lanes: int = MAX_LANES, of_client: int = LANES_OF_CLIENT) -> None:
        self._lanes: OrderedDict[bytes, _Lane] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._shares_by_lanes: Ranking[str] = Ranking(lambda: self._shares, self._by_lanes)
        self._of_clients: dict[tuple[str, int], tuple[bytes, ...]] = {}
        self._max_lanes, self._of_client = max_lanes, of_client

    def __len__(self) -> int:
        return len(self._lanes)

    def _by_lanes(self, topic: str) -> Rank | None:
        share = self._shares.get(topic)
        return None if share is None else (-len(share.keys),)

    def last(self, key: bytes) -> int:
        """Return the last sequence of a lane; 0 if it is not known."""
        lane = self._lanes.get(key)
        return 0 if lane is None else lane.last

    def advance(self, key: bytes, last: int, *, whose: tuple[str, str], lived_ms: int) -> None:
        """Use a lane: its sequence rises to *last*, or stays where it is higher.

        Args:
            key: Of the lane.
            last: A sequence, at least 1.
            whose: The topic and the client id of its messages.
            lived_ms: The lived time, which never goes back.
        """
        lane = self._lanes.get(key)
        if lane is None:
            topic, client_id = whose
            self._enter(key, _Lane(topic, _digest(client_id), last, lived_ms))
        else:
            self._lanes[key] = lane._replace(last=max(lane.last, last), used_ms=lived_ms)
            self._lanes.move_to_end(key)
        self._expire(lived_ms)
        self._shrink(key)

    def _expire(self, lived_ms: int) -> None:
        for _ in range(min(FORGOTTEN_AT_ONCE, len(self._lanes))):
            key, oldest = next(iter(self._lanes.items()))
            if oldest.used_ms + KEPT_MS > lived_ms:
                break
            self._forget(key)

    def _shrink(self, key: bytes) -> None:
        """Forget what is too much with the lane that was used last."""
        lane = self._lanes[key]
        keys = self._of_clients[lane.topic, lane.client]
        if len(keys) > self._of_client:
            self._forget(min(keys, key=lambda each: (self._lanes[each].used_ms, each)))
        if len(self._lanes) > self._max_lanes:
            self._forget(self._shares[self._shares_by_lanes.first()].by_use.first())

    def _enter(self, key: bytes, lane: _Lane) -> None:
        """Add a lane that is not there."""
        self._lanes[key] = lane
        share = self._shares.get(lane.topic)
        if share is None:
            share = self._shares[lane.topic] = _Share(self._lanes)
        share.keys.add(key)
        share.by_use.sank(key)
        self._shares_by_lanes.sank(lane.topic)
        owner = lane.topic, lane.client
        self._of_clients[owner] = (*self._of_clients.get(owner, ()), key)

    def _forget(self, key: bytes) -> None:
        lane = self._lanes.pop(key)
        share = self._shares[lane.topic]
        share.keys.remove(key)
        if not share.keys:
            del self._shares[lane.topic]
        owner = lane.topic, lane.client
        left = tuple(each for each in self._of_clients.pop(owner) if each != key)
        if left:
            self._of_clients[owner] = left

    def forget_topic(self, topic: str) -> None:
        """Forget the lanes of a deleted topic: what is replayed to a new one of its name is new."""
        share = self._shares.get(topic)
        for key in tuple(share.keys) if share is not None else ():
            self._forget(key)

    def freeze(self) -> Encoded:
        """Return a function that encodes the present lanes, least recently used first."""
        return partial(_pieces_of, list(self._lanes.items()))

    def read(self, source: Reader, topics: Collection[str]) -> None:
        """Read the lanes, of these *topics*, into this empty object. Raises MalformedStateError."""
        count = source.number(high=self._max_lanes)
        names = list(map(source.text_of, source.strings()))
        keys = source.raw(KEY_BYTES * count)
        numbers = source.column("I", count)
        clients = source.column("Q", count)
        lasts = source.column("Q", count)
        used = source.column("q", count)
        if max(numbers, default=-1) >= len(names) or not set(names) <= set(topics):
            raise source.malformed(f"{count} lanes of other topics than there are")
        if sorted(used) != list(used) or min(lasts, default=1) < 1 or min(used, default=0) < 0:
            raise source.malformed(f"{count} lanes that are none")
        for row, topic in enumerate(map(names.__getitem__, numbers)):
            key = keys[row * KEY_BYTES : (row + 1) * KEY_BYTES]
            self._enter(key, _Lane(topic, clients[row], lasts[row], used[row]))
        if len(self._lanes) != count:
            raise source.malformed(f"{count - len(self._lanes)} lanes occur twice")

    def canonical(self) -> list[object]:
        """Return the lanes as plain values, least recently used first."""
        return [[key.hex(), *lane] for key, lane in self._lanes.items()]


def _digest(client_id: str) -> int:
    return int.from_bytes(blake2b(client_id.encode(), digest_size=8).digest(), "little")


def _pieces_of(lanes: Sequence[tuple[bytes, _Lane]]) -> Iterator[bytes]:
    """Yield the bytes for a snapshot: 44 a lane, and each topic once."""
    count = len(lanes)
    topics = {name: n for n, name in enumerate(dict.fromkeys(lane.topic for _, lane in lanes))}
    yield number(count)
    yield from strings([text_bytes(topic) for topic in topics])
    for first in range(0, count, _KEYS_TOGETHER):
        yield b"".join([key for key, _ in lanes[first : first + _KEYS_TOGETHER]])
    yield from column("I", count, (topics[lane.topic] for _, lane in lanes))
    yield from column("Q", count, (lane.client for _, lane in lanes))
    yield from column("Q", count, (lane.last for _, lane in lanes))
    yield from column("q", count, (lane.used_ms for _, lane in lanes))
