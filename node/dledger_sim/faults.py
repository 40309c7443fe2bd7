"""What goes wrong in a run, and how often: one value."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Rates of faults; 0 is never.

    Attributes:
        loss: Part of the messages that are lost.
        duplicate: Part of the messages that arrive twice.
        straggle: Part of the messages that take up to a second.
        delay_ms: The longest ordinary delay of a message; each differs, so they overtake.
        sync_ms: The longest ordinary write with sync.
        stall: Part of the writes that take up to two seconds.
        evicted: Part of the reads of old entries that must be loaded first.
        crash_saving: Part of the hard state writes during which the node crashes.
        crash_writing: Part of the log writes during which the node crashes.
        crash_leader: Part of the new leaders that crash soon.
        crash_s: Mean seconds between crashes (unsynced writes are lost).
        partition_s: Mean seconds between partitions, some of them in one direction only.
        pause_s: Mean seconds between pauses of a process.
        hint_s: Mean seconds between broken connections.
        change_s: Mean seconds between changes of the membership that are asked for.
        order_s: Mean seconds between a hand-over, a step-down or a campaign that is asked for.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    straggle: float = 0.0
    delay_ms: int = 5
    sync_ms: int = 10
    stall: float = 0.0
    evicted: float = 0.0
    crash_saving: float = 0.0
    crash_writing: float = 0.0
    crash_leader: float = 0.0
    crash_s: float = 0.0
    partition_s: float = 0.0
    pause_s: float = 0.0
    hint_s: float = 0.0
    change_s: float = 0.0
    order_s: float = 0.0

    @classmethod
    def draw(cls, rng: Random) -> Faults:
        """Draw a mix: each kind is absent, rare or frequent."""
        return cls(
            loss=rng.choice((0.0, 0.01, 0.2)),
            duplicate=rng.choice((0.0, 0.01, 0.2)),
            straggle=rng.choice((0.0, 0.01, 0.1)),
            delay_ms=rng.choice((2, 20, 100)),
            sync_ms=rng.choice((2, 20, 200)),
            stall=rng.choice((0.0, 0.01, 0.1)),
            evicted=rng.choice((0.0, 0.1, 0.9)),
            crash_saving=rng.choice((0.0, 0.0, 0.2)),
            crash_writing=rng.choice((0.0, 0.0, 0.01)),
            crash_leader=rng.choice((0.0, 0.0, 0.8)),
            crash_s=rng.choice((0.0, 5.0, 1.0)),
            partition_s=rng.choice((0.0, 5.0, 1.5)),
            pause_s=rng.choice((0.0, 5.0, 1.5)),
            hint_s=rng.choice((0.0, 5.0, 0.5)),
            change_s=rng.choice((0.0, 0.0, 3.0, 1.0)),
            order_s=rng.choice((0.0, 5.0, 1.5)),
        )
