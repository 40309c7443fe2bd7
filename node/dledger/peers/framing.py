"""Frames on a TCP connection: ``length u32 (little-endian) | frame``, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_LENGTH_BYTES: Final = 4
_FIRST_BYTES: Final = 16 << 10
"""What a connection takes before anything has come."""
_BUFFER_BYTES: Final = 512 << 10
"""What one read takes where much comes; a larger frame gets more, for as long as it is read."""


class BadFraming(ValueError):
    """The peer sent a length that no frame has; the connection is closed."""


def prefix(frame: bytes) -> bytes:
    """Return what goes before *frame*."""
    return len(frame).to_bytes(_LENGTH_BYTES, "little")


class FrameReader:
    """Cuts what is read into a buffer of its own into frames.

    The buffer grows twofold as it is filled, never because a length says that much will come.

    Args:
        take: Told of each frame; the view is good for that call only.
        max_frame_bytes: Longer frames are refused by their length alone.
    """

    def __init__(self, take: Callable[[memoryview], None], *, max_frame_bytes: int) -> None:
        self._take = take
        self._max_frame_bytes = max_frame_bytes
        self._buffer = memoryview(bytearray(min(_FIRST_BYTES, _BUFFER_BYTES)))
        self._filled = 0

    def close(self) -> None:
        """Give the buffer back; nothing is read any more."""
        self._buffer, self._filled = memoryview(b""), 0

    def space(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        return self._buffer[self._filled :]

    def filled(self, count: int) -> None:
        """Take note that *count* bytes were put there, and hand on the frames that are whole.

        Raises:
            BadFraming: A frame is longer than any may be.
        """
        self._filled += count
        start, needed = 0, _LENGTH_BYTES
        while self._filled - start >= _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            length = int.from_bytes(self._buffer[start:begin], "little")
            if length > self._max_frame_bytes:
                raise BadFraming(f"a frame of {length} bytes")
            if self._filled - begin < length:
                needed = _LENGTH_BYTES + length
                break
            self._take(self._buffer[begin : begin + length])
            start = begin + length
        self._keep_rest(start, self._wanted(needed))

    def _wanted(self, needed: int) -> int:
        """Return how large the buffer is to be, for a frame of *needed* bytes that has begun."""
        most, size = max(needed, _BUFFER_BYTES), len(self._buffer)
        return min(2 * size if self._filled == size else size, most)

    def _keep_rest(self, start: int, size: int) -> None:
        """Move what is left to the front of a buffer of *size* bytes."""
        rest = self._buffer[start : self._filled]
        if size != len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        elif not start:
            return
        self._filled = len(rest)
        self._buffer[: self._filled] = rest
