"""What a group's state comes down to: who leads, who is in sync, how many more may fail. Pure.

Computed once a round and shared: what the status says and what the plan does rest on one picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dledger.common.status import CAUGHT_UP_ENTRIES, MemberStatus
from dledger_operator.api import names
from dledger_operator.api.brokeroperation import RUNNING, Kind
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.bootstrap_state import (
    BootstrapState,
    bootstrap_state,
)
from dledger_operator.decisions.checks import problems
from dledger_operator.decisions.extent import entering, leaving, pods_now
from dledger_operator.decisions.problem import Problem
from dledger_operator.decisions.recovery import Recovery, recovery
from dledger_operator.decisions.starts import find_stalled
from dledger_operator.observed.observed import Observed
from dledger_operator.resources.accepted import accepted_image
from dledger_operator.resources.statefulset import image_of
from dledger_operator.resources.wish import wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is wanted, what is seen, and what follows from it.

    Attributes:
        group: The group with the spec that is acted on.
        problems: What keeps the spec that is asked for from being acted on.
        is_kept: Whether the spec is the last that was accepted, in place of the one asked for.
        wanted: The pods there should be now: those of the spec, and of members that have to leave.
        entering: Those of them that are to become voters since the group grows.
        leaving: The members, learners too, that are to leave since it shrinks, from the top.
        leader: The name of the leader that a majority of the members follows; empty without one.
        voters: How many members vote; before there are any, how many the spec asks for.
        in_sync: The names of the voters that the leader reaches and that have all but the newest
            entries, itself among them; empty without a leader that a majority follows.
        apart: The names of the voters that are not in sync.
        older: The pods that were made from an older template, or for an older wish to restart.
        is_templated: Whether a pod that is made now is of the newest template.
        stalled: The pods of which nothing has run for longer than a start takes.
        overdue: Whether voters have been out of sync for longer than a start or a restart takes.
        turn: Whom its rollout waits for, since one group is rolled out at a time; else empty.
    """

    group: BrokerGroup
    observed: Observed
    bootstrap: BootstrapState
    recovery: Recovery
    problems: tuple[Problem, ...]
    wanted: tuple[str, ...]
    entering: tuple[str, ...]
    leaving: tuple[str, ...]
    leader: str
    voters: int
    in_sync: tuple[str, ...]
    apart: tuple[str, ...]
    older: tuple[str, ...]
    is_templated: bool
    stalled: tuple[str, ...] = ()
    overdue: bool = False
    turn: str = ""
    is_kept: bool = False

    @property
    def asked(self) -> tuple[str, ...]:
        """The pods that the spec asks for."""
        return self.wanted[: self.group.spec.replicas]

    @property
    def expected(self) -> tuple[str, ...]:
        """The pods that should vote now: all that are asked for or vote, but for those entering.

        While an operation grows a group again from one survivor, all that are asked for.
        """
        voters = {row.member.name for row in self.observed.membership if row.voter}
        absent = () if self._is_regrowing else self.entering
        return tuple(
            name
            for name in self.wanted
            if name in voters or (name in self.asked and name not in absent)
        )

    @property
    def _is_regrowing(self) -> bool:
        running = (one for one in self.observed.operations if one.phase == RUNNING)
        return any(one.spec.kind == Kind.FORCE_NEW_GROUP for one in running)

    @property
    def is_whole(self) -> bool:
        """Whether all that should vote now do, and are in sync."""
        return set(self.expected) <= set(self.in_sync)

    @property
    def is_short(self) -> bool:
        """Whether a founded group has fewer voters in sync than there should be."""
        return self.group.bootstrapped and not self.is_whole

    @property
    def margin(self) -> int:
        """How many voters may still fail with writes going on; negative if they stopped."""
        return len(self.in_sync) - (self.voters // 2 + 1)


def facts_of(
    group: BrokerGroup, observed: Observed, *, accepted: BrokerGroup | None = None, now: str = ""
) -> Facts:
    """Return what follows from what is wanted and what is seen.

    Args:
        group: With the spec that is asked for.
        observed: What is there.
        accepted: With the last spec that was accepted, which is kept while the new one is refused;
            None if none is known.
        now: RFC 3339; without it no pod is taken for stalled.
    """
    found = problems(group, observed)
    is_kept = bool(found) and accepted is not None
    if found and accepted is not None:
        paused = accepted.spec.paused if group.unreadable else group.spec.paused
        group = replace(accepted, spec=replace(accepted.spec, paused=paused))
    rows = [row for row in observed.membership if row.voter]
    leader = _followed_leader(group, observed)
    is_led = leader != "" and observed.leader is not None and observed.leader[0] == leader
    group = replace(
        group,
        kept_image=_kept_image(group, observed) or group.kept_image,
        kept_pods=pods_now(group, observed, is_led=is_led),
    )
    wanted = tuple(names.pod(group.name, ordinal) for ordinal in range(group.pods))
    in_sync = tuple(_in_sync(observed, rows)) if leader else ()
    voters = [row.member.name for row in rows] or wanted
    return Facts(
        group=group,
        observed=observed,
        bootstrap=bootstrap_state(group, observed),
        recovery=recovery(group, observed),
        problems=found,
        wanted=wanted,
        entering=entering(group, observed) if group.bootstrapped else (),
        leaving=leaving(group, observed) if group.bootstrapped else (),
        leader=leader,
        voters=len(rows) or group.spec.replicas,
        in_sync=in_sync,
        apart=tuple(name for name in voters if name not in in_sync),
        older=_older_template(group, observed),
        is_templated=_is_templated(group, observed),
        stalled=find_stalled(observed.pods, now) if now else (),
        is_kept=is_kept,
    )


def _followed_leader(group: BrokerGroup, observed: Observed) -> str:
    """Return the leader's name if a majority of the voters, itself included, names it.

    Learners do not count, on neither side: two of three voters are a majority, however many
    learners there are whose disks are lost.
    """
    voters = {str(row.member.id) for row in observed.membership if row.voter}
    joined = [node for node in observed.nodes.values() if node.group_id and node.leader_id]
    term = max((node.term for node in joined), default=0)
    newest = [
        node.leader_id
        for node in joined
        if node.term == term and (not voters or node.node_id in voters)
    ]
    for leader_id in set(newest):
        if 2 * newest.count(leader_id) > (len(voters) or group.spec.replicas):
            return observed.member_names.get(leader_id, leader_id)
    return ""


def _in_sync(observed: Observed, rows: Iterable[MemberStatus]) -> Iterable[str]:
    """Yield the voters that the leader finds in sync; if it is silent, those that follow it."""
    leader = observed.leader
    for row in rows:
        name = row.member.name
        if leader is None:
            node = observed.nodes.get(name)
            is_there = node is not None and node.leader_id != ""
        else:
            is_there = name == leader[0] or (row.connected and row.lag <= CAUGHT_UP_ENTRIES)
        if is_there:
            yield name


def _kept_image(group: BrokerGroup, observed: Observed) -> str:
    """Return the image that is recorded; if the record is lost, the one that pods are made with.

    One that the spec names is not recorded: when the spec names none again, that is taken back.
    """
    recorded = accepted_image(observed.children.values())
    if recorded is not None:
        return recorded
    built = observed.children.get(("StatefulSet", group.name))
    return image_of(built) if built and not group.spec.image else ""


def _older_template(group: BrokerGroup, observed: Observed) -> tuple[str, ...]:
    """Return the pods that are not as they would be made now.

    What no pod says cannot be compared: the first operator to write hashes restarts nothing.
    """
    wanted, asked_at = wish(group), _annotation(group, observed, names.RESTARTED_AT)
    return tuple(
        pod.name
        for pod in sorted(observed.pods.values(), key=lambda pod: pod.name)
        if pod.spec_hash not in ("", wanted) or (asked_at and pod.restarted_at != asked_at)
    )


def _is_templated(group: BrokerGroup, observed: Observed) -> bool:
    built = observed.children.get(("StatefulSet", group.name))
    if built is None or "deletionTimestamp" in built["metadata"]:
        return False
    seen = int(built.get("status", {}).get("observedGeneration", 0))
    is_current = _annotation(group, observed, names.SPEC_ANNOTATION) == wish(group)
    return is_current and seen >= int(built["metadata"].get("generation", 0))


def _annotation(group: BrokerGroup, observed: Observed, key: str) -> str:
    """Return what the template of the StatefulSet has under *key*."""
    built = observed.children.get(("StatefulSet", group.name))
    metadata = built["spec"]["template"].get("metadata") or {} if built else {}
    return str((metadata.get("annotations") or {}).get(key, ""))
