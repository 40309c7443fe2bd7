"""REKEEPs as a leader would make them, for tests of what they do to a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger.broker.message import Columns, Message
from dledger.broker.rekeep import Kept, Origin
from tests.broker.log import Log


def kept(
    log: Log,
    first: int,
    to: int,
    rows: Sequence[int],
    *,
    generation: int = 0,
    topic: str = "t",
    alone: Mapping[int, int] | None = None,
) -> bytes:
    """Return the REKEEP of some rows, as a leader would make it of messages without tags."""
    made = generation or log.state.topics.named("t").generation
    messages = Columns.of([Message(message_id=f"id {o}", body=b"%d" % o) for o in rows])
    return Kept(
        topic=topic,
        generation=made,
        queue_id=0,
        first=first,
        to=to,
        offsets=rows,
        origins=[Origin(7, 500 + o, "host") for o in rows],
        messages=messages if rows else None,
        alone=alone or {},
    ).encode()


def say(log: Log, command: bytes) -> object:
    """Commit one command alone; return its result."""
    (result,) = log.append(command)
    return result


def there(log: Log) -> list[int]:
    """Return the offsets of the messages of the queue that the topic t has."""
    queue = log.state.topics.queue("t", 0)
    return [o for o in range(queue.end) if queue.has(o)]
