"""Sorting the messages of a batch into new ones, repeats, and conflicts (another body, same id).

Pure; called by `topic_store` for batches with an id that the deduplication window knows, and for
replays of which some rows are known by their sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.broker.body_digests import Digests
from dledger.broker.deduplication import Known
from dledger.broker.held_refs import HELD_QUEUE
from dledger.broker.results import NOWHERE

_QueuePosition = tuple[int, int]
_NO_POSITION: _QueuePosition = (NOWHERE, NOWHERE)


class Rows:
    """The rows of a batch, and the position of each: (queue id, queue offset).

    An id that occurs twice in the batch is judged as if its first row had been stored before.

    Args:
        ids: Every message's id; a message with an empty id is always new.
        digests: The digest of every body.
        known: What the window knows of each id, before the batch is stored.
        replayed: How many rows, the first ones, are known by the sequence of their lane. They were
            stored before, whatever their ids say: those only tell where, if anything does.

    Attributes:
        ids, digests: As they were given.
        new: The rows to be stored, ascending; the caller reports each position with `stored`.
        repeats: The rows whose messages were stored before: id and digest agree, or the sequence
            says so.
        conflicts: The rows whose ids belong to messages with other bodies.
        home: The queue of the first repeat that was stored in one before; None if there is none.
    """

    def __init__(
        self,
        ids: Sequence[bytes],
        digests: Digests,
        known: Sequence[Known | None],
        replayed: int = 0,
    ) -> None:
        self.ids, self.digests = ids, digests
        self.new: list[int] = []
        self.repeats: list[int] = []
        self.conflicts: list[int] = []
        self.home: int | None = None
        self._positions: list[_QueuePosition] = [_NO_POSITION] * len(ids)
        self._first: dict[int, int] = {}
        first_rows: dict[bytes, int] = {}
        for row, (message_id, digest, before) in enumerate(zip(ids, digests, known, strict=True)):
            if row < replayed and (before is None or before.digest != digest):
                self.repeats.append(row)
            elif before is not None:
                self._judge_known(row, digest, before)
            elif not message_id or (first := first_rows.setdefault(message_id, row)) == row:
                self.new.append(row)
            elif digests[first] == digest:
                self.repeats.append(row)
                self._first[row] = first
            else:
                self.conflicts.append(row)

    def _judge_known(self, row: int, digest: int, before: Known) -> None:
        if before.digest != digest:
            self.conflicts.append(row)
            return
        self.repeats.append(row)
        self._positions[row] = (before.queue_id, before.offset)
        if self.home is None and before.queue_id != HELD_QUEUE:
            self.home = before.queue_id

    def stored(self, row: int, queue_id: int, offset: int) -> None:
        """Set the position of a new row."""
        self._positions[row] = (queue_id, offset)

    def positions(self) -> list[_QueuePosition]:
        """Return each row's position, once all new rows are stored.

        `NOWHERE` for a conflict, and for a row of which only the sequence is known.
        """
        for row, first in self._first.items():
            self._positions[row] = self._positions[first]
        return self._positions
