"""What a node does as follower: takes entries and heartbeats from the leader of its term.

Owned by one Raft, which passes the messages of its own term on. Sources: Raft 5.2, 5.3, figure 2.
"""

from __future__ import annotations

from dledger.common.chain import chains_behind
from dledger.raft.election import Election
from dledger.raft.log import RaftLog
from dledger.raft.membership import MembershipStack, memberships_in
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshotRequest,
)
from dledger.raft.ready import Cause, Contradiction, Divergence, Outbox
from dledger.raft.responses import is_well_formed, stored
from dledger.raft.server_state import ServerState
from dledger.raft.snapshot_receiver import SnapshotReceiver
from dledger.raft.witness import Witness
from dledger.types import Entry, NodeId


class Follower:
    """Takes what a leader sends."""

    def __init__(
        self,
        state: ServerState,
        *,
        elections: Election,
        log: RaftLog,
        memberships: MembershipStack,
        outbox: Outbox,
        installing: SnapshotReceiver,
        witness: Witness,
    ) -> None:
        self._installing = installing
        self._state = state
        self._elections = elections
        self._log = log
        self._memberships = memberships
        self._out = outbox
        self._witness = witness

    def on_append_request(self, message: AppendRequest) -> None:
        """Take entries, or say where the logs may agree; success waits until they are durable."""
        if not is_well_formed(message) or not self._follow(message.sender, heartbeat=False):
            return
        if self._witness.owed is not None:
            self._witness.append_heard(message.commit_index)
        if self._state.installing is not None:
            return
        if self._log.has_dropped(message.previous_index + 1):
            self._answer_success(message, self._log.first_index - 1)
        # Raft 5.3: the consistency check; a rejection says where the logs may agree.
        elif not self._log.matches(message.previous_index, message.previous_term):
            self._reject_append(message)
        elif self._log.chain(message.previous_index) != message.previous_chain:
            self._diverged(message.sender, message.previous_index, message.previous_chain)
        elif self._merge(message):
            last = message.previous_index + len(message.entries)
            self._log.commit_to(min(message.commit_index, last))
            self._answer_success(message, last)

    def _answer_success(self, message: AppendRequest, match_index: int) -> None:
        self._out.after_entries.append(
            stored(
                message,
                term=self._state.term,
                match_index=match_index,
                match_chain=self._log.chain(match_index),
            )
        )

    def _reject_append(self, message: AppendRequest) -> None:
        index, term = self._log.find_conflict_by_term(message.previous_index, message.previous_term)
        self._out.after_hard_state.append(
            AppendResponse(
                sender=self._state.id,
                recipient=message.sender,
                term=self._state.term,
                success=False,
                match_index=message.previous_index,
                conflict_term=term,
                conflict_index=index,
            )
        )

    def _merge(self, message: AppendRequest) -> bool:
        """Add what we lack; False if that is impossible, which only a faulty leader asks for."""
        entries = message.entries
        chains = chains_behind(message.previous_chain, entries)
        if chains and chains[-1] != message.last_chain:
            self._refuse(message.sender, entries[-1].index, chains[-1], message.last_chain)
            return False
        position = self._log.find_conflict(entries)
        known = len(entries) if position is None else position
        if known and self._log.chain(entries[known - 1].index) != chains[known - 1]:
            self._diverged(message.sender, entries[known - 1].index, chains[known - 1])
            return False
        if position is None:
            return True
        new = entries[position:] if position else entries
        try:
            memberships = memberships_in(new)
        except ValueError:
            return False
        if new[0].index <= self._log.commit_index:
            self._contradicted(message.sender, new[0])
            return False
        if new[0].index <= self._log.last_index:  # Raft 5.3: the leader's entries take their place
            self.truncate(new[0].index)
        self._log.append(new, chains[position:])
        if memberships:
            self._memberships.append(memberships)
        return True

    def _contradicted(self, leader: NodeId, entry: Entry) -> None:
        """Keep what we know to be committed, whoever has another entry there.

        A majority had it. So one of those has forgotten it since, as a disk does that was put back
        to an older copy, and this leader was elected by it.
        """
        index = entry.index
        if not self._log.knows(index):
            return
        self._out.refused = Contradiction(
            leader, index, theirs_term=entry.term, ours_term=self._log.term(index)
        )

    def _diverged(self, leader: NodeId, index: int, theirs: int) -> None:
        """Take nothing of a leader whose log is another one than ours where both have an entry.

        In Raft that cannot be (5.3, log matching): a bug, a bad memory or a forger did it, to us or
        to the leader. Nothing here says to whom, so nothing is cut, either; others decide.
        """
        self._refuse(leader, index, self._log.chain(index), theirs)

    def _refuse(self, leader: NodeId, index: int, ours: int, theirs: int) -> None:
        self._out.refused = Divergence(leader, index, ours, theirs)

    def truncate(self, first: int) -> None:
        """Let go of our log from *first* on; storage has, or does when others take its place."""
        self._log.truncate(first)
        self._forget(first)

    def discard(self, first: int) -> None:
        """Let go of our log from *first* on, though nothing takes its place; storage does, too."""
        self._log.discard(first)
        self._forget(first)

    def _forget(self, first: int) -> None:
        self._memberships.truncate(first)
        self._out.retract_acks(first)

    def on_install_request(self, message: InstallSnapshotRequest) -> None:
        """Take a piece of a snapshot."""
        if self._follow(message.sender, heartbeat=False):
            self._installing.on_request(message)

    def on_heartbeat_request(self, message: HeartbeatRequest) -> None:
        """Keep following, and learn the commit index."""
        if not self._follow(message.sender, heartbeat=True):
            return
        self._learn_commit(message)
        self._out.after_hard_state.append(
            HeartbeatResponse(
                sender=self._state.id,
                recipient=message.sender,
                term=self._state.term,
                round=message.round,
            )
        )

    def _learn_commit(self, message: HeartbeatRequest) -> None:
        """Raise the commit index, if our log is the leader's up to there."""
        index = message.commit_index
        if not self._log.commit_index < index <= self._log.last_index:
            return
        if self._log.chain(index) == message.commit_chain:
            self._log.commit_to(index)
        else:
            self._diverged(message.sender, index, message.commit_chain)

    def _follow(self, leader: NodeId, *, heartbeat: bool) -> bool:
        """Accept the leader of our term; False if that cannot be: a term has one (5.2)."""
        if self._state.leader not in (None, leader):
            return False
        self._elections.leader_heard(heartbeat=heartbeat)
        self._state.follow(leader, Cause.LEADER_HEARD)
        return True
