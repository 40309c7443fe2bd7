"""What a plan does at most one of in a round, and last: the acts that cost a group some safety.

Or its users messages: deleting a topic is one of them.

Each names what it rests on, down to ids and uids, so that it is refused where that has changed. It
is done when two rounds in a row wanted exactly the same, the second on fresh answers. Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FRESH_S: Final = 2.0
"""What cannot be undone rests on answers younger than this."""
RENEWED_S: Final = 10.0
"""And on a Lease that was renewed less than this ago: another takes it after 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceMember:
    """Ask the leader to replace a member whose disk is lost, in one change of the members.

    Attributes:
        pod: The member's name, and the pod with the empty disk.
        member_id: The node id of that disk.
        old_id: The node id of the lost disk; it can never return.
        address: The peer address of the pod.
        leader: The pod to ask.
        term: In which it leads.
    """

    pod: str
    member_id: str
    old_id: str
    address: str
    leader: str
    term: int

    @property
    def why(self) -> str:
        """Return what it is for."""
        return (
            f"{self.pod} came up with an empty disk: its node {self.member_id} takes the place of "
            f"{self.old_id}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddMember:
    """Ask the leader to let a new pod in, as a learner that becomes a voter once it caught up.

    Attributes:
        pod: The pod, whose name is the member's.
        member_id: The node id of its disk.
        address: Its peer address.
        leader: The pod to ask.
        term: In which it leads.
    """

    pod: str
    member_id: str
    address: str
    leader: str
    term: int

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"the spec asks for {self.pod}: its node {self.member_id} is to join"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMember:
    """Ask the leader to remove a member that the spec does not ask for any more.

    Its claim is marked before, since its disk can never be used again, and outlives the pod.

    Attributes:
        pod: Its name.
        member_id: Its node id, which can never return.
        leader: The pod to ask.
        term: In which it leads.
        claim: The claim with its disk; empty if it has none any more.
        claim_uid: The uid of that claim; another claim of that name is not marked.
    """

    pod: str
    member_id: str
    leader: str
    term: int
    claim: str = ""
    claim_uid: str = ""

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"the spec does not ask for {self.pod} any more: its node {self.member_id} leaves"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetirePods:
    """Have the StatefulSet keep fewer pods, since the members of the others have left.

    Attributes:
        pod: The highest of those that go.
        stateful_set: Its name.
        uid: Its uid; another StatefulSet of that name is not touched.
        pods: How many stay.
    """

    pod: str
    stateful_set: str
    uid: str
    pods: int

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{self.stateful_set} keeps {self.pods} pods: no other is a member"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLeader:
    """Ask the leader to hand over to another voter.

    Attributes:
        leader: The pod to ask.
        term: In which it leads.
        to: The name of the voter; empty lets the leader choose.
        to_id: Its node id, or empty.
        reason: What it is for, as a whole clause.
    """

    leader: str
    term: int
    to: str = ""
    to_id: str = ""
    reason: str

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{self.leader} hands over to {self.to or 'the best follower'}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPod:
    """Delete a pod, so that the StatefulSet makes it anew.

    Attributes:
        pod: Its name.
        uid: Its uid; another pod of that name is not touched.
        reason: What it is for, as a whole clause.
        is_broken: Nothing of it runs, by Kubernetes' word: it rests on no answer of a node.
    """

    pod: str
    uid: str
    reason: str
    is_broken: bool = False

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{self.pod} is restarted: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceClaim:
    """Delete a member's claim, and its pod, so that it comes back with an empty disk.

    Attributes:
        claim: Its name.
        uid: Its uid; another claim of that name is not touched.
        volume: The volume that it is bound to, which is not deleted; empty if it is not bound.
        pod: The member's name.
        pod_uid: The uid of the pod that mounts it; empty if there is none.
    """

    claim: str
    uid: str
    volume: str
    pod: str
    pod_uid: str

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"the disk of {self.pod} is given up: {self.claim} on volume {self.volume or '-'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceGroup:
    """Make a survivor of a lost majority the only member of its group.

    Attributes:
        pod: The survivor.
        uid: The pod's uid.
        member_id: Its node id.
        group_id: The group's id.
        last_term: The term of its last entry, as it was shown.
        last_index: The index of that entry.
    """

    pod: str
    uid: str
    member_id: str
    group_id: str
    last_term: int
    last_index: int

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{self.pod} goes on alone from entry {self.last_index} of term {self.last_term}"


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic with its messages, since the spec does not have it any more."""

    name: str

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"topic {self.name} was taken off the spec, which deletes those"


MemberDisruption = (
    ReplaceMember
    | AddMember
    | RemoveMember
    | RetirePods
    | TransferLeader
    | RestartPod
    | ReplaceClaim
    | ForceGroup
)
"""Those that act on a member, and name its pod."""
Disruption = MemberDisruption | DeleteTopic


@dataclass(frozen=True, slots=True)
class Held:
    """Something should be done to a member, and may not be now; *why* is a sentence's second half.

    *pod* is the member's name.
    """

    pod: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """What an action that cannot be undone rests on.

    Attributes:
        oldest_answer_s: The age of the oldest answer of a node that the round uses.
        lease_s: How long ago the Lease was renewed.
        considered: What the round before wanted to do, and left to this one.
    """

    oldest_answer_s: float
    lease_s: float
    considered: Disruption | None = None

    def carries(self, action: Disruption) -> bool:
        """Whether the action may be done now: two rounds in a row saw the same, the last afresh."""
        rests_on_none = isinstance(action, RestartPod) and action.is_broken
        fresh = rests_on_none or self.oldest_answer_s < FRESH_S
        return fresh and self.lease_s < RENEWED_S and action == self.considered


NO_FOOTING: Final = Footing(oldest_answer_s=float("inf"), lease_s=float("inf"))
"""On which nothing is done that cannot be undone."""
