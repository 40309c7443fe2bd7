"""How often a consumer group's messages are delivered before they are dead letters, and when again.

Every group has the default until a SET_GROUP says otherwise. A delivery counts once the message is
leased, whatever becomes of it: the group counts, not its members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.checks.names import DEAD_LETTERS, MAX_NAME_LENGTH
from dledger.common.limits import CONSUME_BACKOFF_S, MAX_INVISIBLE_MS, ORDERED_BACKOFF_S
from dledger.errors import InvalidArgument

DEFAULT_ATTEMPTS: Final = 17
"""As RocketMQ has it: the first delivery, and 16 more."""
MAX_ATTEMPTS: Final = 1_000
MAX_DELAYS: Final = 32
"""Delays of a back-off; the last one is that of all later attempts."""
PREFIX_LENGTH: Final = len(DEAD_LETTERS)
_LONGEST: Final = MAX_NAME_LENGTH - PREFIX_LENGTH
WITHOUT_END: Final = 0
"""Attempts of messages that never become dead letters."""


@dataclass(frozen=True, slots=True)
class Retries:
    """What a group does with messages that are not acknowledged.

    Attributes:
        max_attempts: After so many deliveries a message is a dead letter; 0: never.
        backoff_ms: How long it waits after its first failure, its second, and so on. An exponential
            back-off is written out: it has few values below its longest one.
    """

    max_attempts: int
    backoff_ms: tuple[int, ...]

    def delay_ms(self, attempt: int) -> int:
        """Return how long a message waits that failed for the *attempt*-th time, from 1 on."""
        return self.backoff_ms[min(max(attempt, 1), len(self.backoff_ms)) - 1]


DEFAULT: Final = Retries(DEFAULT_ATTEMPTS, tuple(1000 * each for each in CONSUME_BACKOFF_S))
"""What a group has for which nothing was set."""
IN_ORDER: Final = Retries(DEFAULT_ATTEMPTS, tuple(1000 * each for each in ORDERED_BACKOFF_S))
"""What it has of a FIFO topic then: all of its message group waits for a message that failed."""


def check_retries(retries: Retries) -> None:
    """Raise InvalidArgument for what no group may have."""
    if not WITHOUT_END <= retries.max_attempts <= MAX_ATTEMPTS:
        raise InvalidArgument(
            f"a message is delivered 1 to {MAX_ATTEMPTS} times, or 0 for without end: "
            f"{retries.max_attempts}"
        )
    if not 1 <= len(retries.backoff_ms) <= MAX_DELAYS:
        raise InvalidArgument(
            f"a back-off has 1 to {MAX_DELAYS} delays, not {len(retries.backoff_ms)}"
        )
    for delay_ms in retries.backoff_ms:
        if not 0 <= delay_ms <= MAX_INVISIBLE_MS:
            raise InvalidArgument(
                f"a delay of a back-off is 0 to {MAX_INVISIBLE_MS} ms, not {delay_ms}"
            )


def dead_letter_topic(group: str) -> str:
    """Return the name of the topic of a group's dead letters."""
    return DEAD_LETTERS + group


def attempts_of(group: str, retries: Retries) -> int:
    """Return after how many deliveries a group moves a message; 0: never.

    A group whose topic of dead letters could have no name has none.
    """
    return WITHOUT_END if len(group) > _LONGEST else retries.max_attempts
