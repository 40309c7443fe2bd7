"""Which type a message has that is sent, and what only messages of that type have.

A message is of the type that it says, with what is that type's and nothing of another; all messages
of a request are of one type, and so is their topic (`broker.topics`). Knows nothing of a node's
state, so door processes use it as well. Called by `send_requests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dledger.broker.topics import DELAY, FIFO, NORMAL, PRIORITY, SERVED, TYPES
from dledger.checks.messages import check_typed
from dledger.common.limits import FIRST_CHECK_MS, MAX_CHECK_AFTER_MS
from dledger.errors import TopicTypeMismatch
from dledger.rpc.rocketmq_stubs import definition
from dledger.rpc.status import Code, Rejected
from dledger.types import NO_PRIORITY, Typed

PLAIN: Final = definition.MessageType.NORMAL
"""Up to this number of a type a message has nothing that not all have."""
_DUE: Final = "delivery_timestamp"
_LONG_PAST_MS: Final = 1
"""Instead of 0, which says that a message has no time."""
_CHECK: Final = "orphaned_transaction_recovery_duration"
_OF_SOME_TYPES: Final = ("message_group", _DUE, "lite_topic", "priority")
"""Fields of a message that only some types of topics know."""
_KINDS: Final = {value: name for name, value in definition.MessageType.items()} | {
    definition.MessageType.MESSAGE_TYPE_UNSPECIFIED: NORMAL.name
}


def check_kind(system: definition.SystemProperties) -> None:
    """Refuse a message of a type that is not served, or with fields that are not its type's.

    Raises:
        TopicTypeMismatch: It is one.
    """
    kind = _KINDS.get(system.message_type) or str(system.message_type)
    own = TYPES[kind] if kind in SERVED else NORMAL
    own.check(kind, [each for each in _OF_SOME_TYPES if system.HasField(each)])


def kind_of_all(messages: Sequence[definition.Message]) -> str:
    """Return the type that all of a request's messages have, which were checked one by one.

    Raises:
        TopicTypeMismatch: They have several.
    """
    kinds = {_KINDS[each.system_properties.message_type] for each in messages}
    if len(kinds) > 1:
        raise TopicTypeMismatch(
            f"one request sends messages of one type, not of {' and '.join(sorted(kinds))}"
        )
    return kinds.pop()


def typed_of(system: definition.SystemProperties) -> Typed | None:
    """Return what a message has that only its type knows; None: there is no such thing.

    Raises:
        TopicTypeMismatch, Rejected: It lacks what its type is about, or that is out of range.
    """
    read = _READERS.get(_KINDS[system.message_type])
    if read is None:
        return None
    typed = read(system)
    check_typed(typed)
    return typed


def _read_group(system: definition.SystemProperties) -> Typed:
    if not system.message_group:
        raise Rejected(
            Code.ILLEGAL_MESSAGE_GROUP,
            "a FIFO message has a message group, by which it is ordered; this one has none",
        )
    return Typed(message_group=system.message_group)


def _read_time(system: definition.SystemProperties) -> Typed:
    if not system.HasField(_DUE):
        raise TopicTypeMismatch(f"a {DELAY.name} message has a {_DUE}, and this one has none")
    due = system.delivery_timestamp
    return Typed(deliver_at_ms=due.seconds * 1000 + due.nanos // 1_000_000 or _LONG_PAST_MS)


def _read_priority(system: definition.SystemProperties) -> Typed:
    if not system.HasField("priority"):
        raise TopicTypeMismatch(
            "a PRIORITY message has a priority, from 0, the lowest, on, and this one has none"
        )
    if system.priority <= NO_PRIORITY:
        raise Rejected(Code.BAD_REQUEST, f"a priority is from 0 on, not {system.priority}")
    return Typed(priority=system.priority)


_READERS: Final[Mapping[str, Callable[[definition.SystemProperties], Typed]]] = {
    FIFO.name: _read_group,
    DELAY.name: _read_time,
    PRIORITY.name: _read_priority,
}


def check_after_ms(message: definition.Message) -> int:
    """Return how long after it a half's producer is asked about it. Raises Rejected."""
    system = message.system_properties
    if not system.HasField(_CHECK):
        return FIRST_CHECK_MS
    asked = system.orphaned_transaction_recovery_duration
    asked_ms = asked.seconds * 1000 + asked.nanos // 1_000_000
    if asked_ms > MAX_CHECK_AFTER_MS:
        raise Rejected(
            Code.BAD_REQUEST,
            f"{_CHECK} is {asked_ms} ms, and {MAX_CHECK_AFTER_MS} ms at most is possible",
        )
    return asked_ms if asked_ms > 0 else FIRST_CHECK_MS
