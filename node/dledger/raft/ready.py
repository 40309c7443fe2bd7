"""What the core hands to its caller, and the tray it collects it in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dledger.raft.messages import AppendResponse, Message
from dledger.types import Entry, HardState, NodeId, Role, SnapshotInfo


class Cause(Enum):
    """Why a role, term or leader changed; on becoming leader, why the election was held."""

    ELECTION_TIMEOUT = "no word from a leader for an election timeout"
    CONNECTION_LOST = "the connection to the leader broke"
    TRANSFER = "the leader handed over"
    ASKED = "a campaign was asked for"
    RETRY = "the campaign before had no result"
    LEADER_HEARD = "a leader was heard"
    HIGHER_TERM = "a higher term was seen"
    VOTED = "a vote was given to another node"
    ELECTION_LOST = "too many voters refused"
    QUORUM_LOST = "no quorum was heard for an election timeout"
    FORCED = "the group was forced: this node is all of it"
    NO_VOTER = "the node is no voter any more"
    STEPPED_DOWN = "leadership was given up on request"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """A fact for the log and the metrics: what the node is now, and why."""

    role: Role
    term: int
    leader: NodeId | None
    cause: Cause


@dataclass(frozen=True, slots=True)
class Divergence:
    """A peer's log is another one than ours, though both have an entry of one term at *index*.

    Or what came of it is not what it says that is there.

    Attributes:
        peer: Who sent it, or in whose name it came.
        index: Where it shows; it may begin before.
        ours: The chain CRC of our log there, or of what came.
        theirs: That of the peer's.
    """

    peer: NodeId
    index: int
    ours: int
    theirs: int


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A leader has another entry at *index* than the one that we know to be committed there.

    Attributes:
        peer: The leader.
        index: The first such entry.
        theirs_term: Of its entry.
        ours_term: Of ours, which stays.
    """

    peer: NodeId
    index: int
    theirs_term: int
    ours_term: int


@dataclass(frozen=True, slots=True)
class TermJump:
    """A message of a term that the group cannot have come to from ours; it changed nothing."""

    sender: NodeId
    term: int


Refusal = Divergence | Contradiction | TermJump
"""Why a message was refused."""


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Bytes of a snapshot that is being received; offset 0 begins anew."""

    info: SnapshotInfo
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ConfirmedRead:
    """A read that may be answered once everything up to *index* is applied.

    Attributes:
        context: What `Raft.read_index` was given.
        index: The commit index when the confirming round began.
    """

    context: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work for the caller, who must take every Ready and keep their order.

    1. Make *hard_state* durable if there is one, then call `Raft.hard_state_persisted`.
    2. If *cut_behind* is given, remove what is behind that index, durably. Then write and sync
       *entries* in order; a first index at or below an earlier last index means: truncate there
       first. Then call `Raft.persisted` with the last one's term and index. Completions come in
       the order of writing; several may be reported as the last, but where the same term and
       index is among them twice, each is reported.
    3. Send *messages* now, without waiting for 1 and 2.
    4. Send *after_hard_state* once this and every earlier Ready's hard state and cut are durable.
    5. Send *after_entries* once this and every earlier Ready's hard state, cut and entries are.
    6. Apply *committed* in order. They are committed and already durable here.
    7. Answer *reads*, each once its index is applied. Those that were asked before leadership
       ended are not confirmed any more.
    8. Keep *chunks* aside. When *install* names the snapshot that they complete: let every write
       of this and earlier Readys end, check it, replace log and state by it, and call
       `Raft.snapshot_finished`. It must be all or nothing, whatever crashes.
    9. Note *role_change*, and what message was *refused* (the newest, if there were several).

    A message may be lost, doubled or late; none needs to be sent again.
    """

    hard_state: HardState | None = None
    cut_behind: int | None = None
    entries: tuple[Entry, ...] = ()
    messages: tuple[Message, ...] = ()
    after_hard_state: tuple[Message, ...] = ()
    after_entries: tuple[AppendResponse, ...] = ()
    committed: tuple[Entry, ...] = ()
    reads: tuple[ConfirmedRead, ...] = ()
    chunks: tuple[SnapshotChunk, ...] = ()
    install: SnapshotInfo | None = None
    role_change: RoleChange | None = None
    refused: Refusal | None = None


class Outbox:
    """Collects messages by what they rest on, until the next Ready."""

    __slots__ = (
        "after_entries",
        "after_hard_state",
        "chunks",
        "install",
        "now",
        "reads",
        "refused",
        "role_change",
    )

    def __init__(self) -> None:
        self.now: list[Message] = []
        self.after_hard_state: list[Message] = []
        self.after_entries: list[AppendResponse] = []
        self.reads: list[ConfirmedRead] = []
        self.chunks: list[SnapshotChunk] = []
        self.install: SnapshotInfo | None = None
        self.role_change: RoleChange | None = None
        self.refused: Refusal | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to take."""
        return bool(
            self.now
            or self.after_hard_state
            or self.after_entries
            or self.reads
            or self.chunks
            or self.install is not None
            or self.role_change is not None
            or self.refused is not None
        )

    def retract_acks(self, first: int) -> None:
        """Drop acks for entries at *first* and above, which will never be written."""
        self.after_entries = [ack for ack in self.after_entries if ack.match_index < first]

    def take(
        self,
        *,
        hard_state: HardState | None,
        cut_behind: int | None,
        entries: tuple[Entry, ...],
        committed: tuple[Entry, ...],
    ) -> Ready:
        """Return everything as a Ready, and start empty again."""
        ready = Ready(
            hard_state=hard_state,
            cut_behind=cut_behind,
            entries=entries,
            messages=tuple(self.now),
            after_hard_state=tuple(self.after_hard_state),
            after_entries=tuple(self.after_entries),
            committed=committed,
            reads=tuple(self.reads),
            chunks=tuple(self.chunks),
            install=self.install,
            role_change=self.role_change,
            refused=self.refused,
        )
        self.now.clear()
        self.after_hard_state.clear()
        self.after_entries.clear()
        self.reads.clear()
        self.chunks.clear()
        self.install = self.role_change = self.refused = None
        return ready
