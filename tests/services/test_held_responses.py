"""What a producer is told of messages that are held, and of those that are not."""

from __future__ import annotations

import pytest

from dledger.broker.held_refs import HELD_QUEUE, Ref
from dledger.broker.results import Produced
from dledger.errors import MessageIdConflict
from dledger.services.held_responses import halves_response, held_response

_STORED = Produced(
    topic="t", queue_ids=[HELD_QUEUE, 3], offsets=[Ref(1, 2).number, 7], index=9, generation=1,
    stored=1,
)  # fmt: skip
_SECRET = bytes(32)


def test_what_is_in_a_queue_has_a_place_and_what_is_held_a_handle() -> None:
    answer = held_response(_STORED, [b"a", b"b"], _SECRET)

    assert (answer.queue_id, list(answer.offsets)) == (3, [-1, 7])
    assert [bool(each) for each in answer.recall_handles] == [True, False]


def test_a_half_whose_id_is_of_a_message_in_a_queue_is_no_half() -> None:
    """Nobody is to be told a transaction's id that is another message's offset."""
    with pytest.raises(MessageIdConflict) as refused:
        halves_response(_STORED, _SECRET)

    assert refused.value.rows == (1,)
