"""Batches requests into shared commands: requests join a command while it waits in the queue.

A RocketMQ client sends one message per call. On its own, each would be framed, applied and recorded
on every node as a batch of one. So the first call proposes a command that stays open until it
becomes part of an entry (`proposals.OpenCommand`), and similar calls add their rows to it. This
adds no latency: an idle node closes the command in the same iteration of its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from dledger.common.limits import SHARED_BYTES, SHARED_ROWS
from dledger.requests.engine import Engine

_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")
Place: TypeAlias = tuple[object, int]
"""The result of applying a shared command, and the position of a request's first row in it."""


class _Shared(Generic[_Row]):
    """One open command, and the requests that wait for its rows."""

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
        return (
            len(self._rows) + rows <= SHARED_ROWS and self._size_bytes + size_bytes <= SHARED_BYTES
        )

    def add(self, rows: Sequence[_Row], size_bytes: int) -> asyncio.Future[Place]:
        request: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._requests.append((len(self._rows), request))
        self._rows += rows
        self._size_bytes += size_bytes
        return request

    def settle(self, result: asyncio.Future[object]) -> None:
        """Resolve the future of every request that still waits."""
        error = result.exception()
        for first, request in self._requests:
            if request.done():
                continue
            if error is not None:
                request.set_exception(error)
            else:
                request.set_result((result.result(), first))


class CommandBatcher(Generic[_Key, _Row]):
    """The open commands of one kind, one per key.

    Args:
        engine: Proposes the commands.
        kind: The type byte of their frames.
        encode: Encodes the framed command of a key and its rows. It must not fail: the rows are
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
        alone: bool = False,
    ) -> asyncio.Future[Place]:
        """Commit *rows* together with other requests' rows for the same *key*.

        Args:
            key: What the rows of one command have in common.
            rows: At least one; they stay adjacent and in order.
            size_bytes: Their approximate size in the command.
            line: The line in which the command waits if these are its first rows; see
                `Engine.submit`.
            producer: The producer of the rows; the same for all rows of a *key*.
            alone: Whether no other request may join, as the rows count from the first one on; the
                same for all rows of a *key*.

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
        shared = _Shared(self._kind, partial(self._close, key))
        request = shared.add(rows, size_bytes)
        result = self._engine.submit(shared, line=line, producer=producer)
        if not alone:
            self._open[key] = shared
        result.add_done_callback(partial(self._settle, key, shared))
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
