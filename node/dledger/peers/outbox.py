"""A bounded queue of frames for one peer; frames beyond the bound are dropped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

MAX_QUEUED_FRAMES: Final = 1024
MAX_QUEUED_BYTES: Final = 16 << 20
"""Twice what a leader has in flight to one follower (`RaftConfig.max_inflight_bytes`)."""


class Outbox:
    """The frames of one stream: taken one at a time, or iterated by gRPC until closed.

    Bounded in number and bytes; frames beyond that are dropped. An empty outbox takes any frame.
    """

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._arrived = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def size_bytes(self) -> int:
        """Bytes of the queued frames."""
        return self._size_bytes

    def put(self, frame: bytes) -> None:
        """Queue a frame, or drop it if the outbox is full: Raft resends what matters."""
        size_bytes = self._size_bytes + len(frame)
        if self._frames and (
            len(self._frames) >= MAX_QUEUED_FRAMES or size_bytes > MAX_QUEUED_BYTES
        ):
            return
        self._frames.append(frame)
        self._size_bytes = size_bytes
        self._arrived.set()

    def take(self) -> bytes:
        """Remove and return the oldest frame; there must be one."""
        frame = self._frames.popleft()
        self._size_bytes -= len(frame)
        return frame

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
        self._arrived.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames as they arrive, until closed."""
        while not self._closed:
            while self._frames and not self._closed:
                yield self.take()
            self._arrived.clear()
            if not self._frames and not self._closed:
                await self._arrived.wait()
