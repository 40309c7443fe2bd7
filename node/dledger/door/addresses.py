"""What is known of the addresses that call a port: how often, and for what it did nothing.

What costs the node and not its caller has a rate by address, since a connection more costs a
stranger nothing. A bucket outlives the connections of its address, of the newest `_KNOWN`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dledger.common.shares import address_of
from dledger.common.token_bucket import TokenBucket
from dledger.door.bounds import Bounds

_KNOWN: Final = 4_096
"""Some 700 bytes each. Who comes from more addresses than that has each one's burst anew."""


class Address:
    """Of one address.

    Attributes:
        name: As `shares.address_of` has it.
    """

    __slots__ = ("_arrivals", "_idle_bytes", "_refusals", "name")

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name = name
        self._arrivals = bucket(bounds.arrivals)
        self._refusals = bucket(bounds.refusals)
        self._idle_bytes = bucket(bounds.idle_bytes)

    def may_connect(self, now_s: float) -> bool:
        """Count a new connection; return False if it may not come now."""
        return not self.owes(now_s) and self._arrivals.take(now_s)

    def may_be_refused(self, now_s: float) -> bool:
        """Count a call that has no handler, or no sound headers; return False if of a flood."""
        return self._refusals.take(now_s)

    def may_idle(self, size_bytes: int, now_s: float) -> bool:
        """Count bytes of frames without an effect; return False if they are a flood.

        Those of a flood are not counted: it ends a moment after the last, however large it was.
        """
        return not self.owes(now_s) and not self._idle_bytes.owe(now_s, size_bytes)

    def owes(self, now_s: float) -> bool:
        """Whether it has sent more of these than it may."""
        return self._idle_bytes.owe(now_s, 0) > 0


class Addresses:
    """Of one port."""

    __slots__ = ("_bounds", "_known")

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._known: OrderedDict[str, Address] = OrderedDict()

    def of(self, host: str) -> Address:
        """Return what is known of a host, however it is written."""
        name = address_of(host)
        address = self._known.get(name)
        if address is None:
            address = self._known[name] = Address(name, self._bounds)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(name)
        return address


def bucket(bound: tuple[int, int]) -> TokenBucket:
    """Return a bucket of so many at once, and a second."""
    at_once, per_s = bound
    return TokenBucket(at_once=at_once, per_s=per_s)
