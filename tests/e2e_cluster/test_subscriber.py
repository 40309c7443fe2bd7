"""The subscriber of the backup story: what it calls lost, come again, and foreign."""

from __future__ import annotations

import pytest

from dledger.errors import OffsetOutOfRange
from e2e.harness import bookkeeper, subscriber

NOTED = {"a", "b", "c", "d"}
TAKEN = {"a", "b"}


@pytest.mark.parametrize(
    ("delivered", "lost", "again", "foreign"),
    [
        ({"c", "d"}, 0, 0, 0),
        ({"c"}, 1, 0, 0),
        ({"b", "c", "d"}, 0, 1, 0),
        ({"c", "d", "later"}, 0, 0, 1),
        (set(), 2, 0, 0),
    ],
)
def test_a_consumer_group_goes_on_exactly_where_it_was(
    delivered: set[str], lost: int, again: int, foreign: int
) -> None:
    """What was acknowledged stays so, the rest comes, and nothing of a later time does."""
    found = subscriber.differences_of(NOTED, TAKEN, delivered)

    assert found == {"lost": lost, "again": again, "foreign": foreign}


def test_the_oldest_offset_is_read_from_the_refusal_of_an_older_one() -> None:
    """The client tells it in no other way."""
    said = f"InvalidArgument: orders:8081: {OffsetOutOfRange(0, first=7424, last=8960)}"

    found = bookkeeper.OUTSIDE.search(said)

    assert found
    assert found[1] == "7424"
