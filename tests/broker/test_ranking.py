"""Who comes first by ranks that change: the heap against a look at everybody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.broker import ranking
from dledger.broker.ranking import Ranking

_STEPS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(-9, 9)), st.booleans()),
    max_size=60,
)


@given(_STEPS, st.integers(0, 3))
def test_the_first_is_the_least_of_those_that_are_there(
    steps: list[tuple[str, int | None, bool]], slack: int
) -> None:
    """Whoever sank is told of; who rose or went is found out when it comes up."""
    ranks: dict[str, int] = {}
    ranked = Ranking(lambda: ranks, lambda key: (ranks[key],) if key in ranks else None)
    ranking._SLACK, before = slack, ranking._SLACK  # type: ignore[misc]
    try:
        for key, rank, is_asked in steps:
            old = ranks.pop(key, None)
            if rank is not None:
                ranks[key] = rank
                if old is None or rank < old:
                    ranked.sank(key)
            if is_asked and ranks:
                assert ranked.first() == min(ranks, key=lambda each: (ranks[each], each))
    finally:
        ranking._SLACK = before  # type: ignore[misc]


def test_a_heap_stays_as_small_as_what_it_ranks() -> None:
    """A hundred thousand changes of two keys are not a hundred thousand entries."""
    ranks = {"a": 0, "b": 0}
    ranked = Ranking(lambda: ranks, lambda key: (ranks[key],))
    ranked.first()

    for n in range(1000):
        ranks["a"] = -n
        ranked.sank("a")
        if n % 10 == 0:
            assert ranked.first() == "a" or n == 0
        assert len(ranked._heap or ()) <= 2 * len(ranks) + ranking._SLACK
