"""Where a new consumer group begins in the queues that it has not read yet.

A group names no topics when it is made, so where it begins is one place in the log for all of them:
the oldest entry whose messages are for it. Each queue is asked for that place when the group first
reads from it. What a topic copied forward in the meantime does not lie in the entry that stored it
any more; of that the time counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.broker.consume_queue import ConsumeQueue


@dataclass(frozen=True, slots=True)
class Beginning:
    """What was stored before is not for the group.

    Attributes:
        entry: The oldest entry whose messages are; 0: all that there are.
        stored_ms: No message of it, or of a later one, was stored before, by the log's time.
    """

    entry: int
    stored_ms: int

    def in_queue(self, queue: ConsumeQueue) -> int:
        """Return the offset at which a group begins to read a queue.

        Of a block of copied messages all are read if one is: some may be older, none is missed.
        """
        if not self.entry:
            return queue.first
        return queue.stored_from(self.entry, self.stored_ms)


OLDEST: Final = Beginning(0, 0)
"""All that there is: what a group begins with that nobody chose anything for."""
