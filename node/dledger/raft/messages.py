"""What Raft nodes say to each other. Frozen values; `peers.peer_codec` turns them into bytes.

Every message carries the sender's term (for pre-votes: the term it would campaign in).
Source: Raft figure 2; pre-vote and leadership transfer: Raft thesis 9.6 and 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.types import Entry, NodeId, SnapshotInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The envelope of every message."""

    sender: NodeId
    recipient: NodeId
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteRequest(Message):
    """Would you vote for me in *term*? Changes no one's state.

    *last_chain* is the chain CRC of the sender's last entry.
    """

    last_index: int
    last_term: int
    last_chain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteResponse(Message):
    """*term* repeats the asked term when granted, else it is the responder's own."""

    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(Message):
    """Vote for me in *term*; *transfer* says that the old leader asked for this election.

    *last_chain* is the chain CRC of the sender's last entry.
    """

    last_index: int
    last_term: int
    last_chain: int
    transfer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(Message):
    """Leaves only after the responder's (term, vote) is durable."""

    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest(Message):
    """Entries that follow (previous_index, previous_term); may be empty to probe.

    *previous_chain* is the chain CRC there: it stands for everything that is before the entries.
    *last_chain* is that of the last entry in the leader's log, and so for what they should be.
    """

    previous_index: int
    previous_term: int
    previous_chain: int
    last_chain: int
    commit_index: int
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResponse(Message):
    """The answer to one AppendRequest; a success leaves only when the entries are durable.

    Attributes:
        success: Whether the previous entry matched.
        match_index: On success, the highest index known equal to the leader's. On rejection,
            the request's previous_index, so that stale rejections can be told apart.
        match_chain: On success, the chain CRC there: the leader counts no other log.
        conflict_term: On rejection, our term at conflict_index; 0 if nothing can agree.
        conflict_index: On rejection, our highest index at or below the request's previous
            entry, in index and in term: the logs cannot agree above it, so the leader resumes
            there (conflict back-off by term).
    """

    success: bool
    match_index: int
    match_chain: int = 0
    conflict_term: int = 0
    conflict_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Message):
    """I lead. *commit_index* never exceeds what the recipient is known to match.

    *commit_chain* is the chain CRC there. *round* grows with each broadcast; the response echoes
    it: a quorum's answers confirm reads.
    """

    commit_index: int
    commit_chain: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Message):
    """The follower follows; *round* is the request's."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshotRequest(Message):
    """Bytes of a snapshot from *offset*; without data it asks how much the follower has."""

    info: SnapshotInfo
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshotResponse(Message):
    """The bytes before *offset* are here; when all is installed, an AppendResponse says so.

    Unasked, at offset 0, it asks for a snapshot in place of an entry that is damaged.

    Attributes:
        last_index: The snapshot's; unasked, the damaged entry's.
        accepted: Whether the follower takes snapshots at all.
        offset: Where to go on.
    """

    last_index: int
    accepted: bool
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(Message):
    """Campaign at once: the leader hands over (Raft thesis 3.10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRequest(Message):
    """Have you the entry (entry_term, index), which is damaged here? I would discard it.

    Attributes:
        index: Of the entry.
        entry_term: Of the entry; *term* is the one in which the answer holds.
        firm: Whether that term is to be entered; else the question changes no one's state.
    """

    index: int
    entry_term: int
    firm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardResponse(Message):
    """A firm one leaves only after the responder's term is durable.

    Attributes:
        term: The asked term when it lacks the entry, else the responder's own.
        lacks: Whether it does not have the entry, and no leader that it could have it from.
    """

    index: int
    entry_term: int
    firm: bool
    lacks: bool


FromLeader = AppendRequest | HeartbeatRequest | InstallSnapshotRequest
"""What only who leads its term sends, to all members."""

AnyRequest = FromLeader | PreVoteRequest | VoteRequest | DiscardRequest | TimeoutNow
"""What asks; everything else answers."""
