"""Messages as users of `dledger.client` see them: values, exported from there."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One message, as it is appended and read back.

    Attributes:
        body: 1 byte to 4 MiB.
        message_id: Idempotency key within the client id; made up when empty.
        tag: At most one tag, for filters.
        keys: Any number of keys, for look-ups and compaction.
        properties: The user's own, UTF-8.
        born_at_ms: When the producer made it, Unix milliseconds.
    """

    body: bytes
    message_id: str = ""
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    born_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A committed message and where it is."""

    record: Record
    offset: int
    index: int
    stored_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where a batch went: queue offsets of its records in order, and its Raft index."""

    queue_id: int
    offsets: tuple[int, ...]
    index: int
