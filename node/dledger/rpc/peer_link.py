"""The way to one other member: two byte streams, each on a connection of its own.

Data (entries and snapshots) and control (everything else) travel apart, so that no heartbeat and
no vote waits behind a batch, not in a socket's buffer either. A stream that breaks loses what was
in it: Raft repairs that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from dledger.errors import Unavailable
from dledger.raft.messages import AppendRequest, InstallSnapshotRequest, Message
from dledger.rpc import peer_codec
from dledger.rpc.hello import METADATA_KEY, Hello
from dledger.rpc.limits import MAX_PEER_FRAME_BYTES
from dledger.types import Member, NodeId

logger = logging.getLogger(__name__)

SERVICE: Final = "dledger.v1.Peer"
REMOVED_KEY: Final = "dledger-removed-by"
"""Trailing metadata of a refusal: the index of the entry that removed the caller."""
MAX_QUEUED_FRAMES: Final = 1024
MAX_QUEUED_BYTES: Final = 16 << 20
"""Twice what a leader has under way to one follower (`RaftConfig.max_inflight_bytes`)."""
_MAX_FRAMES_BEFORE_OPEN: Final = 64
_RECONNECT_S: Final = 0.1
_RECONNECT_MAX_S: Final = 1.0
CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_PEER_FRAME_BYTES),
    ("grpc.max_receive_message_length", MAX_PEER_FRAME_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # gRPC's word for how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class PeerEvents(Protocol):
    """What the streams tell the node."""

    def hello_to(self, member: Member) -> Hello:
        """Return the greeting for a stream to *member*."""

    async def hello_from(self, hello: Hello) -> None:
        """Accept a greeting, joining its group if this node is Unjoined; or raise."""

    def receive(self, message: Message) -> None:
        """Take a message."""

    def peer_disconnected(self, peer: NodeId) -> None:
        """Note that the peer's stream to this node broke."""

    def check_sender(self, sender: NodeId) -> None:
        """Raise MemberRemoved if the sender was removed since it greeted."""

    def removed(self, index: int) -> None:
        """Note that a peer refuses us: committed entry *index* removed this node."""


class Outbox:
    """The frames of one stream; iterated by gRPC until closed.

    Bounded by number and bytes; what is beyond is dropped, and an empty one takes any frame.
    """

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._arrived = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def size_bytes(self) -> int:
        """Bytes of the frames that wait."""
        return self._size_bytes

    def put(self, frame: bytes) -> None:
        """Queue a frame, or drop it: Raft sends again what matters."""
        size_bytes = self._size_bytes + len(frame)
        if self._frames and (
            len(self._frames) >= MAX_QUEUED_FRAMES or size_bytes > MAX_QUEUED_BYTES
        ):
            return
        self._frames.append(frame)
        self._size_bytes = size_bytes
        self._arrived.set()

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
        self._arrived.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames as they come, until closed."""
        while not self._closed:
            while self._frames and not self._closed:
                frame = self._frames.popleft()
                self._size_bytes -= len(frame)
                yield frame
            self._arrived.clear()
            if not self._frames and not self._closed:
                await self._arrived.wait()


class _Stream:
    """One outbound stream; reopened until the link is closed.

    Args:
        open_call: Opens the gRPC stream over an iterator of frames.
        peer: Who is at the other end, for the log.
        on_removed: Called with the entry's index when the peer says that we were removed.
        frames_before_open: Frames that may wait for the peer to accept the stream.
    """

    def __init__(
        self,
        open_call: Callable[[AsyncIterator[bytes]], Any],
        peer: str,
        frames_before_open: int,
        on_removed: Callable[[int], None],
    ) -> None:
        self._open_call = open_call
        self._on_removed = on_removed
        self._peer = peer
        self._frames_before_open = frames_before_open
        self._outbox = Outbox()
        self._last_error = ""
        self.connected = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        if self.connected or len(self._outbox) < self._frames_before_open:
            self._outbox.put(frame)

    @property
    def backs_off(self) -> bool:
        return not self.connected and bool(self._last_error)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        wait_s = _RECONNECT_S
        while True:
            opened = await self._run_once()
            wait_s = _RECONNECT_S if opened else min(wait_s * 2, _RECONNECT_MAX_S)
            await asyncio.sleep(wait_s)

    async def _run_once(self) -> bool:
        """Hold one stream until it breaks; return whether the peer had accepted it."""
        call = self._open_call(self._outbox.frames())
        try:
            await call.initial_metadata()
            if call.done():
                await self._note_refusal(call)
                return False
            self.connected, self._last_error = True, ""
            logger.info("stream to %s open", self._peer)
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            self._note_error(error.code(), error.details(), error.trailing_metadata())
        finally:
            opened, self.connected = self.connected, False
            self._outbox.close()
            self._outbox = Outbox()
            call.cancel()
        return opened

    async def _note_refusal(self, call: Any) -> None:
        self._note_error(await call.code(), await call.details(), await call.trailing_metadata())

    def _note_error(self, code: grpc.StatusCode, details: str | None, metadata: Any) -> None:
        error = f"{code.name}: {details}"
        if error != self._last_error:
            logger.info("stream to %s: %s", self._peer, error)
            self._last_error = error
        removal_index = dict(metadata or ()).get(REMOVED_KEY)
        if removal_index is not None and str(removal_index).isdecimal():
            self._on_removed(int(removal_index))


class PeerLink:
    """The two streams to one member, and their channels; *encode* makes a message a frame."""

    def __init__(
        self,
        member: Member,
        address: str,
        events: PeerEvents,
        encode: Callable[[Message], bytes] = peer_codec.encode,
    ) -> None:
        self.member = member
        self.address = address
        self._events = events
        self._encode = encode
        self._control_channel, self._data_channel = _dial(address), _dial(address)
        self._control = self._stream(self._control_channel, "Control", _MAX_FRAMES_BEFORE_OPEN)
        self._data = self._stream(self._data_channel, "Data", 0)

    @property
    def connected(self) -> bool:
        """Whether messages can leave now."""
        return self._control.connected

    @property
    def backs_off(self) -> bool:
        """Whether the peer could not be reached, and is tried again only after a while."""
        return self._control.backs_off

    def send(self, message: Message) -> None:
        """Send a message, or drop it while the peer is away."""
        stream = (
            self._data
            if isinstance(message, AppendRequest | InstallSnapshotRequest)
            else self._control
        )
        stream.send(self._encode(message))

    async def ask(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Call a unary method of the peer's port.

        Raises:
            Unavailable: There was no answer.
        """
        call = self._data_channel.unary_unary(method)
        try:
            return bytes(await call(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{self.member.name}: {error.details()}") from error

    async def close(self) -> None:
        """Close both streams and their channels."""
        await self._control.close()
        await self._data.close()
        await self._control_channel.close()
        await self._data_channel.close()

    def _stream(self, channel: grpc.aio.Channel, name: str, frames_before_open: int) -> _Stream:
        peer = f"{self.member.name} at {self.address}"
        return _Stream(self._opener(channel, name), peer, frames_before_open, self._events.removed)

    def _opener(
        self, channel: grpc.aio.Channel, stream: str
    ) -> Callable[[AsyncIterator[bytes]], Any]:
        call = channel.stream_stream(f"/{SERVICE}/{stream}")

        def open_call(frames: AsyncIterator[bytes]) -> Any:
            greeting = self._events.hello_to(self.member).encode()
            return call(frames, metadata=((METADATA_KEY, greeting),))

        return open_call


def _dial(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
