"""The error tree of the node: whose fault it is, and what to do next.

::

    DledgerError
    ├── Refused                 the request cannot be served as asked; the caller must change it
    │   ├── InvalidArgument
    │   │   ├── LimitReached    (the group has as many topics, queues or groups as it may)
    │   │   ├── IllegalKey / IllegalGroup / SeveralQueues  (what chooses a message's queue)
    │   │   └── FilterInUse     (members of the consumer group ask with another filter)
    │   ├── Unsupported         (not implemented yet; the message names the feature)
    │   ├── NotServed           (a client's word: nothing at that port knows the call)
    │   ├── UnknownTopic
    │   │   └── TopicMadeAnew   (there is one of that name, but not the one that was read from)
    │   ├── UnknownGroup / TopicTypeMismatch
    │   ├── InvalidReceiptHandle
    │   ├── MessageIdConflict   (the id is that of a message with another body)
    │   ├── AlreadyBootstrapped / WrongGroup / NotTheGroup / NotMember / MemberRemoved
    │   ├── OffsetOutOfRange
    │   ├── EntryDropped        (retention has dropped what the caller rests on; it reads again)
    │   ├── PositionTooOld      (a table's: keys may have been deleted since, and nothing says so)
    │   └── MessageRejected     (a spooled message that the group refuses; kept in a file)
    ├── Unavailable             try again, here or at another node; nothing is known to be lost
    │   ├── NotLeader           (carries the leader, if known)
    │   ├── NotJoined
    │   ├── NotTaken            (a follower's word: the leader has not read the request)
    │   ├── LeadershipLost      (outcome unknown: retry with the same key)
    │   ├── OutcomeUnknown      (a client's word: the write may be stored, or may be yet)
    │   ├── Overloaded
    │   ├── FaultyEntry         (damaged on this node's disk; being fetched from its peers)
    │   └── SpoolFull           (no room on a producer's local disk, and no group to take writes)
    ├── RateLimited             topics or groups are made on demand faster than they may be
    ├── DiskFull                writes are refused until space returns; reads go on
    ├── FeatureNotReady         held back until every member knows it; nothing was stored
    ├── NewerCommand            this node is older than what its group wrote: it must be upgraded
    └── StorageError            this node's disk is at fault; the node must not vote
        ├── CorruptRecord / CorruptFile
        ├── NewerFormat         (a newer version wrote it; the node is upgraded)
        ├── CorruptSpool        (reported, not raised: what is whole is replayed)
        ├── WrongIdentity
        ├── NodeRemoved         (its group removed this node; the disk must be formatted)
        └── DirectoryLocked     (another process is using the data directory)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from dledger.types import Appended, NodeId


class DledgerError(Exception):
    """Base of every error this package raises on purpose. Pickles, attributes included."""

    def __reduce__(self) -> tuple[object, ...]:
        """Build it again from its message: a constructor takes other arguments."""
        return rebuilt, (type(self), self.args), self.__dict__


class Refused(DledgerError):
    """The request cannot be served as asked; sending it again will not help."""


class InvalidArgument(Refused):
    """A field of the request is malformed or out of bounds; the message names it."""


class LimitReached(InvalidArgument):
    """The group has as many of these as it may have; the message names them and the limit."""


class FilterInUse(InvalidArgument):
    """A consumer group's members ask for the topic with another filter, and only one is served.

    One of the two is SQL, or the topic is FIFO: then what one passes over is not kept for others.
    """

    @classmethod
    def of_order(cls, filter_text: str) -> Self:
        """Return the refusal of a filter of a FIFO topic beside this one."""
        return cls(
            f"this consumer group asks for the topic with filter {filter_text!r}, and a FIFO topic "
            "has one filter a group: use another group, or wait until nobody has asked with that "
            "one for ten minutes"
        )

    @classmethod
    def of(cls, filter_text: str) -> Self:
        """Return the refusal of a filter beside this one."""
        return cls(
            f"this consumer group asks for the topic with filter {filter_text!r}; an SQL92 filter "
            "is served alone: use another group, or wait until nobody has asked with that one for "
            "ten minutes"
        )


class Unsupported(Refused):
    """A feature that this version does not have; refused rather than ignored."""


class NotServed(Refused):
    """Nothing at the asked port knows the call: another port, another program, an older version."""


class IllegalKey(InvalidArgument):
    """A message for a compacted topic has not exactly one key."""

    def __init__(self, topic: str, found: str) -> None:
        """*found* says which message has what instead."""
        super().__init__(
            f"topic {topic!r} is compacted by key: a message has exactly one key there, which is "
            f"not empty, and {found}; give each one key, or send to a topic that is not compacted"
        )


class IllegalGroup(InvalidArgument):
    """A message for a FIFO topic has no message group."""

    def __init__(self, topic: str, found: str) -> None:
        """*found* says which message has what instead."""
        super().__init__(
            f"topic {topic!r} is FIFO: each message has a message group there, by which it is "
            f"ordered, and {found}; give it one, or send to a topic of type NORMAL"
        )


class SeveralQueues(InvalidArgument):
    """A batch is of several queues, of which its topic chooses one for each message.

    In a compacted topic the key does, in a FIFO one the message group, in one of type PRIORITY the
    priority. A batch is of one.

    Attributes:
        queues: How many queues the topic has; a key or message group is in that of its CRC32C
            modulo this number, a priority in that of its own number, or in the last one.
    """

    def __init__(self, sentence: str, *, queues: int) -> None:
        super().__init__(sentence)
        self.queues = queues

    @classmethod
    def of(
        cls, topic: str, rows: Sequence[tuple[int, int]], *, queues: int, by: str = "keys"
    ) -> Self:
        """Return the error; *rows* has some of the batch's, each with its queue by *by*."""
        named = ", ".join(f"row {row} in queue {queue_id}" for row, queue_id in rows)
        kind = "compacted" if by == "keys" else "FIFO"
        return cls(
            f"topic {topic!r} is {kind}, and the {by} of this batch are of several of its "
            f"{queues} queues ({named}): send what is of one queue (CRC32C of the {by[:-1]} modulo "
            f"{queues}) in one batch, or single records",
            queues=queues,
        )

    @classmethod
    def of_priorities(cls, topic: str, rows: Sequence[tuple[int, int]], *, queues: int) -> Self:
        """Return the error; *rows* has some of the batch's, each with the queue of its priority."""
        named = ", ".join(f"row {row} in queue {queue_id}" for row, queue_id in rows)
        return cls(
            f"topic {topic!r} orders by priority, and those of this batch are of several of its "
            f"{queues} queues ({named}): send what is of one queue (that of the priority's number, "
            f"{queues - 1} at most) in one batch, or single records",
            queues=queues,
        )


class UnknownTopic(Refused):
    """The topic does not exist, and was not to be created on demand, or was deleted."""

    def __init__(self, topic: str, *, node: str = "HOST:PORT", kind: str = "") -> None:
        """Say how to make it.

        Args:
            topic: Its name.
            node: A client port of the group, which is any node's.
            kind: The type of the messages that were for it; "": of none, or NORMAL.
        """
        option = f" --type {kind}" if kind else ""
        made = "a first use makes NORMAL ones only" if kind else "its first use makes it"
        super().__init__(
            f"topic {topic!r} does not exist; create it with `dledger topic create {topic}{option} "
            f"--endpoint {node}` (with autoCreateTopics on, {made})"
        )
        self.topic = topic


class TopicMadeAnew(UnknownTopic):
    """The topic that an offset is of does not exist any more; another has its name."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        sentence = (
            f"topic {topic!r} was deleted and made again: the offset is of the one before, whose "
            "messages are gone; begin at offset 0 of the new one"
        )
        self.args = (sentence,)


class UnknownGroup(Refused):
    """The consumer group does not exist, or was deleted meanwhile."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"consumer group {group!r} does not exist; create it with `dledger group create "
            f"{group} --endpoint HOST:20911`, or ask for messages in its name, which makes it"
        )
        self.group = group


class TopicTypeMismatch(Refused):
    """The message's type is not the topic's."""


class InvalidReceiptHandle(Refused):
    """The receipt handle is malformed, expired, or was acknowledged already."""


class MessageIdConflict(Refused):
    """Messages whose ids are those of others, with other bodies, that were stored before.

    They are not stored; the rest of their batch is. An id is one message's: send them with others.

    Attributes:
        rows: Which messages of the batch, from 0 on, ascending; empty where nobody said.
        appended: Where the batch went, with offset -1 for *rows*; None where nobody said.
    """

    def __init__(
        self, sentence: str, *, rows: Sequence[int] = (), appended: Appended | None = None
    ) -> None:
        super().__init__(sentence)
        self.rows, self.appended = tuple(rows), appended

    @classmethod
    def of(cls, rows: Sequence[int], *, appended: Appended | None = None) -> Self:
        """Return the error about these *rows* of a batch."""
        named = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        return cls(
            f"{len(rows)} of the batch's messages (rows {named}) have the ids of messages with "
            "other bodies that were stored before: they are not stored, the others are",
            rows=rows,
            appended=appended,
        )

    @classmethod
    def of_message(cls, message_id: str) -> Self:
        """Return the error about a message that is alone; without an id, one was made up for it."""
        named = f"message id {message_id!r}" if message_id else "the id that was made up for it"
        return cls(
            f"{named} is that of a message with another body that was stored before: this one is "
            "not stored; give it an id of its own",
            rows=(0,),
        )


class AlreadyBootstrapped(Refused):
    """A group is founded once; this node already belongs to one."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"already a member of group {group_id}; a group is founded only once")
        self.group_id = group_id


class WrongGroup(Refused):
    """The caller belongs to another group."""

    def __init__(self, *, ours: str, theirs: str) -> None:
        super().__init__(f"this node belongs to group {ours!r}, not to {theirs!r}")
        self.ours = ours
        self.theirs = theirs


class NotTheGroup(Refused):
    """An empty disk joins, or founds, no group but the one that its node was told (`group_id`)."""

    def __init__(self, *, told: str, theirs: str) -> None:
        only = f"may only join group {told!r}" if told else "was not told which group it may join"
        super().__init__(f"this node's disk is empty and {only}, not {theirs!r}; see group_id")
        self.told = told
        self.theirs = theirs


class NotMember(Refused):
    """The caller is no member of the group, as far as can be told here."""

    def __init__(self, node_id: NodeId, *, name: str, group_id: str) -> None:
        super().__init__(
            f"{name!r} ({node_id!r}) is not a member of group {group_id}: "
            "a replaced disk must be added to the group as a new member"
        )


class MemberRemoved(Refused):
    """The caller was removed from the group by a committed change, and is refused for good.

    Attributes:
        index: The entry with the first membership without it.
        epoch: How often the group was forced, as far as the one knows who refuses.
    """

    def __init__(self, node_id: NodeId, *, group_id: str, index: int, epoch: int = 0) -> None:
        super().__init__(
            f"node {node_id} was removed from group {group_id} by entry {index}; "
            "its disk must be formatted and added to the group as a new member"
        )
        self.index, self.epoch = index, epoch


class LeftOut(Refused):
    """The caller's handshake is refused, and the group was forced since its epoch.

    The caller decides by its own log whether it was left out then (`raft.force`).

    Attributes:
        epoch: How often the group was forced.
        index: The entry that forced it last.
    """

    def __init__(self, sentence: str, *, epoch: int, index: int) -> None:
        super().__init__(f"{sentence}; the group was forced to epoch {epoch} by entry {index}")
        self.epoch, self.index = epoch, index


class OffsetOutOfRange(Refused):
    """No entry at this position any more, or not yet."""

    def __init__(self, offset: int, *, first: int, last: int) -> None:
        super().__init__(f"offset {offset} is outside [{first}, {last}]")
        self.offset, self.first, self.last = offset, first, last


class EntryDropped(Refused):
    """Retention has dropped the entry as of which the caller speaks: nobody can check what it says.

    Whoever reads the log anew may say the same as of a newer entry.
    """


class PositionTooOld(Refused):
    """A table was not read for longer than its topic is sure to keep tombstones.

    Attributes:
        as_of_ms: Up to when everything had been read, Unix milliseconds.
    """

    def __init__(self, topic: str, *, as_of_ms: int, certain_ms: int) -> None:
        super().__init__(
            f"the table of topic {topic!r} was not read for longer than the {certain_ms} ms for "
            "which the topic is sure to keep tombstones: keys that were deleted since may still be "
            "in it; "
            "read the topic from its start, into an empty table"
        )
        self.as_of_ms = as_of_ms


class MessageRejected(Refused):
    """The group refuses a spooled message for good; it is kept in a file and blocks nothing.

    Attributes:
        topic: Where it was to go.
        message_id: Its id.
        reason: The group's sentence.
        path: The file that holds it from now on.
    """

    def __init__(self, topic: str, message_id: str, *, reason: str, path: str) -> None:
        super().__init__(
            f"spooled message {message_id} for topic {topic!r} was refused and is kept in {path}: "
            f"{reason}"
        )
        self.topic, self.message_id, self.reason, self.path = topic, message_id, reason, path


class Unavailable(DledgerError):
    """Not now; a retry, here or at another node, may succeed."""


class NotLeader(Unavailable):
    """Only the leader can do this; *leader* names it when known.

    The sentence does not say that nothing was done: of a caller's earlier attempts, which may have
    been carried out, a node knows nothing, and clients show the error of the last one alone.
    """

    def __init__(self, leader: NodeId | None) -> None:
        super().__init__(
            "the group has no leader at the moment: try again"
            if leader is None
            else f"this node does not lead the group, node {leader} does"
        )
        self.leader = leader


class NotJoined(Unavailable):
    """The node has an empty disk and waits to be founded or joined."""

    def __init__(self) -> None:
        super().__init__("this node has not joined a group yet (Unjoined); bootstrap the group")


class NotTaken(Unavailable):
    """The leader has not read what came over a follower's link: nothing was done."""


class LeadershipLost(Unavailable):
    """Leadership ended before the outcome was known: it may or may not commit."""


class OutcomeUnknown(Unavailable):
    """A write was sent and not answered: it may be stored, or may be yet.

    Sending the same messages again is safe with the same client id and message ids only: as new
    ones they would be stored a second time.
    """


class Overloaded(Unavailable):
    """A bounded queue is full; back off and retry."""


class FaultyEntry(Unavailable):
    """An entry is damaged on this node's disk, and not yet fetched from a peer."""

    def __init__(self, index: int) -> None:
        super().__init__(
            f"entry {index} is damaged on this node's disk and is being fetched from its peers"
        )
        self.index = index


class SpoolFull(Unavailable):
    """A producer's spool has no room, and the group takes no writes: the message is not kept."""


class RateLimited(DledgerError):
    """This is done only so often; nothing happened. The message says how to do it at once."""


class DiskFull(DledgerError):
    """The disk has no room for more; reads go on, writes resume when space returns."""


class FeatureNotReady(DledgerError):
    """Not every member knows this command yet; it works once all run a version that does.

    Attributes:
        needed: The feature level that it takes; 0 where a client was only told the sentence.
        member: The name of a member that holds it back.
        told: That member's level; None: it was not heard from since the leader started.
    """

    def __init__(
        self, sentence: str, *, needed: int = 0, member: str = "", told: int | None = None
    ) -> None:
        super().__init__(sentence)
        self.needed, self.member, self.told = needed, member, told

    @classmethod
    def held_back(cls, command: str, *, needed: int, member: str, told: int | None) -> Self:
        """Return that *member* holds a command back."""
        known = "has not told its level yet" if told is None else f"is of level {told}"
        return cls(
            f"{command} needs feature level {needed}, and member {member} {known}: it is held back "
            "until every member runs a version that knows it; nothing was stored",
            needed=needed,
            member=member,
            told=told,
        )


class NewerCommand(DledgerError):
    """An entry of the group's log holds what this version does not know; this node must stop.

    Attributes:
        index: The entry. Neither it nor a later one was applied.
        what: The part that is unknown.
    """

    def __init__(self, index: int, *, what: str, level: int) -> None:
        super().__init__(
            f"entry {index} is of a newer version: {what} is unknown to this one (feature level "
            f"{level}). Nothing of it was applied and the disk is good: upgrade this node's image "
            "to the version that its group runs"
        )
        self.index, self.what = index, what


class StorageError(DledgerError):
    """This node's own disk is at fault."""


class NewerFormat(StorageError):
    """What is on the disk, or came from the leader, is whole, but this version cannot read it.

    Attributes:
        found, known: Which format it has, and the newest that this version reads.
    """

    def __init__(self, what: str, *, found: str, known: str) -> None:
        super().__init__(
            f"{what} is of a newer version: {found}, and this one reads up to {known}. Nothing is "
            "damaged or was changed: upgrade this node's image to the version that wrote it"
        )
        self.found, self.known = found, known

    @classmethod
    def number(cls, what: str, *, found: int, known: int) -> Self:
        """Return that *what* has format number *found*, and the newest known is *known*."""
        return cls(what, found=f"format {found}", known=f"format {known}")


class OlderFormat(StorageError):
    """What is on the disk is whole, but of a build whose format this version does not read.

    Attributes:
        found, known: The number of its format, and the one that this version reads.
    """

    def __init__(self, what: str, *, found: int, known: int) -> None:
        super().__init__(
            f"{what} is of an older build: format {found}, and this one reads format {known}. "
            "Nothing is damaged or was changed: start the build that wrote it, or move the "
            "messages through a backup"
        )
        self.found, self.known = found, known


class CorruptRecord(StorageError):
    """A record that was synced cannot be read back (rot).

    Attributes:
        segment: The segment file.
        offset: The byte in it.
        index: The entry's index, where a single one is known to be damaged.
    """

    def __init__(self, segment: str, offset: int, reason: str, *, index: int | None = None) -> None:
        super().__init__(f"corrupt record in segment {segment} at byte offset {offset}: {reason}")
        self.segment, self.offset, self.reason, self.index = segment, offset, reason, index


class CorruptFile(StorageError):
    """A small state file does not pass its checksum."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"corrupt file {path}: {reason}")
        self.path, self.reason = path, reason


class CorruptSpool(StorageError):
    """Bytes of a producer's spool are damaged; everything around them is replayed.

    Attributes:
        path: The file; when all else in it is replayed it moves to ``quarantine/``.
        offset: The first damaged byte.
        size_bytes: How many there are; 0 where bytes are missing.
        first, last: Sequence numbers of the messages lost with them; last < first: none.
        messages: How many these are.
    """

    def __init__(
        self, path: str, *, offset: int, size_bytes: int, first: int, last: int, reason: str
    ) -> None:
        self.messages = last - first + 1
        numbers = f" ({first} to {last})" if self.messages else ""
        super().__init__(
            f"corrupt spool file {path}: {size_bytes} bytes at byte offset {offset}, "
            f"{self.messages} messages lost{numbers}: {reason}"
        )
        self.path, self.offset, self.size_bytes, self.reason = path, offset, size_bytes, reason
        self.first, self.last = first, last


class WrongIdentity(StorageError):
    """The data directory belongs to another group or another node."""

    def __init__(self, what: str, *, expected: str, found: str) -> None:
        super().__init__(f"data directory belongs to {what} {found}, but this is {what} {expected}")
        self.what, self.expected, self.found = what, expected, found


class NodeRemoved(StorageError):
    """The group has removed this disk's node; it never votes or serves again."""

    def __init__(self, node_id: NodeId, *, group_id: str, index: int, path: str) -> None:
        super().__init__(
            f"node {node_id} was removed from group {group_id} by entry {index} (see {path}) and "
            "cannot return with this disk: start with an empty data directory, and add the new "
            "node with `dledger member add`"
        )
        self.index = index


class DirectoryLocked(StorageError):
    """Another process is using the data directory."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"data directory {path} is in use by another process"
            " (its lock is held): end that one, or name another directory"
        )
        self.path = path


def rebuilt(kind: type[DledgerError], args: tuple[object, ...]) -> DledgerError:
    """Return an error of class *kind* that says *args*, without calling its constructor."""
    error = kind.__new__(kind)
    error.args = args
    return error
