"""What the type of a topic decides, which types a log may have, and which of them are served."""

from __future__ import annotations

import pytest

from dledger.broker import topic_store
from dledger.broker.command_frame import CommandType, frame
from dledger.broker.commands import CreateTopic
from dledger.broker.results import TopicCreated
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.broker.topics import (
    NORMAL,
    SERVED,
    TYPES,
    Compaction,
    check_served,
    checked_topic,
)
from dledger.errors import InvalidArgument, TopicTypeMismatch, Unsupported
from dledger.rocketmq.routes import message_queues
from dledger.rpc.rocketmq_stubs import definition
from tests.broker.log import Log

_ALL = ["DELAY", "FIFO", "NORMAL", "PRIORITY", "TRANSACTION"]


@pytest.mark.parametrize("kind", ["FIFO", "DELAY", "TRANSACTION", "99"])
def test_a_normal_topic_takes_no_other_messages(kind: str) -> None:
    """A message that is to wait, or to keep an order, would not."""
    with pytest.raises(TopicTypeMismatch, match=f"takes NORMAL messages, not {kind}"):
        NORMAL.check(kind, ())
    with pytest.raises(TopicTypeMismatch, match="NORMAL messages, which have no message_group"):
        NORMAL.check("NORMAL", ["message_group"])
    NORMAL.check("NORMAL", ())


@pytest.mark.parametrize(
    ("kind", "field"),
    [("FIFO", "message_group"), ("DELAY", "delivery_timestamp"), ("PRIORITY", "priority")],
)
def test_a_topic_takes_the_field_of_its_own_type_alone(kind: str, field: str) -> None:
    """A message with a group that is to wait as well would keep neither promise."""
    TYPES[kind].check(kind, [field])
    for other in {"message_group", "delivery_timestamp", "priority", "lite_topic"} - {field}:
        with pytest.raises(
            TopicTypeMismatch, match=f"takes {kind} messages, which have no {other}"
        ):
            TYPES[kind].check(kind, [field, other])


def test_a_normal_topics_queues_take_turns() -> None:
    """But what is sent again goes where the rest of it is."""
    assert [NORMAL.queue_for(home=None, turn=turn) for turn in (0, 1, 2)] == [0, 1, 2]
    assert NORMAL.queue_for(home=0, turn=2) == 0


def test_a_normal_topics_messages_do_not_wait_for_each_other() -> None:
    """However many are on loan."""
    assert all(NORMAL.may_deliver(leased) for leased in (0, 1, 16_384))


# -- the log takes all of them ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", _ALL)
def test_a_log_may_have_a_topic_of_each_type(kind: str) -> None:
    """Whatever a version serves: so the meaning of a log does not change with the version."""
    log = Log()
    (made,) = log.append(CreateTopic(name="t", type=kind, queues=2).encode())
    (again,) = log.append(CreateTopic(name="t", type=kind, queues=2).encode())

    assert isinstance(made, TopicCreated)
    assert isinstance(again, TopicCreated)
    assert (made.topic.type, made.created, again.created) == (kind, True, False)
    assert sorted(TYPES) == _ALL
    restored = BrokerState.decode(log.state.encode())
    assert restored.digest() == log.state.digest() == log.replay().digest()
    assert restored.topics.named("t").type == kind


def test_a_topic_of_another_type_is_another_topic() -> None:
    """Whoever asks for FIFO and was told that it is there would rely on an order."""
    log = Log()
    log.create("t")

    (refused,) = log.append(CreateTopic(name="t", type="FIFO", queues=1).encode())

    assert isinstance(refused, InvalidArgument)
    assert "exists with type NORMAL and 1 queues, not type FIFO" in str(refused)


@pytest.mark.parametrize("kind", ["LITE", "normal", ""])
def test_a_log_has_no_other_type(kind: str) -> None:
    """LITE neither, for ever."""
    row = b'{"name":"t","type":"%s","queues":1}' % kind.encode()

    (refused,) = Log().append(frame(CommandType.CREATE_TOPIC, row))

    assert isinstance(refused, InvalidArgument)
    assert str(refused) == f"topic type {kind!r} is none of {', '.join(_ALL)}"


def test_only_a_normal_topic_is_compacted() -> None:
    """A key chooses the queue there, as a message group does in a FIFO topic."""
    for kind in set(_ALL) - {"NORMAL"}:
        with pytest.raises(InvalidArgument, match=f"type {kind} is not compacted, only one of NOR"):
            checked_topic(name="t", type=kind, queues=1, compaction=Compaction())


def test_a_route_says_of_which_type_a_topic_is() -> None:
    """SDKs refuse to send a message of another one."""
    for kind in _ALL:
        topic = checked_topic(name="t", type=kind, queues=1)
        (queue,) = message_queues(topic, definition.Resource(name="t"), [("b", [])])
        assert queue.accept_message_types == [definition.MessageType.Value(kind)]


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


# -- what is served --------------------------------------------------------------------------------


def test_each_type_is_served_or_refused_by_its_name() -> None:
    """One that nobody has heard of is a mistake, one that is to come is not."""
    assert TYPES.keys() >= SERVED
    for name in SERVED:
        check_served(name)
    for name in TYPES.keys() - SERVED:
        with pytest.raises(Unsupported, match=f"^topic type {name} is not implemented yet; only"):
            check_served(name)
    with pytest.raises(Unsupported, match=r"^topic type LITE is not offered, now or later"):
        check_served("LITE")
    with pytest.raises(InvalidArgument, match=r"none of DELAY, FIFO, NORMAL, PRIORITY, TRANSACTI"):
        check_served("normal")
