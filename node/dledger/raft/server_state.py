"""What a node is in its group: term, vote, role and leader, and how they change.

Owned by one Raft, shared by its parts. The rules of when to change are theirs; that a change is
whole (a new term has no vote, a follower does not lead) and is told to the caller is ours.
"""

from __future__ import annotations

from dledger.raft.leader import Leader
from dledger.raft.ready import Cause, Outbox, RoleChange
from dledger.raft.timer import ElectionTimer
from dledger.types import HardState, NodeId, Role, SnapshotInfo


class ServerState:
    """Term, vote, role, leader.

    Attributes:
        id: This node.
        role: What part it plays.
        leader: Who leads the current term, as far as it knows.
        leading: What it does as leader; None in every other role.
        hard_state: Term and vote; perhaps not durable yet.
        term: The term of it: asked many times a message.
        installing: The snapshot that is replacing the log just now, if any.
        handed: The hard state that was handed over last.
        durable: The newest hard state that storage has confirmed.
        led_term: The newest term whose leader was heard, since the start.
    """

    def __init__(
        self,
        node_id: NodeId,
        *,
        hard_state: HardState,
        last_term: int,
        timer: ElectionTimer,
        outbox: Outbox,
    ) -> None:
        self.id = node_id
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.led_term = 0
        self.leading: Leader | None = None
        self.installing: SnapshotInfo | None = None
        self.durable = self.handed = hard_state
        self._set(HardState(last_term) if last_term > hard_state.term else hard_state)
        self._timer = timer
        self._out = outbox

    def _set(self, hard_state: HardState) -> None:
        self.hard_state, self.term = hard_state, hard_state.term

    @property
    def vote(self) -> NodeId | None:
        """Whom this node voted for in the current term."""
        return self.hard_state.vote

    def change(self, role: Role, leader: NodeId | None, cause: Cause) -> None:
        """Set role and leader, and note it for the caller."""
        self.role, self.leader = role, leader
        if leader is not None:
            self.led_term = self.term
        self._out.role_change = RoleChange(role=role, term=self.term, leader=leader, cause=cause)

    def follow(self, leader: NodeId | None, cause: Cause) -> None:
        """Be a follower in the current term, of *leader* if that is known."""
        self.leading = None
        if self.role is not Role.FOLLOWER or self.leader != leader:
            self.change(Role.FOLLOWER, leader, cause)

    def enter(self, term: int, leader: NodeId | None) -> None:
        """Follow into a higher term, in which no vote was given yet."""
        led = self.leading is not None
        self.leading = None
        self._set(HardState(term))
        cause = Cause.HIGHER_TERM if leader is None else Cause.LEADER_HEARD
        self.change(Role.FOLLOWER, leader, cause)
        if led:
            self._timer.redraw()

    def stand(self, cause: Cause, *, term: int | None = None) -> None:
        """Be a candidate in the next term, or in a later one, with our own vote."""
        self._set(HardState(self.term + 1 if term is None else term, self.id))
        self.change(Role.CANDIDATE, None, cause)

    def lead(self, leading: Leader, cause: Cause) -> None:
        """Be the leader of the current term."""
        self.leading = leading
        self.change(Role.LEADER, self.id, cause)

    def give_vote(self, candidate: NodeId) -> None:
        """Vote in the current term; once given, a vote stays."""
        if self.vote is None:
            self._set(HardState(self.term, candidate))

    def spend_vote(self, term: int) -> None:
        """Enter *term*, or stay in ours: no vote is left to give in it, whoever may have got it.

        One that we know of stays.
        """
        if term > self.term:
            self.enter(term, None)
        if self.vote is None:
            self._set(HardState(self.term, self.id))

    def take_hard_state(self) -> HardState | None:
        """Hand term and vote over if they changed."""
        if self.hard_state is self.handed:
            return None
        self.handed = self.hard_state
        return self.hard_state

    def persisted(self, hard_state: HardState) -> bool:
        """Take a completion; returns whether it is our present term and vote."""
        if hard_state.term >= self.durable.term:
            self.durable = hard_state
        return hard_state == self.hard_state
