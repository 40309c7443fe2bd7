"""Peer streams: a link to each other member, and the ports that accept theirs.

A member is called at the address in the group's membership. What it reports about itself, such as
its client address, is trusted only as the response to such a call: an incoming call may come from
anyone. Owned by the server's node.

Frames are `peer_codec` bytes; neither gRPC nor the replication port parses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final, NoReturn

import grpc
import grpc.aio

from dledger.common.features import FEATURES, MemberLevels
from dledger.errors import (
    DledgerError,
    LeftOut,
    MemberRemoved,
    NewerCommand,
    NotMember,
    Unavailable,
)
from dledger.peers import peer_codec
from dledger.peers.handshake import METADATA_KEY, ClientAddress, Handshake
from dledger.peers.peer_link import EPOCH_KEY, REMOVED_KEY, SERVICE, PeerEvents, PeerLink
from dledger.peers.replication_port import CONNECT_TOKEN_KEY, ConnectToken, ReplicationPort
from dledger.raft.messages import Message
from dledger.rpc import callers
from dledger.rpc.metadata import by_key
from dledger.rpc.peer_tls import PeerTls
from dledger.types import Member, Membership, NodeId

logger = logging.getLogger(__name__)

_FORMER_S: Final = 10.0
"""A link to a removed member is kept for this long, so that it learns of its removal."""
_MAX_LINKS: Final = 64
"""Members, removed members, and senders not known yet; more than any group has."""


class Peers:
    """All links of a node, and the two endpoints that accept other nodes' streams."""

    def __init__(
        self,
        node_id: NodeId,
        events: PeerEvents,
        levels: MemberLevels | None = None,
        *,
        clients: ClientAddress | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        """Open no connection yet.

        Args:
            node_id: This node.
            events: Receives messages and events.
            levels: Where the peers' feature levels are recorded.
            clients: Where clients reach this node.
            tls: The certificates; None: peers speak plain text, and are believed what they say.
        """
        self._node_id = node_id
        self._tls = tls
        self._events = events
        self._encoder = peer_codec.Encoder()
        self._links: dict[NodeId, PeerLink] = {}
        self._members: dict[NodeId, Member] = {}
        self._farewells: dict[NodeId, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.endpoints: dict[NodeId, ClientAddress] = {}
        self.levels = levels or MemberLevels(node_id, FEATURES)
        self._streams: Counter[NodeId] = Counter()
        self._not_known: set[tuple[NodeId, int]] = set()
        self.replication = ReplicationPort(
            self._take,
            self._lost,
            feature_level=self.levels.own,
            clients=clients,
            tls=tls,
        )

    def connect(self, membership: Membership) -> None:
        """Keep a link to each other member, and to removed members for `_FORMER_S` longer."""
        others = {m.id: m for m in membership.members if m.id != self._node_id}
        self._members = others
        for node_id in self._links.keys() - others.keys() - self._farewells.keys():
            self._bid_farewell(node_id)
        for node_id in self._farewells.keys() & others.keys():
            self._farewells.pop(node_id).cancel()
        for member in others.values():
            self._link(member)
            self._note_clients(self._links[member.id])

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
        """Call a unary method on a peer's port, beside the streams.

        Raises:
            Unavailable: There is no link, or no answer.
        """
        link = self._links.get(node_id)
        if link is None:
            raise Unavailable(f"no link to {node_id}")
        return await link.ask(method, request, timeout_s)

    def address(self, member: Member) -> str:
        """Return the address to call a member at: the one in its membership."""
        return member.address

    def replication_address(self, address: str, port: int) -> tuple[str, int]:
        """Return the replication host and port of a peer called at *address*: its host, *port*."""
        return address.rpartition(":")[0].strip("[]"), port

    def refuse_plain(self) -> None:
        """End all connections in plain text, from peers and to them; the links connect anew."""
        self.replication.refuse_plain()
        for link in list(self._links.values()):
            if link.is_plain:
                is_former = link.member.id in self._farewells
                self._drop(link.member.id)
                if not is_former:
                    self._link(link.member)

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
        """Keep a link to *member*; replace it if the address has changed.

        Also replace it if the member has just connected (*is_here*) while the link waits for its
        backoff: its name may resolve to a new address.
        """
        address = self.address(member)
        current = self._links.get(member.id)
        if current is not None:
            if current.address == address and not (is_here and current.backs_off):
                return
            self._drop(member.id)
        self._links[member.id] = PeerLink(
            member,
            address,
            self._events,
            self._encoder.encode,
            self.replication_address,
            on_token=self._on_token,
            tls=self._tls,
        )

    def _on_token(self, link: PeerLink, connect_token: ConnectToken) -> None:
        """Record what a node reports about itself, if it answered at a member's address."""
        self.levels.told(link.member.id, connect_token.feature_level)
        self._note_clients(link)

    def _note_clients(self, link: PeerLink) -> None:
        member = self._members.get(link.member.id)
        is_its_own = member is not None and self.address(member) == link.address
        if is_its_own and link.connect_token is not None and link.connect_token.clients is not None:
            self.endpoints[link.member.id] = link.connect_token.clients

    def _bid_farewell(self, node_id: NodeId) -> None:
        self._farewells[node_id] = asyncio.get_running_loop().call_later(
            _FORMER_S, self._part, node_id
        )

    def _part(self, node_id: NodeId) -> None:
        """Close the link to a node that is no member, unless that speaks here and is heard.

        It may be the leader, by an entry that this node does not have yet: a long log, and acks
        that the leader waits for.
        """
        if self._streams[node_id] and self._is_heard(node_id):
            self._bid_farewell(node_id)
        else:
            self._drop(node_id)

    def _is_heard(self, node_id: NodeId) -> bool:
        try:
            self._events.check_sender(node_id)
        except (MemberRemoved, NotMember):
            return False
        return True

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
        """Serve one inbound control stream until it breaks; only a connect token is sent back."""
        handshake, sender = await self._handshake(context)
        self.levels.told(handshake.sender_id, handshake.feature_level)
        role = None if self._tls is None else callers.role_of_call(context, self._tls.group)
        with self.replication.admitted(handshake, role) as connect_token:
            await context.send_initial_metadata(((CONNECT_TOKEN_KEY, connect_token.encode()),))
            self._heard_from(handshake, sender)
            self._streams[handshake.sender_id] += 1
            try:
                async for frame in frames:
                    self._take(handshake, frame)
            except peer_codec.BadFrame as error:
                logger.error("stream from %r: %s", handshake.sender_name, error)
                await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
            except (MemberRemoved, NotMember, NewerCommand) as error:
                await _refuse(context, error)
            finally:
                self._lost(handshake)
                self._streams[handshake.sender_id] -= 1
                self._streams += Counter()  # drops the zero counts

    def _lost(self, handshake: Handshake) -> None:
        """Report that a connection of a node broke, unless it has another stream here.

        In that case the node reconnected before this was noticed, or one of the two streams is an
        impostor's, which shows nothing about the member.
        """
        if self._streams[handshake.sender_id] <= 1:
            self._events.peer_disconnected(handshake.sender_id)

    def _take(self, handshake: Handshake, frame: bytes | memoryview) -> None:
        """Handle a frame of either stream.

        Raises:
            BadFrame: It is not a message.
            MemberRemoved, NotMember: The sender is not a member any more.
            NewerCommand: This node must stop.
        """
        sender = handshake.sender_id
        if sender not in self._members:
            self._events.check_sender(sender)
        try:
            message = peer_codec.decode(frame, sender=sender, recipient=self._node_id)
        except peer_codec.UnknownMessage as error:
            self._drop_unknown(handshake, error)
        except NewerCommand as error:
            self._events.outdated(error)
            raise
        else:
            self._events.receive(message)

    def _drop_unknown(self, handshake: Handshake, error: peer_codec.UnknownMessage) -> None:
        """Drop a message of a newer version; logged once per sender and type."""
        key = (handshake.sender_id, error.number)
        if key not in self._not_known and len(self._not_known) < _MAX_LINKS:
            self._not_known.add(key)
            logger.warning("%r sends %s: dropped", handshake.sender_name, error)

    async def _handshake(
        self, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> tuple[Handshake, Member | None]:
        """Return the handshake, and its sender as a member if others confirm that it is one."""
        metadata = by_key(context.invocation_metadata())
        try:
            handshake = Handshake.decode(str(metadata.get(METADATA_KEY, "")))
            is_proved = self._tls is not None and await _proved(context, handshake, self._tls)
            sender = await self._events.handshake_from(handshake)
        except DledgerError as error:
            await _refuse(context, error)
        if is_proved and sender is not None and sender.name != handshake.sender_name:
            await _deny(context, f"the disk {sender.id!r} is {sender.name!r}'s")
        return handshake, sender

    def _heard_from(self, handshake: Handshake, sender: Member | None) -> None:
        """Open a link to the sender of a handshake, at its known address.

        A node that takes the sender's word uses the address in the handshake until it knows one.
        """
        current = self._links.get(handshake.sender_id)
        if current is None and len(self._links) >= _MAX_LINKS:
            logger.warning("no link to %r: too many (%d)", handshake.sender_name, len(self._links))
        elif sender is not None:
            self._link(sender, is_here=True)
        elif current is None or not current.connected:
            address = f"{handshake.endpoint.host}:{handshake.endpoint.port}"
            caller = Member(id=handshake.sender_id, name=handshake.sender_name, address=address)
            self._link(caller, is_here=True)


async def _proved(
    context: grpc.aio.ServicerContext[bytes, bytes], handshake: Handshake, tls: PeerTls
) -> bool:
    """Whether the sender has proved its name; ends a stream whose certificate is not its own.

    Without a certificate it is believed only where plain text is accepted.
    """
    role, name = callers.role_of_call(context, tls.group), handshake.sender_name
    if role is None and tls.takes_plain:
        return False
    if role != callers.member(name):
        await _deny(context, f"a certificate with the role {role!r} is not {name!r}'s")
    return True


async def _deny(context: grpc.aio.ServicerContext[bytes, bytes], reason: str) -> None:
    logger.warning("refused a stream from %s: %s", context.peer(), reason)
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)


async def _refuse(context: grpc.aio.ServicerContext[bytes, bytes], error: DledgerError) -> NoReturn:
    """End a stream; a member that was removed or left out gets the entry that did it."""
    metadata: list[tuple[str, str]] = []
    if isinstance(error, MemberRemoved | LeftOut):
        metadata.append((EPOCH_KEY, f"{error.epoch}:{error.index}"))
    if isinstance(error, MemberRemoved):
        metadata.append((REMOVED_KEY, str(error.index)))
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), tuple(metadata))
    raise AssertionError("abort returned")
