"""An id that comes with another body is no retry: it is refused by row, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.body_digests import digest_of, digests_of
from dledger.broker.results import NOWHERE
from dledger.broker.state import BrokerState
from tests.broker.log import Log

_BATCHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["", "i", "j", "p%012d", "q%012d"]),
            st.integers(0, 4),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=6,
    ),
    max_size=12,
)


def _log() -> Log:
    log = Log()
    log.create(queues=3)
    return log


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_digests_of_a_batch_are_those_of_its_bodies(bodies: list[bytes]) -> None:
    """Taken together they are what each is alone: the state may not depend on how they came."""
    assert list(digests_of(bodies)) == list(map(digest_of, bodies))
    assert list(digests_of([memoryview(each) for each in bodies])) == list(map(digest_of, bodies))


@pytest.mark.found
def test_a_message_under_the_id_of_another_one_is_not_taken_for_it() -> None:
    """The answer names it; what was stored first stays what it is; found: S1."""
    log = _log()
    log.produce("stolen", ids=("id",))

    result = log.produce("PAYMENT", ids=("id",))

    assert (result.conflicts, result.repeats, result.stored) == ([0], [], 0)
    assert result.offsets == (NOWHERE,)
    assert (result.queue_id, result.index) == (NOWHERE, 0)
    assert log.state.topics.messages("t") == 1


@pytest.mark.found
def test_the_rows_beside_a_conflict_are_stored_in_their_order() -> None:
    """A batch is many senders' messages: one that is at fault is at fault alone; found: S1."""
    log = _log()
    log.produce("stolen", ids=(f"p{1:012}",), queue_id=2)

    result = log.produce("a", "b", "c", ids=tuple(f"p{n:012}" for n in range(3)))
    again = log.produce("a", "b", "c", ids=tuple(f"p{n:012}" for n in range(3)))

    assert (result.conflicts, result.stored) == ([1], 2)
    assert result.queue_ids == (0, NOWHERE, 0)
    assert result.offsets == (0, NOWHERE, 1)
    assert (again.conflicts, again.repeats, again.stored) == ([1], [0, 2], 0)
    assert again.offsets == result.offsets


@pytest.mark.found
def test_a_batch_that_repeats_an_id_with_another_body_conflicts_with_itself() -> None:
    """The first of the two is stored; with the same body the second is a repetition; found: S1."""
    result = _log().produce("a", "a", "b", ids=("id", "id", "id"))

    assert (result.conflicts, result.repeats, result.stored) == ([2], [1], 1)
    assert result.offsets == (0, 0, NOWHERE)


@pytest.mark.found
def test_a_batch_of_conflicts_changes_no_queue() -> None:
    """Nor whose turn is next; found: S1."""
    log = _log()
    log.produce("stolen", ids=("id",), queue_id=0)

    log.produce("PAYMENT", ids=("id",), queue_id=-1)

    assert log.produce("next", ids=("other",), queue_id=-1).queue_ids == (0,)


@given(_BATCHES, st.integers(0, 12))
def test_each_id_stands_for_the_first_body_that_came_with_it(
    batches: list[list[tuple[str, int, int]]], restarted_at: int
) -> None:
    """Against a dictionary, over a snapshot; and replayed, the state is the same."""
    log, model = _log(), dict[str, tuple[str, int]]()
    ends = 0

    for number, rows in enumerate(batches):
        ids = tuple(form % n if "%" in form else form and f"{form}{n}" for form, n, _ in rows)
        bodies = tuple(f"{body}" for _, _, body in rows)
        result = log.produce(*bodies, ids=ids)
        for row, (message_id, body) in enumerate(zip(ids, bodies, strict=True)):
            known = model.get(message_id) if message_id else None
            if known is None:
                model[message_id] = (body, ends)
                assert result.offsets[row] == ends
                ends += 1
            elif known[0] == body:
                assert row in result.repeats
                assert result.offsets[row] == known[1]
            else:
                assert row in result.conflicts
                assert result.offsets[row] == NOWHERE
        if number == restarted_at:
            log.state = BrokerState.decode(log.state.encode())
    assert log.state.digest() == log.replay().digest()
