"""Order and once at the edge: what producers were told, against what the queues hold.

Each seed draws small bounds everywhere: the queue of commands, the uncommitted bytes, the windows
of clients and streams, the ids that are remembered; then disks that stall, leaders that change
and connections that break, and clients that take others' ids, all against the producers that we
ship. ``python -m dledger_sim --edge`` runs many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from dledger.errors import MessageIdConflict, MessageRejected, OutcomeUnknown
from dledger.requests.config import GatewayConfig, StreamBounds
from dledger_sim.audit import audit, check_order, is_refusal, numbers_stored
from dledger_sim.clients import TOPIC, Maker
from dledger_sim.cluster import Cluster
from dledger_sim.loop import S
from dledger_sim.nemesis import Nemesis
from dledger_sim.options import Options, draws_makes
from dledger_sim.process import Process
from dledger_sim.senders import FIRST_STOLEN, KINDS, IdThief, Sender, SenderOptions
from dledger_sim.wire import Wire, WireOptions

_FAULTY_S = 6
_ANSWERED_S = 120
_WHOLE_S = 30
_WITH_THIEVES = 0.5
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

    @classmethod
    def of(cls, seed: int) -> EdgeOptions:
        """Return what a seed draws."""
        drawn = cls.draw(Random(f"{seed}/edge"))
        return replace(drawn, group=replace(drawn.group, makes=draws_makes(seed)))

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

    def counts(self) -> dict[str, int]:
        """Return what is summed up for many runs."""
        return {
            "messages acknowledged": self.acknowledged,
            "of unknown outcome": self.unknown,
            "refused": self.refused,
            "of them by an id that was taken": self.conflicts,
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
        config = GatewayConfig(streams=self.options.streams)
        self.wire = Wire(self.cluster, self.options.wire, config)
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
        cluster = self.cluster
        cluster.begin()
        cluster.within(_WHOLE_S, self._has_topic, "the group makes no topic")
        for sender in self.senders:
            sender.start()
        for thief in self.thieves:
            thief.start()
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
        cluster.within(_WHOLE_S, cluster.is_whole, "the nodes do not apply the same entries")
        audit(cluster.members(), [])
        self._check(cluster.members()[0])
        told = [one for sender in self.senders for one in sender.sent]
        return Outcome(
            seed=cluster.seed,
            terms=cluster.elections.terms,
            acknowledged=sum(one.is_acknowledged for one in told),
            unknown=sum(isinstance(one.error, OutcomeUnknown) for one in told),
            refused=sum(is_refusal(one.error) for one in told),
            conflicts=sum(isinstance(one.error, _TAKEN) for one in told),
        )

    def _has_topic(self) -> bool:
        return any(one.state.broker.topics.get(TOPIC) is not None for one in self.cluster.serving())

    def _check(self, process: Process) -> None:
        """Compare each queue with what was sent to it, sender by sender."""
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
