"""Messages to rows of a table, a bounded part at a time. Pure.

Bodies are unpacked, which may make them a thousand times larger, so a batch of messages becomes as
many batches of rows as it takes to hold little at once. Used by `files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.broker.message import Encoding
from dledger_pipeline.tables.bodies import UnfitBody, json_values, unpack
from dledger_pipeline.tables.columns import DATE, ERROR, Columns

_BATCH_BYTES: Final = 16 << 20
"""Of bodies, some of which were packed; the last one of a batch may reach past it."""
_DAY_MS: Final = 86_400_000


@dataclass(slots=True)
class Told:
    """How many bodies were not what was said of them: by their messages, and by the schema."""

    not_unpacked: int = 0
    not_fitting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages are to be rows.

    A message may lie in a later entry than its own, where its topic keeps it longer: if its own
    entry is not behind *after*, an earlier export had it.

    Attributes:
        after: Those whose own entry is behind this one.
        topics: Of these topics; none: of any.
    """

    after: int
    topics: tuple[str, ...] = ()

    def of(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Return those of *messages*."""
        is_wanted = pc.greater(messages.column("index"), self.after)
        if self.topics:
            is_asked = pc.is_in(messages.column("topic"), pa.array(self.topics, pa.string()))
            is_wanted = pc.and_(is_wanted, is_asked)
        return messages.filter(is_wanted)


def rows_of(
    messages: Iterable[pa.RecordBatch], columns: Columns, wanted: Wanted, told: Told
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of those of *messages* that are wanted.

    Args:
        messages: Of `messages.MESSAGE_SCHEMA`, whole.
        columns: Of the rows, see `Columns.schema`.
        wanted: Which of them.
        told: Counts the bodies that are told.
    """
    for batch in messages:
        for part, errors in _unpack(wanted.of(batch)):
            told.not_unpacked += len(errors)
            yield _rows(part, errors, columns, told)


def _unpack(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
    """Yield the messages with their bodies unpacked, and of each part what is wrong, by row.

    A body that says GZIP and is none stays as it is, and says so still.
    """
    packed = np.asarray(batch.column("encoding")) == Encoding.GZIP
    if not packed.any():
        if batch.num_rows:
            yield batch, {}
        return
    start, size_bytes = 0, 0
    bodies: list[bytes] = []
    errors: dict[int, str] = {}
    for at, body in enumerate(batch.column("body")):
        bodies.append(body.as_py())
        if packed[at]:
            try:
                bodies[-1] = unpack(bodies[-1])
            except UnfitBody as error:
                errors[at - start] = str(error)
        size_bytes += len(bodies[-1])
        if size_bytes >= _BATCH_BYTES or at + 1 == batch.num_rows:
            yield _with_bodies(batch.slice(start, len(bodies)), bodies, errors), errors
            start, size_bytes, bodies, errors = at + 1, 0, [], {}


def _with_bodies(
    batch: pa.RecordBatch, bodies: Sequence[bytes], errors: dict[int, str]
) -> pa.RecordBatch:
    encodings = np.full(batch.num_rows, Encoding.IDENTITY, np.int8)
    encodings[[*errors]] = Encoding.GZIP
    made = {"body": pa.array(bodies, pa.binary()), "encoding": pa.array(encodings)}
    return _replace_columns(batch, made, batch.schema)


def _rows(
    batch: pa.RecordBatch, errors: dict[int, str], columns: Columns, told: Told
) -> pa.RecordBatch:
    found: dict[str, pa.Array] = {}
    if columns.of_json:
        found, unfit = _of_json(batch, errors, columns)
        told.not_fitting += len(unfit)
        errors = errors | unfit
    days = np.asarray(batch.column("stored_at_ms"), np.int64) // _DAY_MS
    found[DATE] = pa.array(days.astype(np.int32)).cast(pa.date32())
    found[ERROR] = pa.array([errors.get(at) for at in range(batch.num_rows)], pa.string())
    return _replace_columns(batch, found, columns.schema())


def _of_json(
    batch: pa.RecordBatch, errors: dict[int, str], columns: Columns
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the columns out of the bodies, and what is wrong, by row."""
    nothing: dict[str, Any] = {field.name: None for field in columns.of_json}
    values, unfit = [], {}
    for at, body in enumerate(batch.column("body")):
        values.append(nothing)
        if at not in errors:
            try:
                values[at] = json_values(body.as_py(), columns.of_json)
            except UnfitBody as error:
                unfit[at] = str(error)
    made = pa.array(values, pa.struct(columns.of_json))
    return dict(zip(nothing, made.flatten(), strict=True)), unfit


def _replace_columns(
    batch: pa.RecordBatch, columns: dict[str, pa.Array], schema: pa.Schema
) -> pa.RecordBatch:
    """Return a batch of *schema*, of these columns and for the others those of *batch*."""
    arrays = [columns[name] if name in columns else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
