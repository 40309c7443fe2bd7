"""Conditions of a query as a selection: which of Spark's filters need no second look. Pure.

Used by the data source for a table that is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from dledger_pipeline.archive.selection import MAX_INDEX, Selection

Fields: TypeAlias = Mapping[str, tuple[str, str]]
"""By column, the attributes of `Selection` that bound it; "" where nothing does."""

OF_ENTRIES: Final[Fields] = {
    "index": ("first_index", "last_index"),
    "timestamp_ms": ("first_ms", "last_ms"),
}
OF_MESSAGES: Final[Fields] = {
    # An upper bound is no condition: it says at which entry the log ends, deletions of topics too.
    "index": ("first_index", ""),
    "stored_at_ms": ("first_ms", "last_ms"),
    "queue_offset": ("first_offset", "last_offset"),
}
_EQUAL: Final = {"topic": "topic", "queue_id": "queue_id"}
"""By column, the attribute that is the only value."""


def pushed(
    selection: Selection, filters: Sequence[Filter], fields: Fields
) -> tuple[Selection, list[Filter]]:
    """Return *selection* with what it can express of *filters*, and those that Spark must check."""
    ranges = [_range(each) for each in filters]
    for column, low, _ in ranges:
        if low is not None and column in fields:
            selection = _narrowed(selection, fields[column][0], low, max)
    rest: list[Filter] = []
    for each, (column, low, high) in zip(filters, ranges, strict=True):
        if column in fields and (high is None or _bounds_above(selection, fields[column][1])):
            if high is not None:
                selection = _narrowed(selection, fields[column][1], high, min)
        elif column in _EQUAL and low == high and _is_free(selection, _EQUAL[column], low):
            selection = _narrowed(selection, _EQUAL[column], low, lambda _, new: new)
        else:
            rest.append(each)
    return selection, rest


def _range(condition: Filter) -> tuple[str, Any, Any]:
    """Return a condition's column, and its lowest and highest value, None where there is none."""
    match condition:
        case EqualTo((column,), value):
            low, high = value, value
        case GreaterThan((column,), int(value)):
            low, high = value + 1, None
        case GreaterThanOrEqual((column,), int(value)):
            low, high = value, None
        case LessThan((column,), int(value)):
            low, high = None, value - 1
        case LessThanOrEqual((column,), int(value)):
            low, high = None, value
        case _:
            return "", None, None
    bounds = [each for each in (low, high) if isinstance(each, int)]
    return (
        (column, low, high) if all(0 <= each < MAX_INDEX for each in bounds) else ("", None, None)
    )


def _bounds_above(selection: Selection, name: str) -> bool:
    """Whether an upper bound can be expressed: entries without a time are below any time."""
    return bool(name) and (name != "last_ms" or selection.first_ms > 0)


def _is_free(selection: Selection, name: str, value: object) -> bool:
    return getattr(selection, name) in (None, value)


def _narrowed(
    selection: Selection, name: str, value: Any, which: Callable[[Any, Any], Any]
) -> Selection:
    changed: dict[str, Any] = {name: which(getattr(selection, name), value)}
    return replace(selection, **changed)
