"""Makes things go wrong: each kind of fault of `Options`, at random times.

*Members* come and go as an administrator has it (`replica.member_change`), asked of whoever
leads; the outcome does not matter. A wiped disk comes back as another node under its old name;
that is asked for again until it is done, and one at a time, so that a quorum of the disks is
always there.

*Rot* damages what disks hold, and an atlas keeps it repairable. A record may be damaged on a
minority of the disks only; which minority comes out for each stretch of the log by who is damaged
there first (after TigerBeetle's fault atlas). It is a minority of the smallest electorate that
counts then, of the halves of each membership that may decide: a quorum of it may be all who have
the entry. So of every committed entry a whole copy survives, as long as no voters leave. A group
that shrinks afterwards may be left with damaged copies alone; then it stands still, rightly
(`Cluster.lost_entry`). Until the first entry is committed nothing is damaged: the founder's disk
may hold the only copy. What is damaged was synced: flipped bits (also in one of the two copies of a
state file, which has to cost nothing), a write that went to another
place, or a sync that lied, so that the power takes what it should have kept.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from dledger.errors import DledgerError
from dledger.files.memory_files import Fault
from dledger.replica.member_change import MemberChange, carry_out
from dledger.types import Member, Membership, NodeId
from dledger_sim.cluster import Cluster
from dledger_sim.lone import Lone
from dledger_sim.loop import MS, S
from dledger_sim.process import LOG, Process

_OPERATIONS: Final = ("pread", "pwritev", "fdatasync", "rename", "open", "fsync_dir", "remove")
_SLOW_US: Final = (200 * MS, 2 * S)
_DAY_MS: Final = 86_400_000
_MOST_LEAPS: Final = 8
_DEPOSED_US: Final = (50 * MS, 1000 * MS)


class Nemesis:
    """Schedules faults until the cluster is calm."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("nemesis")
        self._members = Members(cluster)
        self._rot = Rot(cluster)
        self._lone = Lone(cluster)
        self._wrong_clocks: list[NodeId] = []
        self._leaps = 0

    def start(self) -> None:
        """Let faults happen from now on."""
        options = self._cluster.options
        if options.waits_for_one:
            self._lone.start()
        if options.leap_s:
            self._let_clocks_drift()
        for mean_s, action in (
            (options.crash_s, self._crash),
            (options.away_s, self._leave),
            (options.kill_s, self._kill),
            (options.power_cut_s, self._cut_power),
            (options.partition_s, self._partition),
            (options.clog_s, self._clog),
            (options.pause_s, self._pause),
            (options.clock_jump_s, self._jump),
            (options.leap_s, self._leap),
            (options.hint_s, self._hint),
            (options.order_s, self._order),
            (options.change_s, self._members.change),
            (options.wipe_s, self._members.wipe),
            (options.eio_s, self._fail_call),
            (options.full_s, self._fill),
            (options.inodes_s, self._take_inodes),
            (options.neighbour_s, self._move_in),
            (options.lone_cut_s, self._lone.cut_power),
            (options.put_back_s, self._lone.put_back),
            (options.slow_s, self._slow),
            (options.depose_s, self._depose),
            (options.rot_s, lambda: self._rot.flip(self._any())),
            (options.misdirect_s, lambda: self._rot.misdirect(self._any())),
            (options.lie_s, lambda: self._rot.lie(self._any())),
        ):
            if mean_s:
                self._repeat(mean_s, action)

    def _repeat(self, mean_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            if not self._cluster.calm:
                if not self._lone.has_truce:
                    action()
                self._repeat(mean_s, action)

        self._cluster.clock.after(int(self._rng.expovariate(1 / mean_s) * S), again)

    def _any(self) -> Process:
        return self._rng.choice(list(self._cluster.processes.values()))

    def _crash(self) -> None:
        self._cluster.crash_after(0, self._any())

    def _leave(self) -> None:
        """Let a node lose power, for so long that retention may drop what it lacks."""
        process = self._any()
        if process.is_up:
            self._cluster.crash(process)
            self._cluster.restart_after(self._rng.randint(2 * S, 6 * S), process)

    def _kill(self) -> None:
        self._cluster.crash_after(0, self._any(), kill=True)

    def _cut_power(self) -> None:
        for process in self._cluster.up():
            self._cluster.crash_after(0, process)

    def _partition(self) -> None:
        nodes = list(self._cluster.processes)
        if len(nodes) < 2:
            return
        self._cluster.note(f"partition: {self._cluster.links.partition(nodes)}")
        self._cluster.clock.after(self._rng.randint(1, 3 * S), self._heal)

    def _heal(self) -> None:
        if not self._cluster.calm:
            self._cluster.links.heal()

    def _clog(self) -> None:
        sender, recipient = self._any().id, self._any().id
        self._cluster.links.clog(sender, recipient, self._rng.randint(1, 2 * S))

    def _pause(self) -> None:
        process, pause_us = self._any(), self._rng.randint(1, 2 * S)
        if process.is_up:
            self._cluster.note(f"{process.id} pauses for {pause_us} us")
            process.loop.pause(pause_us)

    def _jump(self) -> None:
        process = self._any()
        process.clock.offset_ms += self._rng.choice((-1, 1)) * self._rng.randint(1, 3_600_000)

    def _let_clocks_drift(self) -> None:
        """Draw whose clocks are wrong: a minority's, or everybody's."""
        nodes = list(self._cluster.processes.values())
        wrong = nodes if self._cluster.options.all_wrong else nodes[: (len(nodes) - 1) // 2]
        for process in wrong:
            process.clock.drift = self._rng.choice((-1, 1)) * self._cluster.options.drift
        self._wrong_clocks = [one.id for one in wrong]

    def _leap(self) -> None:
        """Let one wrong clock jump by days, or all of them together; or be right again.

        Each leap of a log may cost an hour of a message's life, so there are few.
        """
        processes = self._cluster.processes
        wrong = [processes[one] for one in self._wrong_clocks if one in processes]
        if not wrong or self._leaps == _MOST_LEAPS:
            return
        self._leaps += 1
        days = self._rng.choice((-1, 0, 1, 1)) * self._rng.randint(1, 100)
        for process in wrong if self._rng.random() < 1 / 2 else [self._rng.choice(wrong)]:
            process.clock.offset_ms = days * _DAY_MS + self._rng.randint(0, _DAY_MS) * (days != 0)
            self._cluster.note(f"{process.id} has a clock that is {days} days ahead")

    def _hint(self) -> None:
        process, peer = self._any(), self._any()
        if process.is_up:
            process.loop.run(process.driver.peer_disconnected, peer.id)

    def _order(self) -> None:
        process = self._any()
        if process.is_up:
            order = self._rng.choice((_hand_over, _step_down, _campaign))
            process.loop.run(order, process)

    def _fail_call(self) -> None:
        fault = Fault(
            operation=self._rng.choice(_OPERATIONS),
            errno=errno.EIO,
            skip=self._rng.randint(0, 5),
            partial_bytes=self._rng.randint(0, 600),
        )
        self._any().files.inject(fault)

    def _fill(self) -> None:
        files = self._any().files
        files.fill(self._rng.choice((0, 1, 10_000)))
        self._cluster.clock.after(self._rng.randint(1, 3 * S), files.empty)

    def _take_inodes(self) -> None:
        """Leave no disk an inode: all need one at the same entry, where they seal a segment."""
        left = self._rng.choice((0, 0, 1, 3))
        for process in self._cluster.processes.values():
            process.files.take_inodes(left)
            self._cluster.clock.after(self._rng.randint(S // 2, 3 * S), process.files.empty)

    def _move_in(self) -> None:
        """Let others' files take most of a disk; mostly of the leader's."""
        cluster, rng = self._cluster, self._rng
        if cluster.lacks_room():
            return
        process = rng.choice(cluster.leaders() or list(cluster.processes.values()))
        left = process.files.volume_bytes * rng.choice((0, 4, 12)) // 100
        cluster.note(f"others leave {left} bytes to {process.id}")
        process.files.fill(left)
        cluster.clock.after(rng.randint(2 * S, 4 * S), process.files.empty)

    def _slow(self) -> None:
        """Slow a disk down; one at a time, or there would be no leader."""
        if not self._cluster.has_slow_disk():
            self._cluster.slow_down(self._any(), self._rng.randint(*_SLOW_US))

    def _depose(self) -> None:
        """Cut the newest leader off, perhaps with a minority: nobody hears them for a while.

        Half the time they hear nobody, either. The leader goes on to take what clients send, and is
        overruled by the next one, which the others elect at once where they notice. A slow disk in
        the minority is still writing then.
        """
        cluster, rng = self._cluster, self._rng
        leader = max(cluster.leaders(), key=lambda one: one.driver.core.term, default=None)
        if leader is None:
            return
        others = [one for one in cluster.processes.values() if one is not leader]
        rng.shuffle(others)
        size = rng.randint(0, max(0, len(others) // 2 - 1))
        minority, rest = [leader, *others[:size]], others[size:]
        paths = [(one.id, other.id) for one in minority for other in rest]
        if rng.random() < 1 / 2:
            paths += [(other, one) for one, other in paths]
        cluster.note(f"{','.join(one.id for one in minority)} cut off in {len(paths)} directions")
        cluster.links.cut(paths)
        if rng.random() < 3 / 4:
            cluster.slow_down(rng.choice(minority), rng.randint(*_SLOW_US))
        if rng.random() < 3 / 4:
            for other in rest:
                if other.is_up:
                    cluster.hint_after(rng.randint(0, 50 * MS), other, leader.id)
        cluster.clock.after(rng.randint(*_DEPOSED_US), lambda: self._let_back(paths))

    def _let_back(self, paths: Collection[tuple[NodeId, NodeId]]) -> None:
        if not self._cluster.calm:
            self._cluster.links.reopen(paths)


def _hand_over(process: Process) -> None:
    try:
        process.driver.transfer_leadership(None)
    except DledgerError:
        return


def _step_down(process: Process) -> None:
    process.driver.core.step_down()


def _campaign(process: Process) -> None:
    process.driver.campaign()


_TIMEOUT_S = 2.0
_AGAIN_US = 300 * MS
_SPARES = 2
_LEAST_FOR_WIPES = 3


class Members:
    """Asks for changes of the membership."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("members")
        self._most = len(cluster.processes) + _SPARES

    def change(self) -> None:
        """Ask whoever leads for a new learner, or to remove some members; perhaps the leader.

        Not while a wiped one is being replaced: with another gone there may be no quorum left.
        """
        if self._cluster.replacing:
            return
        for leader in self._cluster.leaders():
            self._ask(leader, self._draw(leader))

    def _draw(self, leader: Process) -> MemberChange:
        now = leader.driver.core.membership
        if len(now.members) < self._most and self._rng.random() < 0.6:
            return MemberChange(add=(self._cluster.add_node().member,))
        most = max(1, len(now.members) - 1)
        gone = self._rng.sample(now.members, self._rng.randint(1, min(2, most)))
        return MemberChange(remove=tuple(one.id for one in gone))

    def _ask(self, leader: Process, change: MemberChange) -> None:
        self._cluster.note(f"{leader.id} is asked for {_sentence(change)}")

        async def ask() -> None:
            try:
                await carry_out(leader.driver, change, timeout_s=_TIMEOUT_S)
            except DledgerError as error:
                self._cluster.note(f"{leader.id} answers: {error}")

        leader.loop.run(lambda: leader.loop.create_task(ask()))

    def wipe(self) -> None:
        """Wipe a voter's disk, if the others can spare it, and have it replaced."""
        cluster = self._cluster
        voters = cluster.memberships()[0].voter_ids
        if not cluster.is_settled() or len(voters) < _LEAST_FOR_WIPES or cluster.replacing:
            return  # of a group that shrinks, the old half may be two, which cannot spare one
        lost = cluster.processes.get(self._rng.choice(sorted(voters)))
        if lost is None or lost.retired:
            return
        cluster.note(f"{lost.id} loses its disk")
        cluster.discard(lost)
        fresh = cluster.add_node(lost.member.name)
        cluster.replacing.add(lost.id)
        self._replace(lost.id, fresh.member)

    def _replace(self, old: NodeId, new: Member) -> None:
        """Ask for a replacement again and again, until no node counts on the old one."""
        cluster = self._cluster
        if all(old not in {one.id for one in known.members} for known in cluster.memberships()):
            cluster.replacing.discard(old)
            return
        for leader in cluster.leaders():
            self._ask(leader, MemberChange(add=(new,), remove=(old,)))
        cluster.clock.after(_AGAIN_US, lambda: self._replace(old, new))


def _sentence(change: MemberChange) -> str:
    come = "".join(f" +{one.id}" for one in change.add)
    return f"members{come}{''.join(f' -{one}' for one in change.remove)}"


_STRETCH: Final = 8
_NEWEST: Final = 3
_OF_STATE: Final = 0.3

Place = tuple[Path, int, int]
"""A record: its file, the offset there and the length, in bytes."""


class Atlas:
    """Which disks have lost something of which stretch of the log; a repair does not count."""

    def __init__(self) -> None:
        self._damaged: dict[int, set[NodeId]] = {}

    def allows(self, node: NodeId, index: int, memberships: Sequence[Membership]) -> bool:
        """Whether this node's copy of this entry may be damaged; if so, it is, from now on.

        Args:
            node: Whose.
            index: Which.
            memberships: Those that may decide. Learners count, who may become voters as they are.
        """
        damaged = self._damaged.setdefault(index // _STRETCH, set())
        present = {node, *(member.id for one in memberships for member in one.members)}
        halves = [half for one in memberships for half in (one.voter_ids, one.outgoing_ids) if half]
        smallest = min(map(len, halves), default=0)
        allowed = len((damaged | {node}) & present) <= (smallest - 1) // 2
        if allowed:
            damaged.add(node)
        return allowed


class Rot:
    """Damages records that the atlas allows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = cluster.random("rot")
        self._state_files = cluster.random("state files")
        self._atlas = Atlas()

    def flip(self, process: Process) -> None:
        """Flip a bit of one record, and at times one of a state file."""
        for path, offset, size in self._draw(process, 1):
            at = offset + self._rng.randrange(size)
            process.files.contents(path)[at] ^= 1 << self._rng.randrange(8)
        if self._state_files.random() < _OF_STATE:
            self._flip_state(process)

    def _flip_state(self, process: Process) -> None:
        """Flip a bit of the hard state or the identity, while its other copy is whole."""
        rng = self._state_files
        contents = process.state_file(rng.choice(process.STATE_FILES))
        if len(contents) == 2 and contents[0] == contents[1]:
            damaged = rng.choice(contents)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)

    def misdirect(self, process: Process) -> None:
        """Put the bytes of one record into the place of another."""
        places = self._draw(process, 2)
        if len(places) > 1:
            (path, offset, size), (source, start, length) = places
            copied = min(size, length)
            data = process.files.contents(source)[start : start + copied]
            process.files.contents(path)[offset : offset + copied] = data

    def lie(self, process: Process) -> None:
        """Cut a node's power, and lose some of what it had synced last."""
        newest = process.log.synced_index
        places = self._places(process, range(max(1, newest - _NEWEST), newest + 1))
        if not process.is_up:
            return
        self._cluster.crash(process)
        self._cluster.restart_later(process)
        for path, offset, size in places:
            process.files.contents(path)[offset : offset + size] = bytes(size)

    def _draw(self, process: Process, count: int) -> list[Place]:
        log = process.log
        if log.synced_index < log.first_index:
            return []
        drawn = [self._rng.randint(log.first_index, log.synced_index) for _ in range(count)]
        return self._places(process, drawn)

    def _places(self, process: Process, indexes: Sequence[int]) -> list[Place]:
        if not process.is_up or not self._cluster.commitment.last_index:
            return []
        places: list[Place] = []
        memberships = self._cluster.memberships()
        for index in indexes:
            if index < process.log.first_index:
                continue
            try:
                extent, _ = process.log.read_extent(index, index, 1)
            except (DledgerError, OSError):
                continue
            if not self._atlas.allows(process.id, index, memberships):
                continue
            self._cluster.note(f"{process.id} loses its copy of {index}")
            places.append((LOG / extent.segment.name, extent.offset, extent.size_bytes))
        return places
