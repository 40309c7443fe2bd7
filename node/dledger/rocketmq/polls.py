"""Bounds the memory of waiting polls: their requests are kept, to repeat them at a new leader."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dledger.errors import Overloaded

MAX_BYTES: Final = 16 << 20
"""For all polls at one node; `limits.MAX_WAITING_POLLS` polls of the SDKs take a quarter of it."""
MAX_BYTES_OF_CONNECTION: Final = MAX_BYTES // 8


class HeldPolls:
    """Counts the bytes of waiting polls, by connection."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self.taken = 0

    def take(self, connection: str, size_bytes: int) -> None:
        """Count a poll of *size_bytes* until it is given back.

        A connection without a name is a peer's: the peer counts its polls itself.

        Raises:
            Overloaded: All polls together, or those of this connection, keep too many bytes.
        """
        if not connection:
            return
        total, own = self.taken + size_bytes, self._of[connection] + size_bytes
        if total > MAX_BYTES or own > MAX_BYTES_OF_CONNECTION:
            raise Overloaded(f"waiting polls keep {total} bytes, {own} of them on this connection")
        self.taken, self._of[connection] = total, own

    def give_back(self, connection: str, size_bytes: int) -> None:
        """Count a poll no longer."""
        if not connection:
            return
        self.taken -= size_bytes
        self._of[connection] -= size_bytes
        if not self._of[connection]:
            del self._of[connection]
