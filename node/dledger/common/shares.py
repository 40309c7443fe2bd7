"""A bound in sum that its users share by address, when it is full and not before.

While there is room, one address may have all of it: behind a Service or a NAT a thousand clients
come from one. When there is none, the next still gets its own, whoever fills the bound, and what
goes is the oldest of the address that has most; of it, of the line that has most, which is one of
its connections. So a stranger loses to nobody but himself. What a user calls *items* may be calls,
streams, polls or connections, and *weights* may be numbers of them or bytes.

Addresses and lines are in classes of their weight, an eighth apart, and small numbers each in their
own: so "most" is exact up to eight, and right to an eighth above. With that every step takes about
a microsecond, whatever the numbers: to look for the largest of 4,000 takes a hundred.

Pure; no clock. Used by `door` for calls, connections and handshakes, and by `rocketmq` for
Telemetry streams and waiting polls.
"""

from __future__ import annotations

import functools
import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

NO_ROOM: Final = "others need the room, and most of it is your address's; back off and retry"
"""What somebody is told who has to go."""
_EIGHTHS: Final = 4
"""So many leading bits of a weight tell its class."""
_PREFIX_BITS: Final = 64
"""Of an IPv6 address, what one customer of a network has at least (RFC 6177)."""

T = TypeVar("T")
K = TypeVar("K")


@functools.lru_cache(4_096)
def address_of(host: str) -> str:
    """Return what counts as one address: of IPv6 its first 64 bits, since who has one has them all.

    Args:
        host: As sockets name it, or as gRPC does, without a port: ``ipv6:%5B2001:db8::1%5D``.
    """
    bare = host.removeprefix("ipv6:").removeprefix("%5B").removesuffix("%5D")
    if ":" not in bare or host.startswith("ipv4:"):
        return host.removeprefix("ipv4:")
    try:
        number = int(ipaddress.IPv6Address(bare.partition("%")[0]))
    except ValueError:
        return host
    return f"{number >> _PREFIX_BITS:x}"


class Entry(Generic[T]):
    """What one item has of a share; its owner keeps it, and gives it to `Share.leave`.

    Attributes:
        item: What the owner named; gone when it has left, since the two know each other.
        weight: What it counts.
    """

    __slots__ = ("_line", "_newer", "_older", "item", "weight")

    def __init__(self, item: T, weight: int, line: _Line[T]) -> None:
        self.item, self.weight = item, weight
        self._line: _Line[T] | None = line
        self._older: Entry[T] | None = None
        self._newer: Entry[T] | None = None


class _Line(Generic[T]):
    """The entries of one connection, oldest first: linked, so that any can go without a search."""

    __slots__ = ("host", "name", "newest", "oldest", "weight")

    def __init__(self, host: _Host[T], name: object) -> None:
        self.host, self.name = host, name
        self.weight = 0
        self.oldest: Entry[T] | None = None
        self.newest: Entry[T] | None = None

    def append(self, entry: Entry[T]) -> None:
        entry._older, entry._newer = self.newest, None  # noqa: SLF001 - one thing, by two classes
        if self.newest is None:
            self.oldest = entry
        else:
            self.newest._newer = entry  # noqa: SLF001
        self.newest = entry

    def remove(self, entry: Entry[T]) -> None:
        older, newer = entry._older, entry._newer  # noqa: SLF001
        if older is None:
            self.oldest = newer
        else:
            older._newer = newer  # noqa: SLF001
        if newer is None:
            self.newest = older
        else:
            newer._older = older  # noqa: SLF001
        entry._older = entry._newer = None  # noqa: SLF001


class _Host(Generic[T]):
    """The lines of one address."""

    __slots__ = ("lines", "name", "ranks", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 0
        self.lines: dict[object, _Line[T]] = {}
        self.ranks: _Ranks[_Line[T]] = _Ranks()


class _Ranks(Generic[K]):
    """Who has most, in classes of weights."""

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[int, OrderedDict[K, None]] = {}

    def move(self, key: K, before: int, after: int) -> None:
        """Note that a weight has changed; 0: it has none."""
        old, new = _class_of(before), _class_of(after)
        if old == new:
            return
        if old:
            peers = self._classes[old]
            del peers[key]
            if not peers:
                del self._classes[old]
        if new:
            found = self._classes.get(new)
            if found is None:
                found = self._classes[new] = OrderedDict()
            found[key] = None

    def most(self) -> K:
        """Return one of those with most, who has had as much for longest."""
        return next(iter(self._classes[max(self._classes)]))


def _class_of(weight: int) -> int:
    shift = max(weight.bit_length() - _EIGHTHS, 0)
    return (shift << _EIGHTHS - 1) + (weight >> shift)


class Share(Generic[T]):
    """One bound.

    Args:
        limit: Of all weights together.
        on_evict: Ends an item that has to go, such as a poll, by answering it empty. It has left
            already, so that it need not call `leave`; it must not call this share otherwise.

    Attributes:
        taken: What all weigh now.
    """

    __slots__ = ("_hosts", "_on_evict", "_ranks", "limit", "taken")

    def __init__(self, limit: int, on_evict: Callable[[T], None]) -> None:
        self.limit, self._on_evict = limit, on_evict
        self.taken = 0
        self._hosts: dict[str, _Host[T]] = {}
        self._ranks: _Ranks[_Host[T]] = _Ranks()

    def of(self, address: str) -> int:
        """Return what the items of an address weigh."""
        host = self._hosts.get(address)
        return 0 if host is None else host.weight

    def enter(self, address: str, item: T, *, line: object = "", weight: int = 1) -> Entry[T]:
        """Count an item, after others have gone if the bound is full.

        Args:
            address: Whose it is, by `address_of`.
            item: For `on_evict`.
            line: The connection that it came by.
            weight: At least 1.
        """
        while self.taken + weight > self.limit and self.evict():
            pass
        host = self._hosts.get(address)
        if host is None:
            host = self._hosts[address] = _Host(address)
        mine = host.lines.get(line)
        if mine is None:
            mine = host.lines[line] = _Line(host, line)
        entry = Entry(item, weight, mine)
        mine.append(entry)
        self._weigh(mine, weight)
        return entry

    def resize(self, entry: Entry[T], weight: int) -> None:
        """Count an item anew, as the newest of its line; one that has left stays where it is.

        Nothing goes for that: the caller asks `is_full`, and `evict`s.
        """
        line = entry._line  # noqa: SLF001
        if line is None:
            return
        line.remove(entry)
        line.append(entry)
        more, entry.weight = weight - entry.weight, weight
        self._weigh(line, more)

    def leave(self, entry: Entry[T]) -> None:
        """Count an item no longer; more than once does nothing."""
        line = entry._line  # noqa: SLF001
        if line is None:
            return
        entry._line = None  # noqa: SLF001
        del entry.item
        line.remove(entry)
        self._weigh(line, -entry.weight)
        if line.oldest is None:
            host = line.host
            del host.lines[line.name]
            if not host.lines:
                del self._hosts[host.name]

    @property
    def is_full(self) -> bool:
        """Whether the bound is exceeded, by what `resize` has added."""
        return self.taken > self.limit

    def next(self) -> Entry[T] | None:
        """Return what would go now: the oldest of who has most; None: there is nothing."""
        return self._ranks.most().ranks.most().oldest if self._hosts else None

    def evict(self) -> bool:
        """End the oldest item of who has most; return False if there is none."""
        entry = self.next()
        if entry is None:
            return False
        item = entry.item
        self.leave(entry)
        self._on_evict(item)
        return True

    def _weigh(self, line: _Line[T], more: int) -> None:
        host, before = line.host, line.weight
        line.weight = after = before + more
        host.ranks.move(line, before, after)
        before = host.weight
        host.weight = after = before + more
        self._ranks.move(host, before, after)
        self.taken += more
