"""When leadership should follow the clients: often enough, clearly enough, for long enough."""

from __future__ import annotations

import pytest

from dledger.requests.leader_locality import LeaderLocality
from dledger.types import NodeId

OWN, A, B = NodeId("own"), NodeId("a"), NodeId("b")


def window(affinity: LeaderLocality, **requests: int) -> NodeId | None:
    """Count requests by where they came through, and end the window."""
    for node, count in requests.items():
        for _ in range(count):
            affinity.note(None if node == OWN else NodeId(node))
    return affinity.end_window()


def test_a_follower_that_takes_nearly_everything_for_two_windows_is_to_lead() -> None:
    """One window may be chance."""
    affinity = LeaderLocality(OWN)

    assert window(affinity, a=190, own=10) is None
    assert window(affinity, a=190, own=10) == A


@pytest.mark.parametrize(
    "requests",
    [
        {"own": 200},
        {"a": 140, "own": 60},
        {"a": 100, "b": 100},
        {"a": 99},
        {},
    ],
    ids=["they come here", "no clear majority", "split", "too few", "none"],
)
def test_leadership_stays_when_moving_gains_little(requests: dict[str, int]) -> None:
    """However long it goes on."""
    affinity = LeaderLocality(OWN)

    assert [window(affinity, **requests) for _ in range(5)] == [None] * 5


def test_favourites_that_change_move_nothing() -> None:
    """Clients that wander do not drag leadership behind them."""
    affinity = LeaderLocality(OWN)

    assert [window(affinity, **{node: 200}) for node in ("a", "b", "a", "own", "a")] == [None] * 5


def test_what_was_counted_before_leadership_is_forgotten() -> None:
    """A new leader begins with an empty window."""
    affinity = LeaderLocality(OWN)
    window(affinity, a=200)
    affinity.forget()

    assert window(affinity, a=200) is None


def test_each_hand_over_makes_the_next_one_slower() -> None:
    """A follower that cannot keep leadership, on a slow disk say, is not asked over and over."""
    affinity = LeaderLocality(OWN)

    answers = [window(affinity, a=200) for _ in range(14)]

    assert [number for number, answer in enumerate(answers, 1) if answer == A] == [2, 4, 8]


def test_after_a_calm_while_it_is_as_quick_as_at_first() -> None:
    """What happened ten minutes ago says little about now."""
    affinity = LeaderLocality(OWN)
    window(affinity, a=200)
    assert window(affinity, a=200) == A

    for _ in range(120):
        affinity.forget()

    assert [window(affinity, a=200) for _ in range(2)] == [None, A]
