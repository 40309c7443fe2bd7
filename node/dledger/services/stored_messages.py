"""The messages of a queue that lie in one payload, as they were when they were stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.message import Message, id_of_place
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Stretch
from dledger.broker.rekeep import REKEPT, origins
from dledger.types import Entry


class StoredMessage(NamedTuple):
    """A message, where it was stored, and when; one without an id has that of its place."""

    offset: int
    entry: int
    stored_at_ms: int
    message: Message


def messages_in(entry: Entry, rows: Sequence[Stretch]) -> Iterator[StoredMessage]:
    """Yield the messages of some slices of one payload. May be called from any thread.

    One that cannot be decoded is passed over: nobody is shown it.
    """
    start, end = rows[0].start, rows[0].end
    theirs = origins(entry, start, end) if entry.data[start - 1] == REKEPT else None
    frame = ProduceFrame(entry.data, start, end)
    for each in rows:
        for number in range(each.length):
            row = each.row + number
            try:
                message = frame.message(row)
            except MalformedCommandError:
                continue
            if not message.message_id:
                message = replace(message, message_id=id_of_place(entry.index, start, row))
            index, stored_at_ms = entry.index, entry.timestamp_ms
            if theirs is not None:
                index, stored_at_ms, _ = theirs[row]
            yield StoredMessage(each.first + number, index, stored_at_ms, message)
