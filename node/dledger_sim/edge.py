"""Order and once at the edge: what producers were told, against what the queues hold.

Each seed draws small bounds everywhere: the queue of commands, the uncommitted bytes, the windows
of clients and streams, the ids that are remembered; then disks that stall, leaders that change
and connections that break, and clients that take others' ids, all against the producers that we
ship. ``python -m dledger_sim --edge`` runs many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from dledger.errors import MessageIdConflict, MessageRejected, OutcomeUnknown
from dledger.requests.config import RequestConfig, StreamBounds
from dledger.server.node_report import load_of
from dledger_sim.audit import (
    audit,
    bodies_stored,
    check_order,
    is_refusal,
    numbers_stored,
    places_of,
)
from dledger_sim.callers import CALLED, CallingConsumer, CallingSender, CallOptions, group_of
from dledger_sim.checkers import ViolationError
from dledger_sim.clients import TOPIC, Maker
from dledger_sim.cluster import Cluster
from dledger_sim.deliveries import Deliveries, Place
from dledger_sim.loop import S, generators_end_unseen
from dledger_sim.nemesis import Nemesis
from dledger_sim.options import Options, draws_makes
from dledger_sim.ordered import Ordered
from dledger_sim.process import Process
from dledger_sim.senders import FIRST_STOLEN, KINDS, IdThief, Sender, SenderOptions
from dledger_sim.wire import Wire, WireOptions

_FAULTY_S = 6
_ANSWERED_S = 120
_WHOLE_S = 30
_WITH_THIEVES = 0.5
_WITH_CALLERS = 0.5
_WITH_RULE = 0.5
_TAKEN = (MessageIdConflict, MessageRejected)
"""What a sender is told of a message whose id was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOptions:
    """One run: the group, the connections, the bounds of a stream at the node, the producers."""

    group: Options
    wire: WireOptions
    streams: StreamBounds
    senders: tuple[SenderOptions, ...]
    thieves: bool = False
    calls: CallOptions | None = None

    @classmethod
    def of(cls, seed: int) -> EdgeOptions:
        """Return what a seed draws: our producers alone, or others' calls as well."""
        drawn, rng = cls.producing(seed), Random(f"{seed}/calls")
        return drawn.calling(rng) if rng.random() < _WITH_CALLERS else drawn

    @classmethod
    def producing(cls, seed: int) -> EdgeOptions:
        """Return what a seed draws for our producers."""
        drawn = cls.draw(Random(f"{seed}/edge"))
        return replace(drawn, group=replace(drawn.group, makes=draws_makes(seed)))

    def calling(self, rng: Random) -> EdgeOptions:
        """Return the same with RocketMQ's own calls, at any node.

        A connection that falls silent at once would answer none of them.
        """
        mute_s = self.wire.mute_s and max(self.wire.mute_s, 1.0)
        wire = replace(
            self.wire,
            mute_s=mute_s,
            link_break_s=rng.choice((0.0, 0.3, 2.0)),
            has_rule=rng.random() < _WITH_RULE,
        )
        group = replace(
            self.group,
            nodes=rng.choice((1, 3, 3, 3, 3, 5)),
            clock_jump_s=rng.choice((0.0, 0.0, 2.0)),
        )
        few = tuple(replace(one, messages=min(one.messages, 50)) for one in self.senders[:1])
        senders = rng.choice((few, self.senders))
        calls = CallOptions.draw(rng)
        wire = replace(wire, unread=rng.choice((0.0, 0.0, 0.1)))
        return replace(self, wire=wire, group=group, senders=senders, calls=calls)

    def without(self, *faults: str) -> EdgeOptions:
        """Return the same with some faults of the group turned off."""
        return replace(self, group=self.group.without(*faults))

    def active(self) -> tuple[str, ...]:
        """Return the names of the group's faults that may happen."""
        return self.group.active()

    @classmethod
    def draw(cls, rng: Random) -> EdgeOptions:
        """Draw one: a leader that is short of room, connections that fall silent, or anything."""
        drawn = cls._draw(rng)
        chosen = rng.choice((drawn, drawn.short_of_room(), drawn.falling_silent()))
        return replace(chosen, thieves=rng.random() < _WITH_THIEVES)

    def short_of_room(self) -> EdgeOptions:
        """Return the same with much queued where little may be uncommitted."""
        senders = tuple(
            replace(one, kind="stream", batch=1, body_bytes=500, think_us=0, max_bytes=32 << 20)
            for one in self.senders
        )
        group = replace(self.group, entry_kib=4, queue_kib=512, uncommitted_kib=1, stall=0.05)
        return replace(self, group=group, senders=senders, streams=StreamBounds())

    def falling_silent(self) -> EdgeOptions:
        """Return the same with small messages, whose answers are lost."""
        senders = tuple(
            replace(one, kind="stream", messages=400, body_bytes=20, think_us=0, max_bytes=32 << 20)
            for one in self.senders
        )
        return replace(self, wire=replace(self.wire, room=1000, mute_s=0.02), senders=senders)

    @classmethod
    def _draw(cls, rng: Random) -> EdgeOptions:
        large = rng.random() < 0.5
        remembered = rng.choice((32, 128))
        return cls(
            group=_group(rng, large=large, remembered=remembered),
            wire=WireOptions(
                delay_ms=rng.choice((1, 5, 30)),
                room=rng.choice((1, 4, 1000, 1000)),
                break_s=rng.choice((0.0, 1.0, 4.0)),
                mute_s=rng.choice((0.0, 0.02, 0.2, 2.0)),
            ),
            streams=StreamBounds(
                max_bytes=rng.choice((8, 64, 16 << 10)) << 10,
                max_batches=rng.choice((4, 64, 2_048)),
                max_messages=remembered // 2,
            ),
            senders=tuple(
                _sender(rng, large=large, remembered=remembered) for _ in range(rng.randint(1, 3))
            ),
        )


def _group(rng: Random, *, large: bool, remembered: int) -> Options:
    return Options(
        nodes=rng.choice((1, 3, 3, 3, 5)),
        segment_bytes=4 << 20,
        clients=0,
        entry_kib=4 if large else rng.choice((4, 0)),
        queue_kib=rng.choice((8, 32, 512)),
        uncommitted_kib=rng.choice((1, 8, 128)),
        remembered_ids=remembered,
        delay_ms=rng.choice((2, 10)),
        sync_ms=rng.choice((2, 10, 80)),
        straggle=rng.choice((0.0, 0.01)),
        clog_s=rng.choice((0.0, 4.0)),
        partition_s=rng.choice((0.0, 4.0)),
        stall=rng.choice((0.0, 0.05, 0.2)),
        crash_s=rng.choice((0.0, 3.0)),
        kill_s=rng.choice((0.0, 3.0)),
        power_cut_s=rng.choice((0.0, 0.0, 4.0)),
        pause_s=rng.choice((0.0, 3.0)),
        order_s=rng.choice((0.0, 1.0)),
        full_s=rng.choice((0.0, 0.0, 2.0)),
    )


def _sender(rng: Random, *, large: bool, remembered: int) -> SenderOptions:
    max_messages = remembered // 2
    return SenderOptions(
        kind=rng.choice(KINDS),
        messages=rng.randint(100, 400) if large else rng.randint(4, 10) * remembered,
        batch=rng.choice((1, 3)) if large else rng.choice((1, 8, max_messages)),
        body_bytes=rng.choice((500, 2_000)) if large else 20,
        think_us=rng.choice((0, 1_000, 10_000)),
        max_bytes=rng.choice((8, 64, 32 << 10)) << 10,
        max_messages=max_messages,
        queues=rng.choice((1, 1, 3)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run that broke nothing came to; all but *terms* count messages."""

    seed: int
    terms: int
    acknowledged: int
    unknown: int
    refused: int
    conflicts: int
    received: int
    links: int

    def counts(self) -> dict[str, int]:
        """Return what is summed up for many runs."""
        return {
            "messages acknowledged": self.acknowledged,
            "of unknown outcome": self.unknown,
            "refused": self.refused,
            "of them by an id that was taken": self.conflicts,
            "received": self.received,
            "links between nodes": self.links,
            "terms": self.terms,
        }


class EdgeRun:
    """A run of one seed."""

    def __init__(
        self,
        seed: int,
        options: EdgeOptions | None = None,
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options or EdgeOptions.of(seed)
        self.cluster = Cluster(seed, self.options.group, tell=tell)
        config = RequestConfig(streams=self.options.streams, default_queues=2)
        self.wire = Wire(self.cluster, self.options.wire, config)
        self.calls = Calls(self.wire, self.options.calls) if self.options.calls else None
        self.senders = [
            Sender(f"sender-{n}", self.cluster, self.wire, one, self.cluster.random(f"sender {n}"))
            for n, one in enumerate(self.options.senders)
        ]
        few = self.options.group.remembered_ids // 8
        self.thieves = [
            IdThief(one, self.cluster, self.cluster.random(f"stranger {n}"), budget=few, ahead=few)
            for n, one in enumerate(self.senders)
            if self.options.thieves
        ]

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            AssertionError: A promise is broken (`ViolationError`), or an invariant of one node.
        """
        with generators_end_unseen():
            return self._run()

    def _run(self) -> Outcome:
        cluster = self.cluster
        cluster.begin()
        cluster.within(_WHOLE_S, self._has_topic, "the group makes no topic")
        for sender in self.senders:
            sender.start()
        for thief in self.thieves:
            thief.start()
        if self.calls is not None:
            self.calls.start()
        Nemesis(cluster).start()
        maker = Maker(cluster)
        if self.options.group.makes:
            maker.start()
        cluster.clock.run_until(cluster.clock.now_us + _FAULTY_S * S)
        cluster.calm_down()
        cluster.revive_all()
        maker.stop()
        cluster.within(
            _ANSWERED_S, lambda: all(one.is_done for one in self.senders), "sends stay unanswered"
        )
        if self.calls is not None:
            self.calls.end()
        self._check_seen()
        cluster.within(_WHOLE_S, cluster.is_whole, "the nodes do not apply the same entries")
        audit(cluster.members(), [])
        self._check(cluster.members()[0])
        senders = [*self.senders, *(self.calls.senders if self.calls else ())]
        told = [one for sender in senders for one in sender.sent]
        return Outcome(
            seed=cluster.seed,
            terms=cluster.elections.terms,
            acknowledged=sum(one.is_acknowledged for one in told),
            unknown=sum(isinstance(one.error, OutcomeUnknown) for one in told),
            refused=sum(is_refusal(one.error) for one in told),
            conflicts=sum(isinstance(one.error, _TAKEN) for one in told),
            received=self.calls.deliveries.received if self.calls else 0,
            links=self.wire.links,
        )

    def _has_topic(self) -> bool:
        return any(one.state.broker.topics.get(TOPIC) is not None for one in self.cluster.serving())

    def _check_seen(self) -> None:
        if self.wire.broken:
            raise ViolationError("; ".join(self.wire.broken))

    def _check(self, process: Process) -> None:
        """Compare each queue with what was sent to it, sender by sender."""
        if self.calls is not None:
            self.calls.check(process)
        stored = numbers_stored(process)
        for sender in self.senders:
            for queue_id in range(sender.options.queues):
                sent = [one for one in sender.sent if one.queue_id == queue_id]
                found = stored.get((sender.name, queue_id), [])
                check_order(sender.name, sent, [one for one in found if one[0] < FIRST_STOLEN])
        for thief in self.thieves:
            name = thief.victim.name
            for queue_id in range(thief.victim.options.queues):
                sent = [one for one in thief.sent if one.queue_id == queue_id]
                found = sorted(stored.get((name, queue_id), []))
                check_order(
                    f"{name}'s thief", sent, [one for one in found if one[0] >= FIRST_STOLEN]
                )


class Calls:
    """All clients of a run that use RocketMQ's own calls."""

    def __init__(self, wire: Wire, options: CallOptions) -> None:
        self._wire, self._cluster = wire, wire.cluster
        self.deliveries, self._ordered = Deliveries(in_order=options.in_order), Ordered()
        self.senders = [
            CallingSender(f"calling-{n}", wire, options) for n in range(options.senders)
        ]
        self._consumers = [
            CallingConsumer(f"consuming-{n}", wire, options, self.deliveries, self._ordered)
            for n in range(options.consumers)
        ]

    def start(self) -> None:
        """Begin to send and receive."""
        for one in (*self.senders, *self._consumers):
            one.start()

    def end(self) -> None:
        """Let all be sent, received and acknowledged, and nobody hold anything any more.

        Raises:
            StuckError: Something is not.
        """
        within = self._cluster.within
        within(_ANSWERED_S, lambda: self._all_done(self.senders), "calls stay unanswered")
        within(_ANSWERED_S, self._is_received, "messages are not received and acknowledged")
        for consumer in self._consumers:
            consumer.stop()
        within(_ANSWERED_S, lambda: self._all_done(self._consumers), "consumers do not end")
        within(_WHOLE_S, self._is_given_back, "rooms or shares of calls are not given back")

    def _all_done(self, callers: Sequence[CallingSender | CallingConsumer]) -> bool:
        return bool(self._wire.broken) or all(one.is_done for one in callers)

    def _is_received(self) -> bool:
        if self._wire.broken:
            return True
        serving = self._cluster.serving()
        there = places_of(serving[0], CALLED) if serving else None
        return there is not None and not self.deliveries.missing(there)

    def _is_given_back(self) -> bool:
        return bool(self._wire.broken) or not any(
            load_of(front.parts).held_request_bytes or front.shares_out
            for front in self._wire.fronts()
        )

    def check(self, process: Process) -> None:
        """Compare what was told with what a node has. Raises ViolationError."""
        stored = bodies_stored(process, CALLED)
        self.deliveries.check_stored({place: body for place, (_, body) in stored.items()})
        numbers = {place: int(body.partition(b" ")[0]) for place, (_, body) in stored.items()}
        self._ordered.check((place, group_of(number)) for place, number in numbers.items())
        for sender in self.senders:
            found: dict[int, list[Place]] = {}
            for place, (client, body) in stored.items():
                if client == sender.name:
                    found.setdefault(int(body.partition(b" ")[0]), []).append(place)
            sender.check(found)
