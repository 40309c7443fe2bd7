"""HTTP/2 and gRPC by hand: the bytes of frames, header blocks and calls. Pure (RFC 9113, 7541)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from e2e.hostile.scene import ROCKET

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
UNKNOWN: Final = 0x42
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
POST: Final = b"\x83\x86"
""":method POST and :scheme http, of the static table."""
NEWEST: Final = 62
"""The index of what was put into the dynamic table last."""
_HEAD: Final = 9


class Frame(NamedTuple):
    """One that was read."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame; its length is true."""
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload
    )


def read_frames(buffer: bytearray) -> Iterator[Frame]:
    """Take the whole frames from the front of a buffer."""
    while len(buffer) >= _HEAD:
        end = _HEAD + int.from_bytes(buffer[:3], "big")
        if len(buffer) < end:
            return
        stream = int.from_bytes(buffer[5:_HEAD], "big")
        found = Frame(buffer[3], buffer[4], stream, bytes(buffer[_HEAD:end]))
        del buffer[:end]
        yield found


def settings(*pairs: tuple[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def _integer(value: int, bits: int, first: int = 0) -> bytes:
    full = (1 << bits) - 1
    if value < full:
        return bytes((first | value,))
    out, rest = bytes((first | full,)), value - full
    while rest >= 128:
        out, rest = out + bytes((rest & 127 | 128,)), rest >> 7
    return out + bytes((rest,))


def _text(value: bytes) -> bytes:
    return _integer(len(value), 7) + value


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field that goes into no table."""
    return b"\x00" + _text(name) + _text(value)


def put_in_table(name: bytes, value: bytes) -> bytes:
    """Return a field that the other end keeps in its table, as the newest."""
    return b"\x40" + _text(name) + _text(value)


def refer_to(index: int) -> bytes:
    """Return a field of the table: some bytes, however long it is."""
    return _integer(index, 7, 0x80)


def headers(path: bytes, extra: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return the header block of a call, without a table; a path without a slash is RocketMQ's."""
    pairs = (
        (b":path", path if path.startswith(b"/") else ROCKET.encode() + path),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *extra,
    )
    return POST + b"".join(literal(name, value) for name, value in pairs)


def message(body: bytes) -> bytes:
    """Return gRPC's prefix and a message."""
    return b"\0" + struct.pack(">I", len(body)) + body


def call(
    stream: int, path: bytes, body: bytes, *, client: bytes = b"stranger", timeout: bytes = b"70S",
    ended: bool = True,
) -> bytes:  # fmt: skip
    """Return a whole call of one small message."""
    block = headers(path, ((b"x-mq-client-id", client), (b"grpc-timeout", timeout)))
    flags = END_STREAM if ended else 0
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, flags, stream, message(body))
