"""One seeded run: first faults, then a healed quorum that must make progress, then the audit.

No livelock: there is a leader within 3 s whenever some node can talk both ways with a majority.
Such a node is a *hub*. It can be elected only if a majority that it talks with has no more than
it has in the log (Raft 5.4.1), so that belongs to it; and it campaigns only while its log is
whole: an entry that rotted is fetched from others first. Watched while clients write, under
partitions that leave a hub: one-way cuts, bridges, stars, rings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dledger.raft.quorum import Electorate
from dledger.replica.witness_keeper import ASK_WAIT_S
from dledger.types import NodeId
from dledger_sim.audit import audit
from dledger_sim.checkers import StuckError
from dledger_sim.clients import KEPT, Consumer, Maker, Prober
from dledger_sim.cluster import Cluster
from dledger_sim.consuming import Consuming
from dledger_sim.erasers import Erasers
from dledger_sim.halves import Halves
from dledger_sim.loop import MS, S
from dledger_sim.nemesis import Nemesis
from dledger_sim.network import draw_partition
from dledger_sim.options import Options
from dledger_sim.process import Process
from dledger_sim.rounds import Rounds
from dledger_sim.timed import Timers

_LEADER_S = 3
_PROGRESS_S = 10
_WHOLE_S = 30
_STALLED_S = 2 + int(ASK_WAIT_S)
_PATIENCE_S = 5
"""For so long a leader that was killed waits for who has what it wrote (ten election timeouts)."""
_STUCK_S = 10
"""A leader with a damaged entry that nobody else has gives way after its patience."""
_LEAST_FOR_HUBS = 3
_CAUGHT_UP_S = 30
_SENDS_S = 30
_PARTIAL_PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run that broke nothing came to.

    Attributes:
        acknowledged: Messages.
        mixed: Whether disks were damaged while members came and went.
        lost_entry: A committed entry that the faults left no whole copy of, so that the group
            rightly stood still, and the run ended there; None: it went to its end.
        stranded: A member that waits for ever, since all whom its log knows have left the group,
            so that the run ended there; None: there was none.
        let_go: Messages of compacted topics that newer ones of their keys have beaten.
        erased: Messages of theirs that were erased.
        timed: Messages that were held and delivered when they were due.
        ended: Transactions of which somebody was told how they ended.
        asked: Questions about transactions that their producers got.
        consumed: Messages of topics of all types that consumer groups were given.
        sought: Seeks of consumer groups.
        moved: Messages that became dead letters.
    """

    seed: int
    trace_hash: int
    nodes: int
    steps: int
    terms: int
    committed: int
    acknowledged: int
    reads: int
    mixed: bool
    lost_entry: int | None
    stranded: NodeId | None
    let_go: int
    erased: int
    timed: int
    ended: int
    asked: int
    consumed: int
    sought: int
    moved: int

    def counts(self) -> dict[str, int]:
        """Return what is summed up for many runs."""
        return {
            "events": self.steps,
            "terms": self.terms,
            "entries committed": self.committed,
            "messages acknowledged": self.acknowledged,
            "with damaged disks and changes of members": self.mixed,
            "stood still for want of a whole copy": self.lost_entry is not None,
            "left a member that knows nobody": self.stranded is not None,
            "messages let go by rounds": self.let_go,
            "messages erased": self.erased,
            "messages delivered at their time": self.timed,
            "transactions ended": self.ended,
            "questions about them": self.asked,
            "messages given to groups": self.consumed,
            "seeks": self.sought,
            "dead letters": self.moved,
        }


class Run:
    """A run of one seed."""

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options or Options.of(seed)
        self.cluster = Cluster(seed, self.options, tell=tell)
        self._rng = self.cluster.random("run")
        self._outside: set[NodeId] = set()
        self._stranded: NodeId | None = None
        self._maker = Maker(self.cluster)
        self._consumer = Consumer(self.cluster)
        self._rounds = Rounds(self.cluster)
        self._erasers = Erasers(self.cluster)
        self._timers = Timers(self.cluster)
        self._halves = Halves(self.cluster)
        self._consuming = Consuming(self.cluster)

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            AssertionError: A promise is broken (`ViolationError`), or an invariant of one node.
        """
        cluster = self.cluster
        cluster.begin()
        prober = Prober(cluster)
        prober.start()
        if self.options.makes:
            self._maker.start()
        if self.options.consumes:
            self._consumer.start()
        self._start_rounds()
        Nemesis(cluster).start()
        cluster.clock.run_until(self.options.faulty_s * S)
        lost_entry = self._recover()
        return Outcome(
            seed=cluster.seed,
            trace_hash=cluster.trace_hash,
            nodes=self.options.nodes,
            steps=cluster.steps,
            terms=cluster.elections.terms,
            committed=cluster.commitment.last_index,
            acknowledged=sum(one.messages_acknowledged for one in cluster.producers),
            reads=prober.answered,
            mixed=self.options.mixes,
            lost_entry=lost_entry,
            stranded=self._stranded,
            let_go=cluster.compacted.let_go,
            erased=cluster.compacted.erased,
            timed=len(cluster.fates.delivered - {*cluster.fates.half_of.values()}),
            ended=len(self._halves.ended),
            asked=self._halves.asked,
            consumed=cluster.consumed.received,
            sought=cluster.consumed.sought,
            moved=cluster.consumed.moved,
        )

    def _start_rounds(self) -> None:
        if self.options.rounds:
            self._rounds.start()
            self._erasers.start()
        if self.options.timed:
            self._timers.start()
        if self.options.halves:
            self._halves.start()
        if self.options.typed:
            self._consuming.start()

    def _recover(self) -> int | None:
        """Demand that a healed group goes on; returns the entry for which it rightly cannot."""
        try:
            self._heal_quorum()
            self._heal_all()
            if not self.options.storm:
                self._partition_partly()
            self._finish()
            if not (self.options.storm or self.options.os_buffer):
                self._cut_power()
        except StuckError:
            lost_entry = self.cluster.lost_entry() if self.options.mixes else None
            self._stranded = self.cluster.stranded()
            if lost_entry is None and self._stranded is None:
                raise
            if lost_entry is None:
                self.cluster.note(f"{self._stranded} waits: all whom it knows have left")
                return None
            self.cluster.note(f"stands still: no whole copy of {lost_entry} is left")
            return lost_entry
        return None

    def _heal_quorum(self) -> None:
        """Heal just a quorum; the others stay down or cut off. A leader, then progress."""
        cluster = self.cluster
        cluster.note("heal a quorum")
        cluster.calm_down()
        for process in self._draw_outside():
            self._leave_outside(process)
        core = [one for one in cluster.processes.values() if one.id not in self._outside]
        for process in core:
            cluster.revive(process)
        self._demand_progress("the healed quorum")

    def _draw_outside(self) -> list[Process]:
        """Return nodes without whom there is still a quorum, as many as possible.

        Also if the leader makes voters of its learners, which it may do before it notices.
        """
        cluster = self.cluster
        core = [one for one in cluster.processes.values() if not one.retired]
        outside: list[Process] = []
        if self.options.damages or self.options.waits_for_one:
            return outside  # the only whole copy of an entry may be anywhere
        for process in self._rng.sample(core, len(core)):
            rest = [one for one in core if one is not process]
            if cluster.is_quorum(rest) and cluster.is_quorum(rest, promoted=True):
                core = rest
                outside.append(process)
        self._outside = {one.id for one in outside}
        return outside

    def _leave_outside(self, process: Process) -> None:
        """Let a node stay down, cut off, or cut off in one direction."""
        cluster = self.cluster
        others = [one for one in cluster.processes if one != process.id]
        away = [(process.id, one) for one in others]
        back = [(one, process.id) for one in others]
        how = self._rng.choice(("down", "away", "back", "both"))
        cluster.note(f"{process.id} stays outside: {how}")
        if how == "down":
            cluster.kept_down.add(process.id)
            cluster.crash(process)
        else:
            cluster.revive(process)
        cluster.links.cut({"down": [], "away": away, "back": back, "both": away + back}[how])

    def _heal_all(self) -> None:
        cluster = self.cluster
        cluster.note("heal all")
        cluster.links.heal()
        cluster.kept_down.clear()
        self._outside = set()
        cluster.revive_all()
        self._demand_progress("the healed group")
        if self.options.waits_for_one:
            self._demand_caught_up()
        if self.options.volume_kib:
            self._demand_room("a group with disks of its own")
        if self.options.neighbour_s:
            self._demand_room_beside_neighbours()

    def _demand_caught_up(self) -> None:
        """Demand that who came back with less is given what it lacks, by itself."""
        cluster = self.cluster
        last = cluster.commitment.last_index

        def behind() -> list[NodeId]:
            return [one.id for one in cluster.members() if one.driver.applied_index < last]

        try:
            cluster.within(_CAUGHT_UP_S, lambda: not behind(), "")
        except StuckError as error:
            raise StuckError(
                f"{', '.join(behind())} come back with less and are not caught up to {last} within "
                f"{_CAUGHT_UP_S} s"
            ) from error

    def _demand_room(self, who: str) -> None:
        """Demand that sends are taken, and consumers served, while something may go."""
        cluster = self.cluster
        counts = [len(one.acknowledged) for one in cluster.producers]
        received = self._consumer.received

        def served() -> bool:
            sent = [len(one.acknowledged) for one in cluster.producers]
            return all(now > before for now, before in zip(sent, counts, strict=True)) and (
                self._consumer.received > received or not self.options.consumes
            )

        cluster.within(_SENDS_S, served, f"{who} does not take sends and serve consumers")

    def _demand_room_beside_neighbours(self) -> None:
        """Demand the same while others' files fill the leader's disk, and no other."""
        (leader, *_) = self.cluster.serving()
        leader.files.fill(0)
        self._demand_room(f"a group of which one disk ({leader.id}'s) is full of others' files")
        leader.files.empty()

    def _partition_partly(self) -> None:
        """Cut a healthy group so that there can be a leader: there must be one."""
        cluster = self.cluster
        if len(cluster.members()) < _LEAST_FOR_HUBS:
            return
        watch = LeaderWatch(cluster)
        for _ in range(_PARTIAL_PARTITIONS):
            cluster.note(f"partition with a hub: {partition_with_hub(cluster, watch)}")
            watch.watch()
        self._heal_all()

    def _demand_progress(self, who: str) -> None:
        cluster = self.cluster
        stalled_s = _STUCK_S if self.options.damages else _STALLED_S
        cluster.clock.run_until(cluster.clock.now_us + stalled_s * S, self._is_led)
        if any(one.driver.core.witness.written is not None for one in self._inside()):
            cluster.clock.run_until(cluster.clock.now_us + _PATIENCE_S * S, self._is_led)
        cluster.within(_LEADER_S, self._is_led, f"{who} has no leader")
        before = cluster.commitment.last_index
        cluster.within(
            _PROGRESS_S,
            lambda: cluster.commitment.last_index > before and self._have_applied(before + 1),
            f"{who} makes no progress behind {before}",
        )

    def _have_applied(self, index: int) -> bool:
        """Whether all healed voters have; a learner may still be fed what is older."""
        learners = self.cluster.learner_ids()
        voters = (one for one in self._inside() if one.id not in learners)
        return all(one.driver.applied_index >= index for one in voters)

    def _inside(self) -> list[Process]:
        """Return the members that were healed."""
        return [one for one in self.cluster.members() if one.id not in self._outside]

    def _is_led(self) -> bool:
        serving = self.cluster.serving()
        return bool(serving) and any(one in serving for one in self._inside())

    def _finish(self) -> None:
        """Let the clients end, all nodes apply everything, and compare."""
        cluster = self.cluster
        for producer in cluster.producers:
            producer.stop()
        self._maker.stop()
        self._rounds.stop()
        self._erasers.stop()
        self._timers.stop()
        self._halves.stop()
        rest_s = round(max(one.rest_s for one in cluster.processes.values()))
        cluster.within(
            # A small volume has no room again before a snapshot, which may rest.
            _WHOLE_S + (rest_s if self.options.volume_kib else 0),
            lambda: all(producer.is_idle for producer in cluster.producers),
            "requests stay unanswered",
        )
        self._demand_held_and_consumed()
        cluster.within(
            _WHOLE_S + rest_s, cluster.is_whole, "the nodes do not apply the same entries"
        )
        if self.options.timed:
            self._timers.audit(cluster.members())
        if self.options.halves:
            self._halves.audit(cluster.members())
        if self.options.typed:
            self._consuming.audit(cluster.members())
        audit(cluster.members(), cluster.producers, cluster.compacted.find_gone(KEPT))
        if self.options.rounds:
            for process in cluster.members():
                cluster.compacted.check(process)

    def _demand_held_and_consumed(self) -> None:
        """Let what is held go, or end, and consumers get it."""
        if self.options.typed:
            self._consuming.settle()
        if self.options.timed:
            self._timers.demand_delivered()
        if self.options.halves:
            self._halves.demand_ended()
        if self.options.typed:
            self._consuming.drain()

    def _cut_power(self) -> None:
        """Cut the power of all nodes under load, and audit once more."""
        cluster = self.cluster
        for producer in cluster.producers:
            producer.resume()
        if self.options.makes:
            self._maker.start()
        self._start_rounds()
        cluster.clock.run_until(cluster.clock.now_us + self._rng.randint(0, S // 2))
        for process in cluster.up():
            cluster.crash(process)
        for process in cluster.processes.values():
            cluster.start(process)
        self._demand_progress("the group after a power cut")
        self._finish()


LEADER_US: Final = 3 * S
PROGRESS_US: Final = 5 * S
_SETTLED_US: Final = S
"""Whoever does not hear the leader has campaigned by then, and in vain."""
_LONGEST_US: Final = PROGRESS_US + S
_LOOK_US: Final = 50 * MS
CHANGE_US: Final = 10 * S
_MAX_DRAWS: Final = 1000
"""Every other partition, about, leaves a hub."""


class LeaderWatch:
    """Looks every 50 ms whether there is the leader that there could be."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._leader: tuple[NodeId, int] | None = None
        self._since_us = 0

    def watch(self) -> None:
        """Let time pass until a leader is settled, or for 6 s if none could be elected.

        It is once it has served for 1 s, undisturbed, and something was committed in that time.

        Raises:
            StuckError: There could be a leader, or progress, for too long without one.
        """
        clock = self._cluster.clock
        end_us = clock.now_us + _LONGEST_US
        self._leader, self._since_us = None, clock.now_us
        self._cluster.last_commit_us = clock.now_us
        while clock.now_us < end_us and not self._is_settled():
            clock.run_until(clock.now_us + _LOOK_US)
            self._look()

    def _is_settled(self) -> bool:
        served_us = self._cluster.clock.now_us - self._since_us
        committed = self._cluster.last_commit_us > self._since_us
        return self._leader is not None and served_us >= _SETTLED_US and committed

    def _look(self) -> None:
        now_us = self._cluster.clock.now_us
        if not any(self._is_electable(one) for one in self._cluster.known_members()):
            self._leader, self._since_us = None, now_us
            self._cluster.last_commit_us = now_us
            return
        leader = self._serving_hub()
        if leader != self._leader:
            self._leader, self._since_us = leader, now_us
        if leader is None and now_us - self._since_us > LEADER_US:
            raise StuckError(f"no leader for {LEADER_US / S} s though there is a hub")
        if now_us - self._cluster.last_commit_us > PROGRESS_US:
            raise StuckError(f"nothing is committed for {PROGRESS_US / S} s though there is a hub")

    def _serving_hub(self) -> tuple[NodeId, int] | None:
        """Return a leader, and its term, that serves clients and talks with a majority.

        By its own membership: of one that it overrules, the rest may be cut off and not know.
        """
        leaders = (one for one in self._cluster.serving() if self._talks_with_own_quorum(one))
        return next(((one.id, one.driver.core.term) for one in leaders), None)

    def _talks_with_own_quorum(self, leader: Process) -> bool:
        own = leader.driver.core.membership
        heard = {one.id for one in self._heard(leader)}
        return Electorate(own.voter_ids, own.outgoing_ids).is_quorum(heard)

    def _is_hub(self, process: Process) -> bool:
        return process.is_up and self._cluster.is_quorum(self._heard(process))

    def _is_electable(self, process: Process) -> bool:
        if not (process.is_up and process.driver.core.may_campaign and process.log.is_whole):
            return False
        own = _log_end(process)
        voters = [one for one in self._heard(process) if _log_end(one) <= own]
        return self._cluster.is_quorum(voters)

    def _heard(self, process: Process) -> list[Process]:
        """Return whom it can talk with both ways, itself included."""
        links = self._cluster.links
        return [
            one
            for one in self._cluster.known_members()
            if one.is_up and (one is process or links.talks(process.id, one.id))
        ]

    def has_hub(self) -> bool:
        """Whether some node can talk both ways with a majority."""
        return any(self._is_hub(one) for one in self._cluster.known_members())


def _log_end(process: Process) -> tuple[int, int]:
    core = process.driver.core
    return core.last_term, core.last_index


def partition_with_hub(cluster: Cluster, watch: LeaderWatch) -> str:
    """Cut a healed group so that there is still a hub; returns how.

    A change of members that is under way ends first, as it does under any leader: whom it takes
    away is cut off from nobody else, and who counts would change under our eyes.

    Raises:
        StuckError: The change does not end; or there is no hub, wherever the group is cut.
    """
    cluster.links.heal()
    end_us = cluster.clock.now_us + CHANGE_US
    if not (cluster.is_settled() or cluster.clock.run_until(end_us, cluster.is_settled)):
        raise StuckError(f"a change of members does not end within {CHANGE_US / S} s")
    nodes = [one.id for one in cluster.members()]
    rng = cluster.random(f"hub {cluster.clock.now_us}")
    for _ in range(_MAX_DRAWS):
        shape, paths = draw_partition(nodes, rng)
        cluster.links.heal()
        cluster.links.cut(paths)
        if watch.has_hub():
            return shape
    raise StuckError(f"{_MAX_DRAWS} partitions of {', '.join(nodes)} leave no hub")
