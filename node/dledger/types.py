"""The words every part shares: ids, entries, messages, roles and members.

Frozen values only; nothing here does I/O. Owned by no part, imported by all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property
from typing import Final, NewType

NodeId = NewType("NodeId", str)
"""The UUID that was written when a disk was formatted; a wiped disk is another node."""


MAX_NUMBER: Final = 1 << 62
"""Terms and indexes stay below: a number that no group comes to is a fault or a forgery, and what
follows it would not fit where numbers have 64 bits, or 63."""
NO_PRIORITY: Final = -1
"""The priority of a message that has none."""
_OVERHEAD_BYTES: Final = 256
"""What an entry takes in memory beside its data, about."""


class Role(Enum):
    """The part a node plays in its group (Raft 5.1; pre-candidate: Raft thesis 9.6)."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class EntryKind(IntEnum):
    """What an entry's data means; the number is the record's type on disk and on the wire."""

    NOOP = 0
    MEMBERSHIP = 1
    DATA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One slot of the replicated log.

    Attributes:
        term: The leader's term when it was proposed; at least 1.
        index: Position in the log; the first entry has index 1.
        kind: What *data* means.
        timestamp_ms: The log's time at proposal, Unix milliseconds; 0 for what the core
            appends by itself (no-ops and memberships).
        crc32c: CRC32C of *data*, computed once by the proposer and carried to every disk.
        data: Opaque to Raft; empty for no-ops.
    """

    term: int
    index: int
    kind: EntryKind
    timestamp_ms: int
    crc32c: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes this entry counts for in windows and batches (data only)."""
        return len(self.data)

    @property
    def held_bytes(self) -> int:
        """Bytes this entry takes in memory, about."""
        return len(self.data) + _OVERHEAD_BYTES


def held_bytes(entries: Sequence[Entry]) -> int:
    """Return what *entries* take in memory, about."""
    size_bytes = _OVERHEAD_BYTES * len(entries)
    for entry in entries:
        size_bytes += len(entry.data)
    return size_bytes


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
class MovedFrom:
    """Where a message was before its group moved it, as it moves a dead letter.

    Attributes:
        topic, generation, queue_id, offset: Its place there; queue and offset are -1 if it had
            none, because it was held back until now.
        stored_at_ms: When it was stored there, by the log's time.
        born_host: Its producer's address.
        attempts: How often it had been delivered there.
    """

    topic: str
    generation: int
    queue_id: int
    offset: int
    stored_at_ms: int
    born_host: str = ""
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What a message has that only some types of topics know.

    Attributes:
        message_group: Messages of one group are delivered one after the other; empty: it has none.
        deliver_at_ms: Not to be delivered before, Unix milliseconds; 0: at once.
        priority: The higher, the sooner it is delivered; `NO_PRIORITY`: it has none.
        moved_from: Where it was before; None: its producer sent it here.
    """

    message_group: str = ""
    deliver_at_ms: int = 0
    priority: int = NO_PRIORITY
    moved_from: MovedFrom | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A committed message and where it is.

    *generation* says of which topic of its name *offset* is; 0: not told. *typed* is None for a
    message that has nothing but what all types of topics know.
    """

    record: Record
    offset: int
    index: int
    stored_at_ms: int
    generation: int = 0
    typed: Typed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where a batch went: queue offsets of its records in order, and its Raft index.

    *recall_handles*: what recalls each record that waits for its time, whose offset is -1; empty if
    none does.
    """

    queue_id: int
    offsets: tuple[int, ...]
    index: int
    recall_handles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must never forget between two messages (Raft figure 2)."""

    term: int = 0
    vote: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """Which snapshot: it replaces the log up to an entry, inclusive (Raft 7).

    Attributes:
        last_index: The last entry it covers.
        last_term: That entry's term.
        last_chain: The chain CRC of that entry.
        size_bytes: How long it is; at least 1.
        crc32c: Of all its bytes: snapshots of two nodes may differ, and must not be mixed.
    """

    last_index: int
    last_term: int
    last_chain: int
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One replica of a broker group.

    Attributes:
        id: The node's UUID.
        name: Its stable name, such as ``orders-0``; a new disk under an old name has a new id.
        address: ``host:port`` of its peer and Admin port.
    """

    id: NodeId
    name: str
    address: str


@dataclass(frozen=True)
class Membership:
    """Who belongs to which group. A MEMBERSHIP entry's data is its `encode`d form (UTF-8 JSON).

    A restored log holds the memberships of the group it was copied from. They name that group,
    and so have no effect in the one that was founded on the copy.

    Attributes:
        voters: Those that count towards a quorum.
        group_id: The group.
        outgoing: While the voters change (joint consensus, Raft 6): those before, of whom a
            majority must agree too.
        learners: Those that get the log but do not count; one may be outgoing until the change
            is over.
        epoch: How often the group was forced: one survivor made itself the group, and all others
            that it knew were removed without being asked (`raft.force`).
    """

    voters: tuple[Member, ...] = ()
    group_id: str = ""
    outgoing: tuple[Member, ...] = field(default=(), kw_only=True)
    learners: tuple[Member, ...] = field(default=(), kw_only=True)
    epoch: int = field(default=0, kw_only=True)

    @cached_property
    def voter_ids(self) -> frozenset[NodeId]:
        """The ids that count towards a quorum."""
        return frozenset(member.id for member in self.voters)

    @cached_property
    def outgoing_ids(self) -> frozenset[NodeId]:
        """The ids of the voters before, while the voters change."""
        return frozenset(member.id for member in self.outgoing)

    @cached_property
    def voter_sets(self) -> Sequence[frozenset[NodeId]]:
        """Each set of which a quorum is a majority: the voters; while they change, those before."""
        return tuple(ids for ids in (self.voter_ids, self.outgoing_ids) if ids)

    @cached_property
    def learner_ids(self) -> frozenset[NodeId]:
        """The ids of those that get the log and do not vote in any half."""
        return frozenset(m.id for m in self.learners) - self.voter_ids - self.outgoing_ids

    @property
    def is_joint(self) -> bool:
        """Whether the voters are changing."""
        return bool(self.outgoing)

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """Everyone, once, sorted by name."""
        everyone = {m.id: m for m in (*self.outgoing, *self.learners, *self.voters)}
        return _sorted(everyone.values())

    def get(self, node_id: NodeId) -> Member | None:
        """Return the member with this id, if it is one."""
        return self._by_id.get(node_id)

    @cached_property
    def _by_id(self) -> dict[NodeId, Member]:
        return {member.id: member for member in self.members}

    def encode(self) -> bytes:
        """Return the canonical bytes: members sorted by name, keys sorted, no spaces.

        ``outgoing`` and ``learners`` are there only when there are any, ``epoch`` if it is not 0.
        """
        fields: dict[str, object] = {"group": self.group_id, "voters": _rows(self.voters)}
        if self.outgoing:
            fields["outgoing"] = _rows(self.outgoing)
        if self.learners:
            fields["learners"] = _rows(self.learners)
        if self.epoch:
            fields["epoch"] = self.epoch
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Membership:
        """Parse `encode`d bytes.

        Raises:
            ValueError: The bytes are not a membership.
        """
        try:
            fields = json.loads(data)
            voters, outgoing, learners = (
                tuple(_member(row) for row in rows)
                for rows in (
                    fields["voters"],
                    fields.get("outgoing", ()),
                    fields.get("learners", ()),
                )
            )
            if not voters:
                raise ValueError(f"a membership without voters: {data[:80]!r}")
            group_id, epoch = _text(fields["group"]), _epoch(fields.get("epoch", 0))
            return cls(voters, group_id, outgoing=outgoing, learners=learners, epoch=epoch)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a membership: {data[:80]!r}") from error

    @classmethod
    def of(
        cls,
        voters: Iterable[Member],
        group_id: str = "",
        *,
        outgoing: Iterable[Member] = (),
        learners: Iterable[Member] = (),
        epoch: int = 0,
    ) -> Membership:
        """Return a membership, its members sorted by name."""
        return cls(
            _sorted(voters),
            group_id,
            outgoing=_sorted(outgoing),
            learners=_sorted(learners),
            epoch=epoch,
        )


def _sorted(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda member: (member.name, member.id)))


def _rows(members: Iterable[Member]) -> list[dict[str, str]]:
    return [{"id": m.id, "name": m.name, "address": m.address} for m in _sorted(members)]


def _member(row: dict[str, str]) -> Member:
    return Member(
        id=NodeId(_text(row["id"])), name=_text(row["name"]), address=_text(row["address"])
    )


def _epoch(value: object) -> int:
    """Return a count that fits where numbers have 63 bits."""
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise TypeError(f"{value!r:.80} is no epoch")
    return value


def _text(value: object) -> str:
    """Return a text that others are compared with and sorted by, and that files can hold."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    value.encode()  # a lone surrogate is none
    return value
