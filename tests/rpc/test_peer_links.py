"""The links between nodes: which connections there are, and when a lost one comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc.aio
import pytest

from dledger.raft.messages import Message
from dledger.rpc import peer_link
from dledger.rpc.hello import Hello, NodeAddress
from dledger.rpc.peers import Peers
from dledger.types import Member, Membership, NodeId

OPTIONS = (("grpc.so_reuseport", 0),)


class End:
    """One node's end: its links, its port, and what it is told. Implements `PeerEvents`."""

    def __init__(self, name: str) -> None:
        self.id = NodeId(name)
        self.peers = Peers(self.id, self)
        self.peers.replication.bind("127.0.0.1", 0)
        self.port = 0
        self.callers: set[str] = set()
        self._server: grpc.aio.Server | None = None

    async def listen(self) -> None:
        self._server = grpc.aio.server(options=OPTIONS, interceptors=[_Callers(self.callers)])
        self._server.add_generic_rpc_handlers((self.peers.handlers(),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    @property
    def member(self) -> Member:
        return Member(id=self.id, name=self.id, address=f"127.0.0.1:{self.port}")

    def hello_to(self, member: Member) -> Hello:
        host = "127.0.0.1"
        return Hello(
            group_id="g",
            sender_id=self.id,
            sender_name=self.id,
            recipient_id=member.id,
            endpoint=NodeAddress(
                host=host, peer_host=host, client_port=1, client_tls_port=0, peer_port=self.port
            ),
        )

    async def hello_from(self, hello: Hello) -> None:
        pass

    def receive(self, message: Message) -> None:
        pass

    def peer_disconnected(self, peer: NodeId) -> None:
        pass

    def check_sender(self, sender: NodeId) -> None:
        pass

    def removed(self, index: int) -> None:
        raise AssertionError


class _Callers(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Notes each call's method and connection."""

    def __init__(self, callers: set[str]) -> None:
        self._callers = callers

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        serve = handler.stream_stream

        async def noted(frames: Any, context: Any) -> None:
            self._callers.add(context.peer())
            await serve(frames, context)

        return grpc.stream_stream_rpc_method_handler(noted)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    """Two nodes that listen and have not met."""
    pair = (End("a"), End("b"))
    for end in pair:
        await end.peers.replication.start()
        await end.listen()
    yield pair
    for end in pair:
        await end.peers.close()
        await end.stop()


async def _until(probe: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not probe():  # noqa: ASYNC110 - gRPC gives no event for what is waited for
            await asyncio.sleep(0.01)


async def test_votes_do_not_share_a_connection_with_batches(ends: tuple[End, End]) -> None:
    """Two streams of one connection would share its socket's buffer."""
    one, other = ends

    one.peers.connect(Membership.of([other.member]))

    await _until(lambda: bool(other.peers.replication._connections))
    assert len(other.callers) == 1


async def test_a_peer_that_comes_back_is_called_at_once(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own greeting says that it is there: no back-off is waited for."""
    monkeypatch.setattr(peer_link, "_RECONNECT_S", 3600.0)
    monkeypatch.setattr(peer_link, "_RECONNECT_MAX_S", 3600.0)
    one, other = ends
    await other.stop()
    one.peers.connect(Membership.of([other.member]))
    await _until(lambda: one.peers._links[other.id].backs_off)

    await other.listen()
    other.peers.connect(Membership.of([one.member]))

    await _until(lambda: one.peers.connected(other.id))


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

    await _until(lambda: one.peers.connected(other.id))

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
