"""A majority of the disks is lost at any moment, and the group is forced on the best survivor.

Each seed draws a group and faults on good disks. Then a majority is gone for good, with what only
it had. The most advanced survivor is forced; it loses power at any moment of that, and is asked
again. At the end exactly those acknowledged messages are missing that its log had not: neither in
the entries that it shares with what the group had committed, nor behind them, where an entry of an
overruled leader may have the same message again. Then the group grows, and nothing more is missing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from dledger.broker.command_frame import CommandType, split
from dledger.broker.produce import ProduceFrame
from dledger.errors import DledgerError
from dledger.replica.force_group import Force, Forced, Reached, carry_out
from dledger.replica.member_change import MemberChange
from dledger.replica.member_change import carry_out as change_members
from dledger.types import EntryKind, Member
from dledger_sim.audit import audit, stored
from dledger_sim.checkers import ViolationError
from dledger_sim.clients import KEPT, TOPIC, Request
from dledger_sim.cluster import Cluster
from dledger_sim.loop import MS, S
from dledger_sim.nemesis import Nemesis
from dledger_sim.options import Options
from dledger_sim.process import GROUP, Process
from dledger_sim.rounds import Rounds

_TOPIC_S = 60
_ANSWERS_S = 5
_SETTLED_S = 30
_FORCED_S = 60
_GROWN_S = 60
_WHOLE_S = 60
_AGAIN_US = 500 * MS
_LONGEST_CRASH_US = 40 * MS
_TIMEOUT_S = 5.0
_LAGGING = 0.5
"""In how many of the runs the survivors are cut off before the disks are lost."""
_APART_US = 3 * S
_ROUNDS_US = 4 * S
"""For so long a group that has grown is told of what was decided before it was forced, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedOutcome:
    """What a run that broke nothing came to.

    Attributes:
        acknowledged: Messages, before the disks were lost.
        lost: Those of them that are missing, which are those that the survivor had not.
        tail: Entries that the survivor had and nobody had committed.
        crashes: How often the survivor lost power while it was forced.
    """

    acknowledged: int
    lost: int
    tail: int
    crashes: int


def forced_options(seed: int) -> Options:
    """Return what a seed draws: disks are good until they are lost, and nobody comes or goes.

    Half of the groups have rounds of compaction, which may know what the survivor has not.
    """
    rng = Random(f"{seed}/forced")
    calm = ("rot_s", "misdirect_s", "lie_s", "change_s", "wipe_s", "eio_s", "full_s", "makes")
    drawn = Options.draw(rng).without(*calm, "mangle")
    found = replace(drawn, nodes=rng.choice((3, 3, 5)), kept_kib=0, faulty_s=rng.randint(2, 6))
    return found.with_rounds(seed) if rng.random() < 1 / 2 else found


class ForcedRun:
    """A run of one seed."""

    def __init__(self, seed: int) -> None:
        self.options = forced_options(seed)
        self.cluster = Cluster(seed, self.options)
        self._rng = self.cluster.random("forced")
        self._rounds = Rounds(self.cluster)
        self._crashes = 0
        self._moved: set[int] = set()
        """Acknowledged requests that the survivor had elsewhere, so that they are where that is."""
        self._asking = 0
        self._forced: Forced | None = None

    def run(self) -> ForcedOutcome:
        """Run to the end. Raises AssertionError: a promise is broken."""
        cluster = self.cluster
        cluster.begin()
        cluster.within(_TOPIC_S, self._have_topic, "there is no topic")
        Nemesis(cluster).start()
        if self.options.rounds:
            self._rounds.start()
        cluster.clock.run_until(cluster.clock.now_us + self.options.faulty_s * S)
        self._lose_majority()
        cluster.clock.run_until(cluster.clock.now_us + _ANSWERS_S * S)
        cluster.within(_SETTLED_S, self._have_settled, "a survivor still leads or writes")
        acknowledged = [(one.name, each) for one in cluster.producers for each in one.acknowledged]
        survivor = max(cluster.processes.values(), key=_log_end)
        messages = sum(len(request.ids) for _, request in acknowledged)
        last_index = survivor.driver.core.last_index
        kept = cluster.commitment.forget_all_but(survivor)
        cluster.log_time.forget_behind(kept)
        cluster.compacted.forget_behind(kept)
        tail = _messages_in(survivor, kept + 1, last_index)
        self._force(survivor)
        lost = [
            (name, request)
            for name, request in acknowledged
            if _index(request) > kept and (name, request.ids[0]) not in tail
        ]
        self._moved = {
            id(request)
            for name, request in acknowledged
            if _index(request) > kept and (name, request.ids[0]) in tail
        }
        self._audit([survivor], lost)
        self._grow(survivor)
        self._audit(cluster.members(), lost)
        return ForcedOutcome(
            acknowledged=messages,
            lost=sum(len(request.ids) for _, request in lost),
            tail=last_index - kept,
            crashes=self._crashes,
        )

    def _have_topic(self) -> bool:
        """Whether all nodes have applied the founding and the topic; without it nothing is said."""
        everyone = self.cluster.processes.values()
        return all(one.state.broker.topics.get(TOPIC) is not None for one in everyone)

    def _have_settled(self) -> bool:
        """Whether no survivor leads, and each has all of its log on its disk."""
        cores = [one.driver.core for one in self.cluster.processes.values()]
        return not self.cluster.leaders() and all(
            core.durable_index == core.last_index for core in cores
        )

    def _lose_majority(self) -> None:
        cluster = self.cluster
        nodes = list(cluster.processes.values())
        least = len(nodes) // 2 + 1
        lost = self._rng.sample(nodes, self._rng.randint(least, len(nodes) - 1))
        if self._rng.random() < _LAGGING:
            self._run_apart(lost, [one for one in nodes if one not in lost])
        for process in lost:
            cluster.note(f"the disk of {process.id} is lost")
            cluster.discard(process)
        cluster.calm_down()
        cluster.revive_all()

    def _run_apart(self, lost: list[Process], left: list[Process]) -> None:
        """Let those whose disks will be lost go on without the others for a while."""
        pairs = [(one.id, other.id) for one in lost for other in left]
        self.cluster.links.cut([*pairs, *((other, one) for one, other in pairs)])
        until_us = self.cluster.clock.now_us + self._rng.randint(1, _APART_US)
        self.cluster.clock.run_until(until_us)

    # The act

    def _force(self, survivor: Process) -> None:
        """Ask until it is done, and cut the power at any moment of it; then once more."""
        before = survivor.membership()[1]
        core = survivor.driver.core
        force = Force(
            group_id=GROUP,
            node_id=survivor.id,
            last_term=core.last_term,
            last_index=core.last_index,
        )
        self._ask(survivor, force)
        for _ in range(self._rng.randint(0, 3)):
            self.cluster.within(_FORCED_S, lambda: _begun(survivor), "the act does not begin")
            delay_us = self._rng.randint(0, _LONGEST_CRASH_US)
            self.cluster.clock.run_until(self.cluster.clock.now_us + delay_us)
            self._cut_power(survivor)
            if (now := survivor.membership()[1]) != before and not _begun(survivor):
                raise ViolationError(f"neither the old group nor the new one is left: {now}")
        self.cluster.within(_FORCED_S, lambda: self._forced is not None, "it is not forced")
        self._cut_power(survivor)
        if not _begun(survivor):
            raise ViolationError("it was answered that it is forced, before that was durable")
        self.cluster.within(_FORCED_S, lambda: survivor in self.cluster.serving(), "no leader")

    def _cut_power(self, survivor: Process) -> None:
        self._crashes += 1
        self.cluster.crash(survivor)
        self.cluster.start(survivor)

    def _ask(self, survivor: Process, force: Force) -> None:
        """Ask now, and again as long as there is no answer."""
        if self._forced is not None:
            return
        self.cluster.clock.after(_AGAIN_US, lambda: self._ask(survivor, force))
        life = survivor.lives
        if not survivor.is_up or self._asking == life:
            return
        self._asking = life

        async def ask() -> None:
            try:
                self._forced = await carry_out(
                    survivor.driver, force, survey=self._survey, timeout_s=_TIMEOUT_S
                )
            except DledgerError as error:
                self.cluster.note(f"{survivor.id} answers: {error}")
            self._asking = 0

        survivor.loop.run(lambda: survivor.loop.create_task(ask()))

    async def _survey(self, members: Collection[Member]) -> list[Reached]:
        """Return what those say that are up: all can be reached by now."""
        there = [(one, self.cluster.processes.get(one.id)) for one in members]
        return [
            Reached(
                member=one,
                leader_id=process.driver.core.leader or "",
                last_term=process.driver.core.last_term,
                last_index=process.driver.core.last_index,
                epoch=process.driver.core.epoch[0],
            )
            for one, process in there
            if process is not None and process.is_up
        ]

    # What follows

    def _grow(self, survivor: Process) -> None:
        """Take the others that were left out away, and make the group three of empty disks."""
        cluster = self.cluster
        for process in [one for one in cluster.processes.values() if one is not survivor]:
            cluster.discard(process)
        fresh = tuple(cluster.add_node().member for _ in range(2))
        for producer in cluster.producers:
            producer.resume()

        async def grow() -> None:
            await change_members(
                survivor.driver, MemberChange(add=fresh), timeout_s=float(_GROWN_S)
            )

        survivor.loop.run(lambda: survivor.loop.create_task(grow()))
        cluster.within(_GROWN_S, self._is_grown, "the group does not grow")
        if self.options.rounds:
            cluster.clock.run_until(cluster.clock.now_us + _ROUNDS_US)
        epochs = {one.driver.core.epoch for one in cluster.members()}
        if {epoch for epoch, _ in epochs} != {1}:
            raise ViolationError(f"the epoch is not everywhere: {epochs}")

    def _is_grown(self) -> bool:
        now = self.cluster.memberships()
        return len(now) == 1 and len(now[0].voters) == 3 and not now[0].is_joint

    def _audit(self, members: list[Process], lost: list[tuple[str, Request]]) -> None:
        """Check that what is lost is missing, and nothing else."""
        cluster = self.cluster
        for producer in cluster.producers:
            producer.stop()
        idle = "requests stay unanswered"
        cluster.within(_WHOLE_S, lambda: all(one.is_idle for one in cluster.producers), idle)
        cluster.within(
            _WHOLE_S,
            lambda: all(
                one.driver.applied_index == cluster.commitment.last_index for one in members
            ),
            "the members do not apply the same entries",
        )
        there = stored(members)
        for name, request in lost:
            if any((name, message_id) in there for message_id in request.ids):
                raise ViolationError(f"{name}'s {request.number} is not lost")
        gone = {id(request) for _, request in lost} | self._moved
        kept = [
            replace(one, acknowledged=[r for r in one.acknowledged if id(r) not in gone])
            for one in cluster.producers
        ]
        audit(members, kept, cluster.compacted.find_gone(KEPT))


def _begun(survivor: Process) -> bool:
    """Whether the survivor goes by a membership with itself alone, durable or not."""
    membership = survivor.membership()[1]
    return membership.epoch == 1 and [one.id for one in membership.members] == [survivor.id]


def _messages_in(process: Process, first: int, last: int) -> set[tuple[str, str]]:
    """Return client and id of each message in these entries of a log."""
    found: set[tuple[str, str]] = set()
    for entry in process.log.read(first, last, 1 << 40) if first <= last else ():
        if entry.kind is EntryKind.DATA:
            for kind, start, end in split(entry.data):
                if kind == CommandType.PRODUCE:
                    frame = ProduceFrame(entry.data, start, end)
                    found |= {(frame.client_id, one.decode()) for one in frame.message_ids()}
    return found


def _log_end(process: Process) -> tuple[int, int]:
    core = process.driver.core
    return core.last_term, core.last_index


def _index(request: Request) -> int:
    assert request.result is not None  # noqa: S101 - only what was answered is kept
    return request.result.index
