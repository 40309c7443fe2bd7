"""Bounds the memory of waiting polls: their requests are kept, to repeat them at a new leader."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
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

    def held(self, connection: str, size_bytes: int) -> Held:
        """Count a poll of *size_bytes* until the block ends.

        A connection without a name is a peer's: the peer counts its polls itself.

        Raises:
            Overloaded: All polls together, or those of this connection, keep too many bytes.
        """
        if not connection:
            return Held(self, connection, 0)
        total, own = self.taken + size_bytes, self._of[connection] + size_bytes
        if total > MAX_BYTES or own > MAX_BYTES_OF_CONNECTION:
            raise Overloaded(f"waiting polls keep {total} bytes, {own} of them on this connection")
        self.taken, self._of[connection] = total, own
        return Held(self, connection, size_bytes)

    def give_back(self, connection: str, size_bytes: int) -> None:
        """Count a poll no longer."""
        self.taken -= size_bytes
        self._of[connection] -= size_bytes
        if not self._of[connection]:
            del self._of[connection]


class Held:
    """What one poll keeps; a generator in its place would keep four times as much."""

    __slots__ = ("_connection", "_polls", "_size_bytes")

    def __init__(self, polls: HeldPolls, connection: str, size_bytes: int) -> None:
        self._polls, self._connection, self._size_bytes = polls, connection, size_bytes

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._size_bytes:
            self._polls.give_back(self._connection, self._size_bytes)
