"""HTTP/2 by hand that is wrong in one place each: it is refused by name, whatever it is."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

from e2e.harness.checks import Check
from e2e.hostile import frames
from e2e.hostile.frames import END_HEADERS, END_STREAM, HEADERS, POST, Frame, frame, literal
from e2e.hostile.judging import held
from e2e.hostile.scene import ROCKET, Scene
from e2e.hostile.talk import Talk, by_talks, dial

_ANSWER_S: Final = 5.0
_PATH: Final = ROCKET.encode() + b"QueryRoute"
_EMPTY: Final = frames.message(b"")
_KNOWN: Final = (
    literal(b":path", _PATH)
    + literal(b":authority", b"x")
    + literal(b"content-type", b"application/grpc")
)


def _with(name: bytes, value: bytes, body: bytes | None = _EMPTY) -> tuple[bytes, bytes | None]:
    return frames.headers(_PATH, ((name, value),)), body


_BLOCKS: Final[dict[str, tuple[bytes, bytes | None]]] = {
    "content-length too small": _with(b"content-length", b"1"),
    "two content-lengths": (
        frames.headers(_PATH, ((b"content-length", b"5"), (b"content-length", b"6"))), _EMPTY,
    ),
    "transfer-encoding": _with(b"transfer-encoding", b"chunked"),
    "connection: close": _with(b"connection", b"close"),
    "te: gzip": _with(b"te", b"gzip"),
    "upper-case name": _with(b"X-Up", b"1"),
    "name with a NUL": _with(b"a\0b", b"1"),
    "value with CRLF": _with(b"a", b"1\r\nb: 2"),
    "pseudo-header after fields": (frames.headers(_PATH) + literal(b":path", b"/x"), _EMPTY),
    "unknown pseudo-header": (POST + literal(b":bad", b"1") + _KNOWN, _EMPTY),
    "two :path": (POST + literal(b":path", b"/y") + _KNOWN, _EMPTY),
    "CONNECT": (literal(b":method", b"CONNECT") + literal(b":authority", b"x"), None),
    "no :path": (POST + literal(b":authority", b"x"), _EMPTY),
    "timeout of nine digits": _with(b"grpc-timeout", b"999999999H"),
    "timeout below 0": _with(b"grpc-timeout", b"-1S"),
    "timeout of no time": _with(b"grpc-timeout", b"0n"),
    "compressed, flag 1": _with(b"grpc-encoding", b"gzip", b"\1\0\0\0\0"),
    "flag 7": (frames.headers(_PATH), b"\7\0\0\0\0"),
    "two messages": (frames.headers(_PATH), _EMPTY * 2),
    "a body that ends inside": (frames.headers(_PATH), b"\0\0\0\0\7abc"),
    "client id of 10,000": _with(b"x-mq-client-id", b"a" * 10_000),
    "client id that is no text": _with(b"x-mq-client-id", b"\xff\xfe%s"),
    "headers of 20 KiB": _with(b"a", b"x" * 16_300),
    "129 fields": (frames.headers(_PATH, ((b"a", b"1"),) * 125), _EMPTY),
    "a path of percents": (
        POST + literal(b":path", b"/%0a%\xf0") + literal(b":authority", b"x"), _EMPTY,
    ),
    "a table of 2^31": (b"\x3f\xe1\xff\xff\xff\x07" + frames.headers(_PATH), _EMPTY),
    "an index beyond the table": (b"\xff\x80\x80\x80\x08", _EMPTY),
    "an integer without end": (b"\xff" + b"\xff" * 40, _EMPTY),
    "Huffman of zeros": (POST + b"\x04\x88" + bytes(8), _EMPTY),
}  # fmt: skip
_AFTER: Final[dict[str, bytes]] = {
    "DATA after the end": frame(frames.DATA, END_STREAM, 1, b"x"),
    "HEADERS after the end": frame(HEADERS, END_HEADERS | END_STREAM, 1, frames.headers(_PATH)),
    "a window of 0": frame(frames.WINDOW, 0, 1, bytes(4)),
    "PUSH_PROMISE": frame(frames.PUSH, END_HEADERS, 1, b"\0\0\0\2"),
    "an even stream": frame(HEADERS, END_HEADERS | END_STREAM, 2, frames.headers(_PATH)),
    "a stream that depends on itself": frame(frames.PRIORITY, 0, 1, b"\0\0\0\1\0"),
    "SETTINGS of five bytes": frame(frames.SETTINGS, 0, 0, b"12345"),
    "a window of 2^31": frames.settings((4, 1 << 31)),
    "frames of one byte": frames.settings((5, 1)),
    "an ACK with bytes": frame(frames.SETTINGS, frames.ACK, 0, b"123456"),
    "PING of seven bytes": frame(frames.PING, 0, 0, b"1234567"),
    "GOAWAY": frame(frames.GOAWAY, 0, 0, bytes(8)),
    "RST of stream 0": frame(frames.RST_STREAM, 0, 0, struct.pack(">I", 1)),
    "padding beyond the frame": frame(frames.DATA, 8, 1, b"\xff12"),
}


class _Asked(Talk):
    """One that waits for the first thing that ends its call."""

    def __init__(self) -> None:
        super().__init__()
        self.said = ""
        self.answered = asyncio.Event()

    def on_frame(self, one: Frame) -> None:
        """Note the first end."""
        if one.kind == frames.RST_STREAM:
            self._note(f"RST {int.from_bytes(one.payload[:4], 'big')}")
        elif one.kind == frames.GOAWAY:
            self._note(f"GOAWAY {int.from_bytes(one.payload[4:8], 'big')}")
        elif one.kind in (HEADERS, frames.DATA) and one.flags & END_STREAM:
            self._note("a status")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note this end."""
        super().connection_lost(exc)
        self._note("closed")

    def _note(self, said: str) -> None:
        self.said = self.said or said
        self.answered.set()


@by_talks
async def wrong_conversations(scene: Scene) -> list[Check]:
    """B13: 43 conversations that are wrong in one place each."""
    asked = {name: _call(block, body) for name, (block, body) in _BLOCKS.items()}
    sound = _call(frames.headers(_PATH), _EMPTY)
    asked |= {name: sound + after for name, after in _AFTER.items()}
    said = {}
    for name, data in asked.items():
        said[name] = await _ask(scene, data)
    silent = sorted(name for name, how in said.items() if not how)
    value = ", ".join(silent) or f"{len(said)} of {len(said)}"
    return [held("b13: conversations that end by name", value, "all", not silent)]


def _call(block: bytes, body: bytes | None) -> bytes:
    """Return a call: its headers, and its body if it has one."""
    if body is None:
        return frame(HEADERS, END_HEADERS | END_STREAM, 1, block)
    return frame(HEADERS, END_HEADERS, 1, block) + frame(frames.DATA, END_STREAM, 1, body)


async def _ask(scene: Scene, data: bytes) -> str:
    """Return how the node ended a conversation; "" if it did not."""
    talk = await dial(scene, scene.leader, 0, _Asked)
    if talk is None:
        return ""
    talk.write(data)
    try:
        async with asyncio.timeout(_ANSWER_S):
            await talk.answered.wait()
    except TimeoutError:
        return ""
    finally:
        talk.close()
    return str(talk.said)
