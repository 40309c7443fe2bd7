"""When a `dledger dev` group goes on without nodes that refuse to start."""

from __future__ import annotations

import pytest

from dledger.cli.dev_members import DevMembers


@pytest.mark.parametrize(
    ("count", "removed", "down", "goes_on"),
    [
        (1, 0, 0, True),
        (1, 0, 1, False),
        (3, 0, 1, True),
        (3, 0, 2, False),
        (5, 0, 2, True),
        (5, 0, 3, False),
        (3, 1, 0, True),
        (3, 1, 1, False),  # of two, both are needed
        (5, 2, 1, True),
        (5, 2, 2, False),
    ],
)
def test_a_majority_of_the_members_goes_on(
    count: int, removed: int, down: int, goes_on: bool
) -> None:
    """A node that the group removed is none of them; one that stays down is."""
    members = DevMembers(count, removed=set(range(removed)))
    for index in range(removed, removed + down):
        members.down[index] = "refuses to start"

    assert members.have_majority is goes_on
    assert members.all_answered(count - removed - down)
    assert not members.all_answered(count - removed - down - 1)


def test_who_stays_down_is_told_with_the_reason() -> None:
    """By number, whoever was first."""
    members = DevMembers(3, down={2: "refuses to start (exit 3): b", 0: "refuses to start: a"})

    assert members.refusals() == "node 0 refuses to start: a; node 2 refuses to start (exit 3): b"
