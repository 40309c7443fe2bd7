"""What the nemesis draws: the same from the same seed, every class every round, within bounds."""

from __future__ import annotations

import random
from itertools import islice

from e2e.chaos.episodes import Aim, Episode, FaultKind, Outlook, draw


def drawn(seed: int, count: int, outlook: Outlook | None = None) -> list[Episode]:
    """Return the first episodes of a seed."""
    return list(islice(draw(random.Random(seed), outlook or Outlook()), count))


def test_a_seed_gives_the_same_episodes_again() -> None:
    """A failed run can be repeated as far as real processes can."""
    assert drawn(7, 50) == drawn(7, 50)
    assert drawn(7, 50) != drawn(8, 50)


def test_every_class_comes_once_a_round() -> None:
    """However short the run, no class is left to luck."""
    first_round = [episode.fault for episode in drawn(3, len(FaultKind))]

    assert set(first_round) == set(FaultKind)


def test_only_the_classes_that_were_asked_for_are_drawn() -> None:
    """For looking at one of them."""
    outlook = Outlook(classes=(FaultKind.BRIDGE, FaultKind.DELAY))

    assert {episode.fault for episode in drawn(1, 20, outlook)} == {
        FaultKind.BRIDGE,
        FaultKind.DELAY,
    }


def test_pauses_last_a_second_to_a_minute_and_mostly_little() -> None:
    """So that 150 episodes fit into 20 minutes."""
    pauses = [
        episode.hold_s
        for episode in drawn(5, 4000)
        if episode.fault in (FaultKind.PAUSE_LEADER, FaultKind.PAUSE_FOLLOWER)
    ]

    assert min(pauses) >= 1
    assert max(pauses) == 60
    assert sorted(pauses)[len(pauses) // 2] < 3
    assert sum(pauses) / len(pauses) < 8


def test_a_class_that_names_its_target_hits_it() -> None:
    """Killing the leader kills the leader."""
    named = {episode.target for episode in drawn(2, 200) if episode.fault is FaultKind.KILL_LEADER}

    assert named == {Aim.LEADER}


def test_partitions_last_long_enough_to_miss_a_leader() -> None:
    """A livelock that ends with the partition after a second would not be seen."""
    holds_s = [episode.hold_s for episode in drawn(4, 400) if episode.fault is FaultKind.BRIDGE]

    assert min(holds_s) >= 3
    assert max(holds_s) > 7
