"""Telemetry of simulated nodes: which producer can be asked where about its transactions.

A producer has one stream, to a node that it has chosen; it ends with that node's life, and the
producer opens the next when it sends again, or after a while. The shipped loop (`half_checks`) asks
by these, at its own node, or at another through a call that the network carries or loses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from dledger.common.metrics import NodeMetrics
from dledger.errors import Unavailable
from dledger.peers.handshake import ClientAddress
from dledger.rocketmq.half_checks import HalfChecks
from dledger.rocketmq.producers import Producers
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import NodeId
from dledger_sim.loop import MS, S
from dledger_sim.process import Process, engine_of

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

_METRICS: Final = NodeMetrics("simulated", "streams")
_NEXT_CHECK_MS: Final = 2_000
_OPENED_US: Final = 2 * S


class Streams:
    """All of a run.

    Attributes:
        hear: Gets each question that arrives, and whom it was for.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("streams")
        self._at: dict[str, tuple[NodeId, int]] = {}
        self.hear: Callable[[bytes, str], None] = lambda *_: None

    def connect(self, client: str) -> None:
        """Open a producer's stream, unless it has one, and from now on whenever it breaks."""
        if client not in self._at:
            self._connect(client)

    def _connect(self, client: str) -> None:
        if not self._is_open(client) and (up := self._cluster.up()):
            node = self._rng.choice(up)
            self._at[client] = (node.id, node.lives)
        self._cluster.clock.after(_OPENED_US, lambda: self._connect(client))

    def _is_open(self, client: str) -> bool:
        node_id, life = self._at.get(client, ("", 0))
        process = self._cluster.processes.get(NodeId(node_id))
        return process is not None and process.is_up and process.lives == life

    def ask(self, node: NodeId, request: pb.AskProducersRequest) -> int:
        """Ask one producer of those with a stream at a node; return how many that are."""
        here = [each for each, (at, _) in self._at.items() if at == node and self._is_open(each)]
        named = [each for each in request.client_ids if each in here]
        others = [each for each in here if each not in named and each != request.but_not]
        if not (able := [*named, *(others if request.others else ())]):
            return 0
        delay_us = self._rng.randint(1, 50 * MS)
        self._cluster.clock.after(delay_us, lambda: self.hear(request.command, able[0]))
        return 1

    def checks(self, process: Process) -> HalfChecks:
        """Return what asks producers while a process leads."""
        links, others = self._cluster.links, self._cluster.processes
        peers = SimpleNamespace(
            endpoints={each: ClientAddress(host=each, port=0, tls_port=0) for each in others},
            connected=lambda node: links.talks(process.id, node),
        )
        found = HalfChecks(
            engine_of(process, cast("Any", peers)),
            cast("Any", _Telemetry(self, process.id)),
            Producers(),
            _METRICS,
            ask=lambda node, _, raw, timeout_s: self._ask_peer(process, node, raw, timeout_s),
            after_ms=lambda _: _NEXT_CHECK_MS,
        )

        def wake() -> None:
            if process.state.broker.held.halves:
                found.wake()

        process.driver.on_applied(wake, lambda: False)
        return found

    async def _ask_peer(
        self, process: Process, node: NodeId, raw: bytes, timeout_s: float
    ) -> bytes:
        """Ask at another node, as far as the network lets one."""
        await asyncio.sleep(self._rng.randint(1, 50 * MS) / S)
        other = self._cluster.processes.get(node)
        if other is None or not other.is_up or not self._cluster.links.talks(process.id, node):
            await asyncio.sleep(timeout_s)
            raise Unavailable(f"no link to {node}")
        asked = self.ask(node, pb.AskProducersRequest.FromString(raw))
        return pb.AskProducersResponse(asked=asked).SerializeToString()


class _Telemetry:
    """The part of a node's `Telemetry` that questions go through."""

    def __init__(self, streams: Streams, node: NodeId) -> None:
        self._streams, self._node = streams, node

    async def ask(
        self,
        topic: str,
        client_ids: Sequence[str],
        command: bytes,
        *,
        others: bool,
        but_not: str = "",
    ) -> int:
        """Ask one of a topic's producers here; return how many were asked."""
        request = pb.AskProducersRequest(
            topic=topic, client_ids=client_ids, command=command, others=others, but_not=but_not
        )
        return self._streams.ask(self._node, request)
