"""The model of discarding (`make model`) in small: both old losses are found, none is left."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.raft.discard_exploration import World, explore
from tests.raft.discard_model import OLD, Model, Rules, State
from tests.raft.discard_replay import DifferError, walk
from tests.raft.discard_worlds import WALK_STEPS, WORLDS, small

_LOSING = [world for world in WORLDS if world.loses]


_DEAR = pytest.mark.long
_SMALL = [
    pytest.param(small(one), id=one.name, marks=[_DEAR] if len(one.start.nodes) > 4 else [])
    for one in WORLDS
]


@pytest.mark.parametrize("world", _SMALL)
def test_nothing_is_lost_by_the_rules_that_are_shipped(world: World) -> None:
    """Every state that may follow, up to the last term of the smaller worlds."""
    found = explore(world, rules=Rules())

    assert (found.fault, found.path) == ("", ())
    assert found.states > 500


@pytest.mark.parametrize(
    ("world", "fault"),
    [
        (_LOSING[0], "a leader lacks an entry that was committed before its term"),
        (_LOSING[1], "a membership is in force that the log does not have"),
    ],
    ids=[world.name for world in _LOSING],
)
def test_the_rules_before_lose_what_was_found(world: World, fault: str) -> None:
    """What the model can find, it must be able to find."""
    assert explore(small(world), rules=OLD).fault == fault


@pytest.mark.long
def test_voters_that_are_surely_known_are_what_keeps_the_entry() -> None:
    """Not to ask while a membership is unknown is enough by itself; so is to have it told."""
    (outdated,) = (world for world in _LOSING if "damaged change" in world.name)
    for rules in (replace(OLD, asks_when_sure=True), replace(OLD, snapshots_tell=True)):
        assert explore(small(outdated), rules=rules).fault == ""


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_walks_of_the_model_are_walks_of_the_core(world: World) -> None:
    """Terms, votes, logs, disks, memberships and commit points are equal after each step."""
    model = replace(world.model, bounded=False)

    assert _walks(model, world.start, 40) > 300


def test_a_core_that_goes_another_way_is_noticed() -> None:
    """By rules that are not its own: what was discarded stays on the disk of the model only."""
    leftover = WORLDS[-1]
    model = replace(leftover.model, bounded=False, rules=replace(Rules(), cuts_disk=False))

    with pytest.raises(DifferError):
        _walks(model, leftover.start, 400)


def _walks(model: Model, start: State, count: int) -> int:
    """Take walks, and return how long they were together."""
    return sum(walk(model, start, Random(seed), steps=WALK_STEPS) for seed in range(count))
