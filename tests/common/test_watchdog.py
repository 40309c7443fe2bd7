"""A process whose event loop stands still ends; one that was frozen as a whole does not."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading

import pytest

from dledger.cli import node_command
from dledger.common.watchdog import EXIT_STUCK, Stillness, Watchdog, end_process


def test_a_beat_that_moves_is_never_stuck() -> None:
    """However slowly it moves, as long as it does within the looks."""
    stillness = Stillness(looks=3)

    assert not any(stillness.look(beat) for beat in (1, 1, 1, 2, 2, 2, 3, 3, 3))


def test_a_beat_that_stands_still_for_all_looks_is_stuck() -> None:
    """Not one look earlier."""
    stillness = Stillness(looks=3)

    assert [stillness.look(7) for _ in range(4)] == [False, False, False, True]


def test_a_process_that_was_frozen_is_not_stuck() -> None:
    """Watchdog and loop slept together: however long it was, that is one look in vain."""
    stillness = Stillness(looks=3)
    stillness.look(7)

    after_the_thaw = stillness.look(7)

    assert not after_the_thaw
    assert not stillness.look(8)


async def test_a_loop_that_is_blocked_is_found_out() -> None:
    """By a thread: the loop itself does nothing any more."""
    found = threading.Event()
    watchdog = Watchdog(lambda *_: found.set(), look_s=0.005, looks=3)

    watchdog.start()
    blocked_until_found = found.wait(20)

    assert blocked_until_found
    watchdog.stop()


async def test_a_loop_at_work_that_takes_long_is_borne_with_for_longer() -> None:
    """For as many looks as it was given, and no longer; then it is said what it was at."""
    said: list[tuple[str, float]] = []
    found, looks = threading.Event(), itertools.count()

    def stuck(doing: str, still_s: float) -> None:
        said.append((doing, still_s))
        found.set()

    watchdog = Watchdog(stuck, look_s=0.005, looks=3)
    seen = watchdog._stillness.look
    watchdog._stillness.look = lambda beat: (next(looks), seen(beat))[1]
    watchdog.start()

    with watchdog.during("think", looks=50):
        was_patient = watchdog.is_patient
        while next(looks) < 60:  # counted here, too: some twenty looks of the watchdog
            threading.Event().wait(0.005)
    judged_at_once = seen(watchdog._beat)
    assert not judged_at_once
    assert said == []
    assert (was_patient, watchdog.is_patient) == (True, False)
    with watchdog.during("think again", looks=5):
        assert found.wait(20)

    assert said == [(", while it was to think again", 0.025)]
    watchdog.stop()


async def test_a_watchdog_that_was_stopped_says_nothing() -> None:
    """A loop that has ended does not beat either."""
    found = threading.Event()
    watchdog = Watchdog(lambda *_: found.set(), look_s=0.005, looks=1)

    watchdog.start()
    watchdog.stop()

    assert not found.wait(0.05)


def test_a_stuck_process_says_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stacks of all threads, and an exit code of its own."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    end_process(", while it was to think", 10)

    assert codes == [EXIT_STUCK]
    assert "end_process" in capfd.readouterr().err


async def test_a_node_that_cannot_stop_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging disk keeps its threads, and those would keep the process."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    await node_command.stop_within(0.01, hangs)

    assert codes == [node_command.EXIT_FATAL]
