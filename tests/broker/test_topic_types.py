"""What the type of a topic decides."""

import pytest

from dledger.broker import topic_store
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.broker.topics import LATER_TYPES, NORMAL, TYPES, checked_topic
from dledger.errors import InvalidArgument, TopicTypeMismatch, Unsupported
from tests.broker.log import Log


@pytest.mark.parametrize("kind", ["FIFO", "DELAY", "TRANSACTION", "99"])
def test_a_normal_topic_takes_no_other_messages(kind: str) -> None:
    """A message that is to wait, or to keep an order, would not."""
    with pytest.raises(TopicTypeMismatch, match=f"takes NORMAL messages, not {kind}"):
        NORMAL.check(kind, ())
    with pytest.raises(TopicTypeMismatch, match="NORMAL messages, which have no message_group"):
        NORMAL.check("NORMAL", ["message_group"])
    NORMAL.check("NORMAL", ())


def test_a_normal_topics_queues_take_turns() -> None:
    """But what is sent again goes where the rest of it is."""
    assert [NORMAL.queue_for(home=None, turn=turn) for turn in (0, 1, 2)] == [0, 1, 2]
    assert NORMAL.queue_for(home=0, turn=2) == 0


def test_a_normal_topics_messages_do_not_wait_for_each_other() -> None:
    """However many are on loan."""
    assert all(NORMAL.may_deliver(leased) for leased in (0, 1, 16_384))


def test_each_type_is_there_or_refused_by_its_name() -> None:
    """One that nobody has heard of is a mistake, one that is to come is not."""
    assert not LATER_TYPES & TYPES.keys()
    for name in TYPES:
        assert checked_topic(name="t", type=name, queues=1).type == name
    for name in LATER_TYPES:
        with pytest.raises(Unsupported, match=f"^topic type {name} is not implemented yet; only"):
            checked_topic(name="t", type=name, queues=1)
    with pytest.raises(InvalidArgument, match=r"none of DELAY, FIFO, NORMAL, TRANSACTION$"):
        checked_topic(name="t", type="normal", queues=1)


def test_a_topic_of_an_unknown_type_is_not_read_from_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that does not know what a topic decides would decide otherwise than the others."""
    log = Log()
    log.create(queues=1)
    written = log.state.encode()
    monkeypatch.setattr(topic_store, "TYPES", {})

    with pytest.raises(MalformedStateError, match="topic 't' has the unknown type 'NORMAL'"):
        BrokerState.decode(written)
