"""A node's certificate for its peers, whom it trusts, and connections with them.

The files are those of a mounted Secret, which change while the node runs. Whatever is new and sound
is taken, and shown and asked for by the next connection; what is damaged or half written is logged,
and the last that was sound stays. A peer is known by the name in its certificate, whatever its
address is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from cryptography import x509

from dledger.rpc.channel import PEER_OPTIONS

logger = logging.getLogger(__name__)

REQUIRED: Final = "required"
_TRUSTED: Final = "ca.crt"
_MODE: Final = "mode"
_NAME_OPTION: Final = "grpc.ssl_target_name_override"
_GRACE_S: Final = 60.0
"""How long calls on a connection with an older certificate may go on."""
_CLOSING: Final[set[asyncio.Task[None]]] = set()
"""Channels on their way out; the event loop itself keeps tasks by weak references only."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate chain and its key, as PEM, and the certificate's end in Unix seconds."""

    chain: bytes
    key: bytes = field(repr=False)
    not_after_s: float


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What is in use: one for each time that something changed."""

    trusted: bytes
    pair: _Pair
    client: ssl.SSLContext
    server: ssl.SSLContext


class PeerTls:
    """The newest sound certificates of a directory.

    Args:
        directory: Has ``ca.crt`` with every trusted authority, and either ``NAME.crt`` and
            ``NAME.key`` or ``tls.crt`` and ``tls.key``.
        name: This node.

    Raises:
        OSError: The directory has nothing sound to begin with; says which file is wrong.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._seen: object = None
        self._last_fault = ""
        mode = _mode(directory)
        if mode != REQUIRED:
            raise OSError(
                f"{directory / _MODE} is {mode!r}: this version of a node speaks TLS to peers "
                f"alone ({REQUIRED!r}) or, without peer_tls_dir, plain text alone"
            )
        try:
            self._loaded = _load(_trusted(directory), _pair(directory, name))
        except (OSError, ValueError) as error:
            raise OSError(f"no certificate for peers: {error}") from error
        self._seen = _signature(directory, name)

    @property
    def not_after_s(self) -> float:
        """When the own certificate ends, in Unix seconds."""
        return self._loaded.pair.not_after_s

    @property
    def state(self) -> object:
        """What is in use; another object after each change."""
        return self._loaded

    @property
    def client_context(self) -> ssl.SSLContext:
        """For connections to peers; the caller gives the peer's name."""
        return self._loaded.client

    @property
    def server_context(self) -> ssl.SSLContext:
        """For connections from peers."""
        return self._loaded.server

    def refresh(self) -> None:
        """Take what is new in the directory and sound; called by one thread at a time."""
        seen = _signature(self._directory, self._name)
        if seen == self._seen:
            return
        before, faults = self._loaded, []
        trusted, pair = before.trusted, before.pair
        try:
            trusted = _trusted(self._directory)
        except (OSError, ValueError) as error:
            faults.append(str(error))
        try:
            pair = _pair(self._directory, self._name)
        except (OSError, ValueError) as error:
            faults.append(str(error))
        if (trusted, pair) != (before.trusted, before.pair):
            self._loaded = _load(trusted, pair)
            logger.info("took new certificates for peers from %s", self._directory)
        fault = "; ".join(faults)
        if fault and fault != self._last_fault:
            logger.error("keeps the last sound certificates for peers: %s", fault)
        self._last_fault = fault
        self._seen = seen

    def dial(self, address: str, name: str) -> grpc.aio.Channel:
        """Return a channel to the member *name* at ``HOST:PORT``, with what is in use now."""
        now = self._loaded
        credentials = grpc.ssl_channel_credentials(now.trusted, now.pair.key, now.pair.chain)
        options = (*PEER_OPTIONS, (_NAME_OPTION, name))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that ask every caller for a certificate, and follow the directory."""
        given = self._loaded

        def newest() -> Any:
            """Return what a handshake takes if it differs from the last one's; gRPC's thread."""
            nonlocal given
            now = self._loaded
            if now is given:
                return None
            given = now
            return _configuration(now)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given), newest, require_client_authentication=True
        )


class PeerChannel:
    """A channel to one node's peer port, opened anew when the certificates have changed.

    Args:
        address: ``HOST:PORT``.
        name: The node's name, which its certificate must have.
        tls: The certificates; None: plain text.
    """

    def __init__(self, address: str, name: str, tls: PeerTls | None) -> None:
        self.address, self.name, self._tls = address, name, tls
        self._state: object = None
        self._closing: set[asyncio.Task[None]] = set()
        self._methods: dict[str, Any] = {}
        self._channel = self._dial()

    def unary_unary(self, path: str) -> Any:
        """Return a method that takes and returns bytes."""
        channel = self._current()
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = channel.unary_unary(path)
        return method

    def unary_stream(self, path: str) -> Any:
        """Return a method that returns a stream of bytes."""
        return self._current().unary_stream(path)

    def stream_stream(self, path: str) -> Any:
        """Return a method that takes and returns streams of bytes."""
        return self._current().stream_stream(path)

    def retire(self) -> None:
        """Close the connection once its calls have ended, or in a minute."""
        task = asyncio.get_running_loop().create_task(_finish(self._channel))
        self._closing.add(task)
        _CLOSING.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(_CLOSING.discard)

    async def close(self) -> None:
        """Close the connection; calls in progress fail."""
        await self._channel.close()
        for task in tuple(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _dial(self) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options=PEER_OPTIONS)
        self._state = self._tls.state
        return self._tls.dial(self.address, self.name)

    def _current(self) -> grpc.aio.Channel:
        if self._tls is not None and self._tls.state is not self._state:
            self.retire()
            self._methods.clear()
            self._channel = self._dial()
        return self._channel


async def _finish(channel: grpc.aio.Channel) -> None:
    try:
        await channel.close(_GRACE_S)
    except asyncio.CancelledError:
        await channel.close()
        raise


def _configuration(loaded: _Loaded) -> Any:
    pair = loaded.pair
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], loaded.trusted)


def _mode(directory: Path) -> str:
    try:
        return (directory / _MODE).read_text("ascii").strip() or REQUIRED
    except FileNotFoundError:
        return REQUIRED
    except (OSError, UnicodeDecodeError) as error:
        raise OSError(f"cannot read {directory / _MODE}: {error}") from error


def _names(directory: Path, name: str) -> tuple[Path, Path]:
    stem = name if (directory / f"{name}.crt").exists() else "tls"
    return directory / f"{stem}.crt", directory / f"{stem}.key"


def _signature(directory: Path, name: str) -> object:
    """Return what differs after any of the files was written or replaced."""
    return tuple(
        _stat(path) for path in (directory / _TRUSTED, *_names(directory, name), directory / _MODE)
    )


def _stat(path: Path) -> tuple[str, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_ino, found.st_mtime_ns, found.st_size


def _trusted(directory: Path) -> bytes:
    """Return the authorities. Raises OSError, ValueError (naming the file)."""
    path = directory / _TRUSTED
    text = path.read_bytes()
    try:
        x509.load_pem_x509_certificates(text)
        _context(ssl.PROTOCOL_TLS_CLIENT, text)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"{path} has no certificates that can be read: {error}") from error
    return text


def _pair(directory: Path, name: str) -> _Pair:
    """Return certificate and key. Raises OSError, ValueError (naming the file)."""
    of_chain, of_key = _names(directory, name)
    chain, key = of_chain.read_bytes(), of_key.read_bytes()
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        _show(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), chain, key)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"{of_chain} and {of_key} are not a pair: {error}") from error
    return _Pair(chain, key, leaf.not_valid_after_utc.timestamp())


def _load(trusted: bytes, pair: _Pair) -> _Loaded:
    client = _context(ssl.PROTOCOL_TLS_CLIENT, trusted)
    server = _context(ssl.PROTOCOL_TLS_SERVER, trusted)
    server.verify_mode = ssl.CERT_REQUIRED
    server.num_tickets = 0  # nobody resumes: a certificate is asked for every time
    for context in (client, server):
        _show(context, pair.chain, pair.key)
    return _Loaded(trusted, pair, client, server)


def _context(protocol: int, trusted: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=trusted.decode("ascii"))
    return context


def _show(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Have a context show a certificate. `ssl` reads files only; these are in memory."""
    with _in_memory(chain) as of_chain, _in_memory(key) as of_key:
        context.load_cert_chain(of_chain, of_key, password=_no_password)


def _no_password() -> bytes:
    raise ValueError("the key is encrypted")


@contextlib.contextmanager
def _in_memory(text: bytes) -> Iterator[str]:
    with os.fdopen(os.memfd_create("certificate", os.MFD_CLOEXEC), "wb") as file:
        file.write(text)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
