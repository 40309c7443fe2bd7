"""Messages as producers send them: one by one (`Message`), or a batch by columns (`Columns`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any, Final

from dledger.types import Typed

TOMBSTONE: Final = "dledger.tombstone"
DELETES: Final = "true"
"""The user property, and its value, of a message that deletes its key in a compacted topic."""


def is_tombstone(properties: Mapping[str, str]) -> bool:
    """Whether a message with these properties of its user's deletes its key."""
    return properties.get(TOMBSTONE) == DELETES


def id_of_place(index: int, start: int, row: int) -> str:
    """Return the id of a message that was stored without one: a row of an entry's payload."""
    return f"01{index:016X}{start & 0xFFFFFFFF:08X}{row:08X}"


class Encoding(IntEnum):
    """How a body is packed; numbers are those of the RocketMQ protocol."""

    IDENTITY = 1
    GZIP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as its producer sent it.

    Attributes:
        message_id: The idempotency key within its client; empty: not deduplicated.
        born_at_ms: The producer's clock, Unix milliseconds.
        encoding: How *body* is packed, as its producer says.
        typed: What it has that only some types of topics know; None: nothing.
    """

    message_id: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    born_at_ms: int = 0
    encoding: Encoding = Encoding.IDENTITY
    trace_context: str = ""
    typed: Typed | None = None


_NAMES: Final = (
    *("message_id", "body", "born_at_ms", "tag", "keys", "properties", "encoding"),
    *("trace_context", "typed"),
)
_FIELDS: Final[Any] = attrgetter(*_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A batch as columns, one item for each message; an empty column means all defaults.

    Use this form for large batches: no object is created for each message.
    """

    message_ids: Sequence[str]
    bodies: Sequence[bytes]
    born_at_ms: Sequence[int]
    tags: Sequence[str] = ()
    keys: Sequence[Collection[str]] = ()
    properties: Sequence[Mapping[str, str]] = ()
    encodings: Sequence[int] = ()
    trace_contexts: Sequence[str] = ()
    typed: Sequence[Typed | None] = ()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Columns:
        """Return the columns of *messages*."""
        columns = zip(*map(_FIELDS, messages), strict=True) if messages else repeat(())
        ids, bodies, born_at_ms, tags, keys, properties, encodings, traces, typed = islice(
            columns, len(_NAMES)
        )
        return cls(
            message_ids=ids,
            bodies=bodies,
            born_at_ms=born_at_ms,
            tags=tags,
            keys=keys,
            properties=properties,
            encodings=encodings,
            trace_contexts=traces,
            typed=typed,
        )

    @classmethod
    def join(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of all *parts*, each of whose columns has an item for each of them."""
        names = [each.name for each in fields(cls)]
        columns: dict[str, list[Any]] = {
            name: [*chain.from_iterable(getattr(part, name) for part in parts)] for name in names
        }
        return cls(**columns)
