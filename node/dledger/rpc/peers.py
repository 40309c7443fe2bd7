"""Peer streams: a link to each other member, and the ports that take theirs.

Frames are `peer_codec` bytes; neither gRPC nor the replication port looks into them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final, NoReturn

import grpc
import grpc.aio

from dledger.errors import DledgerError, MemberRemoved, NewerCommand, Unavailable
from dledger.features import FEATURES, MemberLevels
from dledger.metadata import by_key
from dledger.raft.messages import Message
from dledger.rpc import peer_codec
from dledger.rpc.hello import METADATA_KEY, Hello, NodeAddress
from dledger.rpc.peer_link import REMOVED_KEY, SERVICE, PeerEvents, PeerLink
from dledger.rpc.replication_port import TICKET_KEY, ReplicationPort
from dledger.types import Member, Membership, NodeId

logger = logging.getLogger(__name__)

_FAREWELL_S: Final = 10.0
"""A former member hears from us so much longer, so that it learns that it is one."""
_MAX_LINKS: Final = 64
"""Members, former ones, and senders that this node does not know yet; no group has so many."""


class Peers:
    """All links of a node, and the two ends that take the other nodes' streams."""

    def __init__(
        self, node_id: NodeId, events: PeerEvents, levels: MemberLevels | None = None
    ) -> None:
        """Connect to nobody yet; what peers say of their feature level goes to *levels*."""
        self._node_id = node_id
        self._events = events
        self._encoder = peer_codec.Encoder()
        self._links: dict[NodeId, PeerLink] = {}
        self._members: frozenset[NodeId] = frozenset()
        self._farewells: dict[NodeId, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.endpoints: dict[NodeId, NodeAddress] = {}
        self.levels = levels or MemberLevels(node_id, FEATURES)
        self._not_known: set[tuple[NodeId, int]] = set()
        self.replication = ReplicationPort(
            self._take,
            lambda hello: events.peer_disconnected(hello.sender_id),
            feature_level=self.levels.own,
        )

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

    def connected_ids(self) -> list[NodeId]:
        """Return the nodes whose link is up, sorted."""
        return sorted(node_id for node_id in self._links if self.connected(node_id))

    async def ask(self, node_id: NodeId, method: str, request: bytes, timeout_s: float) -> bytes:
        """Call a unary method of a peer's port, beside the streams.

        Raises:
            Unavailable: There is no link, or no answer.
        """
        link = self._links.get(node_id)
        if link is None:
            raise Unavailable(f"no link to {node_id}")
        return await link.ask(method, request, timeout_s)

    def address(self, member: Member) -> str:
        """Return where the member was last heard from, else its configured address."""
        endpoint = self.endpoints.get(member.id)
        return f"{endpoint.peer_host}:{endpoint.peer_port}" if endpoint else member.address

    def replication_address(self, address: str, port: int) -> tuple[str, int]:
        """Return where a peer called at *address* takes replication: its host, *port*."""
        return address.rpartition(":")[0].strip("[]"), port

    async def close(self) -> None:
        """Close every link, and the replication port."""
        self.replication.close()
        for node_id in list(self._links):
            self._drop(node_id)
        await asyncio.gather(*self._closing)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service to register on the peer port's server."""
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        return grpc.method_handlers_generic_handler(SERVICE, {"Control": handler})

    def _link(self, member: Member, *, is_here: bool = False) -> None:
        """Keep a link to *member*; begin anew where its address changed.

        Also where it *is here*, while we wait before we try it again.
        """
        address = self.address(member)
        current = self._links.get(member.id)
        if current is not None:
            same = current.address == address and not (is_here and current.backs_off)
            if same or current.connected:
                return
            self._drop(member.id)
        self._links[member.id] = PeerLink(
            member,
            address,
            self._events,
            self._encoder.encode,
            self.replication_address,
            told_level=self.levels.told,
        )

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
        """Take one inbound greeted stream until it breaks; only a ticket ever flows back."""
        hello = await self._greet(context)
        self.levels.told(hello.sender_id, hello.feature_level)
        with self.replication.admitted(hello) as ticket:
            await context.send_initial_metadata(((TICKET_KEY, ticket.encode()),))
            self._heard_from(hello)
            try:
                async for frame in frames:
                    self._take(hello, frame)
            except peer_codec.BadFrame as error:
                logger.error("stream from %s: %s", hello.sender_name, error)
                await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
            except (MemberRemoved, NewerCommand) as error:
                await _refuse(context, error)
            finally:
                self._events.peer_disconnected(hello.sender_id)

    def _take(self, hello: Hello, frame: bytes | memoryview) -> None:
        """Take a frame of either stream. Raises BadFrame, MemberRemoved, NewerCommand."""
        sender = hello.sender_id
        if sender not in self._members:
            self._events.check_sender(sender)
        try:
            message = peer_codec.decode(frame, sender=sender, recipient=self._node_id)
        except peer_codec.UnknownMessage as error:
            self._drop_unknown(hello, error)
        except NewerCommand as error:
            self._events.outdated(error)
            raise
        else:
            self._events.receive(message)

    def _drop_unknown(self, hello: Hello, error: peer_codec.UnknownMessage) -> None:
        """Pass over what only a newer version says; told once a sender and type."""
        key = (hello.sender_id, error.number)
        if key not in self._not_known and len(self._not_known) < _MAX_LINKS:
            self._not_known.add(key)
            logger.warning("%s sends %s: dropped", hello.sender_name, error)

    async def _greet(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> Hello:
        metadata = by_key(context.invocation_metadata())
        try:
            hello = Hello.decode(str(metadata.get(METADATA_KEY, "")))
            await self._events.hello_from(hello)
        except DledgerError as error:
            await _refuse(context, error)
        return hello

    def _heard_from(self, hello: Hello) -> None:
        if hello.sender_id not in self._links and len(self._links) >= _MAX_LINKS:
            logger.warning("no link to %s: there are %d", hello.sender_name, len(self._links))
            return
        self.endpoints[hello.sender_id] = hello.endpoint
        address = f"{hello.endpoint.peer_host}:{hello.endpoint.peer_port}"
        member = Member(id=hello.sender_id, name=hello.sender_name, address=address)
        self._link(member, is_here=True)


async def _refuse(context: grpc.aio.ServicerContext[bytes, bytes], error: DledgerError) -> NoReturn:
    """End a stream; a former member is told by which entry it was removed."""
    metadata = ((REMOVED_KEY, str(error.index)),) if isinstance(error, MemberRemoved) else ()
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), metadata)
    raise AssertionError("abort returned")
