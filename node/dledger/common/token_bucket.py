"""A rate with bursts: so many at once, so many a second in the long run. Pure; no clock.

Used by the doors against floods, of PINGs, given-up calls and connections, for topics and groups
that are made on their first use, and by the operator for what nodes tell it.
"""

from __future__ import annotations

import math


class TokenBucket:
    """Holds *at_once* tokens, and regains *per_s* each second.

    Times are monotonic seconds. Source: J. Turner, New directions in communications, 1986 (the
    leaky bucket as a meter).
    """

    __slots__ = ("_at_once", "_at_s", "_left", "_per_s")

    def __init__(self, *, at_once: float, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left, self._at_s = float(at_once), math.inf

    def take(self, now_s: float) -> bool:
        """Take a token; False if there is none."""
        self._gain(now_s)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def owe(self, now_s: float, tokens: float = 1) -> float:
        """Take tokens, be they there or not; return after how many seconds the next is there."""
        self._gain(now_s)
        self._left -= tokens
        return max(0.0, (1 - self._left) / self._per_s)

    def fill(self) -> None:
        """Have all tokens again."""
        self._left = float(self._at_once)

    def _gain(self, now_s: float) -> None:
        gained = max(0.0, now_s - self._at_s) * self._per_s
        self._left = min(self._left + gained, float(self._at_once))
        self._at_s = now_s
