"""When there must be a leader, and how long there was none."""

from __future__ import annotations

from e2e.chaos.availability import first_leader_s, is_able, longest_gap_s
from e2e.chaos.history import Probe

NODES = ("a", "b", "c")


def probe(start: float, end: float) -> Probe:
    """Return an acknowledged probe."""
    return Probe(node="a", invoked_s=start, ended_s=end)


def test_a_group_without_faults_is_able() -> None:
    """Everybody talks with everybody."""
    assert is_able(NODES, down=(), cuts=())


def test_a_group_with_a_majority_down_is_not_able() -> None:
    """One of three alone."""
    assert is_able(NODES, down=("a",), cuts=())
    assert not is_able(NODES, down=("a", "b"), cuts=())


def test_a_bridge_keeps_the_group_able() -> None:
    """The one in the middle talks both ways with all."""
    assert is_able(NODES, down=(), cuts=[("a", "c"), ("c", "a")])


def test_a_ring_of_one_way_cuts_is_not_able() -> None:
    """Nobody talks both ways with anybody."""
    assert not is_able(NODES, down=(), cuts=[("a", "b"), ("b", "c"), ("c", "a")])


def test_a_one_way_cut_counts_for_both_of_its_ends() -> None:
    """With b down, a and c would have to talk both ways."""
    assert not is_able(NODES, down=("b",), cuts=[("a", "c")])


def test_a_probe_that_began_before_says_nothing_of_the_leader_after() -> None:
    """It may have been taken by the leader that is gone."""
    assert first_leader_s([probe(0.9, 1.4), probe(2, 2.5)], since_s=1.0) == 2.5
    assert first_leader_s([probe(0.9, 1.4)], since_s=1.0) is None


def test_the_longest_gap_counts_the_ends_of_the_window() -> None:
    """From the start to the first answer, and from the last one to the end."""
    probes = [probe(0, 2), probe(3, 4), probe(3, 5)]

    assert longest_gap_s(probes, 0, 6) == 2
    assert longest_gap_s(probes, 1, 20) == 15
    assert longest_gap_s([], 1, 4) == 3
