"""The links between nodes: which connections there are, and when a lost one comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import grpc.aio
import pytest

from dledger.common.features import FEATURES, Features, MemberLevels
from dledger.errors import DledgerError, LeftOut, MemberRemoved, NewerCommand
from dledger.peers import frame_stream, peer_link
from dledger.peers import peers as peers_module
from dledger.peers.handshake import ClientAddress, Handshake, PeerAddress
from dledger.peers.outbox import Outbox
from dledger.peers.peer_codec import encode
from dledger.peers.peers import Peers
from dledger.raft.messages import AppendRequest, Message, VoteResponse
from dledger.types import Entry, EntryKind, Member, Membership, NodeId
from tests.waiting import eventually

OPTIONS = (("grpc.so_reuseport", 0),)


class End:
    """One node's end: its links, its port, and what it is told. Implements `PeerEvents`."""

    def __init__(self, name: str, features: Features = FEATURES) -> None:
        self.id = NodeId(name)
        self.features = features
        clients = ClientAddress(host="127.0.0.1", port=ord(name), tls_port=0)
        self.peers = Peers(self.id, self, MemberLevels(self.id, features), clients=clients)
        self.peers.replication.bind("127.0.0.1", 0)
        self.port = 0
        self.callers: set[str] = set()
        self.received: list[Message] = []
        self.control_frames: list[bytes] = []
        self.refuses: NodeId | None = None
        self.refusal: DledgerError | None = None
        self.known: dict[NodeId, Member] = {}
        self.removed_by: list[int] = []
        self.left_out_by: list[tuple[int, int]] = []
        self.outdated_by: list[NewerCommand] = []
        self._server: grpc.aio.Server | None = None

    async def listen(self) -> None:
        self._server = grpc.aio.server(options=OPTIONS, interceptors=[_Observed(self)])
        self._server.add_generic_rpc_handlers((self.peers.handlers(),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    @property
    def member(self) -> Member:
        return Member(id=self.id, name=self.id, address=f"127.0.0.1:{self.port}")

    def handshake_to(self, member: Member) -> Handshake:
        host = "127.0.0.1"
        return Handshake(
            group_id="g",
            sender_id=self.id,
            sender_name=self.id,
            recipient_id=member.id,
            endpoint=PeerAddress(host=host, port=self.port),
            feature_level=self.features.level,
        )

    async def handshake_from(self, handshake: Handshake) -> Member | None:
        if self.refusal is not None:
            raise self.refusal
        return self.known.get(handshake.sender_id)

    def receive(self, message: Message) -> None:
        self.received.append(message)

    def peer_disconnected(self, peer: NodeId) -> None:
        pass

    def check_sender(self, sender: NodeId) -> None:
        if sender == self.refuses:
            raise MemberRemoved(sender, group_id="g", index=7)

    def removed(self, index: int, epoch: int) -> None:
        del epoch
        self.removed_by.append(index)

    def left_out(self, epoch: int, index: int) -> None:
        self.left_out_by.append((epoch, index))

    def outdated(self, error: NewerCommand) -> None:
        self.outdated_by.append(error)


class _Observed(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Notes each gRPC stream's connection and frames."""

    def __init__(self, end: End) -> None:
        self._end = end

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        serve = handler.stream_stream

        async def noted(frames: Any, context: Any) -> None:
            self._end.callers.add(context.peer())
            await serve(self._noted(frames), context)

        return grpc.stream_stream_rpc_method_handler(noted)

    async def _noted(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for frame in frames:
            self._end.control_frames.append(frame)
            yield frame


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    """Two nodes that listen and have not met; the first one's version is newer."""
    pair = (End("a", replace(FEATURES, level=5)), End("b"))
    for end in pair:
        await end.peers.replication.start()
        await end.listen()
    yield pair
    for end in pair:
        await end.peers.close()
        await end.stop()


async def _meet(one: End, other: End) -> None:
    """Connect both ways, and wait until everything is there."""
    one.peers.connect(Membership.of([other.member]))
    other.peers.connect(Membership.of([one.member]))
    await eventually(lambda: all((*_tcp(one, other), *_tcp(other, one))))


def _tcp(one: End, other: End) -> tuple[bool, bool]:
    """Return whether replication and control can leave *one* for *other* by TCP."""
    link = one.peers._links[other.id]
    return link._replication.connected, link._control.connected


def _vote(sender: End, recipient: End, *, term: int) -> Message:
    return VoteResponse(sender=sender.id, recipient=recipient.id, term=term, granted=True)


async def test_votes_do_not_share_a_connection_with_batches(ends: tuple[End, End]) -> None:
    """Two streams of one connection would share its socket's buffer."""
    one, other = ends

    one.peers.connect(Membership.of([other.member]))

    await eventually(lambda: len(other.peers.replication._connections) == 2)
    assert len(other.callers) == 1


async def test_what_is_sent_before_there_is_a_connection_takes_the_control_stream(
    ends: tuple[End, End],
) -> None:
    """A group's first election does not wait for one more round trip."""
    one, other = ends
    one.peers.connect(Membership.of([other.member]))

    one.peers.send(_vote(one, other, term=1))

    await eventually(lambda: bool(other.received))
    assert len(other.control_frames) == 1


async def test_votes_take_tcp_once_it_is_there(ends: tuple[End, End]) -> None:
    """A gRPC message costs ten times as much at either end, and heartbeats never end (ADR 13)."""
    one, other = ends
    await _meet(one, other)

    one.peers.send(_vote(one, other, term=1))

    await eventually(lambda: bool(other.received))
    assert other.received == [_vote(one, other, term=1)]
    assert not other.control_frames


async def test_votes_take_the_control_stream_while_tcp_is_away(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may vote does not hang on the cheaper way."""
    monkeypatch.setattr(frame_stream, "_RETRY_S", 3600.0)
    monkeypatch.setattr(frame_stream, "_RETRY_MAX_S", 3600.0)
    one, other = ends
    await _meet(one, other)
    for connection in tuple(other.peers.replication._connections):
        connection.end()
    await eventually(lambda: not any(_tcp(one, other)))

    one.peers.send(_vote(one, other, term=2))

    await eventually(lambda: bool(other.received))
    assert len(other.control_frames) == 1


async def test_a_removed_member_that_votes_by_tcp_is_told_why_nobody_hears_it(
    ends: tuple[End, End],
) -> None:
    """Its connections are ended; what it sends meanwhile takes the stream that can answer."""
    one, other = ends
    await _meet(one, other)
    other.peers.connect(Membership.of([other.member]))
    other.refuses = one.id

    async with asyncio.timeout(20):
        while not one.removed_by:
            one.peers.send(_vote(one, other, term=3))
            await asyncio.sleep(0.05)

    assert set(one.removed_by) == {7}
    assert not other.received


async def test_a_caller_that_is_refused_is_told_the_epoch_of_the_group(
    ends: tuple[End, End],
) -> None:
    """It finds in its own log whether it was left out: who refuses cannot know that."""
    one, other = ends
    other.refusal = LeftOut("no member", epoch=2, index=9)

    one.peers.connect(Membership.of([other.member]))

    await eventually(lambda: bool(one.left_out_by))
    assert set(one.left_out_by) == {(2, 9)}
    assert not one.removed_by


async def test_both_ends_learn_the_others_feature_level(ends: tuple[End, End]) -> None:
    """The caller from the answer, the called from the handshake: one connection tells both."""
    one, other = ends
    assert one.peers.levels.get(other.id) is None

    one.peers.connect(Membership.of([other.member]))

    await eventually(lambda: one.peers.levels.get(other.id) == FEATURES.level)
    assert other.peers.levels.get(one.id) == 5


async def test_a_message_that_only_a_newer_version_knows_costs_no_connection(
    ends: tuple[End, End], caplog: pytest.LogCaptureFixture
) -> None:
    """It is dropped, as if lost, and said once; what follows on the same stream arrives."""
    one, other = ends
    await _meet(one, other)
    control = one.peers._links[other.id]._control
    unknown = bytes([99]) + encode(_vote(one, other, term=1))[1:]

    for frame in (unknown, unknown, encode(_vote(one, other, term=2))):
        control.send(frame)

    await eventually(lambda: bool(other.received))
    assert other.received == [_vote(one, other, term=2)]
    assert control.connected
    assert len([each for each in caplog.messages if "type 99" in each]) == 1


async def test_an_entry_that_consensus_does_not_know_stops_the_node(ends: tuple[End, End]) -> None:
    """It is told why, and takes nothing of the message."""
    one, other = ends
    await _meet(one, other)
    odd = Entry(term=1, index=1, kind=cast("EntryKind", 9), timestamp_ms=0, crc32c=0, data=b"")

    one.peers.send(
        AppendRequest(
            sender=one.id,
            recipient=other.id,
            term=1,
            previous_index=0,
            previous_term=0,
            previous_chain=0,
            last_chain=0,
            commit_index=0,
            entries=(odd,),
        )
    )

    await eventually(lambda: bool(other.outdated_by))
    assert "an entry of type 9" in str(other.outdated_by[0])
    assert not other.received


async def test_a_peer_that_comes_back_is_called_at_once(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own handshake says that it is there: no back-off is waited for."""
    monkeypatch.setattr(peer_link, "_RECONNECT_S", 3600.0)
    monkeypatch.setattr(peer_link, "_RECONNECT_MAX_S", 3600.0)
    one, other = ends
    await other.stop()
    one.peers.connect(Membership.of([other.member]))
    await eventually(lambda: one.peers._links[other.id].backs_off)

    await other.listen()
    other.peers.connect(Membership.of([one.member]))

    await eventually(lambda: one.peers.connected(other.id))


async def test_a_peer_that_is_slow_to_accept_is_waited_for(ends: tuple[End, End]) -> None:
    """On a starved machine half a second is not enough, and each new attempt would add to it."""
    one, other = ends
    connections: list[asyncio.Task[None]] = []

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(cast("asyncio.Task[None]", asyncio.current_task()))
        await asyncio.sleep(0.8)
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", other.port)
        await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))

    server = await asyncio.start_server(slowly, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    one.peers.connect(
        Membership.of([Member(id=other.id, name=other.id, address=f"127.0.0.1:{port}")])
    )

    await eventually(lambda: one.peers.connected(other.id))

    assert len(connections) == 1
    server.close()
    await one.peers.close()
    for connection in connections:
        connection.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)


async def test_a_stream_that_cancels_itself_is_opened_again(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of gRPC do that when they cannot send; a peer is not given up for it."""
    one, other = ends
    frames, opened, fails = Outbox.frames, list[object](), asyncio.Event()

    async def fails_at_first(outbox: Outbox) -> AsyncIterator[bytes]:
        opened.append(outbox)
        if len(opened) == 1:
            await fails.wait()
            raise grpc.aio.InternalError("cannot send")
        async for frame in frames(outbox):
            yield frame

    monkeypatch.setattr(Outbox, "frames", fails_at_first)
    await _meet(one, other)
    assert len(opened) == 2

    fails.set()

    await eventually(lambda: len(opened) == 3 and all((*_tcp(one, other), *_tcp(other, one))))


# Addresses


@pytest.mark.found
async def test_a_handshake_changes_no_members_address(ends: tuple[End, End]) -> None:
    """Where a member is, and where clients reach it, is not the word of who calls (found: S8a)."""
    one, other = ends
    await _meet(one, other)
    link = one.peers._links[other.id]
    handshake = replace(
        other.handshake_to(one.member), endpoint=PeerAddress(host="127.0.0.66", port=1)
    )

    one.peers._heard_from(handshake, other.member)

    assert one.peers._links[other.id] is link
    assert one.peers.address(other.member) == f"127.0.0.1:{other.port}"
    assert one.peers.endpoints == {
        other.id: ClientAddress(host="127.0.0.1", port=ord("b"), tls_port=0)
    }


async def test_what_a_node_tells_counts_where_its_membership_has_it(
    ends: tuple[End, End],
) -> None:
    """A node that knows no member answers where the handshake says; its routes wait for more."""
    one, other = ends
    one.peers._heard_from(other.handshake_to(one.member), None)
    await eventually(lambda: one.peers.connected(other.id))
    assert one.peers.endpoints == {}

    one.peers.connect(Membership.of([other.member]))

    assert one.peers.endpoints[other.id].port == ord("b")


async def test_a_link_to_where_a_handshake_pointed_gives_way_to_the_membership(
    ends: tuple[End, End],
) -> None:
    """Though it is up."""
    one, other = ends
    one.peers._heard_from(other.handshake_to(one.member), None)
    await eventually(lambda: one.peers.connected(other.id))
    moved = replace(other.member, address=f"localhost:{other.port}")

    one.peers.connect(Membership.of([moved]))

    assert one.peers._links[other.id].address == moved.address
    await eventually(lambda: one.peers.connected(other.id))


async def test_a_link_to_who_is_no_member_is_kept_while_that_is_heard(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lead, by an entry that is still to come, and waits for acks meanwhile (ADR 21)."""
    monkeypatch.setattr(peers_module, "_FORMER_S", 0.02)
    one, other = ends
    other.peers.connect(Membership.of([one.member]))
    await eventually(lambda: one.peers.connected(other.id))

    one.peers.connect(Membership.of([one.member]))

    farewell = one.peers._farewells[other.id]
    await eventually(lambda: one.peers._farewells.get(other.id) is not farewell)
    assert one.peers.connected(other.id)
    one.refuses = other.id
    await eventually(lambda: other.id not in one.peers._links)


async def test_a_link_to_who_is_no_member_goes_when_nothing_of_it_is_here(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that was removed hears of it, and no longer."""
    monkeypatch.setattr(peers_module, "_FORMER_S", 0.02)
    one, other = ends
    one.peers.connect(Membership.of([other.member]))
    await eventually(lambda: one.peers.connected(other.id))

    one.peers.connect(Membership.of([one.member]))

    await eventually(lambda: other.id not in one.peers._links)
