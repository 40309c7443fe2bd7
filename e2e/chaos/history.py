"""What clients and the audit write down: frozen events, one JSON object a line.

All times are seconds since the run began, by one monotonic clock. An operation that got no answer
has no end: it may take effect at any time after its beginning, or never.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final, TextIO, TypeAlias

NEVER: Final = math.inf
NOWHERE: Final = -1


class Outcome(Enum):
    """How an operation ended, as far as its client knows."""

    OK = "ok"
    REFUSED = "refused"
    """It had no effect: a message that is not stored, a compare-and-set that did not match."""
    UNKNOWN = "unknown"


class Kind(Enum):
    """What a register operation does."""

    READ = "read"
    WRITE = "write"
    CAS = "cas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One message that a producer tried to store, all its attempts together.

    Attributes:
        producer: Who; it has one batch under way at a time.
        message_id: Names the message in the whole run.
        digest: Of its body.
        queue: Where it was to go.
        offset: The queue offset that was acknowledged; `NOWHERE` unless the outcome is OK.
        outcome: As the producer knows it.
        invoked_s: When the first attempt began.
        ended_s: When the outcome was known; `NEVER` if it is not.
    """

    producer: str
    message_id: str
    digest: str
    queue: int
    offset: int = NOWHERE
    outcome: Outcome
    invoked_s: float
    ended_s: float = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One message that a reader got from one node while the run was on."""

    node: str
    queue: int
    offset: int
    message_id: str
    digest: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation on a register.

    Attributes:
        process: Who; it has one operation under way at a time.
        key: Which register.
        kind: What it does.
        expected: What a compare-and-set compares with.
        value: What is written, or what was read.
        outcome: As the client knows it; REFUSED is a compare-and-set that did not match.
        invoked_s: When it began.
        ended_s: When the answer came; `NEVER` if none did.
    """

    process: str
    key: str
    kind: Kind
    expected: int | None = None
    value: int | None = None
    outcome: Outcome
    invoked_s: float
    ended_s: float = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One small write through *node* that was acknowledged; failed ones leave no trace."""

    node: str
    invoked_s: float
    ended_s: float


Event: TypeAlias = Write | Seen | Operation | Probe


def encode(event: Event) -> str:
    """Return one line, without its end."""
    fields = {key: _plain(value) for key, value in asdict(event).items()}
    return json.dumps({"event": type(event).__name__.lower(), **fields}, allow_nan=False)


class Recorder:
    """Takes events in: kept in memory for the checkers, and in a file for whoever asks later."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        """Take one event."""
        self.events.append(event)
        self._out.write(encode(event) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return None if value == NEVER else round(value, 6)
    return value
