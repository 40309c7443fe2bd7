"""The link to one other member: a gRPC control stream, and two TCP streams of frames.

Replication (entries, snapshots and their acks) and control (everything else) use separate
connections, so that no heartbeat or vote waits behind a batch, not even in a socket's buffer. The
response to the handshake carries the connect token for both; until they are open, and whenever the
control connection is down, control messages use the gRPC stream. A broken stream loses the messages
in it, which Raft tolerates. Owned by `peers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from dledger.common.backoff import Backoff
from dledger.errors import InvalidArgument, NewerCommand, Unavailable
from dledger.peers.frame_stream import FrameStream
from dledger.peers.handshake import METADATA_KEY, Handshake
from dledger.peers.outbox import Outbox
from dledger.peers.replication_port import CONNECT_TOKEN_KEY, ConnectToken
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    Message,
)
from dledger.rpc.cancelled import is_cancelled
from dledger.rpc.metadata import by_key
from dledger.rpc.peer_tls import PeerChannel, PeerTls
from dledger.types import Member, NodeId

logger = logging.getLogger(__name__)

SERVICE: Final = "dledger.v1.Peer"
REMOVED_KEY: Final = "dledger-removed-by"
"""Trailing metadata of a refused handshake: the index of the entry that removed the caller."""
EPOCH_KEY: Final = "dledger-epoch"
"""The same: how often the refusing node's group was forced, ``:``, and by which entry last."""
_MAX_FRAMES_BEFORE_OPEN: Final = 64
"""Control frames that may wait for the peer to accept the stream."""
_RECONNECT_S: Final = 0.1
_RECONNECT_MAX_S: Final = 1.0

_REPLICATION: Final = (
    AppendRequest,
    AppendResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
)


class PeerEvents(Protocol):
    """What the streams report to the node."""

    def handshake_to(self, member: Member) -> Handshake:
        """Return the handshake for a stream to *member*."""

    async def handshake_from(self, handshake: Handshake) -> Member | None:
        """Accept a handshake, joining its group if this node is Unjoined; or raise.

        Returns the sender as a member; None if this node has to take its word for that yet.
        """

    def receive(self, message: Message) -> None:
        """Handle a message."""

    def peer_disconnected(self, peer: NodeId) -> None:
        """Called when the peer's stream to this node broke."""

    def check_sender(self, sender: NodeId) -> None:
        """Raise MemberRemoved or NotMember if the sender is not a member any more."""

    def removed(self, index: int, epoch: int) -> None:
        """Called when a peer of *epoch* refuses this node: committed entry *index* removed it."""

    def left_out(self, epoch: int, index: int) -> None:
        """Called when a peer refuses this node, and its group was forced by entry *index*."""

    def outdated(self, error: NewerCommand) -> None:
        """Stop this node: a peer sent an entry kind that this version's consensus does not know."""


class _ControlStream:
    """The gRPC stream that carries the handshake; reopened until the link is closed.

    Args:
        open_call: Opens the gRPC stream over an iterator of frames.
        peer: The peer's name and address, for the log.
        on_open: Called with the connect token when the peer has accepted the handshake.
        on_broken: Called when that token is not valid any more.
        on_removed: Called with the entry's index, and the peer's epoch, when the peer says that
            this node was removed.
        on_epoch: Called with epoch and entry when a peer that refuses says that of its group.
    """

    def __init__(
        self,
        open_call: Callable[[AsyncIterator[bytes]], Awaitable[Any]],
        peer: str,
        *,
        on_open: Callable[[ConnectToken], None],
        on_broken: Callable[[], None],
        on_removed: Callable[[int, int], None],
        on_epoch: Callable[[int, int], None],
    ) -> None:
        self._on_epoch = on_epoch
        self._open_call = open_call
        self._on_open, self._on_broken, self._on_removed = on_open, on_broken, on_removed
        self._peer = peer
        self._outbox = Outbox()
        self._last_error = ""
        self.connected = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        if self.connected or len(self._outbox) < _MAX_FRAMES_BEFORE_OPEN:
            self._outbox.put(frame)

    @property
    def backs_off(self) -> bool:
        return not self.connected and bool(self._last_error)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        backoff = Backoff(_RECONNECT_S, _RECONNECT_MAX_S)
        while True:
            if await self._run_once():
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _run_once(self) -> bool:
        """Run one stream until it breaks; return whether the peer had accepted it."""
        call = await self._open_call(self._outbox.frames())
        try:
            answer = await call.initial_metadata()
            if call.done():
                await self._note_refusal(call)
                return False
            self._on_open(ConnectToken.decode(str(by_key(answer).get(CONNECT_TOKEN_KEY, ""))))
            self.connected, self._last_error = True, ""
            logger.info("stream to %s open", self._peer)
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            self._note_error(error.code(), error.details(), error.trailing_metadata())
        except InvalidArgument as error:
            self._note_error(grpc.StatusCode.DATA_LOSS, str(error), ())
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._note_error(grpc.StatusCode.UNAVAILABLE, "the call could not send", ())
        finally:
            opened, self.connected = self.connected, False
            self._on_broken()
            self._outbox.close()
            self._outbox = Outbox()
            call.cancel()
        return opened

    async def _note_refusal(self, call: Any) -> None:
        self._note_error(await call.code(), await call.details(), await call.trailing_metadata())

    def _note_error(self, code: grpc.StatusCode, details: str | None, metadata: Any) -> None:
        error = f"{code.name}: {details!r}"
        if error != self._last_error:
            logger.info("stream to %s: %s", self._peer, error)
            self._last_error = error
        said = by_key(metadata)
        removal_index = str(said.get(REMOVED_KEY, ""))
        epoch, _, index = str(said.get(EPOCH_KEY, "")).partition(":")
        forced = epoch.isdecimal() and index.isdecimal()
        if removal_index.isdecimal():
            self._on_removed(int(removal_index), int(epoch) if forced else 0)
        elif forced:
            self._on_epoch(int(epoch), int(index))


class PeerLink:
    """The streams to one member, and a gRPC channel for unary calls.

    Args:
        member: The member.
        address: Its peer address, ``HOST:PORT``.
        events: The node.
        encode: Encodes a message as a frame.
        replication_address: Maps (address, port of a connect token) to the host and port to use.
        on_token: Called with each connect token received from *address*.
        tls: The certificates; None: plain text.

    Attributes:
        connect_token: The newest one.
        is_plain: Whether the newest control stream is in plain text where there are certificates.
    """

    def __init__(
        self,
        member: Member,
        address: str,
        events: PeerEvents,
        encode: Callable[[Message], bytes],
        replication_address: Callable[[str, int], tuple[str, int]],
        *,
        on_token: Callable[[PeerLink, ConnectToken], None],
        tls: PeerTls | None = None,
    ) -> None:
        self._on_token = on_token
        self.connect_token: ConnectToken | None = None
        self.member = member
        self.address = address
        self._tls = tls
        self.is_plain = False
        self._events = events
        self._encode = encode
        self._replication_address = replication_address
        self._admission_channel = PeerChannel(address, member.name, tls)
        self._question_channel = PeerChannel(address, member.name, tls)
        peer = f"{member.name!r} at {address!r}"
        self._replication = FrameStream(f"replication to {peer}", member.name, tls)
        self._control = FrameStream(f"control by TCP to {peer}", member.name, tls)
        self._admission = _ControlStream(
            self._opener(),
            peer,
            on_open=self._accepted,
            on_broken=self._broken,
            on_removed=events.removed,
            on_epoch=events.left_out,
        )

    @property
    def connected(self) -> bool:
        """Whether messages of both kinds can be sent now."""
        return self._admission.connected and self._replication.connected

    @property
    def backs_off(self) -> bool:
        """Whether the peer was unreachable and the next attempt waits for its backoff."""
        return self._admission.backs_off

    def send(self, message: Message) -> None:
        """Send a message, or drop it while the peer is unreachable."""
        frame = self._encode(message)
        if isinstance(message, _REPLICATION):
            self._replication.send(frame)
        elif self._control.connected:
            self._control.send(frame)
        else:
            self._admission.send(frame)

    async def ask(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Call a unary method on the peer's port.

        Raises:
            Unavailable: The peer did not answer.
        """
        call = self._question_channel.unary_unary(method)
        try:
            return bytes(await call(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{self.member.name}: {error.details()}") from error

    async def close(self) -> None:
        """Close the streams and the channels."""
        await self._admission.close()
        self._broken()
        await self._admission_channel.close()
        await self._question_channel.close()

    def _accepted(self, connect_token: ConnectToken) -> None:
        self.connect_token = connect_token
        self._on_token(self, connect_token)
        host, port = self._replication_address(self.address, connect_token.port)
        for stream in (self._replication, self._control):
            stream.open(host, ConnectToken(port, connect_token.token))

    def _broken(self) -> None:
        self._replication.close()
        self._control.close()

    def _opener(self) -> Callable[[AsyncIterator[bytes]], Awaitable[Any]]:
        async def open_call(frames: AsyncIterator[bytes]) -> Any:
            if self._tls is not None:
                await self._tls.find_out(self.address, self.member.name)
                self.is_plain = self._tls.is_plain(self.member.name)
            handshake = self._events.handshake_to(self.member).encode()
            call = self._admission_channel.stream_stream(f"/{SERVICE}/Control")
            return call(frames, metadata=((METADATA_KEY, handshake),))

        return open_call
