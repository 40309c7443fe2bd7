"""How long a turn of the event loop takes is seen, whole, in processor time."""

from __future__ import annotations

import asyncio
import time

from dledger.server.loop_profile import BEAT_S, LoopProfile
from tests.waiting import eventually


def _compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


async def test_a_long_turn_is_seen_whole() -> None:
    """However the beats fall; and what ran before it is told apart."""
    seen: list[float] = []
    turns = LoopProfile(seen.append)
    turns.start()
    await eventually(lambda: seen)
    seen.clear()

    _compute(0.15)
    await eventually(lambda: max(seen, default=0) >= 0.15)
    turns.stop()

    assert sum(taken_s >= 0.15 for taken_s in seen) == 1


async def test_waiting_is_no_turn() -> None:
    """A loop that sleeps, or is kept from the processor, computes nothing."""
    seen: list[float] = []
    turns = LoopProfile(seen.append, cpu_s=lambda: 7.0)
    turns.start()

    await eventually(lambda: len(seen) >= 3)
    turns.stop()
    stopped = len(seen)
    await asyncio.sleep(2 * BEAT_S)

    assert set(seen) == {0.0}
    assert len(seen) == stopped
