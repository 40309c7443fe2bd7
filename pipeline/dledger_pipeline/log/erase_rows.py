"""What the ERASE commands in entries say, as rows. Pure.

A backup asks this of all that it writes; `queue_offsets` learns of them by replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
)
from dledger.broker.erase import Erase
from dledger.common.features import FEATURES
from dledger.errors import NewerCommand
from dledger_pipeline.log.command_frames import find_commands
from dledger_pipeline.log.produce_columns import Numbers
from dledger_pipeline.log.records import array_of, schema, values

ERASE_SCHEMA: Final = schema(
    index=pa.int64(),
    timestamp_ms=pa.int64(),
    generation=pa.int64(),
    queue_id=pa.int32(),
    offset=pa.int64(),
    first_entry=pa.int64(),
)
"""One row a message that the ERASE in the entry at `index` names, in the log's order: that at
`offset` of queue `queue_id` of the topic that is the `generation`th of its group. The entry was
proposed at `timestamp_ms`, and none of the messages that the command names was stored before the
entry `first_entry`."""


def erase_rows(entries: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows (`ERASE_SCHEMA`) of the ERASEs in *entries* (`records.ENTRY_SCHEMA`).

    A malformed one, which nodes refuse, has none.

    Raises:
        NewerCommand: There is one of a newer version, which this one cannot tell.
    """
    buffer = entries.column("body").buffers()[2]
    if buffer is None:
        return rows_of(())
    indexes, times_ms = (values(entries.column(name)) for name in ("index", "timestamp_ms"))
    data = memoryview(buffer)
    return rows_of(
        (int(indexes[row]), int(times_ms[row]), command)
        for row, start, end in find_commands(entries, Numbers(buffer), CommandType.ERASE)
        for command in _decode(data, start, end, int(indexes[row]))
    )


def rows_of(commands: Iterable[tuple[int, int, Erase]]) -> pa.RecordBatch:
    """Return the rows of ERASEs, each with the index of its entry and the timestamp of that."""
    found = [
        (index, at_ms, one.generation, one.queue_id, offset, one.first_entry)
        for index, at_ms, one in commands
        for offset in one.offsets
    ]
    columns = zip(*found, strict=True) if found else ((),) * len(ERASE_SCHEMA)
    arrays = [array_of(each, field.type) for each, field in zip(columns, ERASE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ERASE_SCHEMA)


def _decode(data: memoryview, start: int, end: int, index: int) -> Iterator[Erase]:
    try:
        yield Erase.decode(bytes(data[start:end]), 0, end - start)
    except UnknownCommandError as error:
        raise NewerCommand(index, what=str(error), level=FEATURES.level) from error
    except MalformedCommandError:
        return
