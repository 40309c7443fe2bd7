"""A batch of committed messages, as readers get it from a node.

Most are as they were produced. Neighbours that were produced singly, or by few, come joined. What a
topic keeps longer may have gaps: a batch says the offset of each message then.

Returned by `ledger_client` and `batch_reader`; exported from `dledger.client`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.produce import ProduceFrame
from dledger.errors import DledgerError
from dledger.rpc.messages import same_fields
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import Record, StoredRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """Neighbours among a queue's committed messages, of one produced batch or joined from several.

    Attributes:
        first_offset: Queue offset of the first one.
        count: How many there are.
        index: Raft index of the entry that holds them, or the first of them.
        stored_at_ms: When that entry was stored, by the log's time, Unix milliseconds: the date of
            a majority of the nodes, which never goes back.
        payload: The whole PRODUCE payload (``docs/internals/message-format.md``), without the
            client id; if it is joined, also without the producer's host.
        first_row: The row of the first one in *payload*.
        entries: If they are of several entries: how many each holds, its index and when it was
            stored.
        generation: Of which topic of its name the offsets are: one that was deleted and made
            again is another. Who keeps an offset keeps this beside it. 0: the node is older.
        gapped: If messages between them are gone: the queue offset of each.
    """

    first_offset: int
    count: int
    index: int
    stored_at_ms: int
    payload: bytes
    first_row: int
    entries: tuple[tuple[int, int, int], ...] = ()
    generation: int = 0
    gapped: tuple[int, ...] = ()

    @classmethod
    def of(cls, batch: pb.StoredBatch, generation: int = 0) -> Self:
        """Return a batch as a node sent it.

        Raises:
            DledgerError: Its entries do not fill it, or its offsets are not those of its messages.
        """
        gapped = tuple(batch.offsets)
        if gapped and not (
            len(gapped) == batch.count
            and gapped[0] == batch.first_offset
            and all(earlier < later for earlier, later in pairwise(gapped))
        ):
            raise DledgerError(f"a batch of {batch.count} messages has offsets of others")
        if not batch.entry_counts:
            return same_fields(cls, batch, entries=(), generation=generation, gapped=gapped)
        counts, indexes = batch.entry_counts, batch.entry_indexes
        if sum(counts) != batch.count or min(counts) < 1:
            raise DledgerError(f"a batch of {batch.count} messages is of entries that have others")
        if not len(counts) == len(indexes) == len(batch.entry_stored_at_ms):
            raise DledgerError(f"of {len(counts)} entries, {len(indexes)} are told")
        entries = tuple(zip(counts, indexes, batch.entry_stored_at_ms, strict=True))
        return same_fields(cls, batch, entries=entries, generation=generation, gapped=gapped)

    @property
    def offsets(self) -> Sequence[int]:
        """The queue offset of each one."""
        return self.gapped or range(self.first_offset, self.first_offset + self.count)

    @property
    def end_offset(self) -> int:
        """The queue offset after the last one."""
        return self.offsets[-1] + 1

    def bodies(self) -> list[bytes]:
        """Return the bodies. Raises MalformedCommandError."""
        return self._frame().bodies()[self.first_row : self.first_row + self.count]

    def records(self) -> Iterator[StoredRecord]:
        """Yield the messages with all fields; one that cannot be decoded is skipped and logged.

        Nodes refuse such a message, but an older log may have some.
        """
        frame = self._frame()
        entries = iter(self.entries or ((self.count, self.index, self.stored_at_ms),))
        left = index = stored_at_ms = 0
        for number, offset in enumerate(self.offsets):
            if not left:
                left, index, stored_at_ms = next(entries)
            left -= 1
            try:
                message = frame.message(self.first_row + number)
            except MalformedCommandError as error:
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
                offset=offset,
                index=index,
                stored_at_ms=stored_at_ms,
                generation=self.generation,
                typed=message.typed,
            )

    def _frame(self) -> ProduceFrame:
        return ProduceFrame(self.payload, 0, len(self.payload))
