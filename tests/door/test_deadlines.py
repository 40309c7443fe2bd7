"""The deadlines of a port's calls: one timer for those of a moment, and none that nobody needs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from dledger.door.deadlines import MOMENT_S, Deadlines
from tests.rocketmq.turned_clock import TurnedClock


@dataclass
class _Ends:
    """When which call was ended."""

    loop: TurnedClock
    ended: dict[str, float] = field(default_factory=dict)

    def end_late(self, call: str) -> None:
        assert call not in self.ended
        self.ended[call] = self.loop.now_s


async def _turn(loop: TurnedClock, to_s: float) -> None:
    """Let time pass, step by step."""
    while loop.now_s < to_s:
        loop.now_s += MOMENT_S / 4
        for _ in range(3):
            await asyncio.sleep(0)


def test_calls_end_at_their_time_and_those_that_have_left_do_not() -> None:
    loop, rng = TurnedClock(), random.Random(49)

    async def run() -> None:
        deadlines, ends = Deadlines(), _Ends(loop)
        until = {f"call {n}": rng.uniform(-0.5, 3) for n in range(300)}
        moments = {call: deadlines.enter(call, ends, at_s) for call, at_s in until.items()}
        assert len(deadlines) <= 3.5 / MOMENT_S + 1
        leave = rng.sample(sorted(call for call, at_s in until.items() if at_s > 1.5), 50)
        await _turn(loop, 1.0)
        for call in leave:
            deadlines.leave(call, moments[call])
            deadlines.leave(call, moments[call])  # once more does nothing
        await _turn(loop, 4.0)

        assert ends.ended.keys() == until.keys() - set(leave)
        late = {call: at_s - max(until[call], 0) for call, at_s in ends.ended.items()}
        assert all(0 <= by_s <= 2 * MOMENT_S for by_s in late.values()), late
        assert not len(deadlines)

    loop.run_until_complete(run())
    loop.close()


def test_no_timer_is_left_when_all_calls_have_ended_before_their_time() -> None:
    loop = TurnedClock()

    async def run() -> None:
        deadlines, ends = Deadlines(), _Ends(loop)
        for number in range(100):
            moment = deadlines.enter(f"call {number}", ends, 3_600 + number)
            deadlines.leave(f"call {number}", moment)

        assert not len(deadlines)
        assert all(timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]

    loop.run_until_complete(run())
    loop.close()
