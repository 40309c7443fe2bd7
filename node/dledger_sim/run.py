"""One seeded run: first faults, then a healed quorum that must make progress, then the audit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from dledger.types import NodeId
from dledger_sim.audit import audit
from dledger_sim.checkers import StuckError
from dledger_sim.cluster import Cluster, S
from dledger_sim.liveness import LeaderWatch, partition_with_hub
from dledger_sim.makers import Maker, draws_one
from dledger_sim.nemesis import Nemesis
from dledger_sim.options import Options
from dledger_sim.process import Process
from dledger_sim.readers import Reader

_LEADER_S = 3
_PROGRESS_S = 10
_WHOLE_S = 30
_STALLED_S = 2
_STUCK_S = 10
"""A leader with a damaged entry that nobody else has gives way after its patience."""
_LEAST_FOR_HUBS = 3
_PARTIAL_PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run that broke nothing came to.

    Attributes:
        acknowledged: Messages.
        mixed: Whether disks were damaged while members came and went.
        lost_entry: A committed entry that the faults left no whole copy of, so that the group
            rightly stood still, and the run ended there; None: it went to its end.
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


class Run:
    """A run of one seed."""

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options or _drawn(seed)
        self.cluster = Cluster(seed, self.options, tell=tell)
        self._rng = self.cluster.random("run")
        self._outside: set[NodeId] = set()
        self._maker = Maker(self.cluster)

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            AssertionError: A promise is broken (`ViolationError`), or an invariant of one node.
        """
        cluster = self.cluster
        cluster.begin()
        reader = Reader(cluster)
        reader.start()
        if self.options.makes:
            self._maker.start()
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
            reads=reader.answered,
            mixed=self.options.mixes,
            lost_entry=lost_entry,
        )

    def _recover(self) -> int | None:
        """Demand that a healed group goes on; returns the entry for which it rightly cannot."""
        try:
            self._heal_quorum()
            self._heal_all()
            self._partition_partly()
            self._finish()
            self._cut_power()
        except StuckError:
            lost_entry = self.cluster.lost_entry() if self.options.mixes else None
            if lost_entry is None:
                raise
            self.cluster.note(f"stands still: no whole copy of {lost_entry} is left")
            return lost_entry
        return None

    def _heal_quorum(self) -> None:
        """Heal just a quorum; the others stay down or cut off. A leader, then progress."""
        cluster = self.cluster
        cluster.note("heal a quorum")
        cluster.calm = cluster.links.calm = True
        cluster.links.heal()
        for process in self._draw_outside():
            self._leave_outside(process)
        core = [one for one in cluster.processes.values() if one.id not in self._outside]
        for process in core:
            _revive(cluster, process)
        self._demand_progress("the healed quorum")

    def _draw_outside(self) -> list[Process]:
        """Return nodes without whom there is still a quorum, as many as possible.

        Also if the leader makes voters of its learners, which it may do before it notices.
        """
        cluster = self.cluster
        core = [one for one in cluster.processes.values() if not one.retired]
        outside: list[Process] = []
        if self.options.damages:
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
            _revive(cluster, process)
        cluster.links.cut({"down": [], "away": away, "back": back, "both": away + back}[how])

    def _heal_all(self) -> None:
        cluster = self.cluster
        cluster.note("heal all")
        cluster.links.heal()
        cluster.kept_down.clear()
        self._outside = set()
        for process in list(cluster.processes.values()):
            _revive(cluster, process)
        self._demand_progress("the healed group")

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
        self._within(_LEADER_S, self._is_led, f"{who} has no leader")
        before = cluster.commitment.last_index
        self._within(
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
        self._within(
            _WHOLE_S,
            lambda: all(producer.is_idle for producer in cluster.producers),
            "requests stay unanswered",
        )
        rest_s = max(one.rest_s for one in cluster.processes.values())
        self._within(
            _WHOLE_S + round(rest_s), self._is_whole, "the nodes do not apply the same entries"
        )
        audit(cluster.members(), cluster.producers)

    def _cut_power(self) -> None:
        """Cut the power of all nodes under load, and audit once more."""
        cluster = self.cluster
        for producer in cluster.producers:
            producer.resume()
        if self.options.makes:
            self._maker.start()
        cluster.clock.run_until(cluster.clock.now_us + self._rng.randint(0, S // 2))
        for process in cluster.up():
            cluster.crash(process)
        for process in cluster.processes.values():
            cluster.start(process)
        self._demand_progress("the group after a power cut")
        self._finish()

    def _is_whole(self) -> bool:
        processes = self.cluster.members()
        last = self.cluster.commitment.last_index
        leaders = self.cluster.leaders()
        return (
            not self.cluster.replacing
            and all(
                one.is_up and one.log.is_whole and one.driver.applied_index == last
                for one in processes
            )
            and len(leaders) == 1
            and leaders[0].driver.core.last_index == last
        )

    def _within(self, seconds: int, reached: Callable[[], bool], what: str) -> None:
        clock = self.cluster.clock
        if reached() or clock.run_until(clock.now_us + seconds * S, reached):
            return
        raise StuckError(f"{what} within {seconds} s")


def _drawn(seed: int) -> Options:
    """Return the options of a seed; whether things come and go does not change the rest of them."""
    return replace(Options.draw(Random(f"{seed}/options")), makes=draws_one(seed))


def _revive(cluster: Cluster, process: Process) -> None:
    process.files.heal()
    process.files.empty()
    cluster.start(process)
    process.loop.resume()


def run_seed(seed: int, options: Options | None = None) -> Outcome:
    """Run one seed without the pauses of the garbage collector; see `Run.run`."""
    gc.disable()
    try:
        return Run(seed, options).run()
    finally:
        gc.enable()
