"""What a message may cost in calls of our own: deterministic counts, so a test may hold them."""

from __future__ import annotations

import pytest

from dledger_sim.paths import Paths

# What was measured when a line was last changed, rounded up; `make paths` shows today's, and with
# PATHS_ARGS="--top 20" where they are. Since they were lowest they count what our own server hands
# on, too (19 calls of a poll), and what room, time, filters and witnesses ask of each entry (24 to
# 50 calls). An idle leader hears all members each second.
AT_MOST = {
    "SendMessage alone, at the leader": 384,
    "32 at once, a message": 83,
    "ReceiveMessage of one": 522,
    "AckMessage": 354,
    "one append, at a follower": 225,
    "an idle leader, a second": 2_050,
}


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    return {line.what: line.entries for line in Paths().lines()}


@pytest.mark.parametrize("what", AT_MOST)
def test_a_message_takes_no_more_calls_than_it_did(measured: dict[str, float], what: str) -> None:
    assert 0 < measured[what] <= AT_MOST[what]


def test_the_figures_are_the_same_in_each_run(measured: dict[str, float]) -> None:
    assert {line.what: line.entries for line in Paths().lines()} == measured
