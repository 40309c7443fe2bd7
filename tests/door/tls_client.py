"""Clients of TLS for tests: Python's own without a socket, and one that seals records by itself."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from dledger.door.tls import TlsCertificate
from dledger.rpc.mutual_tls import Pair
from dledger.server.client_certificate import self_signed

ALERT, HANDSHAKE, DATA = 21, 22, 23
KEY_UPDATE = bytes((24, 0, 0, 1, 1))
"""It asks the other side for one, too (RFC 8446, 4.6.3)."""


@cache
def pair() -> Pair:
    """Return a certificate for a port of the loopback."""
    return self_signed("door", "127.0.0.1")


def certificate() -> TlsCertificate:
    """Return what a port shows."""
    return TlsCertificate(pair().chain, pair().key)


def client_context(
    version: ssl.TLSVersion | None = None, alpn: str | None = "h2"
) -> ssl.SSLContext:
    """Return the context of a client that trusts that one."""
    context = ssl.create_default_context(cadata=pair().chain.decode())
    context.check_hostname = False
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    return context


class TlsClient:
    """Python's client: bytes in, bytes out.

    Attributes:
        got: What the server sent, decrypted.
        is_over: Whether the server said that it sends no more.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="door")
        self.got, self.is_open, self.is_over = b"", False, False

    def receive(self, data: bytes) -> None:
        """Take in what the server sent."""
        self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self.is_open:
                self.tls.do_handshake()
                self.is_open = True
            while not self.is_over:
                try:
                    piece = self.tls.read(1 << 16)
                except ssl.SSLZeroReturnError:  # instead of b"", if this side has ended, too
                    piece = b""
                self.got += piece
                self.is_over = not piece

    def send(self, data: bytes) -> None:
        """Encrypt what `drain` will return."""
        self.tls.write(data)

    def end(self) -> None:
        """Say that nothing more is sent."""
        with contextlib.suppress(ssl.SSLError):
            self.tls.unwrap()

    def drain(self) -> bytes:
        """Return what is to be sent."""
        return self._outgoing.read()


async def shaken(port: int, client: TlsClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port of the loopback, and return the socket's ends after the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b""
    while not client.is_open:
        client.receive(data)
        writer.write(client.drain())
        if not client.is_open:
            data = await reader.read(1 << 16)
            assert data, "closed within the handshake"
    return reader, writer


class Sealer:
    """Seals a client's records of TLS 1.3 after its handshake, also those that no library sends.

    Args:
        keys: The file where the handshake's secrets were written.
    """

    def __init__(self, keys: Path) -> None:
        lines = dict(line.split(" ", 2)[::2] for line in keys.read_text().splitlines())
        self._secret = bytes.fromhex(lines["CLIENT_TRAFFIC_SECRET_0"])
        self._take_keys()

    def record(self, content: bytes, kind: int = DATA, padding: int = 0) -> bytes:
        """Return one record (RFC 8446, 5.2)."""
        inner = content + bytes((kind,)) + bytes(padding)
        head = struct.pack(">BHH", DATA, 0x0303, len(inner) + 16)
        nonce = int.from_bytes(self._iv, "big") ^ self._number
        self._number += 1
        return head + AESGCM(self._key).encrypt(nonce.to_bytes(12, "big"), inner, head)

    def key_update(self) -> bytes:
        """Return the record that changes keys, and go on with the new ones."""
        record = self.record(KEY_UPDATE, HANDSHAKE)
        self._secret = self._expand("traffic upd", len(self._secret))
        self._take_keys()
        return record

    def _take_keys(self) -> None:
        self._key, self._iv, self._number = self._expand("key", 32), self._expand("iv", 12), 0

    def _expand(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = struct.pack(">HB", size, len(name)) + name + b"\0"
        algorithm = hashes.SHA384() if len(self._secret) == 48 else hashes.SHA256()
        return HKDFExpand(algorithm, size, info).derive(self._secret)
