"""Topics, and what their types decide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from dledger.checks.names import check_name
from dledger.errors import InvalidArgument, TopicTypeMismatch, Unsupported

MAX_TOPICS = 10_000
MAX_QUEUES = 1024
MAX_QUEUES_IN_ALL = 65_536
"""Queues of all topics together: a node can visit this many without a pause; 50 MB if empty."""
MAX_RETENTION_HOURS = 1_000_000
"""The longest retention in hours, 114 years; 0 is for ever."""
MAX_COMPACTION_MS = MAX_RETENTION_HOURS * 3_600_000
"""The longest time in a topic's compaction."""


class TopicType(ABC):
    """What the type of a topic decides of its messages; a class for each type.

    Pure, and the same on every node for ever: `queue_for` and `may_deliver` are asked while entries
    are applied. A new answer to either is a new feature of the log (`common.features`).

    Attributes:
        name: In the log, in snapshots and on the wire; also RocketMQ's for the type of a message.
        fields: Which its messages may have of the fields that not all types know.
        in_order: Whether messages of one group are delivered one after the other.
        highest_first: Whether who asks for messages of any queue gets those of higher ones first.
    """

    name: ClassVar[str]
    fields: ClassVar[frozenset[str]] = frozenset()
    in_order: ClassVar[bool] = False
    highest_first: ClassVar[bool] = False

    def check(self, kind: str, fields: Collection[str]) -> None:
        """Refuse a message that is not for topics of this type, before it gets into the log.

        Args:
            kind: The type that its producer says it has.
            fields: Which it has of the fields that not all types know.

        Raises:
            TopicTypeMismatch: The type does not take it.
        """
        if kind != self.name:
            raise TopicTypeMismatch(f"the topic takes {self.name} messages, not {kind}")
        for each in fields:
            if each not in self.fields:
                raise TopicTypeMismatch(
                    f"the topic takes {self.name} messages, which have no {each}"
                )

    @abstractmethod
    def queue_for(self, *, home: int | None, turn: int) -> int:
        """Return the queue of messages whose producer has asked for none.

        Args:
            home: The queue of messages that were sent with them before; None: there are none.
            turn: The queue whose turn it is, of all queues of the topic, one after the other.
        """

    @abstractmethod
    def may_deliver(self, leased: int) -> bool:
        """Whether a group may be given more of a queue while it holds *leased* messages of it."""


class Normal(TopicType):
    """In no order that anybody may rely on, so each message may be given to whoever asks."""

    name = "NORMAL"

    def queue_for(self, *, home: int | None, turn: int) -> int:
        """Return where the others are, so that what is sent again is not torn apart."""
        return turn if home is None else home

    def may_deliver(self, leased: int) -> bool:  # noqa: ARG002
        """Return True: none waits for another."""
        return True


class Fifo(Normal):
    """Those of a message group are delivered one after the other; each has one."""

    name = "FIFO"
    fields = frozenset({"message_group"})
    in_order = True


class Delay(Normal):
    """Each is delivered at a time of its own."""

    name = "DELAY"
    fields = frozenset({"delivery_timestamp"})


class Transaction(Normal):
    """Each is delivered once its producer has committed it."""

    name = "TRANSACTION"


class Priority(Normal):
    """Those of a higher priority are delivered first: they lie in a higher queue (`priorities`)."""

    name = "PRIORITY"
    fields = frozenset({"priority"})
    highest_first = True


NORMAL: Final = Normal()
FIFO: Final = Fifo()
DELAY: Final = Delay()
PRIORITY: Final = Priority()
TRANSACTION: Final = Transaction()
TYPES: Final[Mapping[str, TopicType]] = {
    each.name: each for each in (NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY)
}
"""The types that a topic may have, in the log and on every node."""
SERVED: Final = frozenset(TYPES)
"""Those that this version serves: a topic of another type is in no log, as none is asked for."""
LITE: Final = "LITE"
"""RocketMQ's type for millions of topics in one, which this broker will not have."""


def check_served(type: str) -> None:  # noqa: A002, its name on the wire
    """Refuse a topic's type that this version does not serve, before it gets into the log.

    Not part of the replicated state's rules: those take each of `TYPES`, so that what a log means
    does not change with what a version serves.

    Raises:
        Unsupported: It is one of `TYPES`, but not of `SERVED`; or it is `LITE`.
        InvalidArgument: It is no type.
    """
    if type in SERVED:
        return
    if type == LITE:
        raise Unsupported(
            f"topic type {LITE} is not offered, now or later: make a topic of another type, and "
            "let consumers choose by tag"
        )
    _check_type(type)
    *others, last = sorted(SERVED)
    there = f"{', '.join(others)} and {last} are" if others else f"{last} is"
    raise Unsupported(f"topic type {type} is not implemented yet; only {there}")


def _check_type(type: str) -> None:  # noqa: A002, its name on the wire
    if type not in TYPES:
        raise InvalidArgument(f"topic type {type!r} is none of {', '.join(sorted(TYPES))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """How a topic keeps the newest message of each key; chosen when it is made, and never later.

    Attributes:
        min_lag_ms: A message younger than this is not let go.
        tombstone_ms: A tombstone is kept at least so long once it is the only message of its key.
    """

    min_lag_ms: int = 3_600_000
    tombstone_ms: int = 86_400_000

    def __str__(self) -> str:
        """Return it as sentences of refusals have it."""
        return f"a lag of {self.min_lag_ms} ms and tombstones of {self.tombstone_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A named set of queues, numbered from 0. Equal to one with the same settings.

    Attributes:
        type: The name of one of `TYPES`.
        generation: A number that counts the topics of the broker group, from 1 on. It tells a topic
            from a deleted one of the same name.
        retention_hours: How long its messages are kept, in lived hours; 0: for ever, as always if
            it is compacted; None: as the group's retention says.
        compaction: Whether and how it is compacted: then it keeps the newest message of each key
            for ever, and only those; None: it is not.
    """

    name: str
    type: str
    queues: int
    compaction: Compaction | None = None
    generation: int = field(default=0, compare=False)
    retention_hours: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Return its settings, as sentences of refusals have them."""
        how = "" if self.compaction is None else f", compacted with {self.compaction}"
        return f"type {self.type} and {self.queues} queues{how}"


def checked_topic(
    *,
    name: str,
    type: str,  # noqa: A002, its name on the wire
    queues: int,
    compaction: Compaction | None = None,
) -> Topic:
    """Return the topic; raise InvalidArgument for what no topic may be."""
    check_name("topic", name)
    _check_type(type)
    if not 1 <= queues <= MAX_QUEUES:
        raise InvalidArgument(f"a topic has 1 to {MAX_QUEUES} queues, not {queues}")
    if compaction is None:
        return Topic(name=name, type=type, queues=queues)
    if type != NORMAL.name:
        raise InvalidArgument(f"a topic of type {type} is not compacted, only one of {NORMAL.name}")
    _check_compaction(compaction)
    return Topic(name=name, type=type, queues=queues, compaction=compaction, retention_hours=0)


def _check_compaction(compaction: Compaction) -> None:
    """Refuse times out of bounds."""
    times = {"min_lag_ms": compaction.min_lag_ms, "tombstone_ms": compaction.tombstone_ms}
    for name, time_ms in times.items():
        if not 0 <= time_ms <= MAX_COMPACTION_MS:
            raise InvalidArgument(
                f"{name} of a compacted topic is 0 to {MAX_COMPACTION_MS}, not {time_ms}"
            )
