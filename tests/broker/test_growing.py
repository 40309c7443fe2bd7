"""Topics that get more queues: what was there stays, the new queues are empty, none ever goes."""

from __future__ import annotations

import pytest

from dledger.broker.commands import CreateTopic, GrowTopic
from dledger.broker.results import TopicGrown
from dledger.broker.state import BrokerState
from dledger.broker.topics import MAX_QUEUES, MAX_QUEUES_IN_ALL
from dledger.errors import DledgerError, InvalidArgument, LimitReached, UnknownTopic
from tests.broker.log import Log, offsets


def _grow(log: Log, queues: int, name: str = "t") -> object:
    (result,) = log.append(GrowTopic(name=name, queues=queues).encode())
    return result


def test_new_queues_are_empty_and_what_was_there_stays() -> None:
    """Messages, what was read of them, and the generation; a new queue begins at offset 0."""
    log = Log()
    log.create(queues=2)
    log.produce("a", "b", queue_id=1)
    log.ack(log.receive(1, queue_id=1))

    grown = _grow(log, 4)

    assert isinstance(grown, TopicGrown)
    assert (grown.topic.queues, grown.topic.generation, grown.before) == (4, 1, 2)
    assert [queue.end for queue in log.state.topics.queues("t")] == [0, 2, 0, 0]
    assert log.produce("c", queue_id=3).offsets[0] == 0
    assert offsets(log.receive(any_queue=True)) == [1, 0]
    assert log.state.topics.messages("t") == 3


def test_batches_without_a_queue_are_spread_over_the_new_ones() -> None:
    """The turn goes on where it was."""
    log = Log()
    log.create(queues=2)
    log.produce("a", queue_id=-1)
    _grow(log, 3)

    assert [log.produce("m", queue_id=-1).queue_id for _ in range(4)] == [1, 2, 0, 1]


def test_growing_twice_is_growing_once() -> None:
    """Its client asks again when an answer is lost."""
    log = Log()
    log.create(queues=2)
    _grow(log, 4)
    log.produce("a", queue_id=3)

    again = _grow(log, 4)

    assert isinstance(again, TopicGrown)
    assert again.before == 4
    assert log.state.topics.messages("t") == 1


@pytest.mark.parametrize(
    ("name", "queues", "error", "words"),
    [
        ("t", 1, InvalidArgument, "'t' has 2 queues, and its messages are in them"),
        ("t", 0, InvalidArgument, f"1 to {MAX_QUEUES} queues, not 0"),
        ("t", -5, InvalidArgument, f"1 to {MAX_QUEUES} queues, not -5"),
        ("t", MAX_QUEUES + 1, InvalidArgument, f"not {MAX_QUEUES + 1}"),
        ("u", 4, UnknownTopic, "'u' does not exist"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    name: str, queues: int, error: type[DledgerError], words: str
) -> None:
    """Fewer queues, none, too many, and of a topic that is not there."""
    log = Log()
    log.create(queues=2)
    before = log.state.topics.canonical()

    refused = _grow(log, queues, name)

    assert isinstance(refused, error)
    assert words in str(refused)
    assert log.state.topics.canonical() == before


def test_all_topics_share_one_limit_of_queues() -> None:
    """What a topic grew by is given back when it is deleted, so it is counted."""
    log = Log()
    full = MAX_QUEUES_IN_ALL // MAX_QUEUES - 1
    for number in range(full):
        log.append(CreateTopic(name=f"f{number}", type="NORMAL", queues=MAX_QUEUES).encode())
    log.create(queues=1)
    log.create("u", queues=1)
    assert isinstance(_grow(log, MAX_QUEUES - 1), TopicGrown)

    refused = _grow(log, 2, "u")

    assert isinstance(refused, LimitReached)
    assert "1 more for 'u'" in str(refused)


def test_a_snapshot_and_the_log_agree_on_a_topic_that_grew() -> None:
    """A state that is being written keeps the queues it had; all replicas come to the same."""
    log = Log()
    log.create(queues=1)
    log.produce("a")
    frozen = log.state.freeze()
    _grow(log, 3)
    log.produce("b", queue_id=2)

    copy = BrokerState.decode(log.state.encode())

    assert BrokerState.decode(frozen.encode()).topics.named("t").queues == 1
    assert copy.digest() == log.state.digest() == log.replay().digest()
    assert [queue.end for queue in copy.topics.queues("t")] == [1, 0, 1]
