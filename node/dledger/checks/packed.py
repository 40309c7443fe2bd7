"""What a body that says GZIP has to be: the libraries of clients unpack it unasked.

One that is not what it says costs a client all that came with it (docs/clients.md has the table):
Python's and Node.js' raise over the whole answer, Java's over a body of one byte, and each keeps
as much in memory as comes out. So a node looks into it, without keeping what comes out.

Two forms are known. ``GZIP`` is a gzip (RFC 1952): all who unpack but C++ read that. ``ZLIB``
(RFC 1950) is what C++ sends under the same word, and the only one that it reads; Node.js raises.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from dledger.common.limits import MAX_BODY_BYTES
from dledger.rpc.status import Code, Rejected

_INPUT_BYTES: Final = 32 << 10
_OUTPUT_BYTES: Final = 128 << 10
"""Of one step, which lets other threads run."""
_SMALL_BYTES: Final = 4 << 10
_SMALL_UNPACKED_BYTES: Final = 64 << 10
"""Of a request's packed bodies, and of what comes out of them: so much is looked into at once, in
half a millisecond. The largest takes 10 to 15 ms, or a second if it was made for it."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_HEADER: Final = _GZIP_MAGIC + b"\x08\x00\x00\x00\x00\x00\x00\xff"
_FLAGS_AT: Final = 3
_PLAIN_FLAGS: Final = b"\x00\x01"
"""No fields of its own, or only the word that it is text. Of a name libraries take as much as they
like: Go 511 bytes, and Python all of it, byte by byte."""
_ZLIB_MAGIC: Final = b"\x78"
_ZLIB_HEADER: Final = _ZLIB_MAGIC + b"\x9c"
_ADLER: Final = struct.Struct(">I")
_SIZE: Final = struct.Struct("<I")


class Form(Enum):
    """How a body is packed; see the module."""

    GZIP = "gzip"
    ZLIB = "zlib"


_ZLIB_BITS: Final = {Form.GZIP: 31, Form.ZLIB: 15}
"""What zlib is told to expect; it checks the sums of either form."""


class _Unpacking(Protocol):
    """What `zlib.decompressobj` returns, whose class has no name."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is in a packed body.

    Attributes:
        form: How it is packed.
        size_bytes: Of what comes out, 1 byte to 4 MiB.
        crc: CRC-32 of what comes out, which is behind a gzip.
        adler: Adler-32 of it, which is behind the other.
    """

    form: Form
    size_bytes: int
    crc: int
    adler: int


class _Larger(Exception):
    """More comes out than was allowed."""


def content_of(body: bytes) -> Content:
    """Return what is in a packed body.

    Takes up to a second of CPU: `small_content_of` takes little. Raises Rejected.
    """
    try:
        return _content_of(body, MAX_BODY_BYTES)
    except _Larger:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the message body unpacks to more than {MAX_BODY_BYTES} bytes, the limit",
        ) from None


def small_content_of(body: bytes) -> Content | None:
    """Return the same, if finding it is little work; None if not. Raises Rejected."""
    told_bytes = _told_bytes(body)
    if len(body) > _SMALL_BYTES or (told_bytes or 0) > _SMALL_UNPACKED_BYTES:
        return None
    try:
        return _content_of(body, _SMALL_UNPACKED_BYTES)
    except _Larger:
        if told_bytes is not None:
            raise _refusal("more comes out than its end says") from None
        return None


def check_small(bodies: Iterable[bytes]) -> list[bytes]:
    """Check packed bodies, as long as that is little work in all; return those that are left.

    Raises Rejected.
    """
    left: list[bytes] = []
    packed = unpacked = 0
    for body in bodies:
        packed += len(body)
        content = None
        if packed <= _SMALL_BYTES and unpacked <= _SMALL_UNPACKED_BYTES and not left:
            content = small_content_of(body)
        if content is None:
            left.append(body)
        else:
            unpacked += content.size_bytes
    return left


def in_form(body: bytes, content: Content, form: Form) -> bytes:
    """Return a packed body in a form; the packed data are the same in both, header and sums not."""
    if content.form is form:
        return body
    if form is Form.GZIP:
        sums = struct.pack("<2I", content.crc, content.size_bytes)
        return _GZIP_HEADER + body[len(_ZLIB_HEADER) : -_ADLER.size] + sums
    packed = body[len(_GZIP_HEADER) : -2 * _ADLER.size]
    return _ZLIB_HEADER + packed + _ADLER.pack(content.adler)


def _content_of(body: bytes, at_most: int) -> Content:
    """Return what is in a packed body. Raises Rejected, and _Larger."""
    form = _form_of(body)
    unpacking = zlib.decompressobj(wbits=_ZLIB_BITS[form])
    size_bytes, crc, adler = 0, 0, 1
    try:
        for found in _unpack(unpacking, memoryview(body)):
            size_bytes += len(found)
            if size_bytes > at_most:
                raise _Larger
            crc, adler = zlib.crc32(found, crc), zlib.adler32(found, adler)
    except zlib.error as error:
        raise _refusal(str(error).partition(": ")[2] or "it does not unpack") from None
    if not unpacking.eof:
        raise _refusal("it is cut short")
    if not size_bytes:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the message body is empty once it is unpacked")
    return Content(form=form, size_bytes=size_bytes, crc=crc, adler=adler)


def _unpack(unpacking: _Unpacking, body: memoryview) -> Iterator[bytes]:
    """Yield what comes out, part by part. Raises zlib.error, and Rejected for what is behind it."""
    for start in range(0, len(body), _INPUT_BYTES):
        given: bytes | memoryview = body[start : start + _INPUT_BYTES]
        while True:
            found = unpacking.decompress(given, _OUTPUT_BYTES)
            yield found
            given = unpacking.unconsumed_tail
            if unpacking.eof or (not given and len(found) < _OUTPUT_BYTES):
                break
        if unpacking.eof:
            if unpacking.unused_data or start + _INPUT_BYTES < len(body):
                raise _refusal("something is behind its end")
            return


def _told_bytes(body: bytes) -> int | None:
    """Return how much comes out of a body as its end says (RFC 1952); None if it does not say so.

    A thousand that are made for it would cost a second of the event loop to be found large.
    """
    told = body[-_SIZE.size :]
    if not body.startswith(_GZIP_MAGIC) or len(told) < _SIZE.size:
        return None
    size_bytes: int = _SIZE.unpack(told)[0]
    return size_bytes


def _form_of(body: bytes) -> Form:
    """Return the form that a body begins as. Raises Rejected."""
    if body.startswith(_ZLIB_MAGIC):
        return Form.ZLIB
    if not body.startswith(_GZIP_MAGIC):
        raise _refusal("it begins neither as a gzip nor as zlib's form")
    if body[_FLAGS_AT : _FLAGS_AT + 1].strip(_PLAIN_FLAGS):
        raise _refusal("its header has a name, a comment, or other fields")
    return Form.GZIP


def _refusal(why: str) -> Rejected:
    return Rejected(Code.MESSAGE_CORRUPTED, f"the message body says GZIP and is none: {why}")
