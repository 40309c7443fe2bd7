"""Which queue of a compacted or a FIFO topic a message goes to: its key or group decides, for ever.

"The newest message of a key" has a meaning only if all messages of a key lie in one queue, in the
order in which they were stored; and those of a message group are delivered in their order only if
they do. So in a compacted topic each has exactly one key, in a FIFO topic a message group, and the
queue is the CRC32C of that modulo the number of queues, which never changes: whatever queue a
producer names, whose library may count only the queues of nodes that it reaches just now. Pure;
asked at every way in, so that a producer is told what is wrong, and once more when a batch is
applied, so that nothing else ever gets in.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

from crc32c import crc32c

from dledger.broker.produce import NO_QUEUE, ProduceFrame
from dledger.broker.topics import TYPES, Topic
from dledger.errors import IllegalGroup, IllegalKey, InvalidArgument, SeveralQueues
from dledger.types import Record

_ROWS_NAMED = 4


def queue_of_key(key: bytes, queues: int) -> int:
    """Return the queue that a key, or a message group, in UTF-8, is in; *queues*: of the topic."""
    return crc32c(key) % queues


def key_of(record: Record) -> str:
    """Return what chooses a record's queue where something does; empty: nothing in it can."""
    if record.message_group:
        return record.message_group
    return next(iter(record.keys)) if len(record.keys) == 1 else ""


def codes_of_groups(groups: Sequence[bytes]) -> array[int]:
    """Return the code of each message's group (`group_codes`), given by its name in UTF-8."""
    return array("I", map(crc32c, groups))


def chooses_queues(topic: Topic) -> bool:
    """Whether what is in a message chooses its queue."""
    return topic.compaction is not None or TYPES[topic.type].in_order


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


def queues_of_groups(topic: Topic, groups: Sequence[bytes]) -> list[int]:
    """Return the queue of each message of a FIFO topic, by its message group.

    Raises:
        IllegalGroup: One has none.
    """
    return [code % topic.queues for code in _codes_of(topic, groups)]


def _codes_of(topic: Topic, groups: Sequence[bytes]) -> array[int]:
    if b"" in groups:
        raise IllegalGroup(topic.name, f"row {groups.index(b'')} has none")
    return codes_of_groups(groups)


def keyed_queue(batch: ProduceFrame, topic: Topic) -> int:
    """Return the queue of a compacted or FIFO topic that a whole batch is for.

    Raises:
        IllegalKey: A message has not exactly one key.
        IllegalGroup: A message has no group.
        SeveralQueues: The keys or groups are of several queues.
        InvalidArgument: The batch asks for another one of a compacted topic.
        MalformedCommandError: The keys or groups are malformed.
    """
    if topic.compaction is None:
        return _queue_of_all(topic, queues_of_groups(topic, _groups(batch)), "message groups")
    queue_id = _queue_of_all(topic, queues_of_keys(topic, batch.keys()), "keys")
    if batch.queue_id not in {NO_QUEUE, queue_id}:
        raise InvalidArgument(
            f"topic {topic.name!r} is compacted, and the keys of this batch are of queue "
            f"{queue_id}, not of {batch.queue_id}: name no queue, the keys choose it"
        )
    return queue_id


def _groups(batch: ProduceFrame) -> list[bytes]:
    return [b""] * batch.count if batch.typed is None else batch.typed.groups()


def _queue_of_all(topic: Topic, chosen: Sequence[int], by: str) -> int:
    (queue_id, *others) = dict.fromkeys(chosen)
    if others:
        rows = [(chosen.index(each), each) for each in (queue_id, *others)[:_ROWS_NAMED]]
        raise SeveralQueues.of(topic.name, rows, queues=topic.queues, by=by)
    return queue_id


def grouped_codes(batch: ProduceFrame, topic: Topic) -> array[int]:
    """Return the codes of a batch for a FIFO topic that is to be applied: all are of its queue.

    Raises:
        IllegalGroup: A message has none.
        InvalidArgument: It names no queue, or a group is of another one.
        MalformedCommandError: The groups are malformed.
    """
    codes = _codes_of(topic, _groups(batch))
    for code in codes:
        if code % topic.queues != batch.queue_id:
            raise InvalidArgument(
                f"topic {topic.name!r} is FIFO, and a batch for its queue {batch.queue_id} has a "
                f"message group of queue {code % topic.queues}: whoever proposed it does not know "
                "that; its producer may send it again"
            )
    return codes


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
