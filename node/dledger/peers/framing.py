"""Frames on a TCP connection: ``length u32 (little-endian) | frame``, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_LENGTH_BYTES: Final = 4
_FIRST_BYTES: Final = 16 << 10
"""Buffer of a connection that has received nothing yet."""
_BUFFER_BYTES: Final = 512 << 10
"""Buffer of a busy connection; a larger frame gets a larger buffer while it is being read."""


class BadFraming(ValueError):
    """The peer sent a frame length above the limit; the connection is closed."""


def prefix(frame: bytes) -> bytes:
    """Return the length prefix of *frame*."""
    return len(frame).to_bytes(_LENGTH_BYTES, "little")


class FrameReader:
    """Splits the bytes read into its buffer into frames.

    The buffer doubles as it fills, and never grows because of an announced length alone: a peer
    must send the bytes for which this node takes memory.

    Args:
        take: Called with each frame; the view is valid during that call only.
        max_frame_bytes: Longer frames are refused as soon as their length is known.
    """

    def __init__(self, take: Callable[[memoryview], None], *, max_frame_bytes: int) -> None:
        self._take = take
        self._max_frame_bytes = max_frame_bytes
        self._buffer = memoryview(bytearray(min(_FIRST_BYTES, _BUFFER_BYTES)))
        self._filled = 0

    def close(self) -> None:
        """Release the buffer; nothing may be read afterwards."""
        self._buffer, self._filled = memoryview(b""), 0

    def space(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        return self._buffer[self._filled :]

    def filled(self, count: int) -> None:
        """Note that *count* bytes were read into `space`, and pass on the complete frames.

        Raises:
            BadFraming: A frame is longer than *max_frame_bytes*.
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
        """Return the buffer size for a frame of *needed* bytes that has begun to arrive."""
        most, size = max(needed, _BUFFER_BYTES), len(self._buffer)
        return min(2 * size if self._filled == size else size, most)

    def _keep_rest(self, start: int, size: int) -> None:
        """Move the remaining bytes to the front of a buffer of *size* bytes."""
        rest = self._buffer[start : self._filled]
        if size != len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        elif not start:
            return
        self._filled = len(rest)
        self._buffer[: self._filled] = rest
