"""Idempotency keys that a client makes up: they count up, and nodes remember them as runs."""

from __future__ import annotations

import uuid

from dledger.broker.id_runs import ROW_DIGITS

_PREFIX_DIGITS = 20


class MessageIds:
    """Ids that no other producer uses; each is given out once."""

    def __init__(self) -> None:
        self._prefix = uuid.uuid4().hex[:_PREFIX_DIGITS]
        self._next = 0

    def take(self, count: int) -> list[str]:
        """Return *count* new ids; see `broker.id_runs` for how they look."""
        first, self._next = self._next, self._next + count
        return [f"{self._prefix}{row:0{ROW_DIGITS}d}" for row in range(first, self._next)]
