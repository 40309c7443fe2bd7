"""What a delivery time asks of its message: to be held, to be delivered at once, or neither.

Decided at the door, by the group's date (`replica.group_date`), and never when a command is
applied: the log has only what was decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dledger.errors import Unavailable
from dledger.rpc.status import Code, Rejected

MAX_DELAY_MS: Final = 40 * 86_400_000
"""How far ahead a delivery time may be: 40 days, as in the cloud's RocketMQ; its own allows 3."""


def is_to_wait(due_ms: Sequence[int], date_ms: int | None) -> bool:
    """Whether any of a request's messages is to be delivered later; then all of them are held.

    Args:
        due_ms: When each is to be delivered, Unix ms; empty: at once.
        date_ms: The group's date, Unix ms; None: too few clocks are heard to tell.

    Raises:
        Rejected: One is to be delivered too late.
        Unavailable: The date is not known; as a majority is not heard then, that is over soon.
    """
    if not due_ms:
        return False
    if date_ms is None:
        raise Unavailable("too few members' clocks are heard to tell what is to be delivered later")
    latest_ms = max(due_ms)
    if latest_ms - date_ms > MAX_DELAY_MS:
        raise Rejected(
            Code.ILLEGAL_DELIVERY_TIME,
            f"a message is to be delivered at {latest_ms} (Unix ms), more than the "
            f"{MAX_DELAY_MS // 86_400_000} days ahead that are possible",
        )
    return latest_ms > date_ms
