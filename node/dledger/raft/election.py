"""Pre-votes, votes and campaigns: how a leader comes to be.

Owned by one Raft, which passes the messages on and takes over when an election is won. Sources:
Raft 5.2 and 5.4.1; thesis 3.10 (transfer), 4.2.3 (lease), 9.6 (pre-vote).
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.raft.log import RaftLog
from dledger.raft.membership import MembershipStack
from dledger.raft.messages import (
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.quorum import VoteResult
from dledger.raft.ready import Cause, Outbox
from dledger.raft.server_state import ServerState
from dledger.raft.timer import ElectionTimer
from dledger.raft.witness import Witness
from dledger.types import NodeId, Role


class Election:
    """Asks for votes, gives them and counts them.

    Args:
        timeout_ticks: The lease of a leader that was heard.
        on_won: Called when an election is won, with why it was held.

    Attributes:
        log_is_whole: Whether we could send all of our log to others; else we do not campaign.
        silent_ticks: How long no leader was heard, and we led not ourselves; from the start on.
    """

    def __init__(
        self,
        state: ServerState,
        *,
        log: RaftLog,
        memberships: MembershipStack,
        timer: ElectionTimer,
        timeout_ticks: int,
        outbox: Outbox,
        witness: Witness,
        on_won: Callable[[Cause], None],
    ) -> None:
        self._state = state
        self._log = log
        self._memberships = memberships
        self._timer = timer
        self._timeout_ticks = timeout_ticks
        self._out = outbox
        self._witness = witness
        self._on_won = on_won
        self._votes: dict[NodeId, bool] = {}
        self._cause = self._next_cause = Cause.ELECTION_TIMEOUT
        self._suspected_term = -1
        self._deferred: dict[NodeId, PreVoteRequest] = {}
        self.log_is_whole = True
        self.silent_ticks = 0

    def lease_is_live(self) -> bool:
        """Whether a leader was heard so recently that no election can be justified."""
        if self._state.leading is not None:
            return True
        if self._state.leader is None or self._suspects_leader():
            return False
        return self._timer.elapsed < self._timeout_ticks

    # When to campaign

    def leader_heard(self, *, heartbeat: bool) -> None:
        """The leader of our term spoke: wait for it anew.

        After its connection broke, what was sent before still arrives; only a heartbeat, and
        not in the same tick, shows that it lives.
        """
        self.silent_ticks = 0
        if self._suspects_leader() and not (heartbeat and self._timer.elapsed > 0):
            return
        self._suspected_term = -1
        self._deferred.clear()
        self._timer.follow()
        self._next_cause = Cause.ELECTION_TIMEOUT

    def leader_lost(self) -> None:
        """The leader's connection broke: forget its lease, and campaign soon.

        Whoever asked us before saw the same earlier: it gets the answer that our lease kept back,
        so that a quorum that saw the leader go elects at once, in whatever order they saw it.
        """
        self._suspected_term = self._state.term
        self._state.change(self._state.role, None, Cause.CONNECTION_LOST)
        self._next_cause = Cause.CONNECTION_LOST
        if self._grant_deferred():
            self._timer.campaign()
        elif self._timer.hint():
            self.on_timeout()

    def _suspects_leader(self) -> bool:
        return self._suspected_term == self._state.term

    def on_timeout(self) -> None:
        """The wait is over: for the leader, or for a campaign's result."""
        campaigning = self._state.role is not Role.FOLLOWER
        if campaigning:
            self._timer.failed()
        cause = Cause.RETRY if campaigning else self._next_cause
        self._next_cause = Cause.ELECTION_TIMEOUT
        self.start_pre_vote(cause)

    def start_pre_vote(self, cause: Cause) -> None:
        """Ask whether an election could be won, disturbing no one; learners do not (thesis 9.6)."""
        self._timer.campaign()
        if not self._may_campaign():
            self._state.follow(None, cause)
            return
        if cause is not Cause.RETRY:
            self._cause = cause
        self._state.change(Role.PRE_CANDIDATE, None, cause)
        self._votes = {}
        self._out.now.extend(
            PreVoteRequest(
                sender=self._state.id,
                recipient=peer,
                term=self._state.term + 1,
                last_index=self._log.last_index,
                last_term=self._log.last_term,
                last_chain=self._log.last_chain,
            )
            for peer in self._others()
        )
        self._count(self._state.id, granted=True)

    def _start_election(self, *, transfer: bool = False) -> None:
        """Enter the next term with our own vote; it counts when it is durable."""
        self._timer.campaign()
        self._state.stand(self._cause)
        self._votes = {}
        self._out.after_hard_state.extend(
            VoteRequest(
                sender=self._state.id,
                recipient=peer,
                term=self._state.term,
                last_index=self._log.last_index,
                last_term=self._log.last_term,
                last_chain=self._log.last_chain,
                transfer=transfer,
            )
            for peer in self._others()
        )

    def stand_alone(self, term: int) -> None:
        """Enter *term* with our own vote, which decides alone once it is durable (`force`)."""
        self._timer.campaign()
        self._cause = Cause.FORCED
        self._witness.release()
        self._state.stand(Cause.FORCED, term=term)
        self._votes = {}

    def _may_campaign(self) -> bool:
        """Whether we may ask for votes.

        Not while a snapshot replaces our log, it has gaps, or our disk is an older copy.
        """
        allowed = self._memberships.may_campaign(self._state.id, self._log.commit_index)
        may_stand = allowed and self._may_choose(self._log.last_term, self._log.last_index)
        return may_stand and self._state.installing is None and self.log_is_whole

    def _may_choose(self, last_term: int, last_index: int) -> bool:
        """Whether a log that ends there may get our vote, as far as our disk can be believed."""
        witness = self._witness
        allowed = witness.allows(last_term=last_term, last_index=last_index)
        return allowed and not witness.is_silent

    def _others(self) -> list[NodeId]:
        return sorted(self._memberships.electorate.everyone - {self._state.id})

    # Giving

    def on_pre_vote_request(self, message: PreVoteRequest) -> None:
        """Say whether we would vote; nothing changes."""
        willing = self._is_willing(message)
        leased = self.lease_is_live()
        self._defer(message, wanted=willing and leased)
        self._answer_pre_vote(message, granted=willing and not leased)

    def _defer(self, message: PreVoteRequest, *, wanted: bool) -> None:
        """Remember who would have our vote, were it not for the leader that we hear."""
        self._deferred.pop(message.sender, None)
        follows = self._state.leading is None
        if wanted and follows and message.sender in self._memberships.electorate.everyone:
            self._deferred[message.sender] = message

    def _grant_deferred(self) -> bool:
        """Answer those that asked while we heard the leader; returns whether there was one."""
        asked, self._deferred = self._deferred, {}
        willing = [message for message in asked.values() if self._is_willing(message)]
        for message in willing:
            self._answer_pre_vote(message, granted=True)
        return bool(willing)

    def _answer_pre_vote(self, message: PreVoteRequest, *, granted: bool) -> None:
        self._out.now.append(
            PreVoteResponse(
                sender=self._state.id,
                recipient=message.sender,
                term=message.term if granted else self._state.term,
                granted=granted,
            )
        )

    def on_vote_request(self, message: VoteRequest) -> None:
        """Vote, or not; the answer waits until that is durable.

        A learner votes too: who asks it may have a membership in which it is a voter (Raft 6).
        """
        # Raft 5.2: one vote in a term. The answer is filed behind the hard state that has it.
        vote, leader = self._state.vote, self._state.leader
        free = vote == message.sender or (vote is None and leader is None)
        granted = free and self._is_up_to_date(message)
        if granted:
            self._state.give_vote(message.sender)
            self._timer.follow()
            if self._state.role is Role.PRE_CANDIDATE:
                self._state.follow(None, Cause.VOTED)
        self._out.after_hard_state.append(
            VoteResponse(
                sender=self._state.id,
                recipient=message.sender,
                term=self._state.term,
                granted=granted,
            )
        )

    def _is_willing(self, message: PreVoteRequest) -> bool:
        """Whether we would vote for the sender if there were no leader."""
        return self._could_vote(message) and self._is_up_to_date(message)

    def _could_vote(self, message: PreVoteRequest) -> bool:
        if message.term != self._state.term:
            return message.term > self._state.term
        return self._state.leader is None and self._state.vote in (None, message.sender)

    def _is_up_to_date(self, message: PreVoteRequest | VoteRequest) -> bool:
        # Raft 5.4.1: by the log that we promised. An entry that rotted since counts as there.
        if not self._may_choose(message.last_term, message.last_index):
            return False
        return self._log.is_up_to_date(
            last_index=message.last_index,
            last_term=message.last_term,
            last_chain=message.last_chain,
        )

    def voters_heard(self) -> frozenset[NodeId]:
        """Return who answered in the election of our term, and so has entered that durably."""
        counted = self._state.role in (Role.CANDIDATE, Role.LEADER)
        return frozenset(self._votes if counted else ())

    # Counting

    def on_pre_vote_response(self, message: PreVoteResponse) -> None:
        """Count a pre-vote; a refusal from a later term takes us there."""
        if not message.granted and message.term > self._state.term:
            self._state.enter(message.term, None)
        elif self._state.role is not Role.PRE_CANDIDATE:
            return
        elif not message.granted or message.term == self._state.term + 1:
            self._count(message.sender, granted=message.granted)

    def on_vote_response(self, message: VoteResponse) -> None:
        """Count a vote."""
        if self._state.role is Role.CANDIDATE:
            self._count(message.sender, granted=message.granted)

    def own_vote_persisted(self) -> None:
        """Count our own vote, now that it is durable."""
        if self._state.role is Role.CANDIDATE:
            self._count(self._state.id, granted=True)

    def on_timeout_now(self, message: TimeoutNow) -> None:
        """The leader hands over: campaign at once, without a pre-vote."""
        led_by_another = self._state.leader not in (None, message.sender)
        if self._state.leading is None and self._may_campaign() and not led_by_another:
            self._cause = Cause.TRANSFER
            self._start_election(transfer=True)

    def _count(self, voter: NodeId, *, granted: bool) -> None:
        """Count a vote or pre-vote, and act on the result; our own must be among them."""
        self._votes[voter] = granted
        result = self._memberships.electorate.vote_result(self._votes)
        if result is VoteResult.LOST and not self._awaits_second_thoughts():
            self._timer.failed()
            self._next_cause = Cause.RETRY
            self._state.follow(None, Cause.ELECTION_LOST)
        elif result is VoteResult.WON and self._state.id in self._votes:
            if self._state.role is Role.PRE_CANDIDATE:
                self._start_election()
            else:
                self._on_won(self._cause)

    def _awaits_second_thoughts(self) -> bool:
        """Whether refusals may turn: others may see the leader's connection break later."""
        return self._state.role is Role.PRE_CANDIDATE and self._suspects_leader()
