"""What the nemesis draws: the same from the same seed, every class every round, within bounds."""

from __future__ import annotations

import random
from itertools import islice

from e2e.chaos.episodes import Aim, Episode, FaultKind, Outlook, draw, possible
from e2e.chaos.faulty_group import RETENTION_HOURS
from e2e.chaos.files import REPLACEABLE, Part


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


def test_a_leap_ahead_makes_everything_older_than_the_run_s_retention() -> None:
    """Else it would drop nothing, whatever was believed; and some go back."""
    leaps_ms = {one.jump_ms for one in drawn(6, 800) if one.fault is FaultKind.CLOCK_DAYS}

    assert min(leap_ms for leap_ms in leaps_ms if leap_ms > 0) > RETENTION_HOURS * 3_600_000
    assert min(leaps_ms) < 0


def test_every_kind_of_file_is_flipped_and_only_replaceable_ones_are_cut() -> None:
    """A watermark that is cut is refused by name, rightly; a bit of it is survived."""
    parts = {
        fault: {one.part for one in drawn(9, 3000) if one.fault is fault}
        for fault in (FaultKind.FLIP, FaultKind.TRUNCATE)
    }

    assert parts[FaultKind.FLIP] == set(Part)
    assert parts[FaultKind.TRUNCATE] == set(REPLACEABLE)


def test_what_needs_a_mount_is_left_out_where_none_is_possible() -> None:
    """By name, so that the run can say so."""
    every = tuple(FaultKind)

    assert possible(every, has_volume=True) == list(every)
    left_out = set(every) - set(possible(every, has_volume=False))
    assert left_out == {FaultKind.NEIGHBOUR}
