"""Builds frozen values from protobuf messages with the same field names. Used by clients."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")


def same_fields(kind: type[_T], message: Any, **converted: object) -> _T:
    """Return a *kind* with the fields of *message*, except those that are given *converted*."""
    names = (name for name in _names(kind) if name not in converted)
    return kind(**{name: getattr(message, name) for name in names}, **converted)


def optional_fields(kind: type[_T], message: Any, name: str) -> _T | None:
    """Return a *kind* with the fields of a message's field *name*; None if that is not set."""
    return same_fields(kind, getattr(message, name)) if message.HasField(name) else None


@cache
def _names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def own_retention(topic: Any) -> int | None:
    """Return the retention of a ``Topic`` message, in hours; None: it has none of its own."""
    return int(topic.retention_hours) if topic.HasField("retention_hours") else None
