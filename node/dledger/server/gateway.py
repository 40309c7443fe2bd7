"""The client protocol of one node: builds its parts, and the gRPC handlers of each port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from dledger.calls.admission import PEER_SHARES, AdmissionControl
from dledger.calls.grpc_server import by_grpc
from dledger.calls.pipeline import Pipeline
from dledger.calls.service import Service
from dledger.common.metrics import NodeMetrics
from dledger.link.leader_link import LeaderLinks
from dledger.requests.config import GatewayConfig
from dledger.requests.context import RequestContext
from dledger.requests.engine import Engine
from dledger.requests.forward import Dial, Relay
from dledger.requests.leader_locality import WINDOW_S, LeaderLocality
from dledger.requests.outflow import Outflow
from dledger.requests.production import Production
from dledger.requests.queue_followers import QueueFollowers
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.unpacking import Unpacking
from dledger.requests.unreadable import UnreadableMessages
from dledger.rocketmq.acking import Acker
from dledger.rocketmq.client_registry import ClientRegistry, passed_on_handler
from dledger.rocketmq.filter_watch import FilterWatch
from dledger.rocketmq.long_polls import LongPollQueue
from dledger.rocketmq.messaging import MessagingHandlers, MessagingParts
from dledger.rocketmq.polls import HeldPolls
from dledger.rocketmq.receiving import Receiver
from dledger.rocketmq.routes import Router
from dledger.rocketmq.sending import Sender
from dledger.rocketmq.telemetry import Telemetry
from dledger.rpc.peer_tls import PeerChannel, PeerTls
from dledger.services.ledger import LedgerHandlers
from dledger.services.topics import TopicsHandlers

logger = logging.getLogger(__name__)

_WATCH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that clients put on one node.

    Attributes:
        held_request_bytes: The room that requests in progress, or held through an election, take.
        waiting_polls: Consumers' long polls waiting for a message.
        telemetry_streams: Open Telemetry streams, one for each connected client.
    """

    held_request_bytes: int
    waiting_polls: int
    telemetry_streams: int


class Gateway:
    """One per node, shared by its ports.

    Life cycle: `start` before the servers; `drain` before they stop, so that waiting clients get
    their response and calls in progress can finish; `close` after they have stopped.

    Args:
        engine: The node.
        config: Settings of the client protocol.
        links: The links to leaders.
        metrics: Where responses are counted; by default in metrics that are not exported.
        peer_tls: The certificates for calls to peers; None: plain text.
        dial: As of `Relay`.
    """

    def __init__(
        self,
        engine: Engine,
        config: GatewayConfig,
        links: LeaderLinks,
        metrics: NodeMetrics | None = None,
        peer_tls: PeerTls | None = None,
        *,
        dial: Dial = PeerChannel,
    ) -> None:
        self.engine, self.config = engine, config
        self.metrics = metrics or NodeMetrics(engine.group, engine.node_id)
        self.requests = self.metrics.requests
        self.relay = Relay(engine, links, peer_tls, self.metrics.forwarded, dial=dial)
        self.outflow = Outflow()
        self.queue_followers = QueueFollowers()
        self.locality = LeaderLocality(engine.node_id)
        self.context = RequestContext(
            engine=engine,
            config=config,
            metrics=self.metrics,
            relay=self.relay,
            admission=AdmissionControl(),
            peer_intake=AdmissionControl(shares=PEER_SHARES),
            produce_intake=AdmissionControl(),
            production=Production(),
            outflow=self.outflow,
            resolver=TopicResolver(engine, config),
            queue_followers=self.queue_followers,
            locality=self.locality,
            broken=UnreadableMessages(engine.group, self.metrics.broken_messages),
            unpacking=Unpacking(),
            rules=[],  # one line for each rule that every request passes
        )
        self.turns = LongPollQueue(engine)
        self.clients = ClientRegistry(engine)
        self.filters = FilterWatch(engine, self.metrics)
        self.sender = Sender(
            engine,
            self.context.resolver,
            self.metrics.message_id_conflicts,
            unpacking=self.context.unpacking,
        )
        self.receiver = Receiver(
            engine,
            self.context.resolver,
            self.turns,
            self.clients,
            broken=self.context.broken,
            outflow=self.outflow,
            unpacking=self.context.unpacking,
        )
        self.acker = Acker(engine, self.clients.arrivals)
        self.telemetry = Telemetry(self.context.admission, self.outflow)
        self._messaging = MessagingParts(
            router=Router(engine, self.context.resolver, config),
            clients=self.clients,
            sender=self.sender,
            acker=self.acker,
            receiver=self.receiver,
            telemetry=self.telemetry,
            polls=HeldPolls(),
        )
        self._tasks: list[asyncio.Task[None]] = []
        engine.on_applied(self._applied, self._is_awaited)

    def services(self, *, tls: bool = False, peer_port: bool = False) -> Sequence[Service]:
        """Return what one port serves of clients' methods.

        Args:
            tls: The port uses TLS: routes requested through it name the TLS ports.
            peer_port: The port is for peers: client requests through it were forwarded.
        """
        messaging = MessagingHandlers(self.context, self._messaging, tls=tls, peer_port=peer_port)
        return (
            messaging.service(),
            LedgerHandlers(self.context, tls=tls, peer_port=peer_port).service(),
            TopicsHandlers(self.context, tls=tls, peer_port=peer_port).service(),
        )

    def peer_services(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return what the peer port serves of them, by gRPC's server."""
        forwarded = map(by_grpc, self.services(peer_port=True))
        return (*forwarded, passed_on_handler(self.clients))

    def door_pipeline(self) -> Pipeline:
        """Return the way of what door processes send in batches."""
        return MessagingHandlers(self.context, self._messaging, tls=False, peer_port=False).pipeline

    def load(self) -> Load:
        """Return the current load."""
        return Load(
            held_request_bytes=sum(
                admission.taken
                for admission in (
                    self.context.admission,
                    self.context.peer_intake,
                    self.context.produce_intake,
                )
            ),
            waiting_polls=len(self.queue_followers) + len(self.turns),
            telemetry_streams=len(self.telemetry),
        )

    def start(self) -> None:
        """Start the tasks behind the handlers; call on the event loop."""
        self.relay.start()
        self.clients.start()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._follow_clients())]

    def drain(self) -> None:
        """End Telemetry streams and long polls now; other calls are still served."""
        self.telemetry.close()
        self.queue_followers.close()
        self.turns.close()
        self.relay.cancel_streams()

    async def close(self) -> None:
        """Stop all tasks behind the handlers."""
        self.drain()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.clients.close()
        await self.relay.close()

    def _is_awaited(self) -> bool:
        """Whether somebody waits here for what comes into a queue."""
        return bool(len(self.queue_followers) or len(self.turns))

    def _applied(self) -> None:
        changes = self.engine.state.take_changes()
        self.context.resolver.notify(changes)
        self.queue_followers.notify(changes)
        self.turns.notify(changes)
        self.filters.notify(changes)

    async def _watch(self) -> None:
        """Wake waiting polls whenever leadership changes."""
        while True:
            await self.engine.wait_leader_change(_WATCH_S)
            if not self.engine.is_leader():
                self.queue_followers.notify_all()
                self.turns.look_again()

    async def _follow_clients(self) -> None:
        """Transfer leadership to the node that clients use, if it is another one."""
        while True:
            await asyncio.sleep(WINDOW_S)
            if not self.engine.is_leader() or not self.config.leader_follows_clients:
                self.locality.forget()
                continue
            favourite = self.locality.end_window()
            if favourite is not None and self.engine.hand_over(favourite):
                logger.info(
                    "group %s: nearly all requests come through %s: transferring leadership to it",
                    self.engine.group,
                    favourite,
                )
