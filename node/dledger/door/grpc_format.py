"""gRPC on HTTP/2 as pure functions: its headers, its trailers, and its messages in DATA frames.

A message in the body of a request or of an answer::

    | compressed: 1 byte, 0 or 1 | length: 4 bytes, big-endian | message: length bytes |

Messages do not begin or end with DATA frames. Source: gRPC, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from dledger.door.contract import Code, Failed, Pairs, TooLarge

PREFIX_BYTES: Final = 5
HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK: Final = ((b"grpc-status", b"0"),)
_ACCEPTED: Final = ((b"grpc-accept-encoding", b"identity"),)
_PREFIX: Final = struct.Struct(">BI")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_UNENCODED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_SMALL_PART_BYTES: Final = 4 << 10
_MESSAGE_BYTES: Final = 4 << 10
"""Of a status message; clients take 8 KiB of metadata by default, and fail the call beyond."""
_TORN_ESCAPE: Final = re.compile(r"%[0-9A-F]?\Z")


def framed(message: bytes) -> bytes:
    """Return a message with its prefix, uncompressed."""
    return _PREFIX.pack(0, len(message)) + message


def timeout_s(value: bytes) -> float:
    """Return the seconds of a ``grpc-timeout``. Raises Failed if it is not one."""
    parts = _TIMEOUT.fullmatch(value)
    if parts is None:
        raise Failed(Code.INTERNAL, f"malformed grpc-timeout {value[:32]!r}")
    return int(parts[1]) * _UNIT_S[parts[2]]


def percent_encoded(message: str) -> bytes:
    """Return a status message as the field ``grpc-message`` has it, at most 4 KiB of it.

    All but printable ASCII is encoded, and the percent sign.
    """
    encoded = quote(message[:_MESSAGE_BYTES], safe=_UNENCODED, errors="replace")
    if len(encoded) > _MESSAGE_BYTES:
        encoded = _TORN_ESCAPE.sub("", encoded[:_MESSAGE_BYTES])
    return encoded.strip(" ").encode()  # a field has no outer spaces (RFC 9113, 8.2.1)


def status_fields(code: Code, message: str, trailers: Pairs = ()) -> Pairs:
    """Return the trailers of a call that failed."""
    return (
        (b"grpc-status", b"%d" % code),
        (b"grpc-message", percent_encoded(message)),
        *trailers,
    )


def http_refusal(fields: Mapping[bytes, bytes]) -> Pairs | None:
    """Return the header of the answer to a request that is not gRPC; None if it is.

    PROTOCOL-HTTP2 asks for 415 if the content type is another one. There, a proxy or a browser
    reads the answer, so it has an HTTP status.
    """
    if fields.get(b":method") != b"POST":
        return ((b":status", b"405"), (b"allow", b"POST"))
    kind = fields.get(b"content-type", b"")
    if kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;")):
        return None
    return ((b":status", b"415"), *status_fields(Code.UNKNOWN, "the content type is not gRPC's"))


class Deframer:
    """Takes a request's body apart into messages.

    A message is judged by its prefix, so no more of one is ever kept than may be.

    Args:
        max_bytes: The largest message.

    Attributes:
        kept: Bytes of the message that has begun, with its prefix.
        missing: Bytes that the message, or the prefix, that has begun still lacks; 0 between
            messages.
    """

    __slots__ = ("_max", "_parts", "kept", "missing")

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._parts: list[bytes | bytearray] = []
        self.kept = self.missing = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with *data*.

        Raises:
            Failed: The message is too large, compressed, or not one of gRPC. Nothing may follow.
        """
        if not self.kept:
            if len(data) >= PREFIX_BYTES and self._size(data) == len(data):
                return [data[PREFIX_BYTES:]]  # nearly always: a message in one frame
            if not data:
                return []
            return self._taken_apart(data)
        if len(data) < self.missing:
            self._keep(data)
            self.missing -= len(data)
            return []
        return self._taken_apart(b"".join((*self._parts, data)))

    def _keep(self, data: bytes) -> None:
        """Keep a part of a message; small ones together, since each by itself takes more."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, bytearray) and len(last) < _SMALL_PART_BYTES:
            last += data
        else:
            small = len(data) < _SMALL_PART_BYTES
            self._parts.append(bytearray(data) if small else data)
        self.kept += len(data)

    def _taken_apart(self, whole: bytes) -> list[bytes]:
        """Return the messages in *whole*, and keep what is behind the last."""
        messages, start, end = list[bytes](), 0, len(whole)
        self._parts, self.kept, self.missing = [], 0, 0
        while end - start >= PREFIX_BYTES:
            size = self._size(whole, start)
            if end - start < size:
                self.missing = size - (end - start)
                break
            messages.append(whole[start + PREFIX_BYTES : start + size])
            start += size
        if start < end:
            self._keep(whole[start:])
            self.missing = self.missing or PREFIX_BYTES - (end - start)
        return messages

    def _size(self, data: bytes, start: int = 0) -> int:
        """Return the size of the message that begins at *start*, with its prefix."""
        compressed, size = _PREFIX.unpack_from(data, start)
        if compressed:
            raise _compressed(compressed)
        if size > self._max:
            raise TooLarge(f"the request has {size} bytes; the limit of this method is {self._max}")
        return PREFIX_BYTES + int(size)


def _compressed(flag: int) -> Failed:
    if flag != 1:
        return Failed(Code.INTERNAL, f"a message begins with byte {flag}, not with 0 or 1")
    return Failed(
        Code.UNIMPLEMENTED,
        "compressed messages are not supported, send them as they are",
        _ACCEPTED,
    )
