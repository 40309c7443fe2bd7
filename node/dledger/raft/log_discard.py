"""Discarding damaged entries of ours that were never committed, where no leader comes to do it.

A node with a damaged entry does not campaign. Mostly a majority without that entry elects a leader,
whose entries then take its place. But two nodes can keep each other from that: each has an entry at
its end that it alone had, and that is damaged. Then it asks the other voters whether they have it.

What a majority of them says that it does not have, and will not take from a leader of an earlier
term, was not committed and is not going to be (Raft 5.4.3: whoever acknowledged it before would
have it still). We do not count among them: the entry may have been committed by us and the rest.
So it is as if we had never had it. First it is asked without consequences, as in a pre-vote; then
in a new term, which whoever answers has entered durably. Owned by one Raft. See docs/adr/0014.

All of that rests on asking the right voters: those that counted when the entry was added. So
nobody is asked while a membership before the entry is damaged and not known from elsewhere, and
a question whose voters turn out to be others is void.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dledger.raft.election import Election
from dledger.raft.log import RaftLog
from dledger.raft.membership import MembershipStack
from dledger.raft.messages import DiscardRequest, DiscardResponse
from dledger.raft.quorum import Electorate, VoteResult
from dledger.raft.ready import Outbox
from dledger.raft.server_state import ServerState
from dledger.raft.witness import Witness
from dledger.types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What was asked, and of whom: those who decided when the entry was written.

    A membership behind the entry takes nothing away from that: it rests on a majority of those.
    """

    term: int
    index: int
    entry_term: int
    firm: bool
    electorate: Electorate

    def is_answered_by(self, message: DiscardResponse) -> bool:
        """Whether the answer is to this question, and holds in its term."""
        same = (message.index, message.entry_term) == (self.index, self.entry_term)
        holds = not message.lacks or message.term == self.term
        return same and holds and message.firm == self.firm


class LogDiscard:
    """Asks whether an entry can be discarded, and answers who asks.

    Args:
        discard: Lets go of our log from an index on, and has storage do so.
    """

    def __init__(
        self,
        state: ServerState,
        *,
        log: RaftLog,
        memberships: MembershipStack,
        elections: Election,
        outbox: Outbox,
        witness: Witness,
        discard: Callable[[int], None],
    ) -> None:
        self._state = state
        self._log = log
        self._memberships = memberships
        self._elections = elections
        self._out = outbox
        self._witness = witness
        self._discard = discard
        self._round: _Round | None = None
        self._answers: dict[NodeId, bool] = {}

    def ask(self, index: int) -> None:
        """Ask whether anyone has our damaged entry, unless a leader can replace it."""
        if self._may_discard(index):
            self._begin(index, firm=False)

    def _may_discard(self, index: int) -> bool:
        if self._witness.is_silent:
            return False
        nobody_leads = self._state.leader is None and self._state.installing is None
        is_open = self._log.commit_index < index <= self._log.last_index
        return nobody_leads and is_open and self._knows_who_decided(index)

    def _knows_who_decided(self, index: int) -> bool:
        """Whether we know every membership before *index*: a damaged one may be in no list."""
        before = (at for at in self._log.membership_indexes() if at < index)
        return all(self._memberships.has(at) for at in before)

    def _begin(self, index: int, *, firm: bool) -> None:
        electorate = self._memberships.electorate_before(index)
        if firm:
            self._state.enter(self._state.term + 1, None)
        self._round = asked = _Round(
            term=self._state.term if firm else self._state.term + 1,
            index=index,
            entry_term=self._log.term(index),
            firm=firm,
            electorate=electorate,
        )
        self._answers = {self._state.id: False}
        requests = [
            DiscardRequest(
                sender=self._state.id,
                recipient=peer,
                term=asked.term,
                index=index,
                entry_term=asked.entry_term,
                firm=firm,
            )
            for peer in sorted(electorate.everyone - {self._state.id})
        ]
        (self._out.after_hard_state if firm else self._out.now).extend(requests)

    def on_request(self, message: DiscardRequest) -> None:
        """Say whether we lack the entry: firmly, or whether we would say so."""
        lacks = self._lacks(message)
        if not message.firm:
            lacks = lacks and not self._elections.lease_is_live()
        answer = DiscardResponse(
            sender=self._state.id,
            recipient=message.sender,
            term=message.term if lacks else self._state.term,
            index=message.index,
            entry_term=message.entry_term,
            firm=message.firm,
            lacks=lacks,
        )
        (self._out.after_hard_state if message.firm else self._out.now).append(answer)

    def _lacks(self, message: DiscardRequest) -> bool:
        """Whether the entry is surely not in our log; what a snapshot took in may have been it."""
        index = message.index
        if self._state.installing is not None or index < self._log.first_index:
            return False
        if self._witness.is_silent or self._witness.written is not None:
            return False  # it may have been ours, before our disk was put back
        return index > self._log.last_index or self._log.term(index) != message.entry_term

    def on_response(self, message: DiscardResponse) -> None:
        """Count an answer; a refusal from a later term takes us there."""
        if not message.lacks and message.term > self._state.term:
            self._state.enter(message.term, None)
        asked = self._round
        if asked is None or not self._is_current(asked):
            self._round = None
        elif asked.is_answered_by(message):
            self._count(asked, message)

    def _is_current(self, asked: _Round) -> bool:
        """Whether we are where we were when we asked, and others have no say in it.

        Not if the asked term has got a leader: what we acknowledged to it counts.
        """
        term = self._state.term if asked.firm else self._state.term + 1
        unchanged = term == asked.term and self._log.has(asked.index, asked.entry_term)
        if asked.electorate != self._memberships.electorate_before(asked.index):
            return False
        return unchanged and self._state.led_term < asked.term and self._may_discard(asked.index)

    def _count(self, asked: _Round, message: DiscardResponse) -> None:
        self._answers[message.sender] = message.lacks
        result = asked.electorate.vote_result(self._answers)
        if result is VoteResult.PENDING:
            return
        self._round = None
        if result is VoteResult.WON and asked.firm:
            self._discard(asked.index)
        elif result is VoteResult.WON:
            self._begin(asked.index, firm=True)
