"""The frames of calls on a link, as pure functions: format 1, little endian, no padding.

::

    frame      := size of the payload u32 | kind u8 | number u64 | payload
    OPEN       := port u8 | flags u8 | method u16 | deadline_s f64 | connection u64
                | size of the peer u16 | count of fields u16 | size of the body u32
                | (size of the name u32 | size of the value u32)* | peer | (name | value)* | body
    MESSAGE,
    ANSWER     := size of the message u32 | message
    CREDIT     := bytes u64
    FAIL       := code u8 | count of trailers u16 | size of the text u16
                | (size of the name u32 | size of the value u32)* | text | (name | value)*
    REJECTED   := kind u8
    HALF_CLOSE, CANCEL, END := nothing

*number* is the call's, which the end that passes it on counts. *flags*: 4 if the call is of one
message, the body; 1 and 2 are a `Resumes`. A call of a door process may have one, and a port and a
connection; between nodes these are 0. *deadline_s* is NaN where there is none. A frame is as long
as its sizes say, to the byte, so that one with something more is noticed and not misread.

Two nodes on a link may be of different versions, so **a kind's layout never changes**, and its
number is never used for another. What a newer version says otherwise is a new kind, and a new
number of the format (`link.offer`), in which the two ends agree before the first frame. **What an
end does not read is refused alone**: a kind below `OF_NO_CALL` that it does not know, or a known
one that is malformed, ends the call of its number, at both ends; any other ends nothing
(`Kind.REJECTED`). Only a size beyond the limit ends a link: no end of such a frame can be found.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

from dledger.door.contract import Pairs

HEADER: Final = struct.Struct("<IBQ")
_OPEN: Final = struct.Struct("<BBHdQHHI")
_FAIL: Final = struct.Struct("<BHH")
_SIZE: Final = struct.Struct("<I")
_LARGEST_NUMBER: Final = 16
"""The largest of `door.contract.Code`."""
OF_NO_CALL: Final = 128
"""From this kind on a frame's number is not a call's, so that one which is not known ends none."""


class Kind(enum.IntEnum):
    """What a frame says. Up to `CREDIT` they go to who serves calls, from there on to who asks.

    Numbers in between are those of door processes (`door_process.frames.DoorKind`).
    """

    OPEN = 1  # a call begins, of one message or without any yet
    MESSAGE = 2  # one message of a stream; in both directions
    HALF_CLOSE = 3  # the client has sent all
    CANCEL = 4  # the client gave up, or is gone
    CREDIT = 5  # so many bytes of a stream's messages were taken; in both directions
    ANSWER = 20  # a call's one answer
    FAIL = 21  # a call ends with a status
    END = 22  # a stream ends well
    REJECTED = 128  # the frame of this kind and number was not read; in both directions
    PUSH = 129  # reserved, and sent by no version yet: for the client whose Telemetry is here


class Resumes(enum.IntEnum):
    """Why a call is passed on."""

    NO = 0  # it is its first way
    NOTHING_DONE = 1  # its batch was not begun
    UNKNOWN = 2  # its batch may have been carried out
    ASKED = 3  # its batch was not carried out, after the rules for requests had counted it


class MalformedFrame(ValueError):
    """A frame is not one of these."""


class BrokenFraming(MalformedFrame):
    """A frame's end cannot be found: nothing behind it can be read."""


def packed(kind: int, number: int, *payload: bytes) -> bytes:
    """Return one frame."""
    return b"".join((HEADER.pack(sum(map(len, payload)), kind, number), *payload))


class Inbox:
    """Takes what arrives apart into frames.

    Args:
        max_bytes: The largest payload; a larger one ends the link.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._kept = bytearray()
        self._wanted = HEADER.size

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return ``(kind, number, payload)`` of the frames that are complete with *data*.

        Raises:
            BrokenFraming: A payload is too large.
        """
        source: bytes | bytearray = data
        if self._kept:
            self._kept += data
            if len(self._kept) < self._wanted:
                return []
            source = self._kept
        frames, start, end = list[tuple[int, int, bytes]](), 0, len(source)
        head, self._wanted = HEADER.size, HEADER.size
        while end - start >= head:
            size, kind, number = HEADER.unpack_from(source, start)
            if size > self._max:
                raise BrokenFraming(f"a frame of {size} bytes; the limit is {self._max}")
            if end - start < head + size:
                self._wanted = head + size
                break
            start += head
            frames.append((kind, number, bytes(source[start : start + size])))
            start += size
        if source is self._kept:
            del self._kept[:start]
        else:
            self._kept += data[start:]
        return frames


class Opening(NamedTuple):
    """A call as it begins.

    Attributes:
        port: The number of the client port.
        method: The number of the method, as the node counted them.
        resumes: Why it is passed on.
        connection: Tells the client's connection from others of this door.
        deadline_s: Event-loop time, which is the same in all processes; None: none.
        peer: The client's address as gRPC names it.
        pairs: The fields of its headers.
        body: Its one message; None: it is a stream.
    """

    port: int
    method: int
    resumes: Resumes
    connection: int
    deadline_s: float | None
    peer: str
    pairs: Pairs
    body: bytes | None


_HAS_BODY: Final = 4
_RESUMES: Final = 3


def opening(number: int, call: Opening) -> bytes:
    """Return the OPEN frame of a call."""
    peer, texts = call.peer.encode(), tuple(chain.from_iterable(call.pairs))
    flags = call.resumes | (_HAS_BODY if call.body is not None else 0)
    deadline_s = math.nan if call.deadline_s is None else call.deadline_s
    body = call.body or b""
    return packed(
        Kind.OPEN,
        number,
        _OPEN.pack(
            call.port,
            flags,
            call.method,
            deadline_s,
            call.connection,
            len(peer),
            len(call.pairs),
            len(body),
        ),
        struct.pack(f"<{len(texts)}I", *map(len, texts)),
        peer,
        *texts,
        body,
    )


def opening_of(payload: bytes) -> Opening:
    """Return the call of an OPEN frame. Raises MalformedFrame."""
    try:
        port, flags, method, deadline_s, connection, peer_bytes, count, body_bytes = (
            _OPEN.unpack_from(payload)
        )
        sizes = struct.unpack_from(f"<{2 * count}I", payload, _OPEN.size)
        resumes = Resumes(flags & _RESUMES)
        texts, rest = cut(payload, _OPEN.size + 8 * count, (peer_bytes, *sizes, body_bytes))
        body = texts.pop()
        peer = texts[0].decode("ascii")
    except (struct.error, ValueError) as error:
        raise MalformedFrame(f"no call: {error}") from error
    if rest or flags & ~(_HAS_BODY | _RESUMES) or (body and not flags & _HAS_BODY):
        raise MalformedFrame(
            f"a call with flags {flags:#x}, {len(body)} bytes of body, and {len(rest)} bytes more"
        )
    fields = texts[1:]
    return Opening(
        port=port,
        method=method,
        resumes=resumes,
        connection=connection,
        deadline_s=None if math.isnan(deadline_s) else deadline_s,
        peer=peer,
        pairs=tuple(zip(fields[::2], fields[1::2], strict=True)),
        body=body if flags & _HAS_BODY else None,
    )


class Failure(NamedTuple):
    """How a call ends without an answer."""

    code: int
    message: str
    trailers: Pairs


def failing(number: int, failure: Failure) -> bytes:
    """Return the FAIL frame of a call."""
    texts = tuple(chain.from_iterable(failure.trailers))
    message = failure.message.encode("utf-8", "replace")[:0xFFFF]
    return packed(
        Kind.FAIL,
        number,
        _FAIL.pack(failure.code, len(failure.trailers), len(message)),
        struct.pack(f"<{len(texts)}I", *map(len, texts)),
        message,
        *texts,
    )


def failure_of(payload: bytes) -> Failure:
    """Return the end of a FAIL frame. Raises MalformedFrame."""
    try:
        code, count, message_bytes = _FAIL.unpack_from(payload)
        sizes = struct.unpack_from(f"<{2 * count}I", payload, _FAIL.size)
        texts, rest = cut(payload, _FAIL.size + 8 * count, (message_bytes, *sizes))
    except (struct.error, ValueError) as error:
        raise MalformedFrame(f"no failure: {error}") from error
    if rest or code > _LARGEST_NUMBER:
        raise MalformedFrame(f"a failure with code {code} and {len(rest)} bytes more")
    fields = texts[1:]
    trailers = tuple(zip(fields[::2], fields[1::2], strict=True))
    return Failure(code, texts[0].decode("utf-8", "replace"), trailers)


def message(kind: int, number: int, body: bytes) -> bytes:
    """Return the MESSAGE or ANSWER frame of *body*."""
    return packed(kind, number, _SIZE.pack(len(body)), body)


def message_of(payload: bytes) -> bytes:
    """Return what a MESSAGE or ANSWER frame has. Raises MalformedFrame."""
    body = payload[_SIZE.size :]
    if payload[: _SIZE.size] != _SIZE.pack(len(body)):
        raise MalformedFrame(f"a message with {len(body)} bytes, and another size")
    return body


def check_empty(payload: bytes) -> None:
    """Check a frame that says all by its kind. Raises MalformedFrame."""
    if payload:
        raise MalformedFrame(f"{len(payload)} bytes where there are none")


def rejecting(number: int, kind: int) -> bytes:
    """Return the REJECTED frame about a frame of that kind and number."""
    return packed(Kind.REJECTED, number, bytes((kind,)))


def rejected_of(payload: bytes) -> int:
    """Return the kind of the frame that a REJECTED frame is about. Raises MalformedFrame."""
    if len(payload) != 1:
        raise MalformedFrame(f"a rejection of {len(payload)} bytes")
    return payload[0]


def credit(number: int, size_bytes: int) -> bytes:
    """Return a CREDIT frame."""
    return packed(Kind.CREDIT, number, size_bytes.to_bytes(8, "little"))


def credit_of(payload: bytes) -> int:
    """Return the bytes that a CREDIT frame gives back. Raises MalformedFrame."""
    if len(payload) != 8:
        raise MalformedFrame(f"a credit of {len(payload)} bytes")
    return int.from_bytes(payload, "little")


def cut(payload: bytes, start: int, sizes: Sequence[int]) -> tuple[list[bytes], bytes]:
    """Return the parts of these sizes from *start*, and what is left. Raises ValueError."""
    ends = tuple(accumulate(sizes, initial=start))
    if ends[-1] > len(payload):
        raise ValueError(f"{ends[-1]} bytes are announced, {len(payload)} are there")
    return [payload[low:high] for low, high in pairwise(ends)], payload[ends[-1] :]
