"""The Raft core: a value that is stepped. No sockets, files, threads, clock or logging.

The driver calls `step`, `tick` and `propose`, takes a `Ready` while `has_ready`, does what its
docstring asks, and reports storage completions. Sources: Raft (figure 2, 5, 6, 8), Raft thesis
3.10 (transfer), 6.2 (check-quorum), 9.6 (pre-vote), 10.2.1 (writing in parallel).
"""

# ruff: noqa: S101 - assert is for our own mistakes, never for input
from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from dledger.errors import InvalidArgument, NotLeader, Refused
from dledger.raft import quorum
from dledger.raft.answers import answer_outdated, is_well_formed
from dledger.raft.config import RaftConfig
from dledger.raft.leading import Leadership
from dledger.raft.log import LogReader, RaftLog
from dledger.raft.membership import MembershipStack, memberships_in
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.progress import Progress
from dledger.raft.quorum import VoteResult
from dledger.raft.ready import Cause, Outbox, Ready, RoleChange
from dledger.raft.timer import ElectionTimer
from dledger.types import Entry, EntryKind, HardState, Membership, NodeId, Role

__all__ = ["Cause", "LogReader", "Raft", "RaftConfig", "Ready", "RoleChange"]


class Raft:
    """One node of a group.

    Args:
        config: Who we are, and the bounds.
        hard_state: The durable term and vote. If the log has entries of a later term (its
            write overtook the hard state's before a crash), we continue in that term.
        log: The durable log; everything in it counts as synced.
        memberships: Those in the log, as (index, membership), oldest first; all take effect.
        rng: The source of the random waits.
        applied_index: Everything up to it is applied already, and thus committed.
    """

    def __init__(
        self,
        config: RaftConfig,
        *,
        hard_state: HardState,
        log: LogReader,
        memberships: Sequence[tuple[int, Membership]],
        rng: random.Random,
        applied_index: int = 0,
    ) -> None:
        self._config = config
        self._log = RaftLog(log, applied_index)
        self._memberships = MembershipStack(memberships)
        self._timer = ElectionTimer(config.election_timeout_ticks, rng)
        self._out = Outbox()
        self._handed_hard_state = self._durable_hard_state = hard_state
        overtaken = self._log.last_term > hard_state.term
        self._hard_state = HardState(self._log.last_term) if overtaken else hard_state
        self._role = Role.FOLLOWER
        self._leader: NodeId | None = None
        self._votes: dict[NodeId, bool] = {}
        self._campaign_cause = self._next_cause = Cause.ELECTION_TIMEOUT
        self._leading: Leadership | None = None

    # What we are

    @property
    def id(self) -> NodeId:
        """This node."""
        return self._config.id

    @property
    def config(self) -> RaftConfig:
        """The settings given at construction."""
        return self._config

    @property
    def role(self) -> Role:
        """What part we play now."""
        return self._role

    @property
    def term(self) -> int:
        """The current term; perhaps not durable yet."""
        return self._hard_state.term

    @property
    def vote(self) -> NodeId | None:
        """Whom we voted for in the current term; perhaps not durable yet."""
        return self._hard_state.vote

    @property
    def durable_hard_state(self) -> HardState:
        """The newest hard state that storage has confirmed."""
        return self._durable_hard_state

    @property
    def leader(self) -> NodeId | None:
        """Who leads the current term, as far as we know."""
        return self._leader

    @property
    def commit_index(self) -> int:
        """Up to here, inclusive, the log is decided."""
        return self._log.commit_index

    @property
    def applied_index(self) -> int:
        """Up to here, inclusive, entries were handed over for applying."""
        return self._log.applied_index

    @property
    def durable_index(self) -> int:
        """Up to here, inclusive, the log is synced on our own disk."""
        return self._log.durable_index

    @property
    def last_index(self) -> int:
        """The newest entry's index; it may be on its way to disk."""
        return self._log.last_index

    @property
    def last_term(self) -> int:
        """The newest entry's term."""
        return self._log.last_term

    @property
    def membership(self) -> Membership:
        """The membership in force; empty before the founding entry arrived."""
        return self._memberships.current

    @property
    def transfer_target(self) -> NodeId | None:
        """Whom we are handing leadership to, if anyone."""
        return self._leading.transfer_target if self._leading else None

    def progress(self) -> Mapping[NodeId, Progress]:
        """Return the leader's view of each other voter; empty when not leading."""
        return dict(self._leading.progress) if self._leading else {}

    # Events

    def tick(self) -> None:
        """Let one tick of time pass."""
        if self._leading is not None:
            self._leading.tick()
            if not self._leading.hears_quorum():
                self._become_follower(self.term, None, Cause.QUORUM_LOST)
                self._timer.redraw()
        elif self._timer.tick():
            self._on_timeout()

    def step(self, message: Message) -> None:
        """Take a message; whatever a peer may send, this does not raise.

        Ignored: what is not for us, and what comes from outside a known membership.
        """
        if message.recipient != self.id or not self._is_known(message.sender):
            return
        if isinstance(message, PreVoteRequest | PreVoteResponse):
            self._HANDLERS[type(message)](self, message)
        elif message.term < self.term:
            self._answer_outdated(message)
        elif message.term == self.term or self._enter_higher_term(message):
            self._HANDLERS[type(message)](self, message)

    def propose(
        self, *, kind: EntryKind, data: bytes, crc32c: int, timestamp_ms: int
    ) -> tuple[int, int]:
        """Append an entry as leader; returns its (term, index).

        Raises:
            NotLeader: Someone else leads, or no one.
            Refused: Memberships cannot be changed yet.
            Overloaded: Too much is uncommitted, or leadership is being handed over.
        """
        if self._leading is None:
            raise NotLeader(self._leader)
        if kind == EntryKind.MEMBERSHIP:
            raise Refused("the membership cannot be changed: joint consensus is not there yet")
        self._leading.admit(len(data))
        return self._append_own(
            Entry(
                term=self.term,
                index=self._log.last_index + 1,
                kind=kind,
                timestamp_ms=timestamp_ms,
                crc32c=crc32c,
                data=data,
            )
        )

    def hard_state_persisted(self, hard_state: HardState) -> None:
        """Take the completion of a Ready's hard state; our own vote counts from now on."""
        if hard_state.term >= self._durable_hard_state.term:
            self._durable_hard_state = hard_state
        if self._role is Role.CANDIDATE and hard_state == self._hard_state:
            self._record_vote(self.id, granted=True)

    def persisted(self, *, term: int, index: int) -> None:
        """Take the completion of a Ready's entries, named by the last one's term and index.

        A completion for entries that were truncated since does not count.
        """
        if self._log.persisted(term, index) and self._leading is not None:
            self._commit_by_counting()

    def campaign(self) -> None:
        """Start a pre-vote now, unless we lead or may not vote."""
        if self._leading is None:
            self._start_pre_vote(Cause.ASKED)

    def peer_disconnected(self, peer: NodeId) -> None:
        """Take the hint that the connection with *peer* broke.

        If it led us: forget its lease, and ask for pre-votes after a short random wait unless
        it is heard again. If it follows us: expect what is in flight to be lost.
        """
        if self._leading is not None:
            self._leading.disconnected(peer)
        elif peer == self._leader:
            self._note(self._role, None, Cause.CONNECTION_LOST)
            self._next_cause = Cause.CONNECTION_LOST
            if self._timer.hint():
                self._on_timeout()

    def transfer_leadership(self, target: NodeId | None) -> NodeId:
        """Hand leadership over once the target has our whole log; returns the target.

        None chooses the voter that holds most. Given up after an election timeout.

        Raises:
            NotLeader: We do not lead.
            InvalidArgument: The target is not another voter, or there is none.
        """
        if self._leading is None:
            raise NotLeader(self._leader)
        chosen = self._leading.most_caught_up() if target is None else target
        if chosen is None:
            raise InvalidArgument("there is no other voter to hand leadership to")
        if chosen not in self._leading.progress:
            raise InvalidArgument(f"cannot hand leadership to {chosen}: not another voter")
        self._leading.begin_transfer(chosen)
        return chosen

    def step_down(self) -> None:
        """Give leadership up at once, asking the voter that holds most to take over."""
        if self._leading is None:
            return
        heir = self._leading.most_caught_up()
        if heir is not None:
            self._leading.send_timeout_now(heir)
        self._become_follower(self.term, None, Cause.STEPPED_DOWN)
        self._timer.rest()

    def entries_available(self) -> None:
        """Ask again for entries that the LogReader did not have in memory."""
        self._log.apply_blocked = False
        if self._leading is not None:
            self._leading.entries_available()

    def has_ready(self) -> bool:
        """Whether `ready` would hand something over."""
        return bool(
            self._hard_state is not self._handed_hard_state
            or self._log.has_writes
            or self._log.has_committed
            or (self._leading is not None and self._leading.pump_due)
            or self._out
        )

    def ready(self) -> Ready:
        """Hand everything over; the core considers it taken."""
        if self._leading is not None and self._leading.pump_due:
            self._leading.pump()
        changed = self._hard_state is not self._handed_hard_state
        self._handed_hard_state = self._hard_state
        return self._out.take(
            hard_state=self._hard_state if changed else None,
            entries=self._log.take_writes(),
            committed=self._log.take_committed(self._config.max_apply_bytes),
        )

    # Roles

    def _note(self, role: Role, leader: NodeId | None, cause: Cause) -> None:
        """Set role and leader, and note it for the caller."""
        self._role, self._leader = role, leader
        self._out.role_change = RoleChange(role=role, term=self.term, leader=leader, cause=cause)

    def _become_follower(self, term: int, leader: NodeId | None, cause: Cause) -> None:
        higher = term > self.term
        if higher:
            self._hard_state = HardState(term)
        self._leading = None
        if higher or self._role is not Role.FOLLOWER or self._leader != leader:
            self._votes = {}
            self._note(Role.FOLLOWER, leader, cause)

    def _become_leader(self) -> None:
        self._leading = Leadership(
            self._config,
            term=self.term,
            log=self._log,
            voters=self._memberships.voters,
            outbox=self._out,
        )
        self._note(Role.LEADER, self.id, self._campaign_cause)
        self._append_own(
            Entry(
                term=self.term,
                index=self._log.last_index + 1,
                kind=EntryKind.NOOP,
                timestamp_ms=0,
                crc32c=0,
                data=b"",
            )
        )

    def _is_known(self, sender: NodeId) -> bool:
        voters = self._memberships.voters
        return sender != self.id and (not voters or sender in voters)

    def _others(self) -> list[NodeId]:
        return sorted(self._memberships.voters - {self.id})

    def _lease_is_live(self) -> bool:
        """Whether a leader was heard so recently that no election can be justified."""
        if self._leading is not None:
            return True
        return self._leader is not None and (
            self._timer.elapsed < self._config.election_timeout_ticks
        )

    # Elections

    def _on_timeout(self) -> None:
        campaigning = self._role is not Role.FOLLOWER
        if campaigning:
            self._timer.failed()
        cause = Cause.RETRY if campaigning else self._next_cause
        self._next_cause = Cause.ELECTION_TIMEOUT
        self._start_pre_vote(cause)

    def _start_pre_vote(self, cause: Cause) -> None:
        """Ask whether an election could be won, disturbing no one (thesis 9.6)."""
        self._timer.campaign()
        if self.id not in self._memberships.voters:
            self._become_follower(self.term, None, cause)
            return
        if cause is not Cause.RETRY:
            self._campaign_cause = cause
        self._note(Role.PRE_CANDIDATE, None, cause)
        self._votes = {}
        self._out.now.extend(
            PreVoteRequest(
                sender=self.id,
                recipient=peer,
                term=self.term + 1,
                last_index=self._log.last_index,
                last_term=self._log.last_term,
            )
            for peer in self._others()
        )
        self._record_vote(self.id, granted=True)

    def _start_election(self, *, transfer: bool = False) -> None:
        """Enter the next term and vote for ourselves; the vote counts when it is durable."""
        self._timer.campaign()
        self._hard_state = HardState(self.term + 1, self.id)
        self._votes = {}
        self._note(Role.CANDIDATE, None, self._campaign_cause)
        self._out.after_hard_state.extend(
            VoteRequest(
                sender=self.id,
                recipient=peer,
                term=self.term,
                last_index=self._log.last_index,
                last_term=self._log.last_term,
                transfer=transfer,
            )
            for peer in self._others()
        )

    def _record_vote(self, voter: NodeId, *, granted: bool) -> None:
        """Count a vote or pre-vote, and act on the result; our own must be among them."""
        self._votes[voter] = granted
        result = quorum.vote_result(self._votes, self._memberships.voters)
        if result is VoteResult.LOST:
            self._timer.failed()
            self._next_cause = Cause.RETRY
            self._become_follower(self.term, None, Cause.ELECTION_LOST)
        elif result is VoteResult.WON and self.id in self._votes:
            if self._role is Role.PRE_CANDIDATE:
                self._start_election()
            else:
                self._become_leader()

    def _on_pre_vote_request(self, message: PreVoteRequest) -> None:
        granted = (
            not self._lease_is_live()
            and self._could_vote(message)
            and self._log.is_behind_or_equal(
                last_index=message.last_index, last_term=message.last_term
            )
        )
        self._out.now.append(
            PreVoteResponse(
                sender=self.id,
                recipient=message.sender,
                term=message.term if granted else self.term,
                granted=granted,
            )
        )

    def _could_vote(self, message: PreVoteRequest) -> bool:
        if message.term != self.term:
            return message.term > self.term
        return self._leader is None and self.vote in (None, message.sender)

    def _on_pre_vote_response(self, message: PreVoteResponse) -> None:
        if not message.granted and message.term > self.term:
            self._leave_for_higher_term(message.term, None)
        elif self._role is not Role.PRE_CANDIDATE:
            return
        elif not message.granted or message.term == self.term + 1:
            self._record_vote(message.sender, granted=message.granted)

    def _on_vote_request(self, message: VoteRequest) -> None:
        free = self.vote == message.sender or (self.vote is None and self._leader is None)
        granted = free and self._log.is_behind_or_equal(
            last_index=message.last_index, last_term=message.last_term
        )
        if granted:
            self._grant(message.sender)
        self._out.after_hard_state.append(
            VoteResponse(sender=self.id, recipient=message.sender, term=self.term, granted=granted)
        )

    def _grant(self, candidate: NodeId) -> None:
        if self.vote is None:
            self._hard_state = HardState(self.term, candidate)
        if self._role is Role.PRE_CANDIDATE:
            self._become_follower(self.term, None, Cause.VOTED)
        self._timer.follow()

    def _on_vote_response(self, message: VoteResponse) -> None:
        if self._role is Role.CANDIDATE:
            self._record_vote(message.sender, granted=message.granted)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """The leader hands over: campaign at once, without a pre-vote (thesis 3.10)."""
        is_voter = self.id in self._memberships.voters
        if self._leading is None and is_voter and self._leader in (None, message.sender):
            self._campaign_cause = Cause.TRANSFER
            self._start_election(transfer=True)

    # Terms

    def _enter_higher_term(self, message: Message) -> bool:
        """Follow into the message's term; returns False if it is to be ignored.

        A vote request is, while a leader is live: whoever cannot hear the leader must not
        depose it (thesis 6.2, 4.2.3). A hand-over is the leader's own wish.
        """
        if isinstance(message, VoteRequest):
            if self._lease_is_live() and not message.transfer:
                return False
            self._leave_for_higher_term(message.term, None)
        elif not isinstance(message, AppendRequest | HeartbeatRequest):
            self._leave_for_higher_term(message.term, None)
        else:
            self._leave_for_higher_term(message.term, message.sender)
        return True

    def _leave_for_higher_term(self, term: int, leader: NodeId | None) -> None:
        led = self._leading is not None
        cause = Cause.HIGHER_TERM if leader is None else Cause.LEADER_HEARD
        self._become_follower(term, leader, cause)
        if led:
            self._timer.redraw()

    def _answer_outdated(self, message: Message) -> None:
        """Tell whoever lives in an earlier term about ours, once ours is durable."""
        reply = answer_outdated(message, self.term)
        if reply is not None:
            self._out.after_hard_state.append(reply)

    # Replication

    def _append_own(self, entry: Entry) -> tuple[int, int]:
        assert self._leading is not None
        self._log.append((entry,))
        self._leading.appended(entry)
        return entry.term, entry.index

    def _commit_by_counting(self) -> None:
        assert self._leading is not None
        self._log.commit_to(self._leading.commit_point())
        self._leading.settle()

    def _follow(self, leader: NodeId) -> bool:
        """Accept the leader of our term; False if that cannot be (we lead it ourselves)."""
        if self._leading is not None:
            return False
        self._timer.follow()
        if self._leader != leader or self._role is not Role.FOLLOWER:
            self._become_follower(self.term, leader, Cause.LEADER_HEARD)
        self._next_cause = Cause.ELECTION_TIMEOUT
        return True

    def _on_append_request(self, message: AppendRequest) -> None:
        if not is_well_formed(message) or not self._follow(message.sender):
            return
        if not self._log.matches(message.previous_index, message.previous_term):
            self._reject_append(message)
        elif self._merge(message.entries):
            last = message.previous_index + len(message.entries)
            self._log.commit_to(min(message.commit_index, last))
            self._out.after_entries.append(
                AppendResponse(
                    sender=self.id,
                    recipient=message.sender,
                    term=self.term,
                    success=True,
                    match_index=last,
                )
            )

    def _reject_append(self, message: AppendRequest) -> None:
        index, term = self._log.agreement(message.previous_index, message.previous_term)
        self._out.after_hard_state.append(
            AppendResponse(
                sender=self.id,
                recipient=message.sender,
                term=self.term,
                success=False,
                match_index=message.previous_index,
                conflict_term=term,
                conflict_index=index,
            )
        )

    def _merge(self, entries: Sequence[Entry]) -> bool:
        """Add what we lack; False if that is impossible, which only a faulty leader asks for."""
        position = self._log.first_new(entries)
        if position is None:
            return True
        new = entries[position:] if position else entries
        try:
            memberships = memberships_in(new)
        except ValueError:
            return False
        if new[0].index <= self._log.commit_index:
            return False
        if new[0].index <= self._log.last_index:
            self._truncate(new[0].index)
        self._log.append(new)
        if memberships:
            self._memberships.append(memberships)
        return True

    def _truncate(self, first: int) -> None:
        self._log.truncate(first)
        self._memberships.truncate(first)
        self._out.retract_acks(first)

    def _on_append_response(self, message: AppendResponse) -> None:
        if self._leading is not None and self._leading.on_append_response(message):
            self._commit_by_counting()

    def _on_heartbeat_request(self, message: HeartbeatRequest) -> None:
        if not self._follow(message.sender):
            return
        self._log.commit_to(min(message.commit_index, self._log.last_index))
        self._out.after_hard_state.append(
            HeartbeatResponse(
                sender=self.id, recipient=message.sender, term=self.term, round=message.round
            )
        )

    def _on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        if self._leading is not None:
            self._leading.on_heartbeat_response(message.sender)

    _HANDLERS: ClassVar[dict[type[Message], Callable[[Raft, Any], None]]] = {
        PreVoteRequest: _on_pre_vote_request,
        PreVoteResponse: _on_pre_vote_response,
        VoteRequest: _on_vote_request,
        VoteResponse: _on_vote_response,
        AppendRequest: _on_append_request,
        AppendResponse: _on_append_response,
        HeartbeatRequest: _on_heartbeat_request,
        HeartbeatResponse: _on_heartbeat_response,
        TimeoutNow: _on_timeout_now,
    }
