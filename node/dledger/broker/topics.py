"""Topics: their names, types and number of queues."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dledger.errors import InvalidArgument, Unsupported

NORMAL = "NORMAL"
TOPIC_TYPES = frozenset({NORMAL, "FIFO", "DELAY", "TRANSACTION"})
MAX_TOPICS = 10_000
MAX_QUEUES = 1024
MAX_QUEUES_IN_ALL = 65_536
"""Queues of all topics together: a node can visit this many without a pause; 50 MB if empty."""
MAX_NAME_LENGTH = 127
KEPT_PREFIXES = ("%DLQ%", "%RETRY%")
"""RocketMQ's names of a consumer group's dead letters and retries begin so: a client that had made
one would be in the way of the group that is to have it."""
_NAME = re.compile(rf"[%a-zA-Z0-9_-]{{1,{MAX_NAME_LENGTH}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A named set of queues, numbered from 0. Equal to one with the same settings.

    Attributes:
        generation: A number that counts the topics of the broker group, from 1 on. It tells a topic
            from a deleted one of the same name.
    """

    name: str
    type: str
    queues: int
    generation: int = field(default=0, compare=False)


def is_name(name: str) -> bool:
    """Whether *name* may name a topic or a consumer group (the rule of the RocketMQ clients)."""
    return _NAME.fullmatch(name) is not None


def check_name(what: str, name: str) -> None:
    """Raise InvalidArgument unless *name* may be the name of a *what*."""
    if not is_name(name):
        raise InvalidArgument(
            f"{what} {name[:MAX_NAME_LENGTH]!r} must be 1 to {MAX_NAME_LENGTH} characters "
            "of letters, digits, '%', '_' and '-'"
        )


def check_may_be_made(name: str) -> None:
    """Raise InvalidArgument unless clients may make a topic of this name.

    Not part of the replicated state's rules: the broker itself may make such topics one day.
    """
    check_name("topic", name)
    if name.startswith(KEPT_PREFIXES):
        raise InvalidArgument(
            f"topic {name!r} cannot be made: names that begin with {' or '.join(KEPT_PREFIXES)} "
            "are kept for dead letters, which are not implemented yet"
        )


def checked_topic(*, name: str, type: str, queues: int) -> Topic:  # noqa: A002, its name on the wire
    """Return the topic; raise InvalidArgument, or Unsupported for a type not implemented yet."""
    check_name("topic", name)
    if type not in TOPIC_TYPES:
        raise InvalidArgument(f"topic type {type!r} is none of {', '.join(sorted(TOPIC_TYPES))}")
    if type != NORMAL:
        raise Unsupported(f"topic type {type} is not implemented yet; only {NORMAL} is")
    if not 1 <= queues <= MAX_QUEUES:
        raise InvalidArgument(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}")
    return Topic(name=name, type=type, queues=queues)
