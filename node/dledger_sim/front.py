"""What clients and other nodes talk to at a running node: the shipped services, ports and links."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import grpc

from dledger.calls.rules import Ask, Leave
from dledger.calls.service import handlers_of
from dledger.common.metrics import NodeMetrics
from dledger.door.contract import BidiStream, Code, Failed, Headers, Pairs, Stream, Unary
from dledger.errors import DledgerError, FaultyEntry, RateLimited
from dledger.link.follower import RelayLinks
from dledger.link.leader import RELAY_PATH, RelayPort
from dledger.link.leader_link import LeaderLinks
from dledger.peers.handshake import ClientAddress
from dledger.peers.peers import Peers
from dledger.requests.config import RequestConfig
from dledger.requests.forward import Dial
from dledger.requests.passing_on import PASSED_ON_PATH
from dledger.rocketmq.client_registry import passed_on_handler
from dledger.rpc.peer_tls import PeerChannel
from dledger.server.client_tasks import ClientTasks
from dledger.server.engine import NodeEngine
from dledger.server.wiring import ClientParts, services_of, wire
from dledger.types import Entry, NodeId
from dledger_sim.cluster import Cluster
from dledger_sim.pipes import PlainPort
from dledger_sim.process import Process

PORT: Final = 8081
_METRICS: Final = NodeMetrics("simulated", "simulated")
_REFUSED_EVERY: Final = 40


class _Peers(Peers):
    """Other nodes, of which those are connected that the simulated network lets be."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        super().__init__(process.id, cast("Any", None))
        self._cluster, self._own = cluster, process.id
        for other in cluster.processes:
            self.endpoints[other] = _clients(other)

    def _is_connected(self, node_id: NodeId) -> bool:
        """Whether messages get there and back."""
        other = self._cluster.processes.get(node_id)
        return other is not None and other.is_up and self._cluster.links.talks(self._own, node_id)

    connected = _is_connected


class _Engine(NodeEngine):
    """The shipped one, over a disk of which an entry cannot be read at times.

    Attributes:
        is_faulty: Whether the next entry is one.
    """

    is_faulty: Callable[[], bool] = staticmethod(lambda: False)

    async def read_entry(self, index: int) -> Entry:
        """Return a committed entry; raises as the shipped one."""
        if self.is_faulty():
            raise FaultyEntry(index)
        return await super().read_entry(index)


def _clients(node: NodeId) -> ClientAddress:
    return ClientAddress(host=node, port=PORT, tls_port=0)


def wire_process(
    cluster: Cluster,
    process: Process,
    config: RequestConfig,
    *,
    links: LeaderLinks,
    dial: Dial = PeerChannel,
    is_faulty: Callable[[], bool] = lambda: False,
) -> ClientParts:
    """Build what clients talk to at a running process; *is_faulty*: as of its engine."""
    engine = _Engine(
        group="simulated",
        name=process.member.name,
        node_id=process.id,
        state=process.state.broker,
        peers=_Peers(cluster, process),
        clients=_clients(process.id),
    )
    engine.is_faulty = is_faulty
    engine.attach(process.driver)
    return wire(engine, config, links, metrics=_METRICS, dial=dial)


class Shares:
    """A rule that lets each request have a share until it is over, and refuses some of them.

    Attributes:
        held: How many shares are out.
    """

    def __init__(self) -> None:
        self.held = 0
        self._asked = 0

    def admit(self, ask: Ask) -> Leave | None:
        """Give a share. Raises RateLimited now and then."""
        self._asked += 1
        is_call = ask.calls == 1 and ask.messages  # a batch of a stream has none
        if is_call and not ask.again and self._asked % _REFUSED_EVERY == 0:
            raise RateLimited(f"the simulator refuses {ask.method}")
        self.held += 1
        return self._give_back

    def _give_back(self) -> None:
        self.held -= 1

    def _note_refusal(self, ask: Ask, error: DledgerError) -> None:
        """Take note of nothing."""

    refused = _note_refusal


class Front:
    """One life of a process, as seen from outside.

    Attributes:
        parts: What serves clients and followers.
        tasks: What runs behind that.
        port: Where followers' links come in.
        shares: The rule that each request passes; None: there is none.
    """

    def __init__(
        self,
        cluster: Cluster,
        process: Process,
        config: RequestConfig,
        dial: Dial,
        broken: Callable[[str], None],
        *,
        is_faulty: Callable[[], bool],
        has_rule: bool,
    ) -> None:
        self._broken = broken
        links = RelayLinks(lambda address, port: (address.rpartition(":")[0], port), None)
        self.parts = wire_process(
            cluster, process, config, links=links, dial=dial, is_faulty=is_faulty
        )
        self.tasks = ClientTasks(self.parts)
        self.shares = Shares() if has_rule else None
        if self.shares is not None:
            self.parts.context.rules.append(self.shares)
        clients, members = (
            handlers_of(services_of(self.parts, peer_port=peer_port)) for peer_port in (False, True)
        )
        self._handlers = {False: clients, True: members}
        self.port = PlainPort()
        self._by_grpc = {
            RELAY_PATH: RelayPort(members, self.port).handler(),
            PASSED_ON_PATH: passed_on_handler(self.parts.messaging.clients),
        }

    @property
    def shares_out(self) -> int:
        """How many shares of the rule are out."""
        return self.shares.held if self.shares is not None else 0

    async def serve(self, path: str, headers: Headers, stream: Stream, *, of_member: bool) -> None:
        """Serve a call of a client, or of a member at the port for these. Raises Failed."""
        if of_member and path in self._by_grpc:
            await _serve_by_grpc(self._by_grpc[path], path, headers, stream)
            return
        handler = self._handlers[of_member][path]
        if isinstance(handler, BidiStream):
            await handler.serve(headers, stream)
        else:
            await self._unary(path, handler, headers, stream)

    async def _unary(self, path: str, handler: Unary, headers: Headers, stream: Stream) -> None:
        """Serve a call of one message, which is answered once."""
        request = await stream.read()
        answered: asyncio.Future[bytes | Failed] = asyncio.get_running_loop().create_future()
        told: list[bytes | Failed] = []

        def settle(outcome: bytes | Failed) -> None:
            told.append(outcome)
            if len(told) > 1:
                self._broken(f"{path} is answered twice: {told}")
            if not answered.done():
                answered.set_result(outcome)

        def fail(code: Code, message: str, trailers: Pairs = ()) -> None:
            settle(Failed(code, message, trailers))

        give_up = handler.serve(headers, request or b"", settle, fail)
        try:
            outcome = await answered
        except asyncio.CancelledError:
            if give_up is not None and not told:
                give_up()
            raise
        if isinstance(outcome, Failed):
            raise outcome
        await stream.send(outcome)


class _Details:
    """What gRPC tells of a call before it begins."""

    def __init__(self, path: str, headers: Headers) -> None:
        self.method = path
        self.invocation_metadata = tuple(
            (name.decode(), value.decode()) for name, value in headers.pairs
        )


class _Context:
    """The part of gRPC's context that our own handlers on the peer port ask for."""

    def __init__(self, details: _Details, headers: Headers, stream: Stream) -> None:
        self._details, self._headers = details, headers
        self.write = stream.send

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._details.invocation_metadata

    def peer(self) -> str:
        return self._headers.peer

    def auth_context(self) -> dict[str, Any]:
        return {}

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Failed(Code(code.value[0]), details)


async def _serve_by_grpc(
    service: grpc.GenericRpcHandler, path: str, headers: Headers, stream: Stream
) -> None:
    details = _Details(path, headers)
    handler: Any = service.service(details)
    context, request = _Context(details, headers, stream), await stream.read()
    if handler.unary_stream is not None:
        await handler.unary_stream(request, context)
    else:
        await stream.send(await handler.unary_unary(request, context))
