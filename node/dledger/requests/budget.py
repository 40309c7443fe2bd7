"""How often something may be done: so much at once, and then at a rate. Pure."""

from __future__ import annotations


class Budget:
    """A token bucket: it holds *at_once*, and gets *per_s* back each second.

    Source: J. Turner, New directions in communications, 1986 (the leaky bucket as a meter).
    """

    def __init__(self, *, at_once: int, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left = float(at_once)
        self._at_s = float("-inf")

    def take(self, now_s: float) -> bool:
        """Take one at *now_s*, which never goes back; False: there is none."""
        if self._at_s > float("-inf"):
            gained = (now_s - self._at_s) * self._per_s
            self._left = min(self._left + gained, float(self._at_once))
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
