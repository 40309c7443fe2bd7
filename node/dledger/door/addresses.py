"""What is known of the addresses that call a port: how often, and for what it did nothing.

What costs the node and not its caller has a rate by address, since a connection more costs a
stranger nothing. A bucket outlives the connections of its address, of the newest `_KNOWN`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

from dledger.common.shares import address_of
from dledger.common.token_bucket import TokenBucket
from dledger.door.bounds import Bounds

_KNOWN: Final = 4_096
"""Some 700 bytes each. Who comes from more addresses than that has each one's burst anew."""


class _Rate:
    """Of one thing that costs the node and not its caller, of all addresses together.

    Each may have all of it. When it is used up, each has still a little of its own, so that who has
    many addresses does not keep the others out.

    Args:
        together: So many at once, and a second.
        apart: The same of each address, when these are used up.
    """

    __slots__ = ("_apart", "_together")

    def __init__(self, together: tuple[int, int], apart: tuple[int, int]) -> None:
        self._together, self._apart = bucket(together), apart

    def owe(self, apart: _Apart, now_s: float, tokens: int = 1) -> bool:
        """Take tokens for the address that *apart* is of; return True if it may have none now."""
        if not self._together.owe(now_s, 0):
            self._together.owe(now_s, tokens)
            return False
        own = apart.get(self)
        if own is None:
            own = apart[self] = bucket(self._apart)
        if own.owe(now_s, 0):
            return True
        own.owe(now_s, tokens)
        return False


_Apart: TypeAlias = dict[_Rate, TokenBucket]
"""What an address has of its own where something is used up."""


class Address:
    """Of one address.

    Attributes:
        name: As `shares.address_of` has it.
    """

    __slots__ = ("_all", "_apart", "_arrivals", "_idle_bytes", "_refusals", "name")

    def __init__(self, name: str, bounds: Bounds, together: Addresses) -> None:
        self.name, self._all = name, together
        self._apart: _Apart = {}
        self._arrivals = bucket(bounds.arrivals)
        self._refusals = bucket(bounds.refusals)
        self._idle_bytes = bucket(bounds.idle_bytes)

    def may_connect(self, now_s: float) -> bool:
        """Count a new connection; return False if it may not come now."""
        if self.owes(now_s) or not self._arrivals.take(now_s):
            return False
        return not self._all.arrivals.owe(self._apart, now_s)

    def may_be_refused(self, now_s: float) -> bool:
        """Count a call that has no handler, or no sound headers; return False if of a flood."""
        return self._refusals.take(now_s) and not self._all.refusals.owe(self._apart, now_s)

    def may_idle(self, size_bytes: int, now_s: float) -> bool:
        """Count bytes of frames without an effect; return False if they are a flood.

        Those of a flood are not counted: it ends a moment after the last, however large it was.
        """
        if self.owes(now_s) or self._idle_bytes.owe(now_s, size_bytes):
            return False
        return not self._all.idle_bytes.owe(self._apart, now_s, size_bytes)

    def owes(self, now_s: float) -> bool:
        """Whether it has sent more of these than it may."""
        return self._idle_bytes.owe(now_s, 0) > 0


class Addresses:
    """Of one port.

    Attributes:
        arrivals: New connections.
        refusals: Refused calls.
        idle_bytes: Bytes of frames without an effect.
    """

    __slots__ = ("_bounds", "_known", "arrivals", "idle_bytes", "refusals")

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._known: OrderedDict[str, Address] = OrderedDict()
        self.arrivals = _Rate(bounds.all_arrivals, bounds.apart_arrivals)
        self.refusals = _Rate(bounds.all_refusals, bounds.apart_refusals)
        self.idle_bytes = _Rate(bounds.all_idle_bytes, bounds.apart_idle_bytes)

    def of(self, host: str) -> Address:
        """Return what is known of a host, however it is written."""
        name = address_of(host)
        address = self._known.get(name)
        if address is None:
            address = self._known[name] = Address(name, self._bounds, self)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(name)
        return address


def bucket(bound: tuple[int, int]) -> TokenBucket:
    """Return a bucket of so many at once, and a second."""
    at_once, per_s = bound
    return TokenBucket(at_once=at_once, per_s=per_s)
