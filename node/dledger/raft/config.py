"""The settings of one Raft."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """What one node's core needs to know; the same on all nodes of a group, but for the id.

    Attributes:
        id: This node.
        group_id: Its group; memberships of other groups in the log have no effect.
        election_timeout_ticks: A follower waits this long, plus a random part of up to a half,
            before it campaigns; a leader steps down after this long without a quorum.
        heartbeat_ticks: A leader's heartbeat interval; well below the election timeout.
        max_append_bytes: Entry data in one AppendRequest; a larger entry travels alone.
        max_inflight_appends: Unanswered AppendRequests per follower.
        max_inflight_bytes: Entry data in them; may be exceeded by one message.
        max_catch_up_bytes: Committed entry data that a follower gets in a tick while others are
            committed without it; twice what clients write if that is more.
        max_uncommitted_bytes: Data of proposals that are not yet both committed and durable
            here; beyond it, proposals are refused as Overloaded. May be exceeded by one entry.
        max_uncommitted_entries: The same for the number of such entries.
        handicap_ticks: How much longer than others this node waits before it campaigns; its
            election priority, 0 is the highest. It decays by half with each wait in vain.
        may_lose: Whether a power cut may take what was acknowledged (`durability: osBuffer`): a
            disk with less than was promised is then no older copy of itself (`witness`).
        promote_learners: Whether a leader makes voters of learners that have caught up.
        max_waiting_reads: Reads that wait for a leader's round; beyond it, Overloaded.
        max_apply_bytes: Entry data handed over for applying in one Ready.
        max_unapplied_bytes: Memory of entries that wait for that; beyond it, the oldest that are
            durable and committed are read back in their turn.
    """

    id: NodeId
    group_id: str = ""
    election_timeout_ticks: int = 20  # ten lost heartbeats; a node sets 10 (`server.config`)
    heartbeat_ticks: int = 2  # often enough to notice, rare enough to cost an idle group little
    handicap_ticks: int = 0
    may_lose: bool = False
    promote_learners: bool = True
    max_append_bytes: int = 1 << 20  # large beside its framing, small beside the window
    max_inflight_appends: int = 64  # small entries for a round trip of some ms on a fast disk
    max_inflight_bytes: int = 8 << 20  # what a leader keeps for a follower whose disk hangs
    max_catch_up_bytes: int = 5 << 20  # a tick of 50 ms: 100 MiB a second (ADR 29)
    max_uncommitted_bytes: int = 64 << 20  # four of the largest requests
    max_uncommitted_entries: int = 8192  # their bookkeeping; batches of one reach it before bytes
    max_waiting_reads: int = 4096  # all are confirmed in one turn of the loop
    max_apply_bytes: int = 1 << 19  # some ms of applying; votes and heartbeats come between
    max_unapplied_bytes: int = 48 << 20  # what a restarted replica keeps while it applies the rest

    def __post_init__(self) -> None:
        if not 0 <= self.handicap_ticks <= 4 * self.election_timeout_ticks:
            raise ValueError(
                f"handicap_ticks ({self.handicap_ticks}) must be at least 0 and at most four "
                f"election timeouts ({self.election_timeout_ticks} ticks each)"
            )
        if not 0 < self.heartbeat_ticks < self.election_timeout_ticks:
            raise ValueError(
                f"heartbeat_ticks ({self.heartbeat_ticks}) must be positive and below "
                f"election_timeout_ticks ({self.election_timeout_ticks})"
            )
