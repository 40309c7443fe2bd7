"""What the services of a node share of it, whichever protocol they speak."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.common.metrics import NodeMetrics, Requests
from dledger.requests.affinity import Affinity
from dledger.requests.arrivals import Arrivals
from dledger.requests.broken import BrokenMessages
from dledger.requests.catalog import Catalog
from dledger.requests.config import GatewayConfig
from dledger.requests.engine import Engine
from dledger.requests.forward import Relay
from dledger.requests.intake import Intake
from dledger.requests.outflow import Outflow
from dledger.requests.production import Production


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """One per node, shared by all services of its ports.

    Attributes:
        engine: The node.
        config: Settings of the client protocol.
        metrics: Where answers are counted.
        relay: The way to the leader.
        intake: The room for requests of clients.
        peer_intake: The room for what other nodes send on; clients cannot fill it.
        produce_intake: The room for messages of producers' streams.
        production: The room for their batches that are not in the log yet.
        outflow: The room for what is written to clients.
        catalog: Topics and groups by name; made where clients may make them.
        arrivals: Who waits for entries of a queue.
        affinity: Through which nodes requests come.
        broken: Messages that cannot be told.
    """

    engine: Engine
    config: GatewayConfig
    metrics: NodeMetrics
    relay: Relay
    intake: Intake
    peer_intake: Intake
    produce_intake: Intake
    production: Production
    outflow: Outflow
    catalog: Catalog
    arrivals: Arrivals
    affinity: Affinity
    broken: BrokenMessages

    @property
    def requests(self) -> Requests:
        """Where answers are counted by method and code."""
        return self.metrics.requests

    def intake_of(self, *, peer_port: bool) -> Intake:
        """Return the room for what comes through such a port."""
        return self.peer_intake if peer_port else self.intake
