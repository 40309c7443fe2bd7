"""Transactions in a simulated group: the world `transactions`, and its checker."""

from __future__ import annotations

import pytest

from dledger_sim.options import Options
from dledger_sim.run import Run


def test_the_world_has_changes_of_leaders() -> None:
    """So that two of them end the same transaction."""
    worlds = [Options.of(seed, "transactions") for seed in range(20)]

    assert all(one.halves and one.depose_s for one in worlds)


@pytest.mark.parametrize("seed", [1, 4])
def test_each_transaction_ends_as_was_said_first(seed: int) -> None:
    """Through crashes and leaders that are cut off; what is said again is told the same."""
    outcome = Run(seed, Options.of(seed, "transactions")).run()

    assert outcome.ended
