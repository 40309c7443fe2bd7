"""What a writer sends of each type of message, and what has to come of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TYPES: Final = ("NORMAL", "FIFO", "DELAY", "PRIORITY", "TRANSACTION")
_MESSAGE_GROUPS: Final = 4
_PRIORITIES: Final = 3
_SOONEST_S: Final = 2
_DELAYS_S: Final = 8
_SILENT: Final = 8
"""Every so many-th transaction has a producer that says nothing more of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A message that is to be sent.

    Attributes:
        key: Its body; begins with "no" if it is to be rolled back.
        options: What `User.send` takes beside it.
        due_s: When it is to be delivered, as Unix time in seconds; 0: at once.
        group: Its message group; "" if it has none.
    """

    key: str
    options: Mapping[str, Any] = field(default_factory=dict)
    due_s: float = 0.0
    group: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is to get it."""
        return not self.key.startswith("no")

    @property
    def is_silent(self) -> bool:
        """Whether its producer leaves the end of a transaction to its checker."""
        return "transaction" in self.options and "end" not in self.options


def plan_send(kind: str, writer: int, number: int, now_s: float) -> Planned:
    """Return what *writer* sends as its message *number*, at *now_s*, to a topic of type *kind*."""
    key = f"{writer}/{number}"
    if kind == "FIFO":
        group = f"{writer}-{number % _MESSAGE_GROUPS}"
        return Planned(key=key, options={"message_group": group}, group=group)
    if kind == "DELAY":
        due_s = math.ceil(now_s) + _SOONEST_S + number % _DELAYS_S  # some clients know seconds only
        return Planned(key=key, options={"deliver_at_ms": due_s * 1000}, due_s=due_s)
    if kind == "PRIORITY":
        return Planned(key=key, options={"priority": 1 + number % _PRIORITIES})
    if kind == "TRANSACTION":
        ends = {"transaction": True, "end": ("commit", "rollback")[number % 2]}
        if number % _SILENT in {0, _SILENT - 1}:
            del ends["end"]
        return Planned(key=f"{('yes', 'no')[number % 2]}/{key}", options=ends)
    return Planned(key=key)
