"""What the nemesis will do, drawn from a seed: values only, no process is touched here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from e2e.chaos.files import REPLACEABLE, Part


class FaultKind(Enum):
    """The classes of faults; each has its row in the result."""

    KILL_LEADER = "kill-leader"
    KILL_FOLLOWER = "kill-follower"
    KILL_MAJORITY = "kill-majority"
    KILL_ALL = "kill-all"
    PAUSE_LEADER = "pause-leader"
    PAUSE_FOLLOWER = "pause-follower"
    ONE_WAY = "one-way-cut"
    BRIDGE = "bridge"
    ISOLATE = "isolate"
    DELAY = "delay"
    FAIL_WRITE = "io-error-write"
    FAIL_SYNC = "io-error-sync"
    FAIL_RENAME = "io-error-rename"
    SLOW_SYNC = "slow-sync"
    DISK_FULL = "disk-full"
    WIPE = "wiped-directory"
    ROT = "bit-rot"
    CLOCK_JUMP = "clock-jump"
    CLOCK_DAYS = "clock-days"
    FLIP = "file-flips"
    TRUNCATE = "file-truncated"
    CHUNKS_BACK = "chunks-back-in-time"
    OLDER_COPY = "older-copy"
    PAUSE_KILL = "pause-kill"
    REPLACE_KILL = "replace-under-kills"
    NO_INODES = "no-inodes"
    QUOTA = "quota"
    NEIGHBOUR = "neighbours-files"


class Aim(Enum):
    """Who is hit, or stands where the fault is; resolved when the episode begins."""

    LEADER = "leader"
    FOLLOWER = "follower"


class Shape(Enum):
    """Which directions a one-way cut takes."""

    SPEECH = "speech"
    """Nobody hears the target, which hears everybody."""
    HEARING = "hearing"
    """The target hears nobody, and everybody hears it."""
    ONE = "one"
    """One other node does not hear the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One fault and how long it lasts.

    Attributes:
        number: From 1 on.
        fault: Its class.
        target: Whom it hits; for a bridge, one of its ends.
        hold_s: How long it stays, at least.
        shape: Which directions a one-way cut takes.
        reset: Whether a cut breaks connections, as a firewall that rejects does; else bytes wait.
        both_layers: Whether a one-way cut also holds back what acknowledges the other direction.
        delay_s: How long a delayed network keeps each piece.
        jitter_s: What is added to that at random, at most.
        loses: Whether a failing sync also loses what was written since the last good one.
        free_bytes: What a full disk has left.
        jump_ms: How far the wall clock jumps.
        slow_s: What each sync takes longer.
        place: Which byte of the log rots: 0 is its first, 1 would be its end.
        part: Which kind of file is damaged.
    """

    number: int
    fault: FaultKind
    target: Aim
    hold_s: float
    shape: Shape = Shape.SPEECH
    reset: bool = False
    both_layers: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loses: bool = False
    free_bytes: int = 0
    jump_ms: int = 0
    slow_s: float = 0.0
    place: float = 0.0
    part: Part = Part.SEGMENT


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is drawn from: the classes, and how long faults stay.

    Attributes:
        classes: These only.
        hold_s: Least and most.
        network_hold_s: The same for faults under which there must be a leader within 3 s: so
            long that there would be time to miss one.
        longest_pause_s: Most for a pause, which is Pareto distributed from 1 s on.
    """

    classes: Sequence[FaultKind] = field(default_factory=lambda: tuple(FaultKind))
    hold_s: tuple[float, float] = (1.5, 4.0)
    network_hold_s: tuple[float, float] = (3.0, 8.0)
    longest_pause_s: float = 60.0


_FIXED_TARGETS: Final = {
    FaultKind.KILL_LEADER: Aim.LEADER,
    FaultKind.PAUSE_LEADER: Aim.LEADER,
    FaultKind.KILL_FOLLOWER: Aim.FOLLOWER,
    FaultKind.PAUSE_FOLLOWER: Aim.FOLLOWER,
}
_PAUSES: Final = frozenset({FaultKind.PAUSE_LEADER, FaultKind.PAUSE_FOLLOWER})
_NETWORK: Final = frozenset(
    {
        FaultKind.ONE_WAY,
        FaultKind.BRIDGE,
        FaultKind.ISOLATE,
        FaultKind.DELAY,
        FaultKind.SLOW_SYNC,
    }
)
_FREE_BYTES: Final = (0, 4096, 1 << 20, 16 << 20)
_DAY_MS: Final = 86_400_000
_JUMPS_MS: Final = (1_000, 60_000, 3_600_000, _DAY_MS)
_LEAPS_DAYS: Final = (-100, -4, 4, 4, 30, 100)
"""Four days ahead, everything is older than the run's retention."""
_NEEDS_VOLUME: Final = frozenset({FaultKind.NEIGHBOUR})


def possible(classes: Sequence[FaultKind], *, has_volume: bool) -> list[FaultKind]:
    """Return those of the classes that can be tried, with or without a volume to mount."""
    return [one for one in classes if has_volume or one not in _NEEDS_VOLUME]


def draw(rng: random.Random, outlook: Outlook) -> Iterator[Episode]:
    """Yield episodes without end, in rounds: every class once a round, in random order."""
    number = 0
    later = random.Random(f"later {rng.getstate()[1][0]}")  # leaves what was drawn before as it is
    while True:
        for fault in rng.sample(list(outlook.classes), len(outlook.classes)):
            number += 1
            yield _with_later_draws(later, _episode(rng, outlook, number, fault))


def _with_later_draws(rng: random.Random, episode: Episode) -> Episode:
    """Draw what came later: the days of a leap, and which file is damaged."""
    days, part, replaceable = (
        rng.choice(_LEAPS_DAYS),
        rng.choice(list(Part)),
        rng.choice(REPLACEABLE),
    )
    truncates = episode.fault is FaultKind.TRUNCATE  # the others are refused by name when cut
    leaps = episode.fault is FaultKind.CLOCK_DAYS
    return replace(
        episode,
        part=replaceable if truncates else part,
        jump_ms=days * _DAY_MS if leaps else episode.jump_ms,
    )


def _episode(rng: random.Random, outlook: Outlook, number: int, fault: FaultKind) -> Episode:
    """Draw one; every field is drawn every time, so that a class more or less changes little."""
    low_s, high_s = outlook.network_hold_s if fault in _NETWORK else outlook.hold_s
    target = rng.choice(list(Aim))
    hold_s = rng.uniform(low_s, high_s)
    pause_s = min(rng.paretovariate(1.0), outlook.longest_pause_s)
    return Episode(
        number=number,
        fault=fault,
        target=_FIXED_TARGETS.get(fault, target),
        hold_s=pause_s if fault in _PAUSES else hold_s,
        shape=rng.choice(list(Shape)),
        reset=rng.random() < 0.5,
        both_layers=rng.random() < 0.5,
        delay_s=rng.choice((0.01, 0.05, 0.2)),
        jitter_s=rng.choice((0.0, 0.05, 0.2)),
        loses=rng.random() < 0.5,
        free_bytes=rng.choice(_FREE_BYTES),
        jump_ms=rng.choice((-1, 1)) * rng.choice(_JUMPS_MS),
        slow_s=rng.choice((0.05, 0.5, 2.0)),
        place=rng.random(),
    )
