"""The Raft core: a value that is stepped. No sockets, files, threads, clock or logging.

The driver calls `step`, `tick` and `propose`, takes a `Ready` while `has_ready`, does what its
docstring asks, and reports storage completions. Sources: Raft (figure 2, 5, 6, 8), Raft thesis
3.10 (transfer), 6.2 (check-quorum), 6.4 (reads), 9.6 (pre-vote), 10.2.1 (writing in parallel).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from crc32c import crc32c

from dledger.common.reports import Mark
from dledger.errors import InvalidArgument, NotLeader, Refused
from dledger.raft.config import RaftConfig
from dledger.raft.election import Election
from dledger.raft.follower import Follower
from dledger.raft.force import TERM_STEP, check_force, forced
from dledger.raft.leader import Leader
from dledger.raft.log import LogStorage, RaftLog
from dledger.raft.log_discard import LogDiscard
from dledger.raft.membership import MembershipStack, memberships_in
from dledger.raft.messages import (
    AnyRequest,
    AppendRequest,
    AppendResponse,
    DiscardRequest,
    DiscardResponse,
    FromLeader,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.ready import Cause, Outbox, Ready, RoleChange, TermJump
from dledger.raft.responses import answer_outdated
from dledger.raft.server_state import ServerState
from dledger.raft.snapshot_receiver import SnapshotReceiver
from dledger.raft.snapshots import SnapshotReader
from dledger.raft.timer import ElectionTimer
from dledger.raft.view import RaftView
from dledger.raft.witness import PATIENCE_TIMEOUTS, Witness, promised_by
from dledger.types import Entry, EntryKind, HardState, Member, Membership, NodeId, SnapshotInfo

MAX_TERM_JUMP: Final = 1 << 32
"""A term is at most so far above ours, or its message is refused. A group that held an election
every 50 ms would need seven years to get so far ahead of a node that was away, or of a restored
disk; and who reached 2^62, one such step at a time, would have to be believed a billion times."""

__all__ = ["Cause", "LogStorage", "Raft", "RaftConfig", "Ready", "RoleChange"]


class Raft(RaftView):
    """One node of a group.

    Args:
        config: Who we are, and the bounds.
        hard_state: The durable term and vote. If the log has entries of a later term (its
            write overtook the hard state's before a crash), we continue in that term.
        log: The durable log; everything in it counts as synced.
        memberships: Those in the log, as (index, membership), oldest first; those of this group
            take effect.
        rng: The source of the random waits.
        applied_index: Everything up to it is applied already, and thus committed.
        snapshots: Our own snapshots.
        asks: Whether the other voters are asked what they know of us before we take part: our disk
            was there before this start, and may be an older copy of itself (`witness`).
        marks: What we knew of the others before this start.
    """

    def __init__(
        self,
        config: RaftConfig,
        *,
        hard_state: HardState,
        log: LogStorage,
        memberships: Sequence[tuple[int, Membership]],
        rng: random.Random,
        snapshots: SnapshotReader,
        applied_index: int = 0,
        asks: bool = False,
        marks: Mapping[NodeId, Mark] | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._config = config
        self._log = RaftLog(log, applied_index, max_unapplied_bytes=config.max_unapplied_bytes)
        self.memberships = MembershipStack(memberships, config.group_id)
        self._timer = ElectionTimer(
            config.election_timeout_ticks, rng, handicap_ticks=config.handicap_ticks
        )
        self._out = Outbox()
        self.witness = Witness(marks or {}, asks=asks, may_lose=config.may_lose)
        self.state = ServerState(
            config.id,
            hard_state=hard_state,
            last_term=self._log.last_term,
            timer=self._timer,
            outbox=self._out,
        )
        self._elections = Election(
            self.state,
            log=self._log,
            memberships=self.memberships,
            timer=self._timer,
            timeout_ticks=config.election_timeout_ticks,
            outbox=self._out,
            witness=self.witness,
            on_won=self._become_leader,
        )
        self._installing = SnapshotReceiver(self.state, log=self._log, outbox=self._out)
        self._following = Follower(
            self.state,
            elections=self._elections,
            log=self._log,
            memberships=self.memberships,
            outbox=self._out,
            installing=self._installing,
            witness=self.witness,
        )
        self._log_discard = LogDiscard(
            self.state,
            log=self._log,
            memberships=self.memberships,
            elections=self._elections,
            outbox=self._out,
            witness=self.witness,
            discard=self._following.discard,
        )
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            PreVoteRequest: self._elections.on_pre_vote_request,
            PreVoteResponse: self._elections.on_pre_vote_response,
            VoteRequest: self._elections.on_vote_request,
            VoteResponse: self._elections.on_vote_response,
            TimeoutNow: self._elections.on_timeout_now,
            DiscardRequest: self._log_discard.on_request,
            DiscardResponse: self._log_discard.on_response,
            AppendRequest: self._following.on_append_request,
            AppendResponse: self._on_append_response,
            HeartbeatRequest: self._following.on_heartbeat_request,
            HeartbeatResponse: self._on_heartbeat_response,
            InstallSnapshotRequest: self._following.on_install_request,
            InstallSnapshotResponse: self._on_install_response,
        }

    # Events

    def tick(self) -> None:
        """Let one tick of time pass; none does while the others are asked (`answered`)."""
        if self.witness.asks:
            return
        leading = self.state.leading
        self._remember()
        if self.witness.owed is not None:
            self._heal(self.witness)
        if self.witness.written is not None:
            self.witness.tick(
                last_term=self._log.last_term,
                last_index=self._log.last_index,
                patience_ticks=PATIENCE_TIMEOUTS * self._config.election_timeout_ticks,
            )
        self._elections.silent_ticks = 0 if leading else self._elections.silent_ticks + 1
        if leading is not None:
            leading.tick()
            self._continue_change(leading)
            if not leading.quorum_active():
                self.state.follow(None, Cause.QUORUM_LOST)
                self._timer.redraw()
        elif self._timer.tick():
            self._elections.on_timeout()

    def step(self, message: Message) -> None:
        """Take a message; whatever a peer may send, this does not raise.

        Ignored: what is not for us, what strangers and removed members say, and what is of a term
        out of reach; and everything while the others are asked (`answered`).
        """
        if self.witness.asks:
            return
        if message.recipient != self.state.id or not self._is_heard(message):
            return
        ahead = message.term - self.state.term
        if ahead > MAX_TERM_JUMP:
            self._out.refused = TermJump(message.sender, message.term)
        elif ahead == 0 or _changes_nothing(message):
            self._handlers[type(message)](message)
        elif ahead < 0:
            self._answer_outdated(message)
        elif self._enter_higher_term(message):
            self._handlers[type(message)](message)

    def propose(
        self, *, kind: EntryKind, data: bytes, crc32c: int, timestamp_ms: int
    ) -> tuple[int, int]:
        """Append an entry as leader; returns its (term, index).

        Raises:
            NotLeader: Someone else leads, or no one.
            Refused: It is a membership; see `change_membership`.
            Overloaded: Too much is uncommitted, or leadership is being handed over.
        """
        leading = self.state.leading
        if leading is None:
            raise NotLeader(self.leader)
        if kind == EntryKind.MEMBERSHIP:
            raise Refused("a membership is not proposed as an entry, but by change_membership")
        leading.admit()
        return self._append_own(
            leading, kind=kind, data=data, crc32c=crc32c, timestamp_ms=timestamp_ms
        )

    def change_membership(
        self, *, voters: Collection[Member], learners: Collection[Member] = ()
    ) -> tuple[int, int]:
        """Begin the change to these voters and learners; returns the first entry's (term, index).

        It is over when `membership` is final (`is_joint` is false) and committed. One change
        may be under way; it may add and remove several at once.

        Raises:
            NotLeader: Someone else leads, or no one.
            Unavailable: Another change is under way, or the leader is too new; or too many of
                these voters were not heard from to make a quorum.
            Overloaded: Too much is uncommitted, or leadership is being handed over.
            InvalidArgument: There would be no voters, or a node would be named twice.
            Refused: A voter would be added that has not caught up as a learner, or a node that
                was removed before.
        """
        leading = self.state.leading
        if leading is None:
            raise NotLeader(self.leader)
        following = leading.changes.requested(
            voters=voters, learners=learners, tick=leading.ticks, silent=leading.inactive_voters()
        )
        leading.admit()
        return self._append_membership(leading, following)

    def force_group(self, *, last_term: int, last_index: int) -> tuple[int, int]:
        """Make us the only member of the group; returns the entry's (term, index).

        Everyone else is removed without being asked: their disks are lost for good, and with them
        the quorum that could decide it. All of our log is kept; what nobody knows to be committed
        is committed with the entry. The term is far above ours, so that of two who claim to lead
        the group the forced one has the higher term. We lead once our vote for ourselves is
        durable, and it is done when the entry is committed.

        The caller has asked the other members whether they are there.

        Args:
            last_term: The term of our last entry, as the administrator saw it.
            last_index: Its index.

        Raises:
            Refused: Our last entry is another; we lead, or have heard a leader lately; our log
                has damaged entries; we are no member.
            Unavailable: A write or a snapshot's installation is under way.
        """
        check_force(self, last_term=last_term, last_index=last_index)
        membership = forced(self.membership, self.id)
        data = membership.encode()
        term, index = self.term + TERM_STEP, self._log.last_index + 1
        self._elections.stand_alone(term)
        self._log.append(
            (
                Entry(
                    term=term,
                    index=index,
                    kind=EntryKind.MEMBERSHIP,
                    timestamp_ms=0,
                    crc32c=crc32c(data),
                    data=data,
                ),
            )
        )
        self.memberships.append([(index, membership)])
        return term, index

    def read_index(self, context: int) -> None:
        """Ask for an index at which a read is linearizable; it comes in `Ready.reads`.

        What is lost with a message is asked again; a read is never confirmed once leadership
        has ended, so the caller fails those that wait when its role or term changes.

        Args:
            context: Names the read; the caller's own.

        Raises:
            NotLeader: Someone else leads, or no one.
            Unavailable: The leader is too new to know what is committed.
            Overloaded: Too many reads wait.
        """
        leading = self.state.leading
        if leading is None:
            raise NotLeader(self.leader)
        leading.read_index(context)

    def hard_state_persisted(self, hard_state: HardState) -> None:
        """Take the completion of a Ready's hard state; our own vote counts from now on."""
        if self.state.persisted(hard_state):
            self._elections.own_vote_persisted()

    def persisted(self, *, term: int, index: int) -> None:
        """Take the completion of a Ready's entries, named by the last one's term and index.

        A completion for entries that were truncated since does not count.
        """
        leading = self.state.leading
        if self._log.persisted(term, index) and leading is not None:
            self._commit_by_counting(leading)

    def snapshot_finished(
        self,
        info: SnapshotInfo,
        *,
        installed: bool,
        memberships: Sequence[tuple[int, Membership]] = (),
        last_index: int | None = None,
    ) -> None:
        """Take the end of the installation that `Ready.install` asked for.

        Args:
            info: The snapshot.
            installed: Whether log and state are the snapshot's now; if not, nothing changed.
            memberships: Those it holds and those of the log behind it, as (index, membership),
                oldest first; none is in force before its entry is in our log.
            last_index: Where the log ends now, if it stays as it was but for entries that the
                snapshot overrules; None: where it ended.
        """
        self._installing.finished(info, installed=installed)
        if not installed:
            return
        if last_index is not None and last_index < self._log.last_index:
            self._following.truncate(last_index + 1)
        newest = self._log.last_index
        self.memberships.replace(pair for pair in memberships if pair[0] <= newest)

    def introduce(self, node_id: NodeId) -> None:
        """Take a member's word that *node_id* is one, too: by an entry that we do not have yet."""
        self.memberships.introduce(node_id)

    def answered(self, answers: Mapping[NodeId, Mapping[NodeId, Mark]]) -> None:
        """Take what other members know, and take part from now on; or abstain (`witness`).

        Args:
            answers: By each of them that answered since this start: what it knows of each member.
        """
        if not self.witness.asks:
            return
        own = Mark(last_term=self._log.last_term, last_index=self._log.last_index, term=self.term)
        highest = own.term + MAX_TERM_JUMP
        told = [
            {each: mark for each, mark in marks.items() if _top(mark) <= highest}
            for marks in answers.values()
        ]
        for marks in told:
            self.note_marks(marks)
        self.witness.answered(
            own,
            promised_by(told, self.id),
            stood=self.vote == self.id,
            ends=[marks[each] for each, marks in zip(answers, told, strict=True) if each in marks],
        )
        if self.memberships.electorate.everyone - {self.id}:
            self.state.spend_vote(max([own.term, *(_top(m) for one in told for m in one.values())]))

    def note_marks(self, marks: Mapping[NodeId, Mark]) -> None:
        """Take over what another member knows of members; what it says of us is not asked now."""
        others = {each: mark for each, mark in marks.items() if each != self.id}
        self.witness.merge(others, highest_term=self.term + MAX_TERM_JUMP)

    def peer_restarted(self, peer: NodeId) -> None:
        """Take note that a member started anew: it may have less than it acknowledged."""
        self._remember()
        if self.state.leading is not None:
            self.state.leading.restarted(peer, self.witness.known.get(peer))

    def campaign(self) -> None:
        """Start a pre-vote now, unless we lead or may not vote."""
        if self.state.leading is None and not self.witness.asks:
            self._elections.start_pre_vote(Cause.ASKED)

    def peer_disconnected(self, peer: NodeId) -> None:
        """Take the hint that the connection with *peer* broke.

        If it led us: forget its lease, and ask for pre-votes after a short random wait, unless
        a later heartbeat shows that it lives. If it follows us: expect what is in flight to be
        lost.
        """
        if self.state.leading is not None:
            self.state.leading.disconnected(peer)
        elif peer == self.leader:
            self._elections.leader_lost()

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        """Hand leadership over once the target has our whole log; returns the target.

        None chooses the voter that holds most. Given up after an election timeout.

        Raises:
            NotLeader: We do not lead.
            InvalidArgument: The target is not another voter, or there is none.
        """
        leading = self.state.leading
        if leading is None:
            raise NotLeader(self.leader)
        chosen = leading.most_caught_up() if target is None else target
        if chosen is None:
            raise InvalidArgument("there is no other voter to hand leadership to")
        if chosen == self.id or chosen not in self.membership.voter_ids:
            raise InvalidArgument(f"cannot hand leadership to {chosen}: not another voter")
        leading.begin_transfer(chosen)
        return chosen

    def step_down(self) -> None:
        """Give leadership up at once, asking the voter that holds most to take over."""
        self._step_down(Cause.STEPPED_DOWN)

    def _step_down(self, cause: Cause) -> None:
        leading = self.state.leading
        if leading is None:
            return
        self._remember()
        heir = leading.most_caught_up()
        if heir is not None:
            leading.send_timeout_now(heir)
        self.state.follow(None, cause)
        self._timer.rest()

    def entries_available(self) -> None:
        """Ask again for entries that the LogStorage did not have in memory."""
        self._log.apply_blocked = False
        if self.state.leading is not None:
            self.state.leading.entries_available()

    def log_repaired(self, entries: Iterable[Entry] = (), *, whole: bool) -> None:
        """Take which damaged entries can be read again, and whether that is so of all now.

        A damaged entry is in our log: we vote and acknowledge as if nothing was wrong. But who
        leads must be able to send it, so we do not campaign until our log is whole.
        """
        self._elections.log_is_whole = whole
        here = (entry for entry in entries if self._log.matches(entry.index, entry.term))
        self.memberships.insert(memberships_in(here))
        self.entries_available()

    def entry_lost(self, index: int) -> None:
        """Take note that entry *index* is damaged here, and that no peer gives it.

        If it is still to be applied, a snapshot of the leader can take its place.
        """
        if self.applied_index < index <= self.last_index:
            self._installing.ask(index)

    def ask_discard(self, index: int) -> None:
        """Discard our log from *index* on, if nobody leads and a majority of the others lacks that.

        Nobody is asked while a membership before it is damaged and unknown.

        Args:
            index: The first entry that is damaged here and still to be applied.
        """
        self._log_discard.ask(index)

    def apply_later(self, *, later: bool) -> None:
        """Hand committed entries over only once there are more of them (16 KiB), or at once.

        Those that are to be read back from storage are handed over at once in either case.
        """
        self._log.apply_later = later

    def has_ready(self) -> bool:
        """Whether `ready` would hand something over."""
        state = self.state
        leading = state.leading
        return (
            (leading is not None and leading.pump_due)
            or state.hard_state is not state.handed
            or self._log.has_work()
            or bool(self._out)
        )

    def ready(self) -> Ready:
        """Hand everything over; the core considers it taken."""
        leading = self.state.leading
        if leading is not None and leading.pump_due:
            leading.send_appends()
        cut_behind, self._log.cut_behind = self._log.cut_behind, None
        return self._out.take(
            hard_state=self.state.take_hard_state(),
            cut_behind=cut_behind,
            entries=self._log.take_writes(),
            committed=self._log.take_committed(self._config.max_apply_bytes),
        )

    # What members are known to have had

    def told_marks(self) -> dict[NodeId, Mark]:
        """Return the newest that each member is known to have had, our durable own too."""
        self._remember()
        index = self._log.durable_index
        own = Mark(
            last_term=self._log.term(index),
            last_index=index,
            term=self.durable_hard_state.term,
        )
        owed = self.witness.owed
        return self.witness.known | {self.id: own if owed is None else own.merged(owed)}

    def _remember(self) -> None:
        """Note what members have shown by now; called before the role or the term changes."""
        witness, state, term = self.witness, self.state, self.state.term
        if state.leading is not None:
            for peer, index in state.leading.promised():
                witness.note(peer, term=term, last_term=term if index else 0, last_index=index)
        elif state.leader is not None:
            index = self._log.commit_index
            is_its_own = self._log.knows(index) and self._log.term(index) == term
            witness.note(
                state.leader,
                term=term,
                last_term=term if is_its_own else 0,
                last_index=index if is_its_own else 0,
            )
        for peer in self._elections.voters_heard():
            if peer != self.id:
                witness.note(peer, term=term)

    def _heal(self, witness: Witness) -> None:
        """Take part again, if a leader has sent what we owe.

        Or, if it heard us for long and has no such entry: what it has committed, behind an entry of
        its own. All that was ever committed is in that.
        """
        witness.heard_ticks = witness.heard_ticks + 1 if self.state.leader is not None else 0
        index = self._log.durable_index
        if witness.pays(last_term=self._log.term(index), last_index=index):
            witness.release()
            return
        patience = PATIENCE_TIMEOUTS * self._config.election_timeout_ticks
        told = witness.told_commit
        has_all = 0 < told <= min(index, self._log.commit_index) and self._log.knows(told)
        if witness.heard_ticks >= patience and has_all and self._log.term(told) == self.term:
            witness.release()

    # Roles and terms

    def _is_heard(self, message: Message) -> bool:
        """Whether the sender has a say.

        Requests do not depend on the membership in force, which may be behind: the leader or
        candidate may be a member that we have not heard of (Raft 6), and was introduced. A node
        that joins needs no introduction of who leads. It is no voter anywhere, unless its disk
        forgot that: so nobody else is heard by it. Answers count for members only.
        """
        sender, leading = message.sender, self.state.leading
        if sender == self.state.id:
            return False
        if isinstance(message, AnyRequest):
            if self.memberships.hears(sender, self._log.commit_index):
                return True
            return isinstance(message, FromLeader) and self.hears(sender)
        if leading is not None:
            return sender in leading.progress
        membership = self.memberships.current
        return membership.get(sender) is not None or not membership.voters

    def _enter_higher_term(self, message: Message) -> bool:
        """Follow into the message's term; returns False if it is to be ignored.

        A vote request is, while a leader is live: whoever cannot hear the leader must not
        depose it (thesis 6.2, 4.2.3). A hand-over is the leader's own wish.
        """
        is_vote = isinstance(message, VoteRequest) and not message.transfer
        if (is_vote or isinstance(message, DiscardRequest)) and self._elections.lease_is_live():
            return False
        self._remember()
        self.state.enter(message.term, message.sender if isinstance(message, FromLeader) else None)
        return True

    def _answer_outdated(self, message: Message) -> None:
        """Tell whoever lives in an earlier term about ours, once ours is durable."""
        reply = answer_outdated(message, self.term)
        if reply is not None:
            self._out.after_hard_state.append(reply)

    def _become_leader(self, cause: Cause) -> None:
        leading = Leader(
            self._config,
            term=self.term,
            log=self._log,
            memberships=self.memberships,
            outbox=self._out,
            snapshots=self._snapshots,
        )
        self.state.lead(leading, cause)
        # Raft 8: until an entry of our term commits we do not know what is committed.
        self._append_own(leading, kind=EntryKind.NOOP, data=b"", crc32c=0, timestamp_ms=0)

    # Replication

    def _append_own(
        self,
        leading: Leader,
        *,
        kind: EntryKind,
        data: bytes,
        crc32c: int,
        timestamp_ms: int,
    ) -> tuple[int, int]:
        entry = Entry(
            term=self.state.term,
            index=self._log.last_index + 1,
            kind=kind,
            timestamp_ms=timestamp_ms,
            crc32c=crc32c,
            data=data,
        )
        self._log.append((entry,))
        leading.appended(entry)
        return entry.term, entry.index

    def _append_membership(self, leading: Leader, membership: Membership) -> tuple[int, int]:
        """Append a membership; it is in force at once (Raft 6)."""
        data = membership.encode()
        term, index = self._append_own(
            leading, kind=EntryKind.MEMBERSHIP, data=data, crc32c=crc32c(data), timestamp_ms=0
        )
        self.memberships.append([(index, membership)])
        leading.membership_changed()
        return term, index

    def _continue_change(self, leading: Leader) -> None:
        """Leave a joint membership once it is committed, or promote whoever has caught up."""
        if leading.changes.done_with is self.memberships.current:
            return
        following = leading.changes.due(leading.ticks) if not leading.transfer_target else None
        if following is not None:
            self._append_membership(leading, following)
        elif leading.changes.is_deposed():
            self._step_down(Cause.NO_VOTER)

    def _commit_by_counting(self, leading: Leader) -> None:
        committed = leading.commit_point()
        if committed > self._log.commit_index:
            self._log.commit_to(committed)
        leading.release_committed()
        self._continue_change(leading)

    def _on_append_response(self, message: AppendResponse) -> None:
        leading = self.state.leading
        if leading is None or not leading.on_append_response(message):
            return
        if message.match_index > self._log.commit_index:
            self._commit_by_counting(leading)
        else:  # what a majority has, the last one's ack cannot commit
            self._continue_change(leading)

    def _on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        if self.state.leading is not None:
            self.state.leading.on_heartbeat_response(message)

    def _on_install_response(self, message: InstallSnapshotResponse) -> None:
        if self.state.leading is not None:
            self.state.leading.on_install_response(message)


def _top(mark: Mark) -> int:
    """Return the highest term that a member had by its mark."""
    return max(mark.term, mark.last_term)


def _changes_nothing(message: Message) -> bool:
    """Whether a message only finds out what would be, in a term that nobody has entered."""
    if isinstance(message, DiscardRequest | DiscardResponse):
        return not message.firm
    return isinstance(message, PreVoteRequest | PreVoteResponse)
