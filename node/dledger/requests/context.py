"""What the services of a node share of it, whichever protocol they speak."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.common.metrics import NodeMetrics, Requests
from dledger.requests.admission import AdmissionControl
from dledger.requests.config import GatewayConfig
from dledger.requests.engine import Engine
from dledger.requests.forward import Relay
from dledger.requests.leader_locality import LeaderLocality
from dledger.requests.outflow import Outflow
from dledger.requests.production import Production
from dledger.requests.queue_followers import QueueFollowers
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.unreadable import UnreadableMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """One per node, shared by all services of its ports.

    Attributes:
        engine: The node.
        config: Settings of the client protocol.
        metrics: Where answers are counted.
        relay: The way to the leader.
        admission: The room for requests of clients.
        peer_intake: The room for what other nodes send on; clients cannot fill it.
        produce_intake: The room for messages of producers' streams.
        production: The room for their batches that are not in the log yet.
        outflow: The room for what is written to clients.
        resolver: Topics and groups by name; made where clients may make them.
        queue_followers: Who waits for entries of a queue.
        locality: Through which nodes requests come.
        broken: Messages that cannot be told.
    """

    engine: Engine
    config: GatewayConfig
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

    @property
    def requests(self) -> Requests:
        """Where answers are counted by method and code."""
        return self.metrics.requests

    def intake_of(self, *, peer_port: bool) -> AdmissionControl:
        """Return the room for what comes through such a port."""
        return self.peer_intake if peer_port else self.admission
