"""Requests that share a command: what arrives while a command waits for its turn goes along in it.

A RocketMQ client sends one message a call. Taken by itself, each would be framed, applied and
remembered on every node as a batch of one. So the first call proposes a command that stays open
until it becomes part of an entry (`proposals.OpenCommand`), and calls like it add their rows.
Nothing waits longer for that: an idle node closes the command in the same turn of its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from dledger.requests.engine import Engine

MAX_ROWS: Final = 512
MAX_BYTES: Final = 64 << 10
"""With so much, a command takes no more rows in; a larger request still makes one of its own."""

_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")
Place: TypeAlias = tuple[object, int]
"""What applying a shared command gave, and where in it a request's rows begin."""


class _Shared(Generic[_Row]):
    """One command while it is open, and who waits for which of its rows."""

    __slots__ = ("_close", "_requests", "_rows", "_size_bytes", "kind")

    def __init__(self, kind: int, close: Callable[[_Shared[_Row], Sequence[_Row]], bytes]) -> None:
        self.kind = kind
        self._close = close
        self._rows: list[_Row] = []
        self._requests: list[tuple[int, asyncio.Future[Place]]] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._size_bytes

    def close(self) -> bytes:
        return self._close(self, self._rows)

    def has_room(self, rows: int, size_bytes: int) -> bool:
        return len(self._rows) + rows <= MAX_ROWS and self._size_bytes + size_bytes <= MAX_BYTES

    def add(self, rows: Sequence[_Row], size_bytes: int) -> asyncio.Future[Place]:
        request: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._requests.append((len(self._rows), request))
        self._rows += rows
        self._size_bytes += size_bytes
        return request

    def settle(self, result: asyncio.Future[object]) -> None:
        """Tell every request that still wants to know what became of its rows."""
        error = result.exception()
        for first, request in self._requests:
            if request.done():
                continue
            if error is not None:
                request.set_exception(error)
            else:
                request.set_result((result.result(), first))


class CommandBatcher(Generic[_Key, _Row]):
    """The open commands of one kind, one a key.

    Args:
        engine: Where they are proposed.
        kind: The type byte of their frames.
        encode: Makes the framed command of a key and its rows. It must not fail: the rows are
            checked before.
    """

    def __init__(
        self, engine: Engine, kind: int, encode: Callable[[_Key, Sequence[_Row]], bytes]
    ) -> None:
        self._engine, self._kind, self._encode = engine, kind, encode
        self._open: dict[_Key, _Shared[_Row]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def submit(
        self,
        key: _Key,
        rows: Sequence[_Row],
        size_bytes: int,
        *,
        line: str = "",
        producer: str = "",
    ) -> asyncio.Future[Place]:
        """Commit *rows* together with what others have for the same *key*.

        Args:
            key: What the rows of one command have in common.
            rows: At least one; they stay side by side and in order.
            size_bytes: About how many bytes they take in the command.
            line: In which the command stands if these rows begin it; see `Engine.submit`.
            producer: Whose rows they are; the same for all of a *key*.

        Returns:
            The future of the outcome; it raises as `Engine.propose` does.

        Raises:
            NotLeader: This node does not lead; nothing happened.
            Overloaded: A bounded queue is full; nothing happened.
            DiskFull: No room for user data; nothing happened.
        """
        shared = self._open.get(key)
        if shared is not None and shared.has_room(len(rows), size_bytes):
            self._engine.check(self._kind)
            return shared.add(rows, size_bytes)
        shared = _Shared(self._kind, lambda shared, rows: self._close(key, shared, rows))
        request = shared.add(rows, size_bytes)
        result = self._engine.submit(shared, line=line, producer=producer)
        self._open[key] = shared
        result.add_done_callback(lambda result: self._settle(key, shared, result))
        return request

    def _close(self, key: _Key, shared: _Shared[_Row], rows: Sequence[_Row]) -> bytes:
        self._forget(key, shared)
        return self._encode(key, rows)

    def _settle(self, key: _Key, shared: _Shared[_Row], result: asyncio.Future[object]) -> None:
        self._forget(key, shared)
        shared.settle(result)

    def _forget(self, key: _Key, shared: _Shared[_Row]) -> None:
        if self._open.get(key) is shared:
            del self._open[key]
