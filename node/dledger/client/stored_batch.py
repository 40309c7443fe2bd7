"""A batch of committed messages, as readers get it from a node.

Returned by `ledger_client` and `batch_reader`; exported from `dledger.client`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.produce import ProduceFrame
from dledger.types import Record, StoredRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """Consecutive committed messages of a queue, from one produced batch.

    Attributes:
        first_offset: Queue offset of the first one.
        count: How many there are.
        index: Raft index of the entry that holds them.
        stored_at_ms: When the leader stored them, Unix milliseconds.
        payload: The whole PRODUCE payload (``docs/internals/message-format.md``), without the
            client id.
        first_row: The row of the first one in *payload*.
    """

    first_offset: int
    count: int
    index: int
    stored_at_ms: int
    payload: bytes
    first_row: int

    @property
    def end_offset(self) -> int:
        """The queue offset after the last one."""
        return self.first_offset + self.count

    def bodies(self) -> list[bytes]:
        """Return the bodies. Raises MalformedCommandError."""
        return self._frame().bodies()[self.first_row : self.first_row + self.count]

    def records(self) -> Iterator[StoredRecord]:
        """Yield the messages with all fields; one that cannot be decoded is skipped and logged.

        Nodes refuse such a message, but an older log may have some.
        """
        frame = self._frame()
        for number in range(self.count):
            try:
                message = frame.message(self.first_row + number)
            except MalformedCommandError as error:
                offset = self.first_offset + number
                logger.warning("the message at offset %d is skipped: %s", offset, error)
                continue
            yield StoredRecord(
                record=Record(
                    body=message.body,
                    message_id=message.message_id,
                    tag=message.tag,
                    keys=message.keys,
                    properties=dict(message.properties),
                    born_at_ms=message.born_at_ms,
                ),
                offset=self.first_offset + number,
                index=self.index,
                stored_at_ms=self.stored_at_ms,
            )

    def _frame(self) -> ProduceFrame:
        return ProduceFrame(self.payload, 0, len(self.payload))
