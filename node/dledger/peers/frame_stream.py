"""The connection to a peer's replication port, reopened for as long as its token is valid.

Frames that cannot be sent are dropped, as are those that a broken connection held: Raft resends
them. Owned by `peer_link`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final, cast

from dledger.common.backoff import Backoff
from dledger.common.dns import host_to_ask
from dledger.peers.framing import prefix
from dledger.peers.outbox import Outbox
from dledger.peers.replication_port import ConnectToken
from dledger.rpc.peer_tls import PeerTls, connecting

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 2.0
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
_SILENT_MS: Final = 7_000
"""A connection counts as broken after the peer's kernel has acknowledged nothing for this long: the
limit that gRPC keepalive gives the control stream."""
_JOINED_BYTES: Final = 64 << 10
"""Up to this size a frame leaves together with its length: two writes are two system calls, and the
peer wakes up for each. Copying a larger one costs more than that."""
_WRITE_BUFFER_BYTES: Final = 1 << 20
"""Bytes that may wait for a full socket; further frames wait in the outbox, which is bounded."""


class FrameStream:
    """Sends frames to one peer from `open` until `close`.

    Args:
        what: What this stream carries, and to which peer, for the log.
        name: The peer's name, which its certificate must have.
        tls: The certificates; None: plain text.
    """

    def __init__(self, what: str, name: str = "", tls: PeerTls | None = None) -> None:
        self._what = what
        self._name, self._tls = name, tls
        self._sender: _Sender | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""

    @property
    def connected(self) -> bool:
        """Whether frames can leave now."""
        return self._sender is not None and self._sender.connected

    def open(self, host: str, connect_token: ConnectToken) -> None:
        """Connect, and reconnect whenever the connection breaks."""
        self.close()
        self._task = asyncio.get_running_loop().create_task(self._run(host, connect_token))

    def close(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._sender is not None:
            self._sender.end()

    def send(self, frame: bytes) -> None:
        """Send a frame, or drop it while there is no connection."""
        if self._sender is not None:
            self._sender.send(frame)

    async def _run(self, host: str, connect_token: ConnectToken) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(_RETRY_S, _RETRY_MAX_S)
        while True:
            sender = self._sender = _Sender(connect_token.token)
            began_s = loop.time()
            try:
                async with asyncio.timeout(_CONNECT_S):
                    secure = connecting(self._tls, self._name)
                    await loop.create_connection(
                        lambda s=sender: s,  # type: ignore[misc]
                        host_to_ask(host),
                        connect_token.port,
                        **secure,
                    )
                self._last_error = ""
                await sender.ended()
            except OSError as error:
                self._note(f"{host}:{connect_token.port}: {error or type(error).__name__}")
            await asyncio.sleep(backoff.next_s(lasted_s=loop.time() - began_s))

    def _note(self, error: str) -> None:
        if error != self._last_error:
            logger.warning("cannot connect for %s: %s", self._what, error)
            self._last_error = error


class _Sender(asyncio.Protocol):
    """One connection's sending end: writes directly while the socket accepts, else queues."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._transport: asyncio.Transport | None = None
        self._outbox = Outbox()
        self._paused = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def send(self, frame: bytes) -> None:
        if self._transport is None:
            return
        if self._paused:
            self._outbox.put(frame)
        else:
            # Not writelines: in Python 3.12 and 3.13.0 it never pauses, and buffers without bound.
            if len(frame) <= _JOINED_BYTES:
                self._transport.write(prefix(frame) + frame)
                return
            self._transport.write(prefix(frame))
            self._transport.write(frame)

    async def ended(self) -> None:
        await asyncio.shield(self._ended)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        end = transport.get_extra_info("socket")
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
        self._transport.write(self._token)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        while self._outbox and not self._paused:
            self.send(self._outbox.take())

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._transport = None
        self._ended.set_result(None)
