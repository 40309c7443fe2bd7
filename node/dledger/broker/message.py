"""Messages as producers send them: one by one (`Message`), or a batch by columns (`Columns`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Encoding(IntEnum):
    """How a body is packed; numbers are those of the RocketMQ protocol."""

    IDENTITY = 1
    GZIP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as its producer sent it.

    Attributes:
        message_id: The idempotency key within its client; empty: stored without looking.
        born_at_ms: The producer's clock, Unix milliseconds.
        encoding: How *body* is packed; the broker does not look inside.
    """

    message_id: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    born_at_ms: int = 0
    encoding: Encoding = Encoding.IDENTITY
    trace_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A batch by columns, one item a message; an empty column: every message has its default.

    This is the form to fill in where batches are large: no object a message is made.
    """

    message_ids: Sequence[str]
    bodies: Sequence[bytes]
    born_at_ms: Sequence[int]
    tags: Sequence[str] = ()
    keys: Sequence[Collection[str]] = ()
    properties: Sequence[Mapping[str, str]] = ()
    encodings: Sequence[int] = ()
    trace_contexts: Sequence[str] = ()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Columns:
        """Return the columns of *messages*."""
        return cls(
            message_ids=[message.message_id for message in messages],
            bodies=[message.body for message in messages],
            born_at_ms=[message.born_at_ms for message in messages],
            tags=[message.tag for message in messages],
            keys=[message.keys for message in messages],
            properties=[message.properties for message in messages],
            encodings=[message.encoding for message in messages],
            trace_contexts=[message.trace_context for message in messages],
        )
