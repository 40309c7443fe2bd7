"""Which messages of a batch are new, which are there already, and which only say that they are.

Pure; called by `topic_store` for batches that the dedupe window knows something of.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.broker.body_digests import Digests
from dledger.broker.deduplication import Known
from dledger.broker.results import NOWHERE

_QueuePosition = tuple[int, int]
_NO_POSITION: _QueuePosition = (NOWHERE, NOWHERE)


class Rows:
    """The rows of a batch, and the place of each: (queue id, queue offset).

    An id that occurs twice in the batch is judged by its first row, as if that were stored before.

    Args:
        ids: Every message's id; empty: it is new, whatever is known.
        digests: Of every body.
        known: What the window has of each id, before anything of the batch is stored.

    Attributes:
        new: The rows to be stored, ascending; each is to be told its place (`stored`).
        repeats: The rows whose messages are there already: id and digest agree.
        conflicts: The rows whose ids are those of messages with other bodies.
        home: The queue of the first repeat that was there before; None: there is none.
    """

    def __init__(
        self, ids: Sequence[bytes], digests: Digests, known: Sequence[Known | None]
    ) -> None:
        self.new: list[int] = []
        self.repeats: list[int] = []
        self.conflicts: list[int] = []
        self.home: int | None = None
        self._positions: list[_QueuePosition] = [_NO_POSITION] * len(ids)
        self._first: dict[int, int] = {}
        first_rows: dict[bytes, int] = {}
        for row, (message_id, digest, before) in enumerate(zip(ids, digests, known, strict=True)):
            if before is not None:
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
        if self.home is None:
            self.home = before.queue_id

    def stored(self, row: int, queue_id: int, offset: int) -> None:
        """Say where a new row is."""
        self._positions[row] = (queue_id, offset)

    def positions(self) -> list[_QueuePosition]:
        """Return the place of each row, once all new ones are stored; `NOWHERE` of a conflict."""
        for row, first in self._first.items():
            self._positions[row] = self._positions[first]
        return self._positions
