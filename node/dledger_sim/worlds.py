"""Worlds of a group whose one word must not be believed: a clock's, a disk's, a file system's.

Each takes what a seed has drawn and returns the same group with faults of one kind, and without
those that would excuse what is to be found. What must hold in each is checked by `lived` and
`room`, and by `run` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dledger_sim.options import Options

_ENDS: Final = ("crash_s", "away_s", "kill_s", "power_cut_s", "crash_writing", "crash_leader")
_HOLDS: Final = ("pause_s", "partition_s", "clog_s", "stall")
_DAMAGES: Final = ("rot_s", "misdirect_s", "lie_s", "mangle", "eio_s", "full_s")
_MEMBERS: Final = ("change_s", "wipe_s", "crash_voting")
_SMALL_KIB: Final = (1408, 1792, 2048, 4096)
_LARGE_KIB: Final = 64 << 10


def _clocks(drawn: Options, rng: Random) -> Options:
    """Wall clocks jump by days and drift; retention is by age, and by nothing else.

    Mostly a minority's clocks are wrong, so that there are right ones to compare with; then nobody
    comes or goes, who might make a majority of them.
    """
    everybody = rng.random() < 1 / 4
    calm = drawn.without(*_DAMAGES, *_MEMBERS, "clock_jump_s", "loss")
    return replace(
        calm,
        nodes=rng.choice((3, 3, 5)),
        segment_bytes=8 << 10,
        kept_kib=0,
        kept_hours=72 if everybody else rng.choice((24, 72)),
        leap_s=rng.choice((1.0, 2.0)),
        drift=rng.choice((0.0, 0.0, 0.001, 0.1)),
        all_wrong=everybody,
        order_s=rng.choice((1.5, 3.0)),
        change_s=rng.choice((0.0, 3.0)) if everybody else 0.0,
    )


def _os_buffer(drawn: Options, rng: Random) -> Options:
    """Acknowledged from the page cache, and one machine loses power, then is waited for.

    Whatever else goes wrong does so while all are whole: nothing is promised to a group of which
    another member fails before the first one is caught up.
    """
    return replace(_one_at_a_time(drawn, rng), os_buffer=True, lone_cut_s=rng.choice((0.5, 2.0)))


def _put_back(drawn: Options, rng: Random) -> Options:
    """The disk of one member is put back to what it was; all others are up when it starts."""
    return replace(_one_at_a_time(drawn, rng), put_back_s=rng.choice((0.5, 2.0)))


def _one_at_a_time(drawn: Options, rng: Random) -> Options:
    calm = drawn.without(*_ENDS, *_HOLDS, *_DAMAGES, *_MEMBERS, "straggle")
    return replace(
        calm,
        nodes=rng.choice((3, 3, 5)),
        clients=2,
        window=2,
        batch=4,
        faulty_s=16,
        delay_ms=rng.choice((2, 10, 60)),
        loss=rng.choice((0.0, 0.01)),
        duplicate=rng.choice((0.0, 0.01)),
        kill_s=rng.choice((0.0, 5.0)),
        pause_s=rng.choice((0.0, 5.0)),
        partition_s=rng.choice((0.0, 5.0)),
        hint_s=rng.choice((0.0, 5.0)),
        order_s=rng.choice((0.0, 5.0)),
    )


def _full(drawn: Options, rng: Random) -> Options:
    """Disks are full in other ways than by their bytes: a quota, or no inode left, for a while."""
    calm = drawn.without(*_DAMAGES, *_MEMBERS, "kill_s")
    quota = rng.random() < 1 / 2
    return replace(
        calm,
        segment_bytes=8 << 10,
        batch=32,
        full_s=rng.choice((2.0, 4.0)) if quota else 0.0,
        quota=quota,
        inodes_s=0.0 if quota else rng.choice((2.0, 4.0)),
    )


def _small(drawn: Options, rng: Random) -> Options:
    """Volumes so small that retention by their watermark must make room all the time."""
    return replace(_busy(drawn), volume_kib=rng.choice(_SMALL_KIB), faulty_s=12)


def _neighbour(drawn: Options, rng: Random) -> Options:
    """Files of others take most of one disk, which dropping messages could not help."""
    return replace(_busy(drawn), volume_kib=_LARGE_KIB, neighbour_s=rng.choice((1.0, 3.0)))


def _rounds(drawn: Options, rng: Random) -> Options:
    """Some of what goes wrong does so while rounds let messages go, and keys are erased.

    Mostly retention lets others go meanwhile. With all faults at once little would be stored.
    """
    calm = drawn.without(*(name for name in drawn.active() if rng.random() < 1 / 2))
    kept = replace(calm, kept_kib=rng.choice((0, 32, 32, 128)), segment_bytes=8 << 10, faulty_s=12)
    return kept.with_rounds(rng.randrange(1 << 32))


def _timers(drawn: Options, rng: Random) -> Options:
    """Messages wait for their time, while a minority's clocks are days off and leaders change."""
    clocks = _clocks(drawn, rng)
    return replace(
        clocks,
        timed=True,
        all_wrong=False,
        change_s=0.0,
        kept_hours=0,
        kept_kib=rng.choice((0, 32)),
        leap_s=rng.choice((0.5, 2.0)),
        crash_leader=rng.choice((0.0, 0.5)),
        depose_s=rng.choice((0.0, 1.0)),
        makes=False,
    )


def _transactions(drawn: Options, rng: Random) -> Options:
    """Transactions begin and end, while leaders crash, or lead on without knowing better."""
    return replace(
        drawn,
        halves=True,
        change_s=0.0,
        kept_hours=0,
        kept_kib=0,
        crash_leader=rng.choice((0.0, 0.5)),
        depose_s=rng.choice((0.5, 1.0)),
        makes=False,
    )


def _types(drawn: Options, rng: Random) -> Options:
    """Topics of every type beside each other, with all that the two worlds before have."""
    return replace(
        _timers(drawn, rng),
        halves=True,
        typed=True,
        clients=1,
        window=1,
        batch=4,
        depose_s=rng.choice((0.5, 1.0)),
    )


def _busy(drawn: Options) -> Options:
    calm = drawn.without(*_ENDS, *_HOLDS, *_DAMAGES, *_MEMBERS, "tight", "loss", "straggle")
    return replace(
        calm,
        segment_bytes=256 << 10,
        clients=2,
        window=2,
        batch=4,
        body_bytes=8000,
        think_ms=120,
        snapshot_entries=20,
        kept_kib=0,
        delay_ms=2,
        sync_ms=2,
        consumes=True,
    )


WORLDS: Final[Mapping[str, Callable[[Options, Random], Options]]] = {
    "clocks": _clocks,
    "os-buffer": _os_buffer,
    "put-back": _put_back,
    "full": _full,
    "small": _small,
    "neighbour": _neighbour,
    "rounds": _rounds,
    "timers": _timers,
    "transactions": _transactions,
    "types": _types,
}
"""By the name that ``--world`` takes; seeds draw most of them, `Options.of` has the last one."""

DRAWN: Final[Mapping[str, float]] = {
    "clocks": 0.1,
    "put-back": 0.1,
    "os-buffer": 0.05,
    "full": 0.05,
    "small": 0.03,
    "neighbour": 0.03,
    "timers": 0.05,
    "transactions": 0.03,
    "types": 0.05,
}
"""Which part of the runs that are no storms seeds make one of each world."""


def draw_world(seed: int) -> str:
    """Return the world that a seed draws; "": none. Nothing else of the run depends on it."""
    at = Random(f"{seed}/world").random()
    for name, part in DRAWN.items():
        at -= part
        if at < 0:
            return name
    return ""


def in_world(drawn: Options, name: str, seed: int) -> Options:
    """Return what a seed has drawn, in a world; the same for ""."""
    return WORLDS[name](drawn, Random(f"{seed}/world {name}")) if name else drawn
