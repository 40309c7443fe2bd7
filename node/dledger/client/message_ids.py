"""Generates idempotency keys. They count up, so that nodes can store them as ranges.

Used by `append_stream` and `ledger_client`.
"""

from __future__ import annotations

import uuid

from dledger.broker.id_runs import ROW_DIGITS

_PREFIX_DIGITS = 20


class MessageIds:
    """Unique ids: no other producer uses them, and each is returned once."""

    def __init__(self) -> None:
        self._prefix = uuid.uuid4().hex[:_PREFIX_DIGITS]
        self._next = 0

    def take(self, count: int) -> list[str]:
        """Return *count* new ids, in the format that `broker.id_runs` stores as one range."""
        first, self._next = self._next, self._next + count
        return [f"{self._prefix}{row:0{ROW_DIGITS}d}" for row in range(first, self._next)]
