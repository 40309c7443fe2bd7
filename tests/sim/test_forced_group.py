"""A lost majority in the simulator: what is missing is what the survivor had not."""

from __future__ import annotations

from dledger_sim.forced import ForcedRun

SEEDS = range(24)


def test_exactly_what_the_survivor_had_not_is_lost_whatever_happens_meanwhile() -> None:
    """Power cuts at any moment of the act leave the old group or the new one, and it goes on."""
    outcomes = [ForcedRun(seed).run() for seed in SEEDS]

    assert any(one.lost for one in outcomes), "some lose acknowledged messages"
    assert any(not one.lost and one.acknowledged for one in outcomes), "some lose none"
    assert any(one.tail for one in outcomes), "some commit what nobody had committed"
    assert any(one.crashes > 2 for one in outcomes)
    assert sum(one.found for one in outcomes) > len(outcomes) // 2
