"""A node's certificate for its peers, whom it trusts, and connections with them.

The files are those of a mounted Secret, which change while the node runs (`mutual_tls`). Whatever
is new and sound is taken, and shown and asked for by the next connection; what is damaged or half
written is logged, and the last that was sound stays. A peer is known by the name in its
certificate, whatever its address is.

In the mode `BOTH`, a peer that does not speak TLS yet is called in plain text. From `REQUIRED` a
node that runs never goes back to that.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dledger.rpc.callers import Group, group_of, leaf_of
from dledger.rpc.channel import PEER_OPTIONS
from dledger.rpc.dial import dial
from dledger.rpc.mutual_tls import (
    BOTH,
    REQUIRED,
    Identity,
    Pair,
    context_of,
    mode_of,
    pair_of,
    required_group_of,
    show,
    signature_of,
    speaks_tls,
    trusted_of,
)

logger = logging.getLogger(__name__)

_GRACE_S: Final = 60.0
"""How long calls on a connection with an older certificate may go on."""
_CLOSING: Final[set[asyncio.Task[None]]] = set()
"""Channels on their way out; the event loop itself keeps tasks by weak references only."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What is in use: one for each time that something changed."""

    identity: Identity
    group: Group
    not_after_s: float
    client: ssl.SSLContext
    server: ssl.SSLContext


class PeerTls:
    """The newest sound certificates of a directory, and who of the peers does not speak TLS yet.

    Args:
        directory: See `mutual_tls`.
        name: This node.

    Raises:
        OSError: The directory has nothing sound to begin with; says which file is wrong.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._last_fault = ""
        self._plain: set[str] = set()
        self._seen = signature_of(directory, name)
        try:
            self._loaded = _load(
                Identity(
                    trusted_of(directory),
                    pair_of(directory, name),
                    mode_of(directory),
                    required_group_of(directory),
                )
            )
        except (OSError, ValueError) as error:
            raise OSError(f"no certificate for peers: {error}") from error

    @property
    def not_after_s(self) -> float:
        """When the own certificate ends, in Unix seconds."""
        return self._loaded.not_after_s

    @property
    def takes_plain(self) -> bool:
        """Whether plain text is accepted, too."""
        return self._loaded.identity.mode == BOTH

    @property
    def group(self) -> Group:
        """Whose callers are believed."""
        return self._loaded.group

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

    def is_plain(self, name: str) -> bool:
        """Whether a peer is called in plain text, which it then has to be."""
        return self.takes_plain and name in self._plain

    async def find_out(self, address: str, name: str) -> None:
        """Look whether the peer *name* at ``HOST:PORT`` speaks TLS, if it need not."""
        if not self.takes_plain:
            return
        speaks = await asyncio.to_thread(speaks_tls, address)
        if speaks is False and name not in self._plain:
            logger.warning("%s does not speak TLS yet, and is called in plain text", name)
            self._plain.add(name)
        elif speaks:
            self._plain.discard(name)

    def refresh(self) -> None:
        """Take what is new in the directory and sound; called by one thread at a time."""
        seen = signature_of(self._directory, self._name)
        if seen == self._seen:
            return
        before, faults = self._loaded.identity, []
        trusted, pair, mode, group = before.trusted, before.pair, before.mode, before.group
        try:
            trusted = trusted_of(self._directory)
        except (OSError, ValueError) as error:
            faults.append(str(error))
        try:
            pair = pair_of(self._directory, self._name)
        except (OSError, ValueError) as error:
            faults.append(str(error))
        try:
            mode = _onwards(mode, mode_of(self._directory))
        except (OSError, ValueError) as error:
            faults.append(str(error))
        try:
            group = required_group_of(self._directory)
        except (OSError, ValueError) as error:
            faults.append(str(error))
        if (now := Identity(trusted, pair, mode, group)) != before:
            try:
                self._loaded = _load(now)
                logger.info("took new certificates for peers from %s: %s", self._directory, mode)
            except (OSError, ValueError) as error:
                faults.append(str(error))
        fault = "; ".join(faults)
        if fault and fault != self._last_fault:
            logger.error("keeps the last sound certificates for peers: %s", fault)
        self._last_fault = fault
        self._seen = seen

    def host_of(self, name: str) -> str:
        """Return the host by which the member *name* is known."""
        return self._loaded.identity.host_of(name)

    def dial(self, address: str, name: str) -> grpc.aio.Channel:
        """Return a channel to the member *name* at ``HOST:PORT``, with what is in use now."""
        return dial(address, PEER_OPTIONS, self._loaded.identity.to(name))

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials that ask every caller for a certificate, and follow the directory."""
        given = self._loaded

        def newest() -> grpc.ServerCertificateConfiguration | None:
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


def connecting(tls: PeerTls | None, name: str) -> dict[str, Any]:
    """Return asyncio's arguments for a connection to the peer *name*; none for plain text."""
    if tls is None or tls.is_plain(name):
        return {}
    return {"ssl": tls.client_context, "server_hostname": tls.host_of(name)}


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
        self._is_plain = True
        self._closing: set[asyncio.Task[None]] = set()
        self._methods: dict[str, grpc.aio.UnaryUnaryMultiCallable] = {}
        self._channel = self._dial()

    def unary_unary(self, path: str) -> grpc.aio.UnaryUnaryMultiCallable:
        """Return a method that takes and returns bytes."""
        channel = self._current()
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = channel.unary_unary(path)
        return method

    def unary_stream(self, path: str) -> grpc.aio.UnaryStreamMultiCallable:
        """Return a method that returns a stream of bytes."""
        return self._current().unary_stream(path)

    def stream_stream(self, path: str) -> grpc.aio.StreamStreamMultiCallable:
        """Return a method that takes and returns streams of bytes."""
        return self._current().stream_stream(path)

    def retire(self) -> None:
        """Close the connection once its calls have ended, or in a minute."""
        is_old = self._tls is not None and self._is_plain  # nothing of it is believed any more
        grace_s = 0.0 if is_old else _GRACE_S
        task = asyncio.get_running_loop().create_task(_finish(self._channel, grace_s))
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
        tls = self._tls
        if tls is not None:
            self._state, self._is_plain = tls.state, tls.is_plain(self.name)
        if tls is None or self._is_plain:
            return dial(self.address, PEER_OPTIONS)
        return tls.dial(self.address, self.name)

    def _current(self) -> grpc.aio.Channel:
        tls = self._tls
        if tls is not None and (
            tls.state is not self._state or tls.is_plain(self.name) is not self._is_plain
        ):
            self.retire()
            self._methods.clear()
            self._channel = self._dial()
        return self._channel


async def _finish(channel: grpc.aio.Channel, grace_s: float) -> None:
    try:
        await channel.close(grace_s)
    except asyncio.CancelledError:
        await channel.close()
        raise


def _configuration(loaded: _Loaded) -> grpc.ServerCertificateConfiguration:
    pair, trusted = loaded.identity.pair, loaded.identity.trusted
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], trusted)


def _onwards(present: str, wanted: str) -> str:
    """Return the next mode. Raises ValueError for one that would believe again whom it did not."""
    if (present, wanted) == (REQUIRED, BOTH):
        raise ValueError(f"the mode is {BOTH} again: plain text is not accepted before a restart")
    return wanted


def _load(identity: Identity) -> _Loaded:
    pair: Pair = identity.pair
    client = context_of(ssl.PROTOCOL_TLS_CLIENT, identity.trusted)
    server = context_of(ssl.PROTOCOL_TLS_SERVER, identity.trusted)
    server.verify_mode = ssl.CERT_REQUIRED
    server.num_tickets = 0  # nobody resumes: a certificate is asked for every time
    for context in (client, server):
        show(context, pair.chain, pair.key)
    leaf = leaf_of(pair.chain)
    own = identity.group or group_of(pair.chain)
    group = Group(own, is_required=bool(identity.group))
    return _Loaded(identity, group, leaf.not_valid_after_utc.timestamp(), client, server)
