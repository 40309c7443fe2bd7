"""Whatever the members' clocks say, all of them wrong: the promises about time (adr 43).

No message goes before its hours under a leader, less an eighth; the log's time never goes back, and
goes at seven eighths at least. With no more than a minority wrong at a time it is never ahead of
all right clocks by more than 5 s and a round trip, and with all right within 5 s in a minute.
`time_world` checks each after every step.
"""

from __future__ import annotations

import pytest

from tests.replica.time_world import World

_WRONG = pytest.mark.parametrize("minority", [True, False], ids=["a minority", "all"])


@_WRONG
def test_time_holds_whichever_clocks_are_wrong(minority: bool) -> None:
    """In each of some random worlds, after every step."""
    _worlds(range(20), minority=minority)


@pytest.mark.long
@_WRONG
def test_time_holds_in_many_worlds(minority: bool) -> None:
    """The same, in many more."""
    _worlds(range(20, 500), minority=minority)


def _worlds(seeds: range, *, minority: bool) -> None:
    dropped = leaps = 0
    for seed in seeds:
        world = World(seed, minority=minority)
        world.run(300)
        dropped, leaps = dropped + world.dropped, leaps + world.leaps
    assert dropped > 100 * len(seeds)  # what is never dropped shows nothing
    assert leaps > 2 * len(seeds)
