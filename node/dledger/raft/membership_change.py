"""How a leader changes who belongs to the group: one change at a time, by joint consensus.

A change is an entry with the joint membership; when that is committed, the leader appends the
new one alone. Owned by `leader.Leader`, which appends what is decided here. Sources: Raft 6;
thesis 4.2.1 (catching up), 4.3 (joint consensus).
"""

from __future__ import annotations

from collections.abc import Collection

from dledger.errors import Refused, Unavailable
from dledger.raft.config import RaftConfig
from dledger.raft.log import RaftLog
from dledger.raft.membership import MembershipStack, begin_change, end_change, promoted
from dledger.types import Member, Membership, NodeId


class MembershipChange:
    """What one leader knows of learners and of the change that is under way.

    Args:
        term_start: The index of the leader's first entry.

    Attributes:
        done_with: The membership in which nothing is left to do: it is committed and final, has us
            among its voters and nobody to promote. None: there is something, or it is not known.
    """

    def __init__(
        self, config: RaftConfig, *, memberships: MembershipStack, log: RaftLog, term_start: int
    ) -> None:
        self._config = config
        self._memberships = memberships
        self._log = log
        self._term_start = term_start
        self._rounds: dict[NodeId, CatchUp] = {}
        self.membership_changed(0)

    def membership_changed(self, tick: int) -> None:
        """Watch those that are learners now."""
        self.done_with: Membership | None = None
        learners = self._memberships.current.learner_ids
        self._rounds = {
            peer: self._rounds.get(peer)
            or CatchUp(
                last_index=self._log.last_index,
                tick=tick,
                limit_ticks=self._config.election_timeout_ticks,
            )
            for peer in sorted(learners)
        }

    def heard(self, peer: NodeId, *, match_index: int, tick: int) -> None:
        """Take note of a follower's answer."""
        if peer in self._rounds:
            self._rounds[peer].heard(
                match_index=match_index, last_index=self._log.last_index, tick=tick
            )

    def caught_up(self, tick: int) -> frozenset[NodeId]:
        """Return the learners that could be voters now."""
        return frozenset(peer for peer, rounds in self._rounds.items() if rounds.is_done(tick))

    def requested(
        self,
        *,
        voters: Collection[Member],
        learners: Collection[Member],
        tick: int,
        silent: Collection[NodeId] = (),
    ) -> Membership:
        """Return the membership that begins the change to these voters and learners.

        Args:
            voters: Those that are to vote.
            learners: Those that are to learn.
            tick: The leader's.
            silent: Voters that were not heard from within an election timeout.

        Raises:
            Unavailable: Another change is under way, or the leader is too new; or too many of
                these voters were not heard from to make a quorum.
            InvalidArgument: There would be no voters, or a node would be named twice.
            Refused: A voter would be added that has not caught up as a learner, or a node that
                was removed before.
        """
        if not self._may_begin():
            raise Unavailable("another membership change is under way, or the leader is too new")
        current = self._memberships.current
        following = begin_change(current, voters=voters, learners=learners)
        self._refuse_unprepared(following.voter_ids - current.voter_ids, tick)
        self._refuse_removed(following)
        _refuse_without_quorum(following, silent)
        return following

    def due(self, tick: int) -> Membership | None:
        """Return the membership to append now: the end of a joint one, or promotions."""
        if self._memberships.index > self._log.commit_index:
            return None
        current = self._memberships.current
        if current.is_joint:
            return end_change(current)
        if not self._rounds and self._config.id in current.voter_ids:
            self.done_with = current
        ready = self.caught_up(tick) if self._config.promote_learners else frozenset()
        return promoted(current, ready) if ready and self._may_begin() else None

    def is_deposed(self) -> bool:
        """Whether a committed membership has us no longer among the voters (Raft 6)."""
        committed = self._memberships.index <= self._log.commit_index
        return committed and self._config.id not in self._memberships.electorate.everyone

    def _may_begin(self) -> bool:
        """Whether the membership in force is final, and we know what is committed.

        Without an own entry committed, a change of an earlier leader could still return; with
        two changes at a time, quorums could be disjoint (thesis 4.1, and its erratum of 2015).
        """
        final = max(self._memberships.index, self._term_start) <= self._log.commit_index
        return final and not self._memberships.current.is_joint

    def _refuse_unprepared(self, added: frozenset[NodeId], tick: int) -> None:
        unprepared = added - self.caught_up(tick)
        if unprepared:
            names = ", ".join(sorted(unprepared))
            raise Refused(f"not a learner that has caught up: {names}; add it as a learner first")

    def _refuse_removed(self, following: Membership) -> None:
        current = self._memberships.current
        returning = [
            member.id
            for member in following.members
            if current.get(member.id) is None and self._memberships.was_member(member.id)
        ]
        if returning:
            names = ", ".join(returning)
            raise Refused(f"removed before: {names}; a node returns with a newly formatted disk")


def _refuse_without_quorum(following: Membership, silent: Collection[NodeId]) -> None:
    """Refuse voters who could commit nothing now, not even the way back."""
    away = following.voter_ids & set(silent)
    if 2 * len(away) >= len(following.voter_ids):
        raise Unavailable(
            f"{len(away)} of the {len(following.voter_ids)} voters that there would be were not "
            f"heard from: {', '.join(sorted(away))}; bring them back or replace them first"
        )


class CatchUp:
    """Whether a learner has caught up, so that as a voter it would not hold the group up.

    Replication to it is cut into rounds: one ends when the learner has all that the leader had when
    the round began. It has caught up when its last round took no longer than an election timeout:
    what it lacks is then less than a group waits for anyway. Times are the leader's ticks. Source:
    thesis 4.2.1.
    """

    def __init__(self, *, last_index: int, tick: int, limit_ticks: int) -> None:
        self._limit = limit_ticks
        self._target = last_index
        self._began = tick
        self._last_round_was_fast = False

    def heard(self, *, match_index: int, last_index: int, tick: int) -> None:
        """Take an answer of the learner, who has everything up to *match_index*."""
        if match_index >= self._target:
            self._last_round_was_fast = tick - self._began <= self._limit
            self._target, self._began = last_index, tick

    def is_done(self, tick: int) -> bool:
        """Whether the last round was fast, and the one that runs can still be."""
        return self._last_round_was_fast and tick - self._began <= self._limit
