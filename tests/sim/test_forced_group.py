"""A lost majority in the simulator: what is missing is what the survivor had not."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.replica.driver import Driver
from dledger.replica.force_group import Force, Forced
from dledger_sim import forced
from dledger_sim.checkers import ViolationError
from dledger_sim.forced import ForcedRun

SEEDS = range(8, 20)


def test_exactly_what_the_survivor_had_not_is_lost_whatever_happens_meanwhile() -> None:
    """Power cuts at any moment of the act leave the old group or the new one, and it goes on."""
    outcomes = [ForcedRun(seed).run() for seed in SEEDS]

    assert any(one.lost for one in outcomes), "some lose acknowledged messages"
    assert any(not one.lost and one.acknowledged for one in outcomes), "some lose none"
    assert any(one.tail for one in outcomes), "some commit what nobody had committed"
    assert any(one.crashes > 2 for one in outcomes)


def test_an_answer_before_the_act_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power is cut behind each answer."""

    async def too_early(driver: Driver, force: Force, **_: Any) -> Forced:
        term, index = driver.force_group(last_term=force.last_term, last_index=force.last_index)
        return Forced(term=term, index=index, epoch=1, committed_index=0, removed=())

    monkeypatch.setattr(forced, "carry_out", too_early)

    with pytest.raises(ViolationError):
        _run_all()


def _run_all() -> None:
    for seed in SEEDS:
        ForcedRun(seed).run()
