"""What a Raft shows of itself: read-only, for the driver, the metrics, the invariants and tests."""

from __future__ import annotations

from collections.abc import Mapping

from dledger.common.reports import Mark
from dledger.raft.config import RaftConfig
from dledger.raft.election import Election
from dledger.raft.log import RaftLog
from dledger.raft.membership import MembershipStack
from dledger.raft.progress import Progress
from dledger.raft.server_state import ServerState
from dledger.raft.witness import Witness
from dledger.types import HardState, Member, Membership, NodeId, Role


class RaftView:
    """The properties of a Raft; `core.Raft` adds what changes them.

    Attributes:
        state: Term, vote, role and leader, for who asks often; only the core changes it.
        memberships: Those of the log, likewise; `current` is in force.
        witness: What members are known to have had, and what we have to show; likewise.
    """

    _config: RaftConfig
    _log: RaftLog
    _elections: Election
    memberships: MembershipStack
    state: ServerState
    witness: Witness

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
        return self.state.role

    @property
    def term(self) -> int:
        """The current term; perhaps not durable yet."""
        return self.state.term

    @property
    def vote(self) -> NodeId | None:
        """Whom we voted for in the current term; perhaps not durable yet."""
        return self.state.vote

    @property
    def durable_hard_state(self) -> HardState:
        """The newest hard state that storage has confirmed."""
        return self.state.durable

    @property
    def leader(self) -> NodeId | None:
        """Who leads the current term, as far as we know."""
        return self.state.leader

    @property
    def commit_index(self) -> int:
        """Up to here, inclusive, the log is decided."""
        return self._log.commit_index

    @property
    def applied_index(self) -> int:
        """Up to here, inclusive, entries were handed over for applying."""
        return self._log.applied_index

    @property
    def awaits_commit_behind(self) -> int | None:
        """The commit index if this node leads and its log goes on behind it; else None."""
        log = self._log
        awaits = self.state.leading is not None and log.commit_index < log.last_index
        return log.commit_index if awaits else None

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

    def term_at(self, index: int) -> int:
        """Return the term of our entry at *index*, 0 at 0. Raises OffsetOutOfRange outside."""
        return self._log.term(index)

    @property
    def membership(self) -> Membership:
        """The membership in force; empty before the founding entry arrived."""
        return self.memberships.current

    @property
    def membership_index(self) -> int:
        """The index of the entry with the membership in force; 0 before the founding entry."""
        return self.memberships.index

    @property
    def is_removed(self) -> bool:
        """Whether a committed change has removed this node from its group, for good."""
        return self.removal_index(self.id) is not None

    def removal_index(self, node_id: NodeId) -> int | None:
        """Return the index of the committed entry that removed a node for good; None: none did."""
        removed = self.memberships.is_removed(node_id, self.commit_index)
        return self.memberships.removal_index(node_id) if removed else None

    @property
    def is_joining(self) -> bool:
        """Whether our log names members, but never us: it ends before the entry that added us.

        Who was removed is named before. Where a membership is damaged, that may name us.
        """
        stack, log = self.memberships, self._log
        if not stack.index or stack.was_member(self.id):
            return False
        return all(stack.has(index) for index in log.membership_indexes())

    def hears(self, node_id: NodeId) -> bool:
        """Whether what a node asks of us counts: it is a member by our log, or was introduced.

        Also one whose removal is not known to be committed; and anyone, while we know no member.
        While we join, a stranger as well, but only what it sends as leader (Raft 6): whoever could
        introduce it may be gone. Of those that our log names, its word counts.
        """
        if self.memberships.hears(node_id, self.commit_index):
            return True
        return self.is_joining and not self.was_member(node_id)

    def known_member(self, node_id: NodeId) -> Member | None:
        """Return a node as the newest membership has it that names it; None if it has no say."""
        return self.memberships.known_member(node_id, self.commit_index)

    def was_member(self, node_id: NodeId) -> bool:
        """Whether a node is or was a member, as far as the log goes back."""
        return self.memberships.was_member(node_id)

    @property
    def epoch(self) -> tuple[int, int]:
        """How often the group was forced, as far as is committed, and by which entry last."""
        return self.memberships.epoch(self.commit_index)

    def is_behind(self, epoch: int) -> bool:
        """Whether this node was left out by the forced group of *epoch*, and did not see it.

        Its own log says so: it names this node, in earlier epochs only. Who belongs to the forced
        group is the survivor, whose log has that epoch, or was never named before.
        """
        return self.memberships.is_behind(self.id, epoch)

    @property
    def silent_ticks(self) -> int:
        """For how many ticks no leader was heard; 0 while this node leads."""
        return self._elections.silent_ticks

    @property
    def log_is_whole(self) -> bool:
        """Whether no entry of the log is damaged."""
        return self._elections.log_is_whole

    @property
    def asks(self) -> bool:
        """Whether the others are still asked what they know of us: nothing is heard or said."""
        return self.witness.asks

    @property
    def abstains(self) -> Mark | None:
        """What we are known to have promised, and our disk does not have; None: we take part."""
        return self.witness.owed

    @property
    def may_campaign(self) -> bool:
        """Whether this node may ask for votes: as a voter, or while its removal is not certain."""
        return self.memberships.may_campaign(self.id, self.commit_index)

    def caught_up_learners(self) -> frozenset[NodeId]:
        """Return the learners that could be voters now; none when not leading."""
        leading = self.state.leading
        return leading.changes.caught_up(leading.ticks) if leading else frozenset()

    @property
    def transfer_target(self) -> NodeId | None:
        """Whom we are handing leadership to, if anyone."""
        leading = self.state.leading
        return leading.transfer_target if leading else None

    @property
    def has_room(self) -> bool:
        """Whether `Raft.propose` would take an entry now; not when not leading."""
        leading = self.state.leading
        return leading is not None and not leading.refusal()

    def transfer_candidate(self) -> NodeId | None:
        """Return the other voter that holds most of our log; None if none, or when not leading."""
        leading = self.state.leading
        return leading.most_caught_up() if leading else None

    def progress(self) -> Mapping[NodeId, Progress]:
        """Return the leader's view of each other member; empty when not leading."""
        leading = self.state.leading
        return dict(leading.progress) if leading else {}

    def inactive_voters(self) -> set[NodeId]:
        """Return the voters a leader did not hear for an election timeout; none if not leading."""
        leading = self.state.leading
        return leading.inactive_voters() if leading else set()

    @property
    def uncommitted_bytes(self) -> int:
        """Data of the entries we appended as leader that no majority has yet; 0 if not leading."""
        leading = self.state.leading
        return leading.uncommitted_bytes() if leading else 0
