"""Order and once at the edge: the producers we ship, over the real streams, in virtual time."""

from __future__ import annotations

import os
from random import Random

import pytest

from dledger.errors import DiskFull, OutcomeUnknown
from dledger_sim.audit import check_order
from dledger_sim.checkers import ViolationError
from dledger_sim.edge import EdgeOptions, EdgeRun
from dledger_sim.senders import Told

SEEDS = int(os.environ.get("EDGE_SEEDS", "20"))


def test_what_was_sent_is_stored_in_order_and_once_whatever_happens_between() -> None:
    """Random bounds and windows, stalls, leader changes, broken and silent connections."""
    seeds = range(1, SEEDS + 1)
    outcomes = [EdgeRun(seed, EdgeOptions.producing(seed)).run() for seed in seeds]

    assert sum(one.acknowledged for one in outcomes) > 100 * SEEDS
    assert sum(one.terms for one in outcomes) > SEEDS
    assert sum(one.conflicts for one in outcomes) > 0


def test_order_is_kept_by_a_leader_that_is_short_of_room() -> None:
    """P2: a batch without room stays queued; refused, it came behind those that followed it."""
    for seed in range(1, 13):
        options = EdgeOptions.draw(Random(f"{seed}/edge")).short_of_room()

        assert EdgeRun(seed, options).run().acknowledged > 0


def test_messages_whose_answers_are_lost_are_stored_once() -> None:
    """P4: what is sent again is never more than what is remembered."""
    for seed in range(1, 7):
        options = EdgeOptions.draw(Random(f"{seed}/edge")).falling_silent()

        assert EdgeRun(seed, options).run().acknowledged > 0


def test_a_run_is_the_same_each_time() -> None:
    """Or a seed that fails could not be looked at."""
    drawn = EdgeOptions.producing(3)

    assert EdgeRun(3, drawn).run() == EdgeRun(3, drawn).run()


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        ([(0, 0), (2, 1), (1, 2)], "1 is stored behind 2"),
        ([(0, 0), (1, 1), (1, 2)], "1 is stored twice"),
        ([(0, 0), (2, 1)], "1 was acknowledged and is lost"),
        ([(0, 0), (1, 7)], "1 is not where it was told to be"),
        ([(0, 0), (1, 1), (3, 2)], "3 is stored, in spite of DiskFull"),
    ],
)
def test_a_queue_that_breaks_a_promise_is_seen(stored: list[tuple[int, int]], what: str) -> None:
    """The checker's own test: one of unknown outcome may be there or not."""
    sent = [
        Told(0, 0, offset=0),
        Told(1, 0, offset=1),
        Told(2, 0, error=OutcomeUnknown("2")),
        Told(3, 0, error=DiskFull("3")),
    ]

    check_order("c", sent, [(0, 0), (1, 1)])
    check_order("c", sent, [(0, 0), (1, 1), (2, 2)])
    with pytest.raises(ViolationError, match=what):
        check_order("c", sent, stored)
