"""What all client services of a node share, whichever protocol they speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.calls.admission import AdmissionControl
from dledger.calls.caller import Caller
from dledger.calls.method import Backend
from dledger.calls.pipeline import Pipeline
from dledger.calls.rules import Rule
from dledger.common.metrics import NodeMetrics
from dledger.requests.config import RequestConfig
from dledger.requests.engine import Engine
from dledger.requests.forward import Relay
from dledger.requests.leader_locality import LeaderLocality
from dledger.requests.outflow import Outflow
from dledger.requests.production import Production
from dledger.requests.queue_followers import QueueFollowers
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.unpacking import Unpacking
from dledger.requests.unreadable import UnreadableMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """One per node, built by `server.wiring` and passed to every service of its ports.

    Attributes:
        engine: The node.
        config: Settings of the client protocol.
        metrics: Where answers are counted.
        relay: Forwards requests to the leader.
        admission: The room for client requests.
        peer_intake: The room for requests forwarded by other nodes; clients cannot exhaust it.
        produce_intake: The room for messages of producers' streams.
        production: The room for their batches that are not in the log yet.
        outflow: The room for responses being written to clients.
        resolver: Finds topics and groups by name, and creates them where clients may.
        queue_followers: The readers that wait for messages of a queue.
        locality: Counts through which nodes requests arrive.
        broken: Counts messages that cannot be delivered.
        unpacking: Looks into bodies that say that they are packed.
        rules: What each request is asked, at each port.
    """

    engine: Engine
    config: RequestConfig
    metrics: NodeMetrics
    relay: Relay
    admission: AdmissionControl
    peer_intake: AdmissionControl
    produce_intake: AdmissionControl
    production: Production
    outflow: Outflow
    resolver: TopicResolver
    queue_followers: QueueFollowers
    locality: LeaderLocality
    broken: UnreadableMessages
    unpacking: Unpacking
    rules: list[Rule] = field(default_factory=list)

    def intake_of(self, *, peer_port: bool) -> AdmissionControl:
        """Return the admission control for requests through a peer port or a client port."""
        return self.peer_intake if peer_port else self.admission

    def pipeline(
        self,
        *,
        tls: bool,
        peer_port: bool,
        note: Callable[[Caller, int], None] = lambda _, __: None,
        runs_telemetry: Callable[[str, str], bool] = lambda _, __: False,
    ) -> Pipeline:
        """Return the way of requests of one service at one port; see `Pipeline`."""
        backend = Backend(
            group=self.engine.group,
            leads=self.engine.is_leader,
            forward=self.relay.begin,
            ask=self.relay.unary,
            retry=self.relay.run,
            count=self.metrics.requests.answered,
            note=note,
            runs_telemetry=runs_telemetry,
        )
        intake = self.intake_of(peer_port=peer_port)
        return Pipeline(backend, intake, self.rules, tls=tls, peer_port=peer_port)
