"""Peer streams: each node keeps one channel to each other member, with two byte streams on it.

Data (entries and snapshots) and control (everything else) travel apart, so that a heartbeat never
waits behind a batch. Frames are `peer_codec` bytes; gRPC passes them through unparsed. A stream
that breaks loses what was in it: Raft repairs that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NoReturn, Protocol

import grpc
import grpc.aio

from dledger.errors import DledgerError, MemberRemoved
from dledger.raft.messages import AppendRequest, InstallSnapshotRequest, Message
from dledger.rpc import peer_codec
from dledger.rpc.hello import METADATA_KEY, Hello, NodeAddress
from dledger.types import Member, Membership, NodeId

logger = logging.getLogger(__name__)

SERVICE: Final = "dledger.v1.Peer"
_REMOVED_KEY: Final = "dledger-removed-by"
"""Trailing metadata of a refusal: the index of the entry that removed the caller."""
_MAX_QUEUED_FRAMES: Final = 1024
_MAX_FRAMES_BEFORE_OPEN: Final = 64
_RECONNECT_S: Final = 0.1
_RECONNECT_MAX_S: Final = 1.0
_FAREWELL_S: Final = 10.0
"""A former member hears from us so much longer, so that it learns that it is one."""

CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
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


class _Outbox:
    """The frames of one stream; iterated by gRPC until closed. Bounded: the newest are dropped."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes) -> None:
        if len(self._frames) < _MAX_QUEUED_FRAMES:
            self._frames.append(frame)
            self._arrived.set()

    def close(self) -> None:
        self._closed = True
        self._arrived.set()

    async def frames(self) -> AsyncIterator[bytes]:
        while not self._closed:
            while self._frames and not self._closed:
                yield self._frames.popleft()
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
        self._outbox = _Outbox()
        self._last_error = ""
        self.connected = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, frame: bytes) -> None:
        if self.connected or len(self._outbox) < self._frames_before_open:
            self._outbox.put(frame)

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
            self._outbox = _Outbox()
            call.cancel()
        return opened

    async def _note_refusal(self, call: Any) -> None:
        self._note_error(await call.code(), await call.details(), await call.trailing_metadata())

    def _note_error(self, code: grpc.StatusCode, details: str | None, metadata: Any) -> None:
        error = f"{code.name}: {details}"
        if error != self._last_error:
            logger.info("stream to %s: %s", self._peer, error)
            self._last_error = error
        removal_index = dict(metadata or ()).get(_REMOVED_KEY)
        if removal_index is not None and str(removal_index).isdecimal():
            self._on_removed(int(removal_index))


class PeerLink:
    """The channel to one member and its two streams."""

    def __init__(self, member: Member, address: str, events: PeerEvents) -> None:
        self.member = member
        self.address = address
        self._events = events
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        peer = f"{member.name} at {address}"
        self._control = self._stream("Control", peer, _MAX_FRAMES_BEFORE_OPEN)
        self._data = self._stream("Data", peer, 0)

    @property
    def connected(self) -> bool:
        """Whether messages can leave now."""
        return self._control.connected

    def send(self, message: Message) -> None:
        """Send a message, or drop it while the peer is away."""
        stream = (
            self._data
            if isinstance(message, AppendRequest | InstallSnapshotRequest)
            else self._control
        )
        stream.send(peer_codec.encode(message))

    async def close(self) -> None:
        """Close both streams and the channel."""
        await self._control.close()
        await self._data.close()
        await self._channel.close()

    def _stream(self, name: str, peer: str, frames_before_open: int) -> _Stream:
        return _Stream(self._opener(name), peer, frames_before_open, self._events.removed)

    def _opener(self, stream: str) -> Callable[[AsyncIterator[bytes]], Any]:
        call = self._channel.stream_stream(f"/{SERVICE}/{stream}")

        def open_call(frames: AsyncIterator[bytes]) -> Any:
            greeting = self._events.hello_to(self.member).encode()
            return call(frames, metadata=((METADATA_KEY, greeting),))

        return open_call


class Peers:
    """All links of a node, and the service that takes the other nodes' streams."""

    def __init__(self, node_id: NodeId, events: PeerEvents) -> None:
        self._node_id = node_id
        self._events = events
        self._links: dict[NodeId, PeerLink] = {}
        self._members: frozenset[NodeId] = frozenset()
        self._farewells: dict[NodeId, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.endpoints: dict[NodeId, NodeAddress] = {}

    def connect(self, membership: Membership) -> None:
        """Keep a link to each member but this node; to former members for a moment longer."""
        others = {m.id: m for m in membership.members if m.id != self._node_id}
        self._members = frozenset(others)
        for node_id in self._links.keys() - others.keys() - self._farewells.keys():
            self._farewells[node_id] = asyncio.get_running_loop().call_later(
                _FAREWELL_S, self._drop, node_id
            )
        for node_id in self._farewells.keys() & others.keys():
            self._farewells.pop(node_id).cancel()
        for member in others.values():
            self._link(member)

    def send(self, message: Message) -> None:
        """Send a message to its recipient, or drop it when there is no link."""
        link = self._links.get(message.recipient)
        if link is not None:
            link.send(message)

    def connected(self, node_id: NodeId) -> bool:
        """Whether the link to a member is up."""
        link = self._links.get(node_id)
        return link is not None and link.connected

    def address(self, member: Member) -> str:
        """Return where the member was last heard from, else its configured address."""
        endpoint = self.endpoints.get(member.id)
        return f"{endpoint.peer_host}:{endpoint.peer_port}" if endpoint else member.address

    async def close(self) -> None:
        """Close every link."""
        for node_id in list(self._links):
            self._drop(node_id)
        await asyncio.gather(*self._closing)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service to register on the peer port's server."""
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        return grpc.method_handlers_generic_handler(SERVICE, {"Control": handler, "Data": handler})

    def _link(self, member: Member) -> None:
        address = self.address(member)
        current = self._links.get(member.id)
        if current is not None:
            if current.address == address or current.connected:
                return
            self._drop(member.id)
        self._links[member.id] = PeerLink(member, address, self._events)

    def _drop(self, node_id: NodeId) -> None:
        farewell = self._farewells.pop(node_id, None)
        if farewell is not None:
            farewell.cancel()
            self.endpoints.pop(node_id, None)
        task = asyncio.get_running_loop().create_task(self._links.pop(node_id).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _exchange(
        self, frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        """Take one inbound stream until it breaks; nothing ever flows back."""
        hello = await self._greet(context)
        await context.send_initial_metadata(())
        self._heard_from(hello)
        try:
            async for frame in frames:
                if hello.sender_id not in self._members:
                    self._events.check_sender(hello.sender_id)
                self._events.receive(
                    peer_codec.decode(frame, sender=hello.sender_id, recipient=self._node_id)
                )
        except peer_codec.BadFrame as error:
            logger.error("stream from %s: %s", hello.sender_name, error)
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
        except MemberRemoved as error:
            await _refuse(context, error)
        finally:
            self._events.peer_disconnected(hello.sender_id)

    async def _greet(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> Hello:
        metadata = dict(context.invocation_metadata() or ())
        try:
            hello = Hello.decode(str(metadata.get(METADATA_KEY, "")))
            await self._events.hello_from(hello)
        except DledgerError as error:
            await _refuse(context, error)
        return hello

    def _heard_from(self, hello: Hello) -> None:
        self.endpoints[hello.sender_id] = hello.endpoint
        address = f"{hello.endpoint.peer_host}:{hello.endpoint.peer_port}"
        self._link(Member(id=hello.sender_id, name=hello.sender_name, address=address))


async def _refuse(context: grpc.aio.ServicerContext[bytes, bytes], error: DledgerError) -> NoReturn:
    """End a stream; a former member is told by which entry it was removed."""
    metadata = ((_REMOVED_KEY, str(error.index)),) if isinstance(error, MemberRemoved) else ()
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), metadata)
    raise AssertionError("abort returned")
