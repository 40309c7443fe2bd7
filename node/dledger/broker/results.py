"""The results of applying commands: frozen values, one for each command of an entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dledger.broker.commands import LeaseRef
from dledger.broker.held_refs import Fate
from dledger.broker.queue_positions import Payload
from dledger.broker.redelivery import Retries
from dledger.broker.topics import Topic

NOWHERE: Final = -1
"""The queue id and the queue offset of a message that is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """A batch was stored, now or by an earlier attempt of the same request, except its conflicts.

    Attributes:
        queue_ids: The queue of each message, in the batch's order; `held_refs.HELD_QUEUE` if it is
            held, or was.
        offsets: The queue offset of each message, in the batch's order; `NOWHERE` if it conflicts,
            or is a repeat of which nobody knows any more where it is. Of one that is held, or was,
            what it is called (`Ref.number`).
        index: The Raft index of the entry that holds the first stored message; 0 if retention has
            dropped it since, or no message was stored, or it is held, or was.
        generation: The topic's generation, which tells topics of one name apart.
        stored: How many messages are new; the others were stored before, or conflict.
        repeats: The rows that were stored before, ascending.
        conflicts: The rows whose ids belong to other messages, ascending; these are not stored.
    """

    topic: str
    queue_ids: Sequence[int]
    offsets: Sequence[int]
    index: int
    generation: int
    stored: int
    repeats: Sequence[int] = ()
    conflicts: Sequence[int] = ()

    @property
    def queue_id(self) -> int:
        """The queue of the first stored message; `NOWHERE` if there is none."""
        if self.queue_ids[0] != NOWHERE:
            return self.queue_ids[0]
        return next((queue for queue in self.queue_ids if queue != NOWHERE), NOWHERE)


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """The topic exists; *created* says whether it is new."""

    topic: Topic
    created: bool


@dataclass(frozen=True, slots=True)
class TopicGrown:
    """The topic has the queues that were asked for; *before* is how many it had."""

    topic: Topic
    before: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic is deleted, with this number of messages."""

    topic: Topic
    messages: int


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """The consumer group is deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class SecretSet:
    """The group has a secret; *first* says whether this command set it."""

    first: bool


@dataclass(frozen=True, slots=True)
class GroupCreated:
    """The consumer group exists; *created* says whether it is new."""

    name: str
    created: bool


@dataclass(frozen=True, slots=True)
class SoughtQueue:
    """One queue of a SEEK_GROUP.

    Attributes:
        queue_id: Which.
        before: The lowest offset that was not consumed.
        offset: What is delivered next; above what was asked for if that is not kept any more.
        held: How many messages were delivered and not acknowledged; their receipt handles are
            stale now.
    """

    queue_id: int
    before: int
    offset: int
    held: int


@dataclass(frozen=True, slots=True)
class GroupSought:
    """The group goes on from there, in the order of the command."""

    queues: tuple[SoughtQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One delivered message, and the position of its bytes.

    Attributes:
        attempt: 1 for the first delivery.
        payload: The PRODUCE payload that holds it.
        row: Its row in that payload.
    """

    queue_id: int
    offset: int
    attempt: int
    payload: Payload
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A message that is to be moved to the group's dead letters, and its lease.

    Attributes:
        attempts: How often it was delivered.
        payload: The PRODUCE payload that holds it.
        row: Its row in that payload.
    """

    lease: LeaseRef
    attempts: int
    payload: Payload
    row: int


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The lease is over; *stored*: the message is a dead letter now, by this command.

    None: it was acknowledged or moved before.
    """

    stored: Produced | None


@dataclass(frozen=True, slots=True)
class GroupSet:
    """What a group had before its retries were set."""

    before: Retries


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The result of a RECEIVE; receive id and generation are part of every receipt handle.

    The leases end at *visible_at_ms*, lived time. *spent* are messages that were delivered as often
    as the group allows: nobody gets them again, and who proposed the RECEIVE moves them.
    """

    topic: str
    generation: int
    receive_id: int
    visible_at_ms: int
    deliveries: tuple[Delivery, ...]
    spent: tuple[Spent, ...] = ()


@dataclass(frozen=True, slots=True)
class FilterUsed:
    """The use of a member's filter is noted."""


@dataclass(frozen=True, slots=True)
class GroupsExpired:
    """How many unused groups were deleted."""

    groups: int


@dataclass(frozen=True, slots=True)
class Acked:
    """For each lease, in order, whether the message is consumed; False: the handle is stale."""

    outcomes: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class InvisibilityChanged:
    """How many leases now end at another time."""

    changed: int


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A lease ends at another time; its receipt handle has another receive id from now on."""

    receive_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """How many leases of a client that has gone were ended."""

    released: int


@dataclass(frozen=True, slots=True)
class Leapt:
    """How much of the log's time a LEAP skipped, in milliseconds."""

    skipped_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """Messages below *first_index* are no longer kept.

    Attributes:
        first_index: The oldest entry whose messages are kept; the highest requested so far.
        dropped: How many messages this command dropped.
    """

    first_index: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSet:
    """A topic's own retention is set.

    Attributes:
        before: What it was, in hours; 0: for ever; None: the group's.
        dropped: How many messages went, which only the one before had kept.
    """

    before: int | None
    dropped: int


@dataclass(frozen=True, slots=True)
class Rekept:
    """How many messages of the offsets that a REKEEP decides are gone with it."""

    dropped: int


@dataclass(frozen=True, slots=True)
class Erased:
    """How many messages went with an ERASE, of those that it names, and its entry."""

    messages: int
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldReleased:
    """Held messages were delivered: those that were held until now.

    Attributes:
        before: What each of them was before, in the order of the command.
        stored: Where they are, those that were delivered by this command; the others are `NOWHERE`.
            None: none was, or their topic is gone, and they with it.
    """

    before: tuple[Fate, ...]
    stored: Produced | None


@dataclass(frozen=True, slots=True)
class HeldMoved:
    """How many held messages lie in this entry from now on."""

    moved: int


@dataclass(frozen=True, slots=True)
class HeldCancelled:
    """What each of the messages was before, in order: one that was held is cancelled now."""

    before: tuple[Fate, ...]


@dataclass(frozen=True, slots=True)
class HeldPaused:
    """How many messages wait for a word from now on; 0: this pause was before."""

    waiting: int


@dataclass(frozen=True, slots=True)
class HeldResumed:
    """How many messages had waited until now."""

    waited: int


@dataclass(frozen=True, slots=True)
class HeldChecked:
    """How often producers were asked about each half by now, in order; 0: it has an end."""

    checks: tuple[int, ...]
