"""The options of one simulated run, drawn from its seed. A fault of 0 or False never happens."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Final

from dledger_sim.worlds import draw_world, in_world

_DAMAGE: Final = ("rot_s", "misdirect_s", "lie_s")
_MAKES: Final = 0.4
_KEEPS: Final = 0.5
_COMPACTS: Final = 0.5
_ROUNDS: Final = 0.7
_LATER: Final = (
    "storm=", "crash_voting=", "depose_s=", "slow_s=", "body_bytes=", "consumes=", "kept_hours=",
    "leap_s=", "drift=", "all_wrong=", "os_buffer=", "lone_cut_s=", "put_back_s=", "volume_kib=",
    "quota=", "inodes_s=", "neighbour_s=", "rounds=", "lag_ms=", "tombstone_ms=",
    "timed=", "halves=", "typed=",
)  # fmt: skip
"""Fields that no draw begins with, since they came later."""


def draws_makes(seed: int) -> bool:
    """Whether topics and groups come and go in a run; nothing else of it depends on that."""
    return Random(f"{seed}/makes").random() < _MAKES


def draws_keeps(seed: int) -> bool:
    """Whether a topic keeps its messages longer, where retention lets others go."""
    return Random(f"{seed}/keeps").random() < _KEEPS


def draws_compacts(seed: int) -> bool:
    """Whether that topic is compacted, so that its messages have keys, and it begins at 0."""
    return Random(f"{seed}/compacts").random() < _COMPACTS


def draws_rounds(seed: int) -> bool:
    """Whether that topic has rounds of compaction, and keys of it are erased."""
    return Random(f"{seed}/rounds").random() < _ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The group, its load, and what goes wrong. Times in the names' units, simulated.

    Attributes:
        nodes: Voters at the founding.
        tight: Whether windows, batches and caches are so small that their bounds matter.
        segment_bytes: Length of a segment file.
        clients: Producers, each with its own idempotency keys.
        window: Requests that a client has under way at once.
        batch: Messages in a request, at most.
        think_ms: The longest pause of a client between requests.
        snapshot_entries: Entries behind which a snapshot is due.
        kept_kib: How much of the log retention keeps; 0: all.
        queue_kib: Commands that wait to become entries; 0: as *tight* says.
        uncommitted_kib: Entries that wait to be committed; 0: likewise.
        entry_kib: The largest entry; those that are worth one and those that go early are as much
            smaller than the shipped ones. 0: the shipped sizes.
        remembered_ids: Message ids of a client that are remembered; 0: the shipped number. Only
            without snapshots: what reads one goes by the shipped number.
        body_bytes: The longest body of a message.
        consumes: Whether somebody receives and acknowledges all the time.
        kept_hours: Age at which retention lets messages go; 0: never.
        volume_kib: Size of each disk, whose watermark retention keeps; 0: without end.
        faulty_s: How long there are faults.
        storm: Whether whoever leads, or believes so, is always busy, and recovery is short.
        delay_ms: The longest ordinary delay of a message.
        sync_ms: The longest ordinary job on a disk.
        loss: Part of the messages that are lost.
        duplicate: Part of the messages that arrive twice.
        straggle: Part of the messages that take up to a second.
        reorder: Whether messages between two nodes overtake each other.
        clog_s: Mean seconds between times in which one direction between two nodes stands still.
        partition_s: Mean seconds between partitions; some are partial, some in one direction.
        stall: Part of the disk jobs that take up to two seconds.
        crash_s: Mean seconds between power cuts of one node.
        away_s: Mean seconds between power cuts of one node behind which the log may move on.
        kill_s: Mean seconds between kills of one process; the page cache survives.
        power_cut_s: Mean seconds between power cuts of all nodes.
        crash_writing: Part of the disk jobs in the middle of which the node loses power.
        crash_leader: Part of the new leaders that lose power soon.
        crash_voting: Part of the nodes that lose power soon after they entered a term.
        depose_s: Mean seconds between times in which a leader is cut off, and the others notice.
        slow_s: Mean seconds between times in which one disk is slow.
        pause_s: Mean seconds between pauses of a process (SIGSTOP).
        clock_jump_s: Mean seconds between jumps of a wall clock.
        leap_s: Mean seconds between jumps of a wrong wall clock by days, or back to the right time.
        drift: By which part wrong wall clocks run fast or slow.
        all_wrong: Whether everybody's wall clock may be wrong; else those of a minority.
        hint_s: Mean seconds between broken connections.
        order_s: Mean seconds between a hand-over, a step-down or a campaign that is asked for.
        change_s: Mean seconds between changes of the membership that are asked for.
        wipe_s: Mean seconds between wiped disks; each is replaced before the next.
        eio_s: Mean seconds between failing reads, writes, syncs and renames.
        full_s: Mean seconds between times in which a disk is full.
        rot_s: Mean seconds between flipped bits, on a minority of the disks for each entry.
        misdirect_s: Mean seconds between records that another's bytes are written over.
        lie_s: Mean seconds between power cuts that take what was synced last.
        os_buffer: Whether what the operating system holds is acknowledged (`durability=osBuffer`).
        lone_cut_s: Mean seconds between power cuts of one node, which the others wait for.
        put_back_s: Mean seconds between disks that are put back to what they were; waited for, too.
        quota: Whether full disks are told as a quota (EDQUOT).
        inodes_s: Mean seconds between times in which no disk has an inode left.
        neighbour_s: Mean seconds between times in which others' files take most of one disk.
        mangle: Part of the appends of which an entry arrives changed, behind its own CRC.
        makes: Whether topics and groups come and go.
        keeps: Whether one more topic keeps its messages for ever, where retention lets others go.
        compacts: Whether that topic is a compacted one.
        rounds: Whether callers tell leaders what of it may go, others erase keys, and another
            compacted topic comes and goes.
        timed: Whether messages are sent to be delivered later, and some are recalled.
        halves: Whether messages of transactions are sent, and committed or rolled back.
        typed: Whether topics of each type are sent to, and consumer groups read and seek in them.
        lag_ms: Age below which no message of a compacted topic goes.
        tombstone_ms: Age below which no tombstone of it does.
    """

    nodes: int = 3
    tight: bool = False
    segment_bytes: int = 64 << 10
    clients: int = 2
    window: int = 2
    batch: int = 32
    think_ms: int = 50
    snapshot_entries: int = 1 << 20
    kept_kib: int = 0
    queue_kib: int = 0
    uncommitted_kib: int = 0
    entry_kib: int = 0
    remembered_ids: int = 0
    body_bytes: int = 40
    consumes: bool = False
    kept_hours: int = 0
    volume_kib: int = 0
    faulty_s: int = 8
    storm: bool = False
    delay_ms: int = 5
    sync_ms: int = 10
    loss: float = 0.0
    duplicate: float = 0.0
    straggle: float = 0.0
    reorder: bool = False
    clog_s: float = 0.0
    partition_s: float = 0.0
    stall: float = 0.0
    crash_s: float = 0.0
    away_s: float = 0.0
    kill_s: float = 0.0
    power_cut_s: float = 0.0
    crash_writing: float = 0.0
    crash_leader: float = 0.0
    crash_voting: float = 0.0
    depose_s: float = 0.0
    slow_s: float = 0.0
    pause_s: float = 0.0
    clock_jump_s: float = 0.0
    leap_s: float = 0.0
    drift: float = 0.0
    all_wrong: bool = False
    hint_s: float = 0.0
    order_s: float = 0.0
    change_s: float = 0.0
    wipe_s: float = 0.0
    eio_s: float = 0.0
    full_s: float = 0.0
    rot_s: float = 0.0
    misdirect_s: float = 0.0
    lie_s: float = 0.0
    os_buffer: bool = False
    lone_cut_s: float = 0.0
    put_back_s: float = 0.0
    quota: bool = False
    inodes_s: float = 0.0
    neighbour_s: float = 0.0
    mangle: float = 0.0
    makes: bool = False
    keeps: bool = False
    compacts: bool = False
    rounds: bool = False
    timed: bool = False
    halves: bool = False
    typed: bool = False
    lag_ms: int = 3_600_000
    tombstone_ms: int = 86_400_000

    @classmethod
    def of(cls, seed: int, world: str = "") -> Options:
        """Return what a seed draws; *world*: in this one of `worlds`, whatever it would draw."""
        drawn = replace(cls.draw(Random(f"{seed}/options")), makes=draws_makes(seed))
        found = in_world(drawn, world or ("" if drawn.storm else draw_world(seed)), seed)
        if found.rounds:
            return found
        drops = bool(found.kept_kib or found.kept_hours) and not found.volume_kib
        keeps = drops and draws_keeps(seed)
        compacts = keeps and draws_compacts(seed)
        found = replace(found, keeps=keeps, compacts=compacts)
        return found.with_rounds(seed) if compacts and draws_rounds(seed) else found

    @classmethod
    def draw(cls, rng: Random) -> Options:
        """Draw a mix: each kind of fault is absent, rare or frequent.

        In a third of the runs disks are damaged, in a third members come and go, in a third both;
        two fifths of all, out of the first two thirds, become storms on good disks.
        But none is wiped where others are damaged: those two copies may be all that there were.
        """
        drawn = cls._draw(rng)
        drawn = replace(drawn, mangle=Random(_key(drawn)).choice((0.0, 0.0, 0.01, 0.1)))
        which, storms = rng.random(), Random(f"{_key(drawn)} storms")
        if which < 1 / 3:
            drawn = drawn.without(*_DAMAGE)
            return drawn.as_storm(storms) if storms.random() < 3 / 4 else drawn
        if which >= 2 / 3:
            drawn = drawn.without("change_s", "wipe_s")
            return drawn.as_storm(storms) if storms.random() < 1 / 2 else drawn
        rot_s, change_s = rng.choice((2.0, 0.5)), rng.choice((3.0, 1.0))
        return replace(
            drawn,
            rot_s=drawn.rot_s if drawn.damages else rot_s,
            change_s=drawn.change_s or change_s,
            wipe_s=0.0,
        )

    def as_storm(self, rng: Random) -> Options:
        """Return the same group on good disks with many leaders, one after and beside another.

        Half of the storms come from crashes and partitions, the others from leaders cut off.
        """
        calm = replace(
            self.without(*(name for name in FAULTS if name != "tight")),
            storm=True,
            clients=1,
            batch=4,
            reorder=True,
        )
        storm = replace(
            calm,
            delay_ms=rng.choice((2, 20, 100)),
            sync_ms=rng.choice((2, 20, 200)),
            loss=rng.choice((0.0, 0.01, 0.2)),
            duplicate=rng.choice((0.0, 0.01, 0.2)),
            straggle=rng.choice((0.0, 0.01, 0.1)),
            stall=rng.choice((0.0, 0.01, 0.1)),
            crash_writing=rng.choice((0.0, 0.0, 0.01)),
            crash_leader=rng.choice((0.0, 0.0, 0.8)),
            crash_voting=rng.choice((0.0, 0.0, 0.2)),
            crash_s=rng.choice((0.0, 5.0, 1.0)),
            power_cut_s=rng.choice((0.0, 6.0)),
            partition_s=rng.choice((0.0, 5.0, 1.5)),
            pause_s=rng.choice((0.0, 5.0, 1.5)),
            hint_s=rng.choice((0.0, 5.0, 0.5)),
            order_s=rng.choice((0.0, 5.0, 1.5)),
            change_s=rng.choice((0.0, 0.0, 3.0, 1.0)),
        )
        return calm.with_short_reigns(rng) if rng.random() < 1 / 2 else storm

    def with_short_reigns(self, rng: Random) -> Options:
        """Return the same where leaders are cut off again and again, and disks are slow.

        What a node is still writing is then overruled by the next leader, so that its disk ends
        with entries that its log no longer has; and several logs end in entries of reigns of their
        own, which conflict one behind the other. For both the rest of the group must be fast.
        """
        return replace(
            self,
            nodes=rng.choice((3, 3, 5)),
            delay_ms=rng.choice((2, 20)),
            sync_ms=rng.choice((2, 20)),
            loss=rng.choice((0.0, 0.01, 0.1)),
            duplicate=rng.choice((0.0, 0.01, 0.1)),
            straggle=rng.choice((0.0, 0.01, 0.1)),
            depose_s=rng.choice((1.0, 0.3)),
            slow_s=rng.choice((0.0, 3.0, 1.0)),
            crash_s=rng.choice((0.0, 0.0, 3.0)),
            crash_leader=rng.choice((0.0, 0.0, 0.2)),
            power_cut_s=rng.choice((0.0, 0.0, 6.0)),
            pause_s=rng.choice((0.0, 0.0, 3.0)),
            hint_s=rng.choice((0.0, 1.0, 0.3)),
            order_s=rng.choice((0.0, 3.0, 1.0)),
            change_s=rng.choice((0.0, 0.0, 3.0)),
        )

    def with_rounds(self, seed: int) -> Options:
        """Return the same group with a compacted topic, of which rounds let messages go."""
        rng = Random(f"{seed}/rounds of compaction")
        return replace(
            self,
            keeps=True,
            compacts=True,
            rounds=True,
            lag_ms=rng.choice((0, 1, 500)),
            tombstone_ms=rng.choice((1, 300, 3000)),
        )

    @classmethod
    def _draw(cls, rng: Random) -> Options:
        return cls(
            nodes=rng.choice((1, 3, 3, 3, 3, 5, 5)),
            tight=rng.random() < 0.4,
            segment_bytes=rng.choice((8, 16, 64)) << 10,
            clients=rng.randint(1, 3),
            window=rng.randint(1, 4),
            batch=rng.choice((4, 32, 64)),
            think_ms=rng.choice((30, 60, 120)),
            snapshot_entries=rng.choice((20, 200)),
            kept_kib=rng.choice((0, 32, 128)),
            delay_ms=rng.choice((2, 10, 60)),
            sync_ms=rng.choice((2, 10, 80)),
            loss=rng.choice((0.0, 0.01, 0.1)),
            duplicate=rng.choice((0.0, 0.01, 0.1)),
            straggle=rng.choice((0.0, 0.01, 0.05)),
            reorder=rng.random() < 0.5,
            clog_s=rng.choice((0.0, 5.0, 1.0)),
            partition_s=rng.choice((0.0, 5.0, 1.5)),
            stall=rng.choice((0.0, 0.0, 0.01, 0.05)),
            crash_s=rng.choice((0.0, 5.0, 1.5)),
            kill_s=rng.choice((0.0, 5.0, 2.0)),
            power_cut_s=rng.choice((0.0, 6.0, 3.0)),
            crash_writing=rng.choice((0.0, 0.0, 0.01)),
            crash_leader=rng.choice((0.0, 0.0, 0.5)),
            pause_s=rng.choice((0.0, 5.0, 1.5)),
            clock_jump_s=rng.choice((0.0, 3.0)),
            hint_s=rng.choice((0.0, 5.0, 0.5)),
            order_s=rng.choice((0.0, 5.0, 1.5)),
            change_s=rng.choice((0.0, 3.0, 1.0)),
            wipe_s=rng.choice((0.0, 4.0)),
            eio_s=rng.choice((0.0, 0.0, 4.0, 1.5)),
            full_s=rng.choice((0.0, 0.0, 4.0)),
            rot_s=rng.choice((0.0, 2.0, 0.5)),
            misdirect_s=rng.choice((0.0, 4.0)),
            lie_s=rng.choice((0.0, 0.0, 3.0)),
            away_s=rng.choice((0.0, 0.0, 4.0)),
        )

    def without(self, *faults: str) -> Options:
        """Return the same with some faults turned off.

        Raises:
            ValueError: One is not a fault.
        """
        unknown = sorted(set(faults) - set(FAULTS))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no fault; there are {', '.join(FAULTS)}")
        calm: dict[str, Any] = {one.name: one.default for one in fields(self)}
        return replace(self, **{name: calm[name] for name in faults})

    @property
    def damages(self) -> bool:
        """Whether disks lose what they had synced."""
        return any(getattr(self, name) for name in _DAMAGE)

    @property
    def waits_for_one(self) -> bool:
        """Whether one node comes back with less than it had, and the others wait for it."""
        return bool(self.lone_cut_s or self.put_back_s)

    @property
    def has_right_clocks(self) -> bool:
        """Whether wall clocks go wrong, but never more than those of a minority."""
        return bool(self.leap_s) and not (self.all_wrong or self.clock_jump_s)

    @property
    def mixes(self) -> bool:
        """Whether disks are damaged while members come and go."""
        return self.damages and bool(self.change_s)

    def active(self) -> tuple[str, ...]:
        """Return the names of the faults that may happen."""
        return tuple(name for name in FAULTS if getattr(self, name))


def _key(drawn: Options) -> str:
    """Return what further draws begin with: a field that is added must not change them all."""
    values = (f"{one.name}={getattr(drawn, one.name)!r}" for one in fields(drawn))
    return f"Options({', '.join(each for each in values if not each.startswith(_LATER))})"


FAULTS: Final = tuple(
    one.name
    for one in fields(Options)
    if one.name not in ("storm", "consumes", "timed", "halves", "typed")
    and (one.default is False or isinstance(one.default, float))
)
"""The fields of `Options` that are faults (or, as *tight*, make things harder)."""
