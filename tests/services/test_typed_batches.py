"""A producer's batch with what only some types of topics know: bounds, and who may not say it."""

from __future__ import annotations

import pytest

from dledger.broker.key_queues import queue_of_key
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.topics import Topic
from dledger.checks.messages import MAX_TIMESTAMP_MS
from dledger.errors import IllegalGroup, InvalidArgument, Refused, TopicTypeMismatch
from dledger.rpc.status import Code, Rejected
from dledger.services.batches import checked_batch, for_topic
from dledger.types import MovedFrom, Typed

_MOVED = MovedFrom(topic="orders", generation=2, queue_id=3, offset=4, stored_at_ms=5)


def _batch(*typed: Typed | None) -> bytes:
    messages = [Message(message_id="", body=b"x", typed=each) for each in typed]
    return encode_produce(Columns.of(messages), client_id="c", topic="t")


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (Typed(message_group="g", priority=0), "message_group"),
        (Typed(message_group="g", deliver_at_ms=1), "message_group"),
        (Typed(priority=0, deliver_at_ms=1), "delivery_timestamp"),
    ],
)
def test_what_no_batch_has_is_refused(typed: Typed, field: str) -> None:
    """What is of two types."""
    for batch in (_batch(typed), _batch(None, typed)):
        with pytest.raises(TopicTypeMismatch, match=f"NORMAL messages, which have no {field}$"):
            checked_batch(batch)
    assert checked_batch(_batch(None, Typed())).typed is None


@pytest.mark.parametrize("name", ["g" * 64, "été 7"])
def test_a_message_group_is_for_fifo_topics_alone(name: str) -> None:
    """Where it chooses the queue; and a message without one is for no such topic."""
    fifo = Topic(name="t", type="FIFO", queues=8)
    normal = Topic(name="t", type="NORMAL", queues=8)
    typed = Typed(message_group=name)

    batch = checked_batch(for_topic(_batch(typed, typed), fifo, is_typed=True))

    assert batch.queue_id == queue_of_key(name.encode(), 8)
    with pytest.raises(TopicTypeMismatch, match="takes NORMAL messages, not FIFO"):
        for_topic(_batch(typed), normal, is_typed=True)
    with pytest.raises(TopicTypeMismatch, match="takes FIFO messages, not NORMAL"):
        for_topic(_batch(None), fifo, is_typed=False)
    with pytest.raises(IllegalGroup, match="row 0 has none"):
        for_topic(_batch(None, typed), fifo, is_typed=True)


@pytest.mark.parametrize(
    "typed",
    [
        Typed(message_group="g" * 64),
        Typed(message_group="été 7"),
        Typed(priority=0),
        Typed(priority=2**31 - 1),
        Typed(deliver_at_ms=1),
        Typed(deliver_at_ms=MAX_TIMESTAMP_MS),
    ],
)
def test_a_batch_may_be_of_a_type(typed: Typed) -> None:
    """Whether its topic is of that type is asked when that is known."""
    for batch in (_batch(typed), _batch(None, typed)):
        assert checked_batch(batch).typed is not None


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        (Typed(message_group="g" * 65), "ILLEGAL_MESSAGE_GROUP"),
        (Typed(message_group="a\nb"), "ILLEGAL_MESSAGE_GROUP"),
        (Typed(message_group=" g"), "ILLEGAL_MESSAGE_GROUP"),
        (Typed(deliver_at_ms=-1), "ILLEGAL_DELIVERY_TIME"),
        (Typed(deliver_at_ms=MAX_TIMESTAMP_MS + 1), "ILLEGAL_DELIVERY_TIME"),
    ],
)
def test_what_no_type_takes_has_the_protocols_own_code(typed: Typed, code: str) -> None:
    """Before anybody asks of which type the topic is."""
    with pytest.raises(Rejected) as refused:
        checked_batch(_batch(None, typed))

    assert Code.Name(refused.value.code) == code


def test_where_a_message_was_moved_from_is_its_groups_word() -> None:
    """Whoever could say so would pass his own messages off as dead letters of another's."""
    with pytest.raises(InvalidArgument, match="says that it was moved from topic 'orders', which"):
        checked_batch(_batch(None, Typed(moved_from=_MOVED)))


@pytest.mark.parametrize("damage", [b"\xff", b"\xc0"])
def test_a_group_that_is_no_text_is_refused(damage: bytes) -> None:
    """No consumer could be told it."""
    with pytest.raises(Refused, match="not a valid batch: row 0: 'utf-8' codec can't decode"):
        checked_batch(_batch(Typed(message_group="#")).replace(b"#", damage))
