"""Which topics choose the queue of each message themselves, and how: by key, group or priority.

One home for who asks without knowing which of them a topic goes by: `key_queues` has the rules of
keys and message groups, `priorities` those of priorities. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.broker.key_queues import keyed_queue, queue_of_key, queues_of_groups, queues_of_keys
from dledger.broker.message import Message
from dledger.broker.priorities import queue_of_priorities, queue_of_priority, queues_of_priorities
from dledger.broker.produce import ProduceFrame
from dledger.broker.topics import TYPES, Topic
from dledger.types import NO_PRIORITY, Record, Typed

_NOTHING = Typed()


def chooses_queues(topic: Topic) -> bool:
    """Whether what is in a message chooses its queue."""
    own = TYPES[topic.type]
    return topic.compaction is not None or own.in_order or own.highest_first


def queue_of_record(record: Record, queues: int) -> int | None:
    """Return the queue that a topic with *queues* queues chooses for a record; None: it does not.

    Its message group chooses it, its priority, or its only key: of which type the topic is is not
    known here.
    """
    typed = record.typed or _NOTHING
    if typed.message_group:
        return queue_of_key(typed.message_group.encode(), queues)
    if typed.priority != NO_PRIORITY:
        return queue_of_priority(typed.priority, queues)
    return queue_of_key(record.keys[0].encode(), queues) if len(record.keys) == 1 else None


def queues_of_messages(messages: Sequence[Message], topic: Topic) -> list[int]:
    """Return the queue that a topic chooses for each message.

    Raises:
        IllegalKey, IllegalGroup, TopicTypeMismatch: One has not what chooses it.
    """
    if topic.compaction is not None:
        return queues_of_keys(topic, [[key.encode() for key in each.keys] for each in messages])
    typed = [each.typed or _NOTHING for each in messages]
    if TYPES[topic.type].highest_first:
        return queues_of_priorities(topic, [each.priority for each in typed])
    return queues_of_groups(topic, [each.message_group.encode() for each in typed])


def queue_of_batch(batch: ProduceFrame, topic: Topic) -> int:
    """Return the queue that a topic chooses for a whole batch.

    Raises:
        IllegalKey, IllegalGroup, TopicTypeMismatch: A message has not what chooses it.
        SeveralQueues: The messages are of several queues.
        InvalidArgument: The batch asks for another one.
        MalformedCommandError: What chooses is malformed.
    """
    if TYPES[topic.type].highest_first:
        return queue_of_priorities(batch, topic)
    return keyed_queue(batch, topic)
