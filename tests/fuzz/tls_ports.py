"""A client port with TLS as it is: records in any pieces, whole or spoilt, and ends of any kind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Hashable
from random import Random
from typing import Any, Final

from dledger.door.server import DoorServer
from dledger.door.tls import ALPN, TlsCertificate
from dledger.server.client_certificate import self_signed
from tests.door.conversations import NARROW, conversation, damaged
from tests.door.ports import Seen
from tests.fuzz.target import Broken, Target
from tests.waiting import eventually

_HEAD: Final = 4
"""Bytes of an input that say how its rest comes: pieces, damage and where, the end."""
_PIECES: Final = (1, 7, 100, 1 << 14, 1 << 18)
_ROOM_S: Final = 5.0
"""Within it a port lets go of what is gone; all else here takes milliseconds."""
_ANSWER_S: Final = 0.05


_OURS: Final = (
    "asyncio",
    *(f"dledger.door.{name}" for name in ("calls", "connection", "server", "tls_transport")),
)
"""Who logs faults of a port; what handlers raise, which are the tests', is none."""


class TlsPorts(Target):
    """Any TLS records to a port: it ends in order, and nothing of them is left behind."""

    name = "tls-ports"
    refuses = ()

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._faults: list[str] = []
        self._loop.set_exception_handler(lambda _, about: self._faults.append(str(about)))
        self._log = _Faults(self._faults)
        for name in ("asyncio", "dledger.door"):
            logging.getLogger(name).addHandler(self._log)
        pair = self_signed("door", "127.0.0.1")
        self._server = self._loop.run_until_complete(_start(TlsCertificate(pair.chain, pair.key)))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    def close(self) -> None:
        self._loop.run_until_complete(self._server.stop(0))
        for name in ("asyncio", "dledger.door"):
            logging.getLogger(name).removeHandler(self._log)
        self._loop.close()

    def draw(self, rng: Random) -> bytes:
        said = conversation(rng) * rng.choice((1, 1, 1, 30))
        return rng.randbytes(_HEAD) + (damaged(said, rng) if rng.random() < 0.5 else said)

    def feed(self, data: bytes) -> Hashable:
        if len(data) < _HEAD:
            return "nothing"
        self._faults.clear()
        said = self._loop.run_until_complete(self._talk(data[:_HEAD], data[_HEAD:]))
        faults = [one for one in self._faults if "the handler" not in one]
        if faults:
            raise Broken(f"a port meets a fault of our own: {faults[0][:200]}")
        left = (self._server.connections, self._server.calls, self._server.held_bytes)
        if any(left):
            raise Broken(f"a connection that is gone leaves something behind: {left}")
        return said

    async def _talk(self, how: bytes, plain: bytes) -> Hashable:
        address, _, port = self._server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(address, int(port))
        wire = _Wire(reader, writer, how)
        self._context.set_alpn_protocols([ALPN] if how[3] & 7 else ["http/1.1"])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(incoming, outgoing, server_hostname="x")
        said = "no handshake"
        try:
            if await _greet(tls, incoming, outgoing, wire):
                said = "spoken"
                tls.write(plain or b"x")
                await wire.send(outgoing.read())
                if how[3] & 8:
                    await wire.receive(_ANSWER_S)
                if how[3] & 16:
                    with contextlib.suppress(ssl.SSLError):
                        tls.unwrap()
                    await wire.send(outgoing.read())
                if how[3] & 32:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    await wire.receive(_ANSWER_S)
        except (OSError, ssl.SSLError):
            said += ", ended"
        finally:
            writer.transport.abort() if how[3] & 64 else writer.close()
        await _wait_for(lambda: not self._server.connections)
        await asyncio.sleep(0)
        return said, how[3] & 56, wire.spoilt


async def _start(certificate: TlsCertificate) -> DoorServer:
    server = DoorServer(
        "127.0.0.1:0", Seen().handlers(1 << 20), bounds=NARROW, tls=certificate
    )  # fmt: skip
    await server.start()
    return server


async def _wait_for(holds: Callable[[], bool]) -> None:
    """Wait until *holds*, or until it should have."""
    with contextlib.suppress(AssertionError):
        await eventually(holds, "the port lets go", _ROOM_S)


class _Wire:
    """A connection that sends in pieces, of which one byte may be another, missing or added."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, how: bytes
    ) -> None:
        self._reader, self._writer = reader, writer
        self._piece = _PIECES[how[0] % len(_PIECES)]
        self._damage, self._at = how[1] & 3 if how[1] < 128 else 0, how[2] * 8
        self.spoilt = False

    async def send(self, data: bytes) -> None:
        """Send it all. Raises OSError."""
        if self._damage and not self.spoilt and self._at < len(data):
            self.spoilt, at = True, self._at
            middle = {1: bytes((data[at] ^ 0x40,)), 2: b"", 3: data[at : at + 1] * 2}
            data = data[:at] + middle[self._damage] + data[at + 1 :]
        self._at = max(0, self._at - len(data))
        size = max(self._piece, len(data) // 200)
        for start in range(0, len(data), size):
            if self._writer.transport.is_closing():
                raise ConnectionResetError("the port has closed it")
            self._writer.write(data[start : start + size])
            await asyncio.sleep(0)
        await self._writer.drain()

    async def receive(self, timeout_s: float) -> bytes:
        """Return what comes next; nothing if nothing does. Raises OSError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reader.read(1 << 16)
        except TimeoutError:
            return b""


async def _greet(tls: Any, incoming: Any, outgoing: Any, wire: _Wire) -> bool:
    """Shake hands; return whether that was done. Raises OSError, as SSLError is one."""
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await wire.send(outgoing.read())
            answer = await wire.receive(_ROOM_S / 10)
            if not answer:
                return False
            incoming.write(answer)
        else:
            await wire.send(outgoing.read())
            return True


class _Faults(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.name in _OURS:
            self._found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
