"""Which queue of a compacted topic a message goes to: its key decides, for ever.

"The newest message of a key" has a meaning only if all messages of a key lie in one queue, in the
order in which they were stored. So each has exactly one key, and the queue is the key's CRC32C
modulo the number of queues, which never changes. Pure; asked at every way in, so that a producer is
told what is wrong, and once more when a batch is applied, so that nothing else ever gets in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from crc32c import crc32c

from dledger.broker.produce import NO_QUEUE, ProduceFrame
from dledger.broker.topics import Topic
from dledger.errors import IllegalKey, InvalidArgument, SeveralQueues

_ROWS_NAMED = 4


def queue_of_key(key: bytes, queues: int) -> int:
    """Return the queue of a compacted topic with *queues* queues that a key, in UTF-8, is in."""
    return crc32c(key) % queues


def queues_of_keys(topic: Topic, keys: Sequence[Collection[bytes]]) -> list[int]:
    """Return the queue of each message of a compacted topic, by its keys.

    Raises:
        IllegalKey: One has not exactly one key, or an empty one.
    """
    chosen = []
    for row, each in enumerate(keys):
        if len(each) != 1:
            raise IllegalKey(topic.name, f"row {row} has {len(each)}")
        (key,) = each
        if not key:
            raise IllegalKey(topic.name, f"that of row {row} is empty")
        chosen.append(queue_of_key(key, topic.queues))
    return chosen


def keyed_queue(batch: ProduceFrame, topic: Topic) -> int:
    """Return the queue of a compacted topic that a whole batch is for.

    Raises:
        IllegalKey: A message has not exactly one key.
        SeveralQueues: The keys are of several queues.
        InvalidArgument: The batch asks for another one.
        MalformedCommandError: The keys are malformed.
    """
    chosen = queues_of_keys(topic, batch.keys())
    (queue_id, *others) = dict.fromkeys(chosen)
    if others:
        rows = [(chosen.index(each), each) for each in (queue_id, *others)[:_ROWS_NAMED]]
        raise SeveralQueues.of(topic.name, rows, queues=topic.queues)
    if batch.queue_id not in {NO_QUEUE, queue_id}:
        raise InvalidArgument(
            f"topic {topic.name!r} is compacted, and the keys of this batch are of queue "
            f"{queue_id}, not of {batch.queue_id}: name no queue, the keys choose it"
        )
    return queue_id


def check_keyed(batch: ProduceFrame, topic: Topic) -> None:
    """Check a batch for a compacted topic that is to be applied: it names the queue of its keys.

    Raises as `keyed_queue` does; InvalidArgument if it names no queue.
    """
    queue_id = keyed_queue(batch, topic)
    if batch.queue_id == NO_QUEUE:
        raise InvalidArgument(
            f"topic {topic.name!r} is compacted, and a batch for its queue {queue_id} names none: "
            "whoever proposed it does not know that; its producer may send it again"
        )
