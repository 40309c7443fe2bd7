"""The ids that a client makes up: no two alike, and what nodes remember as one run."""

from __future__ import annotations

from dledger.broker.id_runs import MAX_ROW, IdRun, in_parts
from dledger.client.message_ids import MessageIds


def test_ids_of_one_producer_count_up() -> None:
    """Batches of any size continue each other, so a node keeps a prefix and numbers."""
    ids = MessageIds()

    taken = [*ids.take(3), *ids.take(0), *ids.take(1), *ids.take(60)]

    (run,) = in_parts(tuple(message_id.encode() for message_id in taken))
    assert isinstance(run, IdRun)
    assert (run.row, run.length) == (0, 64)


def test_two_producers_share_no_id() -> None:
    """Not even if they say that they are one client."""
    first, second = MessageIds(), MessageIds()

    assert not {*first.take(100)} & {*second.take(100)}


def test_the_first_id_that_needs_a_digit_more_is_new() -> None:
    """A row has 12 digits: the next one belongs to the prefix, and rows begin anew."""
    ids = MessageIds()
    ids.take(1)
    ids._next = MAX_ROW

    last, more = (message_id.encode() for message_id in ids.take(2))

    parts = in_parts((last, more))
    assert [(run.row, len(run.prefix)) for run in parts if isinstance(run, IdRun)] == [
        (MAX_ROW, 20),
        (0, 21),
    ]
