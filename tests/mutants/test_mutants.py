"""A sample of the mutants, and that the others still fit the code; `make mutants` runs them all."""

from __future__ import annotations

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, Mutant, judge

SAMPLE = ("skip the vote's sync", "ignore a conflict's term", "forget the directory sync of a vote")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_mutant_fits_the_code(mutant: Mutant) -> None:
    """Its text is there once, and the checks that are to catch it exist."""
    text = mutant.path(ROOT / mutant.package).read_text("utf-8")

    compile(mutant.planted(text), mutant.file, "exec")
    assert [check for check in mutant.checks if not (ROOT / check).exists()] == []


def test_mutants_have_names_of_their_own() -> None:
    """One line of the table each, and enough of them."""
    names = {mutant.name for mutant in MUTANTS}

    assert len(names) == len(MUTANTS) >= 30
    assert names >= set(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name in SAMPLE])
def test_sample_of_mutants_is_caught(mutant: Mutant) -> None:
    """The harness plants, runs and tells which test failed."""
    assert judge(mutant, seeds=0).caught_by.startswith("tests/")


@pytest.mark.slow
def test_mutant_that_changes_nothing_survives() -> None:
    """A check that fails for another reason than the bug would catch everything."""
    harmless = Mutant(
        name="harmless",
        file="raft/quorum.py",
        old="return voter_count // 2 + 1",
        new="return 1 + voter_count // 2",
        why="it does not",
        checks=("tests/raft/test_quorum.py",),
    )

    assert judge(harmless, seeds=0).caught_by == ""
