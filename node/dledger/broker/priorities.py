"""Which queue of a PRIORITY topic a message goes to: its priority is the queue's number.

As in RocketMQ: the queue is the priority, or the highest queue for whatever is above it, and who
receives gets what is in higher queues first (`consumer_groups`). So a topic of n queues tells n
priorities apart, those of one priority keep their order, and a message that is delivered again
keeps its priority, since it stays where it is. Whoever proposes a batch chooses the queue, so that
a topic may grow: what is stored stays in its queue. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.broker.produce import NO_QUEUE, ProduceFrame
from dledger.broker.topics import Topic
from dledger.errors import InvalidArgument, SeveralQueues, TopicTypeMismatch
from dledger.types import NO_PRIORITY

_ROWS_NAMED = 4


def queue_of_priority(priority: int, queues: int) -> int:
    """Return the queue of a topic with *queues* queues that a priority, from 0 on, is in."""
    return min(priority, queues - 1)


def queues_of_priorities(topic: Topic, priorities: Sequence[int]) -> list[int]:
    """Return the queue of each message of a PRIORITY topic, by its priority.

    Raises:
        TopicTypeMismatch: One has none.
    """
    if NO_PRIORITY in priorities:
        row = list(priorities).index(NO_PRIORITY)
        raise TopicTypeMismatch(
            f"topic {topic.name!r} takes messages with a priority, and row {row} has none: give "
            "each one from 0, the lowest, on"
        )
    return [queue_of_priority(each, topic.queues) for each in priorities]


def queue_of_priorities(batch: ProduceFrame, topic: Topic) -> int:
    """Return the queue of a PRIORITY topic that a whole batch is for.

    Raises:
        TopicTypeMismatch: A message has no priority.
        SeveralQueues: The priorities are of several queues.
        InvalidArgument: The batch asks for another one.
    """
    priorities = (NO_PRIORITY,) if batch.typed is None else batch.typed.priorities()
    chosen = queues_of_priorities(topic, priorities)
    (queue_id, *others) = dict.fromkeys(chosen)
    if others:
        rows = [(chosen.index(each), each) for each in (queue_id, *others)[:_ROWS_NAMED]]
        raise SeveralQueues.of_priorities(topic.name, rows, queues=topic.queues)
    if batch.queue_id not in {NO_QUEUE, queue_id}:
        raise InvalidArgument(
            f"topic {topic.name!r} orders by priority, and that of this batch is of queue "
            f"{queue_id}, not of {batch.queue_id}: name no queue, the priority chooses it"
        )
    return queue_id
