"""Does what an episode says to a group, undoes it, and waits for the recovery."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from dledger.errors import DledgerError
from e2e.chaos.availability import first_leader_s, is_able, longest_gap_s
from e2e.chaos.disk_nemesis import SEALS, DiskNemesis
from e2e.chaos.episodes import Aim, Episode, FaultKind, Shape
from e2e.chaos.fault import Fault
from e2e.chaos.faulty_group import FaultyGroup
from e2e.chaos.history import Probe
from e2e.chaos.shim import RENAME, SYNC, WRITE, Control
from e2e.harness.proxy import Direction
from e2e.harness.waiting import HarnessError

_WHOLE_S: Final = 60.0
_STOP_S: Final = 10.0
_FAILING: Final = {
    FaultKind.FAIL_WRITE: WRITE,
    FaultKind.FAIL_SYNC: SYNC,
    FaultKind.FAIL_RENAME: RENAME,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode and its figures; times are seconds of the run.

    Attributes:
        episode: What was done.
        nodes: To whom.
        started_s: When the fault began.
        healed_s: When it was undone.
        able_s: Since when some node could talk both ways with a majority, without a break.
        gap_s: The longest time without a leader from then until everything was whole.
        leader_s: How long after `able_s` a leader took its first new write.
        whole_s: How long after the healing all nodes were ready and had caught up.
        fired: Whether the fault is known to have hit (an I/O error that nothing ran into did not).
        problem: What is wrong with the recovery; empty if nothing is.
    """

    episode: Episode
    nodes: tuple[str, ...]
    started_s: float
    healed_s: float
    able_s: float
    gap_s: float
    leader_s: float
    whole_s: float
    fired: bool
    problem: str = ""


class Nemesis:
    """Plays episodes on one group, one at a time."""

    def __init__(self, group: FaultyGroup, probes: Sequence[Probe]) -> None:
        self._group = group
        self._probes = probes
        self._disks = DiskNemesis(group)

    async def play(self, episode: Episode) -> Played:
        """Play one episode to its recovery. A recovery that fails is a problem, not an error."""
        group = self._group
        leader = await group.wait_for("a leader to aim at", group.leader, _WHOLE_S)
        names = list(group.nodes)
        others = [name for name in names if name != leader]
        target = leader if episode.target is Aim.LEADER else others[episode.number % len(others)]
        started_s = group.now_s()
        fault = await self._begin(episode, target, [n for n in names if n != target])
        await asyncio.sleep(episode.hold_s)
        fired, problem = fault.hit(), ""
        if fault.settle is not None:
            try:
                fired = await fault.settle()
            except HarnessError as error:
                problem = str(error)
        able = fault.writable and is_able(names, fault.down, fault.cuts)
        healed_s = group.now_s()
        group.network.heal()
        fault.undo()
        group.release()
        return await self._recovered(
            episode, fault, (started_s, healed_s), able=able, fired=fired, problem=problem
        )

    async def _recovered(
        self,
        episode: Episode,
        fault: Fault,
        times_s: tuple[float, float],
        *,
        able: bool,
        fired: bool,
        problem: str,
    ) -> Played:
        """Wait until a majority answers, a leader takes writes, and all nodes are whole."""
        group = self._group
        started_s, healed_s = times_s
        able_s = started_s
        try:
            if not able:
                await group.wait_for("a majority to answer", group.majority_answers, _WHOLE_S)
                able_s = group.now_s()
            leader_s = await group.wait_for("a leader", lambda: self._leader(able_s), _WHOLE_S)
            if fault.repair is not None:
                await fault.repair()
            await group.wait_for("all nodes to be whole", group.whole, _WHOLE_S)
        except HarnessError as error:
            leader_s, problem = _WHOLE_S, problem or str(error)
        whole_s = group.now_s()
        return Played(
            episode=episode,
            nodes=tuple(fault.nodes),
            started_s=started_s,
            healed_s=healed_s,
            able_s=able_s,
            gap_s=0.0 if fault.costs_majority else longest_gap_s(self._probes, able_s, whole_s),
            leader_s=leader_s,
            whole_s=whole_s - healed_s,
            fired=fired,
            problem=problem,
        )

    async def _leader(self, since_s: float) -> float | None:
        found_s = first_leader_s(self._probes, since_s)
        return None if found_s is None else found_s - since_s

    # -- faults ---------------------------------------------------------------------------------

    async def _begin(self, episode: Episode, target: str, others: Sequence[str]) -> Fault:
        fail = partial(self._fail, episode, target)
        disks = self._disks
        damage = partial(disks.damage, episode, target, others)
        begin: Mapping[FaultKind, Callable[[], Awaitable[Fault]]] = {
            FaultKind.PAUSE_LEADER: lambda: self._pause(target),
            FaultKind.PAUSE_FOLLOWER: lambda: self._pause(target),
            FaultKind.ONE_WAY: lambda: self._one_way(episode, target, others),
            FaultKind.BRIDGE: lambda: self._bridge(episode, target, others),
            FaultKind.ISOLATE: lambda: self._cut(episode, target, _both_ways([target], others)),
            FaultKind.DELAY: lambda: self._delay(episode),
            FaultKind.SLOW_SYNC: lambda: self._slow_sync(episode, target),
            FaultKind.DISK_FULL: lambda: disks.full(episode, target),
            FaultKind.CLOCK_JUMP: lambda: self._clock_jump(episode, target),
            FaultKind.CLOCK_DAYS: lambda: self._clock_days(episode, others[0]),
            FaultKind.FLIP: damage,
            FaultKind.TRUNCATE: damage,
            FaultKind.CHUNKS_BACK: lambda: disks.chunks_back(episode, target, others),
            FaultKind.OLDER_COPY: lambda: disks.older_copy(target),
            FaultKind.PAUSE_KILL: lambda: disks.pause_kill(episode, target, others),
            FaultKind.REPLACE_KILL: lambda: disks.replace_under_kills(target, others),
            FaultKind.NO_INODES: lambda: disks.without_inodes(target),
            FaultKind.QUOTA: lambda: disks.quota(target),
            FaultKind.NEIGHBOUR: disks.neighbour,
            FaultKind.WIPE: lambda: self._wipe(target),
            FaultKind.ROT: lambda: self._rot(episode, target),
            **dict.fromkeys(_FAILING, fail),
        }
        return await begin.get(episode.fault, lambda: self._kill(episode, target, others))()

    async def _kill(self, episode: Episode, target: str, others: Sequence[str]) -> Fault:
        count = {
            FaultKind.KILL_MAJORITY: (len(others) + 1) // 2 + 1,
            FaultKind.KILL_ALL: len(others) + 1,
        }.get(episode.fault, 1)
        victims = [target, *others][:count]
        await self._group.kill(victims)
        return Fault(victims, down=victims)

    async def _wipe(self, target: str) -> Fault:
        """Empty a node's disk; it comes back as another node, which must be let in (promise P6)."""
        node = self._group.nodes[target]
        before = await node.status()
        await self._group.kill([target])
        node.wipe()

        async def replace() -> None:
            if before is None:
                raise HarnessError(f"{target} did not say who it was before it was wiped")
            await self._group.replace_disk(target, before.node_id, _WHOLE_S)

        return Fault([target], down=[target], repair=replace)

    async def _rot(self, episode: Episode, target: str) -> Fault:
        """Flip a bit of a log while its node is down; it is repaired from the others (P7)."""
        await self._group.kill([target])
        rotted = self._group.nodes[target].rot(episode.place)
        return Fault([target], down=[target], hit=lambda: rotted)

    async def _pause(self, target: str) -> Fault:
        self._group.pause(target)
        return Fault([target], down=[target])

    async def _one_way(self, episode: Episode, target: str, others: Sequence[str]) -> Fault:
        if episode.shape is Shape.SPEECH:
            cuts = [(target, other) for other in others]
        elif episode.shape is Shape.HEARING:
            cuts = [(other, target) for other in others]
        else:
            cuts = [(target, others[episode.number % len(others)])]
        return await self._cut(episode, target, cuts)

    async def _bridge(self, episode: Episode, target: str, others: Sequence[str]) -> Fault:
        """Let the last of the others talk with both ends, which cannot talk with each other."""
        *ends, _ = others
        side = [target, *ends[: (len(ends) - 1) // 2]]
        far = [name for name in ends if name not in side]
        return await self._cut(episode, target, _both_ways(side, far))

    async def _cut(self, episode: Episode, target: str, cuts: Sequence[Direction]) -> Fault:
        hit = self._on_the_way()
        self._group.network.cut(cuts, reset=episode.reset, both_layers=episode.both_layers)
        return Fault([target], cuts=cuts, hit=hit)

    async def _delay(self, episode: Episode) -> Fault:
        hit = self._on_the_way()
        self._group.network.delay(episode.delay_s, episode.jitter_s)
        return Fault(list(self._group.nodes), hit=hit)

    def _on_the_way(self) -> Callable[[], bool]:
        """Return what says whether the network has held up anything since now."""
        network = self._group.network
        before = network.hits
        return lambda: network.hits > before

    async def _slow_sync(self, episode: Episode, target: str) -> Fault:
        control = self._group.nodes[target].control
        before = control.fired()
        control.set(Control(slow_s=episode.slow_s))
        return Fault([target], hit=lambda: control.fired() > before)

    async def _clock_jump(self, episode: Episode, target: str) -> Fault:
        """Let the wall clock jump, and leadership move, since that is when the clock is read."""
        self._group.nodes[target].control.set(Control(jump_ms=episode.jump_ms))
        return Fault([target], settle=self._handed_over)

    async def _clock_days(self, episode: Episode, target: str) -> Fault:
        """Let a wall clock be days off while its node is made leader, and right again after.

        There are sealed segments then, which are all that can go by their age.
        """
        node = self._group.nodes[target]
        await self._disks.fill(node.spec.endpoint, SEALS)
        node.control.set(Control(jump_ms=episode.jump_ms))
        status, leader = await node.status(), await self._group.leader()
        if status is None or leader is None:
            return Fault([target], hit=lambda: False)
        if leader == target:
            return Fault([target], settle=self._handed_over)
        with contextlib.suppress(DledgerError):
            await self._group.nodes[leader].admin.transfer_leader(status.node_id)
        return Fault([target])

    # -- I/O errors -----------------------------------------------------------------------------

    async def _fail(self, episode: Episode, target: str) -> Fault:
        """Let one call fail; the node must end by itself, and stays down until it is healed."""
        node = self._group.nodes[target]
        call = _FAILING[episode.fault]
        path = "hard_state" if call == RENAME else "/log/"
        before = node.control.fired()
        node.may_run.clear()
        node.control.set(Control(fail=call, path=path, loses=episode.loses))

        async def settle() -> bool:
            if call == RENAME:
                await self._handed_over()
            if node.control.fired() == before:
                return False
            await self._group.wait_ended([target], _STOP_S)
            code = node.process.exit_code if node.process else None
            if code == 0:
                raise HarnessError(f"{target} ended with 0 after a failed {call}")
            return True

        if call == RENAME:
            await self._handed_over()
        return Fault([target], down=[target], settle=settle)

    async def _handed_over(self) -> bool:
        """Ask the leader to hand over; whether one did."""
        leader = await self._group.leader()
        if leader is None:
            return False
        with contextlib.suppress(DledgerError):
            await self._group.nodes[leader].admin.transfer_leader()
            return True
        return False


def _both_ways(one_side: Sequence[str], other_side: Sequence[str]) -> list[Direction]:
    pairs = [(a, b) for a in one_side for b in other_side]
    return [*pairs, *((b, a) for a, b in pairs)]
