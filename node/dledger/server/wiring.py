"""Builds what serves clients at one node, and says what each of its ports has of that.

The one place where parts meet: they get each other here, and nobody reaches through the whole. What
runs behind them is `server.client_tasks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import grpc

from dledger.broker.topics import TYPES
from dledger.calls.admission import PEER_SHARES, AdmissionControl
from dledger.calls.grpc_server import by_grpc
from dledger.calls.pipeline import Pipeline
from dledger.calls.rules import Rule
from dledger.calls.service import Service
from dledger.common.metrics import NodeMetrics
from dledger.link.leader_link import LeaderLinks
from dledger.requests.config import RequestConfig
from dledger.requests.context import RequestContext
from dledger.requests.current_state import catch_up
from dledger.requests.engine import Engine
from dledger.requests.forward import Dial, Relay
from dledger.requests.leader_locality import LeaderLocality
from dledger.requests.outflow import Outflow
from dledger.requests.production import Production
from dledger.requests.queue_followers import QueueFollowers
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.unpacking import Unpacking
from dledger.requests.unreadable import UnreadableMessages
from dledger.rocketmq.acking import Acker
from dledger.rocketmq.client_registry import ClientRegistry, passed_on_handler
from dledger.rocketmq.dead_letters import DeadLetters
from dledger.rocketmq.filter_watch import FilterWatch
from dledger.rocketmq.half_checks import AskPeer, HalfChecks, ask_producers_handler, nobody
from dledger.rocketmq.long_polls import LongPollQueue
from dledger.rocketmq.messaging import MessagingHandlers, MessagingParts
from dledger.rocketmq.offsets import Offsets
from dledger.rocketmq.polls import HeldPolls
from dledger.rocketmq.producers import Producers
from dledger.rocketmq.pulling import Puller
from dledger.rocketmq.recalling import Recaller
from dledger.rocketmq.receiving import Receiver
from dledger.rocketmq.routes import Router
from dledger.rocketmq.sending import Sender
from dledger.rocketmq.telemetry import CURRENT_S, Subscribed, Telemetry
from dledger.rocketmq.transactions import TransactionEnds
from dledger.rocketmq.waiting_room import WaitingRoom
from dledger.rpc.peer_tls import PeerChannel, PeerTls
from dledger.services.ledger import LedgerHandlers
from dledger.services.topics import TopicsHandlers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientParts:
    """What serves clients: one of each per node, shared by its ports.

    Attributes:
        context: What all services share.
        messaging: What serves the methods of RocketMQ.
        turns: Its long polls.
        filters: Whose filters wait for others, and what ended.
    """

    context: RequestContext
    messaging: MessagingParts
    turns: LongPollQueue
    filters: FilterWatch


def wire(
    engine: Engine,
    config: RequestConfig,
    links: LeaderLinks,
    metrics: NodeMetrics,
    peer_tls: PeerTls | None = None,
    *,
    dial: Dial = PeerChannel,
    ask: AskPeer = nobody,
) -> ClientParts:
    """Build the parts; nothing of them runs yet.

    Args:
        engine: The node.
        config: Settings of the client protocol.
        links: The links to leaders.
        metrics: Where responses are counted.
        peer_tls: The certificates for calls to peers; None: plain text.
        dial: As of `Relay`.
        ask: Calls a method of another member, beside what is forwarded.
    """
    context = RequestContext(
        engine=engine,
        config=config,
        metrics=metrics,
        relay=Relay(engine, links, peer_tls, metrics.forwarded, dial=dial),
        admission=AdmissionControl(),
        peer_intake=AdmissionControl(shares=PEER_SHARES),
        produce_intake=AdmissionControl(),
        production=Production(),
        outflow=Outflow(),
        resolver=TopicResolver(engine, config),
        queue_followers=QueueFollowers(),
        locality=LeaderLocality(engine.node_id),
        broken=UnreadableMessages(engine.group, metrics.broken_messages),
        unpacking=Unpacking(),
        rules=rules(),
    )
    turns = LongPollQueue(engine)
    return ClientParts(
        context=context,
        messaging=_messaging_parts(context, turns, ask),
        turns=turns,
        filters=FilterWatch(engine, metrics),
    )


def rules() -> list[Rule]:
    """Return what each request is asked, at each port: a line for each rule."""
    return []


def _messaging_parts(context: RequestContext, turns: LongPollQueue, ask: AskPeer) -> MessagingParts:
    engine, resolver, metrics = context.engine, context.resolver, context.metrics
    producers = Producers()
    telemetry = Telemetry(
        context.admission,
        context.outflow,
        partial(_subscription_of, engine),
        lambda caller: catch_up(engine, context.relay, caller, CURRENT_S),
    )
    clients = ClientRegistry(engine)
    dead_letters = DeadLetters(
        engine, clients.arrivals, broken=context.broken, metrics=context.metrics
    )
    return MessagingParts(
        router=Router(engine, resolver, context.config),
        clients=clients,
        sender=Sender(
            engine,
            resolver,
            metrics.message_id_conflicts,
            unpacking=context.unpacking,
            producers=producers,
        ),
        acker=Acker(engine, clients.arrivals),
        receiver=Receiver(
            engine,
            resolver,
            turns,
            clients,
            metrics,
            broken=context.broken,
            outflow=context.outflow,
            unpacking=context.unpacking,
            dead_letters=dead_letters,
        ),
        dead_letters=dead_letters,
        recaller=Recaller(engine),
        ends=TransactionEnds(engine, producers, metrics),
        checks=HalfChecks(engine, telemetry, producers, metrics, ask=ask),
        telemetry=telemetry,
        offsets=Offsets(engine, resolver),
        puller=Puller(
            engine,
            resolver,
            context.queue_followers,
            broken=context.broken,
            outflow=context.outflow,
            unpacking=context.unpacking,
        ),
        polls=HeldPolls(),
        room=WaitingRoom(engine),
    )


def _subscription_of(engine: Engine, group: str, topics: Sequence[str]) -> Subscribed:
    """Return what a consumer group has for topics, as this node knows them now."""
    groups, known = engine.state.groups, engine.state.topics
    found = [topic for name in topics if (topic := known.get(name)) is not None]
    ordered = [topic.name for topic in found if TYPES[topic.type].in_order]
    return Subscribed(groups.retries(group, ordered[0] if ordered else ""), bool(ordered))


def services_of(
    parts: ClientParts, *, tls: bool = False, peer_port: bool = False
) -> Sequence[Service]:
    """Return what one port serves of clients' methods.

    Args:
        parts: The node's.
        tls: The port uses TLS: routes requested through it name the TLS ports.
        peer_port: The port is for peers: client requests through it were forwarded.
    """
    context = parts.context
    return (
        _messaging(parts, tls=tls, peer_port=peer_port).service(),
        LedgerHandlers(context, tls=tls, peer_port=peer_port).service(),
        TopicsHandlers(context, tls=tls, peer_port=peer_port).service(),
    )


def forwarded_services_of(parts: ClientParts) -> Sequence[grpc.GenericRpcHandler]:
    """Return what the peer port serves of them, by gRPC's server."""
    forwarded = map(by_grpc, services_of(parts, peer_port=True))
    messaging = parts.messaging
    return (
        *forwarded,
        passed_on_handler(messaging.clients),
        ask_producers_handler(messaging.telemetry),
    )


def door_pipeline_of(parts: ClientParts) -> Pipeline:
    """Return the way of what door processes send in batches."""
    return _messaging(parts, tls=False, peer_port=False).pipeline


def _messaging(parts: ClientParts, *, tls: bool, peer_port: bool) -> MessagingHandlers:
    return MessagingHandlers(parts.context, parts.messaging, tls=tls, peer_port=peer_port)
