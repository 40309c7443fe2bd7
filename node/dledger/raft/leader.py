"""What a node knows and does only while it leads: followers, window, commit point, transfer.

Created by the core when an election is won, dropped when leadership ends. It never touches
the term, the vote or the role; it reports, and the core decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dledger.common.reports import Mark
from dledger.errors import Overloaded, Unavailable
from dledger.raft.config import RaftConfig
from dledger.raft.flow_control import FlowControl
from dledger.raft.log import RaftLog
from dledger.raft.membership import MembershipStack
from dledger.raft.membership_change import MembershipChange
from dledger.raft.messages import (
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshotResponse,
    TimeoutNow,
)
from dledger.raft.progress import Progress, ProgressState
from dledger.raft.reads import Reads
from dledger.raft.ready import Divergence, Outbox
from dledger.raft.replication import Replication
from dledger.raft.snapshots import SnapshotReader
from dledger.types import Entry, NodeId


class Leader:
    """One term of leading.

    Attributes:
        progress: What each other member has, and for an election timeout each removed one.
        changes: How the membership changes.
        pump_due: Something may be sent that is not yet in the outbox.
        transfer_target: The voter that leadership is being handed to, if any.
    """

    def __init__(
        self,
        config: RaftConfig,
        *,
        term: int,
        log: RaftLog,
        memberships: MembershipStack,
        outbox: Outbox,
        snapshots: SnapshotReader,
    ) -> None:
        self._pace = FlowControl(config.max_catch_up_bytes)
        self._replication = Replication(
            config, term=term, log=log, outbox=outbox, snapshots=snapshots, pace=self._pace
        )
        self._config = config
        self._term = term
        self._log = log
        self._memberships = memberships
        self._out = outbox
        self._term_start = log.last_index + 1
        self._ticks = self._round = self._read_round = self._transfer_deadline = 0
        self._reads = Reads(config.max_waiting_reads)
        self._unsettled: deque[tuple[int, int]] = deque()
        self._unsettled_bytes = 0
        self.pump_due = False
        self.transfer_target: NodeId | None = None
        self.progress: dict[NodeId, Progress] = {}
        self._leaving: dict[NodeId, int] = {}
        self._meet_members(next_index=self._term_start)
        self.changes = MembershipChange(
            config, memberships=memberships, log=log, term_start=self._term_start
        )

    # Time

    def tick(self) -> None:
        """Count one tick: send heartbeats when due, give up an overdue transfer."""
        self._ticks += 1
        if self._ticks % self._config.heartbeat_ticks == 0:
            self._broadcast_heartbeat()
        if self.transfer_target is not None and self._ticks >= self._transfer_deadline:
            self.transfer_target = None
        self.pump_due = self._pace.tick() or self.pump_due
        if self._leaving:
            self._drop_removed()

    @property
    def ticks(self) -> int:
        """How long we lead."""
        return self._ticks

    def inactive_voters(self) -> set[NodeId]:
        """Return the other voters that were not heard within an election timeout."""
        since = self._ticks - self._config.election_timeout_ticks
        everyone = self._memberships.electorate.everyone
        return {peer for peer, p in self.progress.items() if p.last_heard_tick <= since} & everyone

    def quorum_active(self) -> bool:
        """Whether a quorum, ourselves included, was heard within an election timeout.

        Without one the core steps down, so that clients go where a leader is (thesis 6.2).
        """
        since = self._ticks - self._config.election_timeout_ticks
        for progress in self.progress.values():
            if progress.last_heard_tick <= since:
                electorate = self._memberships.electorate
                return electorate.is_quorum(electorate.everyone - self.inactive_voters())
        return True

    # Members

    def membership_changed(self) -> None:
        """Meet those that were added, and see those off that were removed."""
        self._meet_members(next_index=self._memberships.index)
        self.changes.membership_changed(self._ticks)
        if self.transfer_target not in self._memberships.current.voter_ids:
            self.transfer_target = None

    def _meet_members(self, *, next_index: int) -> None:
        """Replicate to each other member; to a removed one until it had time to learn of it."""
        ids = {member.id for member in self._memberships.current.members} - {self._config.id}
        for peer in sorted(ids - self.progress.keys()):
            self.progress[peer] = Progress(next_index=next_index, last_heard_tick=self._ticks)
        until = self._ticks + self._config.election_timeout_ticks
        self._leaving = {
            peer: self._leaving.get(peer, until) for peer in self.progress if peer not in ids
        }

    def _drop_removed(self) -> None:
        """Forget who was removed, an election timeout after that was committed."""
        if self._memberships.index > self._log.commit_index:
            until = self._ticks + self._config.election_timeout_ticks
            self._leaving = dict.fromkeys(self._leaving, until)
        for peer, until in list(self._leaving.items()):
            if self._ticks >= until:
                del self._leaving[peer], self.progress[peer]

    # Proposals

    def admit(self) -> None:
        """Let a proposal in, or not.

        Raises:
            Overloaded: Too much waits to be settled, or leadership is being handed over.
        """
        if refusal := self.refusal():
            raise Overloaded(refusal)

    def refusal(self) -> str:
        """Say why no proposal is let in; empty if one is.

        Its size does not matter, so that whoever asks before it takes a proposal off its queue
        has the same answer as whoever proposes.
        """
        if self.transfer_target is not None:
            return "leadership is being handed over"
        count, most = len(self._unsettled), self._config.max_uncommitted_entries
        if count >= most:
            return f"{count} entries wait for commit; at most {most} may"
        held, limit = self._unsettled_bytes, self._config.max_uncommitted_bytes
        if held >= limit:
            return f"{held} bytes wait for commit; behind {limit} nothing more is let in"
        return ""

    def appended(self, entry: Entry) -> None:
        """Take note of an entry that we appended in this term."""
        size_bytes = len(entry.data)
        self._unsettled.append((entry.index, size_bytes))
        self._unsettled_bytes += size_bytes
        self.pump_due = True

    # Commitment

    def commit_point(self) -> int:
        """Return the index that is committed by counting; 0 if that says nothing new.

        Only entries of this term commit by counting; earlier ones follow (Raft 5.4.2).
        """
        match_index = {self._config.id: self._log.durable_index}
        for peer, progress in self.progress.items():
            counts = progress.match_index >= progress.owed_index
            match_index[peer] = progress.match_index if counts else 0
        index = self._memberships.electorate.committed(match_index)
        return index if index >= self._term_start else 0

    def uncommitted_bytes(self) -> int:
        """Return the data of the entries we appended in this term that no majority has yet."""
        return sum(size for index, size in self._unsettled if index > self._log.commit_index)

    def release_committed(self) -> None:
        """Free the room of proposals that are committed and durable here."""
        settled = min(self._log.commit_index, self._log.durable_index)
        while self._unsettled and self._unsettled[0][0] <= settled:
            _, size_bytes = self._unsettled.popleft()
            self._unsettled_bytes -= size_bytes
            self._pace.settled(size_bytes)

    # Reads

    def read_index(self, context: int) -> None:
        """Confirm in the next round that we lead, for a read.

        Raises:
            Unavailable: No entry of this term is committed yet, so the commit index may lag
                behind what the leader before acknowledged (thesis 6.4, step 1).
            Overloaded: Too many reads wait.
        """
        if self._log.commit_index < self._term_start:
            raise Unavailable("the new leader has not committed an entry of its term yet")
        self._reads.ask(context)
        self.pump_due = True

    def _confirm_reads(self) -> None:
        acked_round = {peer: p.acked_round for peer, p in self.progress.items()}
        acked_round[self._config.id] = self._round
        confirmed = self._memberships.electorate.committed(acked_round)
        self._out.reads += self._reads.round_confirmed(confirmed)

    # Followers

    def on_append_response(self, message: AppendResponse) -> bool:
        """Take an answer; returns whether the follower is known to hold more than before.

        One that has another log than ours up to where it says does not count.
        """
        peer = self.progress[message.sender]
        peer.last_heard_tick = self._ticks
        if not message.success:
            self._on_rejection(peer, message)
            return False
        index, log = message.match_index, self._log
        if index > log.last_index:
            return False
        # What is before our log's beginning we cannot tell, and counts for nothing any more.
        if not log.has_dropped(index + 1) and (ours := log.chain(index)) != message.match_chain:
            self._out.refused = Divergence(message.sender, index, ours, message.match_chain)
            return False
        advanced = peer.acked(index)
        if self._memberships.current.learners:
            self.changes.heard(message.sender, match_index=peer.match_index, tick=self._ticks)
        self.pump_due = True
        if self.transfer_target is not None:
            self._finish_transfer(message.sender)
        return advanced

    def on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        """The follower is there: ask again for whatever seems lost, and confirm reads."""
        peer = self.progress[message.sender]
        peer.last_heard_tick = self._ticks
        if message.round != self._read_round:
            peer.heartbeat_answered()
        if self._memberships.current.learners:
            self.changes.heard(message.sender, match_index=peer.match_index, tick=self._ticks)
        if peer.acked_round < message.round <= self._round:
            peer.acked_round = message.round
            if self._reads.under_way:
                self._confirm_reads()
        asks = peer.probe_due or self._replication.gets_snapshot(peer)
        self.pump_due = self.pump_due or asks or self._reads.round_due

    def on_install_response(self, message: InstallSnapshotResponse) -> None:
        """Send the next piece, or the same again from where the follower wants it."""
        peer = self.progress[message.sender]
        peer.last_heard_tick = self._ticks
        if peer.snapshot_answered(
            last_index=message.last_index, accepted=message.accepted, offset=message.offset
        ):
            self.pump_due = True
        elif self._is_asked_for_snapshot(peer, message):
            peer.asks_for_snapshot()
            self.pump_due = True

    def _is_asked_for_snapshot(self, peer: Progress, message: InstallSnapshotResponse) -> bool:
        """Whether a follower has lost an entry that our log does not have any more (Raft 7)."""
        gone = message.accepted and 0 < message.last_index < self._log.first_index
        return gone and message.offset == 0 and peer.state is not ProgressState.SNAPSHOT

    def restarted(self, peer: NodeId, promised: Mark | None) -> None:
        """A member started anew: ask what it has, whatever it acknowledged before.

        Args:
            peer: The member.
            promised: What it is known to have had; of our term, it is what it acknowledged to us.
        """
        if peer not in self.progress:
            return
        ours = promised is not None and promised.last_term == self._term
        owed = promised.last_index if promised is not None and ours else 0
        self.progress[peer].restarted(owed if owed <= self._log.last_index else 0)
        self.pump_due = True

    def promised(self) -> Iterator[tuple[NodeId, int]]:
        """Yield who answered us, and how far it acknowledged our log; 0: no entry of our term.

        Only behind an entry of ours a commit can rest on what was acknowledged (Raft 5.4.2).
        """
        for peer, progress in self.progress.items():
            if progress.match_index >= self._term_start:
                yield peer, progress.match_index
            elif progress.acked_round or progress.match_index:
                yield peer, 0

    def disconnected(self, sender: NodeId) -> None:
        """The connection to a follower broke: what is in flight is probably lost."""
        if sender in self.progress:
            self.progress[sender].disconnected()

    def entries_available(self) -> None:
        """The driver has loaded entries that a follower waits for."""
        for peer in self.progress.values():
            peer.fetching = False
        self.pump_due = True

    def send_appends(self) -> None:
        """Send to each follower what its window allows."""
        self.pump_due = False
        if self._reads.round_due:
            self._broadcast_heartbeat()
            self._read_round = self._round
        last_index = self._log.last_index
        for peer_id, peer in self.progress.items():
            if (
                peer.next_index > last_index
                and peer.state is ProgressState.REPLICATE
                and not peer.probe_due
            ):
                continue  # it was sent everything: most calls are for a follower's ack
            again = self._replication.send(peer_id, peer)
            self.pump_due = self.pump_due or again

    # Transfer

    def most_caught_up(self) -> NodeId | None:
        """Return the other voter that holds most of our log; None if there is no other."""
        voters = self._memberships.current.voter_ids
        return max(
            (peer for peer in self.progress if peer in voters),
            key=lambda peer: (
                self.progress[peer].match_index,
                self.progress[peer].last_heard_tick,
            ),
            default=None,
        )

    def begin_transfer(self, target: NodeId) -> None:
        """Hand over to *target* as soon as it has our whole log (thesis 3.10)."""
        if target == self.transfer_target:
            return
        self.transfer_target = target
        self._transfer_deadline = self._ticks + self._config.election_timeout_ticks
        self.pump_due = True
        self._finish_transfer(target)

    def send_timeout_now(self, target: NodeId) -> None:
        """Ask *target* to campaign at once."""
        self._out.now.append(TimeoutNow(sender=self._config.id, recipient=target, term=self._term))

    def _finish_transfer(self, peer: NodeId) -> None:
        caught_up = self.progress[peer].match_index == self._log.last_index
        if peer == self.transfer_target and caught_up:
            self.send_timeout_now(peer)

    def _on_rejection(self, peer: Progress, message: AppendResponse) -> None:
        resume, _ = self._log.find_conflict_by_term(message.conflict_index, message.conflict_term)
        if peer.rejected(message.match_index, resume):
            self.pump_due = True

    def _broadcast_heartbeat(self) -> None:
        """Send a round of heartbeats, which carries the reads that wait."""
        self._round += 1
        self._reads.round_begins(self._round, self._log.commit_index)
        told = self._log.told_commit
        ours = self._commit_said_up_to(told)
        for peer_id, peer in self.progress.items():
            is_behind = peer.match_index < told
            index, chain = self._commit_said_up_to(peer.match_index) if is_behind else ours
            self._out.now.append(
                HeartbeatRequest(
                    sender=self._config.id,
                    recipient=peer_id,
                    term=self._term,
                    commit_index=index,
                    commit_chain=chain,
                    round=self._round,
                )
            )
        if self._reads.under_way:  # of a group of one, nobody's answer comes
            self._confirm_reads()

    def _commit_said_up_to(self, index: int) -> tuple[int, int]:
        """Return *index* and its chain CRC, both 0 where our log does not begin so early."""
        if index != self._log.last_index and not self._log.knows(index):
            return 0, 0
        return index, self._log.chain(index)
