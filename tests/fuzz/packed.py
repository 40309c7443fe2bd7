"""What is looked into, or let go, before a request means anything: packed bodies, headers."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Hashable
from random import Random
from typing import Final

from dledger.checks.packed import Content, Form, check_small, content_of, in_form, small_content_of
from dledger.common.limits import MAX_BODY_BYTES
from dledger.door.bounds import Bounds, Held
from dledger.door.contract import Headers, Pairs
from dledger.door.opening import Refused, opened
from dledger.door.port import Port
from dledger.rpc.status import Rejected
from tests.door.ports import Seen
from tests.fuzz.mutation import TEXTS, mutated
from tests.fuzz.target import Broken, Target

_SIZES: Final = (1, 50, 5_000, 70_000, 300_000, MAX_BODY_BYTES, MAX_BODY_BYTES + 1)


class PackedBodies(Target):
    """Bodies that say GZIP: what is taken is unpacked by every library, in the form that it reads.

    Python's and Node.js' take a gzip, C++'s zlib's form; both are asked here.
    """

    name = "packed-bodies"
    refuses = (Rejected,)

    def draw(self, rng: Random) -> bytes:
        size = rng.choices(_SIZES, (4, 8, 6, 2, 2, 1, 1))[0]
        plain = bytes(size) if rng.random() < 0.5 else rng.randbytes(min(size, 5_000))
        packed = rng.choice(_PACKERS)(plain, rng.randrange(10))
        way = rng.random()
        if way < 0.2:
            return packed + rng.choice((b"\0", packed, rng.randbytes(9)))
        if way < 0.3:
            return packed[: rng.randrange(len(packed))]
        return mutated(rng, packed, 2) if way < 0.6 else packed

    def feed(self, data: bytes) -> Hashable:
        content = content_of(data)
        small = small_content_of(data)
        if small is not None and small != content:
            raise Broken("looked into at once, it is another body")
        if check_small([data]) not in ([], [data]):
            raise Broken("what is left to look into is another body")
        plain = _unpacked(in_form(data, content, Form.GZIP), gzip.decompress)
        if _unpacked(in_form(data, content, Form.ZLIB), zlib.decompress) != plain:
            raise Broken("the two forms hold different bodies")
        if len(plain) != content.size_bytes or not 1 <= len(plain) <= MAX_BODY_BYTES:
            raise Broken(f"it says {content.size_bytes} bytes and has {len(plain)}")
        return _kind(content)


_PACKERS: Final[tuple[Callable[[bytes, int], bytes], ...]] = (
    lambda plain, level: gzip.compress(plain, level, mtime=0),
    zlib.compress,
)


def _unpacked(body: bytes, unpack: Callable[[bytes], bytes]) -> bytes:
    try:
        return unpack(body)
    except (OSError, EOFError, zlib.error) as error:
        raise Broken(f"a client's library raises: {error}") from error


def _kind(content: Content) -> Hashable:
    return content.form, content.size_bytes.bit_length()


class KeptHeaders(Target):
    """The headers of a call: what somebody reads of them is kept, and no more than is counted."""

    name = "kept-headers"
    refuses = (Refused,)

    def __init__(self) -> None:
        self._bounds = Bounds()
        self._handlers = {path.encode(): one for path, one in Seen().handlers(1 << 20).items()}

    def draw(self, rng: Random) -> bytes:
        pairs = [(b":method", b"POST"), (b":path", b"/t/Echo"), (b"content-type", _GRPC)]
        for _ in range(rng.choice((0, 1, 3, 20, 130))):
            value = rng.choice((rng.choice(TEXTS).encode()[:200], rng.randbytes(9), b"x" * 1_000))
            pairs.append((rng.choice(_NAMES), value))
        rng.shuffle(pairs)
        return b"\n".join(name + b"=" + value.replace(b"\n", b"") for name, value in pairs)

    def feed(self, data: bytes) -> Hashable:
        rows = (line.partition(b"=") for line in data.split(b"\n"))
        pairs: Pairs = tuple((name, value) for name, _, value in rows)
        fields = dict(pairs)
        pseudo = {name for name in fields if name.startswith(b":")}
        if pseudo != {b":method", b":path"}:
            return "not HTTP/2"  # the library ends such a call
        port = Port(handlers=self._handlers, bounds=self._bounds, held=Held(1), needs_alpn=False)
        headers, _, _ = opened(port, pairs, "ipv4:192.0.2.1:1", 1, 0.0)
        self._check(headers, fields)
        return len(headers.pairs).bit_length(), headers.deadline_s is None

    def _check(self, headers: Headers, fields: dict[bytes, bytes]) -> None:
        read = {
            name: value
            for name, value in fields.items()
            if name.startswith((b"x-mq-", b"authorization")) or name == b":path"
        }
        kept = dict(headers.pairs)
        if not read.items() <= kept.items():
            raise Broken("what somebody reads is not kept")
        more = [name for name in kept.keys() - read.keys() if not name.startswith(_BEGIN)]
        if more:
            raise Broken(f"what nobody reads is kept: {min(more)!r}")
        size = sum(len(name) + len(value) for name, value in headers.fields.items())
        if size > headers.size_bytes or headers.size_bytes > self._bounds.kept_header_bytes:
            raise Broken(f"{size} bytes are there and {headers.size_bytes} counted")


_BEGIN: Final = (b"autho", b"x-mq-")
"""Names are known by their beginnings, so a few more than are read may be there."""
_GRPC: Final = b"application/grpc"
_NAMES: Final = (
    *(b"x-mq-client-id", b"x-mq-language", b"x-mq-anything", b"x-mq-more-bin", b"authorization"),
    *(b"grpc-timeout", b"te", b"user-agent", b"a", b"x-dledger-forwarded", b"x-m", b"content-type"),
)
