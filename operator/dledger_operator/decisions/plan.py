"""What to do next: facts -> actions, in order. Pure and repeatable from any point.

The caller carries them out, observes again and asks again; an empty answer means converged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, assert_never

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.decisions.actions import (
    Action,
    Apply,
    Bootstrap,
    Create,
    Forget,
    LabelRole,
    LookAgain,
    MarkRestored,
    RecordGroupId,
    Repair,
)
from dledger_operator.decisions.bootstrap_state import (
    Adoptable,
    Bootstrapped,
    Cloned,
    Empty,
    Inconsistent,
    Lost,
    NotRestored,
    Waiting,
)
from dledger_operator.decisions.checks import backup_problems, round_problems
from dledger_operator.decisions.compacting import compacted_topics
from dledger_operator.decisions.disruptions import (
    NO_FOOTING,
    Disruption,
    Footing,
    Held,
    RestartPod,
)
from dledger_operator.decisions.drift import additions, correction, drifts, includes
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.gate import standing
from dledger_operator.decisions.growth import as_built, growth
from dledger_operator.decisions.losses import lost_disk
from dledger_operator.decisions.membership import replacement
from dledger_operator.decisions.operations import ordinary, urgent
from dledger_operator.decisions.recovery import (
    NoClaim,
    NoJob,
    NotRestoring,
    Restored,
    RestoreFailed,
    Restoring,
    blocks_nodes,
)
from dledger_operator.decisions.rollout import find_broken, healing, rollout
from dledger_operator.decisions.scaling import scaling
from dledger_operator.decisions.starts import would_stick
from dledger_operator.decisions.topics import topic_deletion, topics
from dledger_operator.observed.observed import Observed, ref_of
from dledger_operator.resources import accepted
from dledger_operator.resources.backup import scheduled_backup
from dledger_operator.resources.common import hash_of
from dledger_operator.resources.compaction import scheduled_round
from dledger_operator.resources.configmap import configured_group_id
from dledger_operator.resources.recovery import recovery_claim, recovery_job
from dledger_operator.resources.statefulset import pods_asked


def plan(
    facts: Facts,
    desired: Sequence[Manifest],
    *,
    fresh_id: str,
    footing: Footing = NO_FOOTING,
) -> tuple[Action, ...]:
    """Return the next actions; at most one cannot be undone, and it is the last.

    Args:
        facts: What is wanted, what is there, and what follows from it.
        desired: The children as they should be, in order (`resources.desired`).
        fresh_id: A new group id, used only if one has to be recorded.
        footing: How fresh the facts are.
    """
    group, observed = facts.group, facts.observed
    if group.spec.paused:
        return ()
    roles = tuple(_roles(observed))
    scheduled = (*_scheduled_backup(group, observed), *_scheduled_round(group, observed))
    if facts.problems and not facts.is_kept:
        return (*roles, *scheduled)
    blocked = _blocked_kinds(facts)
    wanted = (manifest for manifest in desired if manifest["kind"] not in blocked)
    return (
        *_accepted(facts),
        *(action for m in wanted for action in _child(facts, m)),
        *_services_left(group, observed),
        *_recover(facts),
        *_found(facts, fresh_id),
        *roles,
        *topics(facts),
        *scheduled,
        *growth(group, observed),
        *_disruptive(facts, footing),
    )


_DISRUPTIONS: Final[tuple[Callable[[Facts], Disruption | Held | None], ...]] = (
    urgent,
    healing,
    lost_disk,
    replacement,
    ordinary,
    scaling,
    topic_deletion,
    rollout,
)
"""What may cost a group some safety, the most urgent first; one that is held holds later ones, but
for the restart of a pod that it may be waiting for.

A rollout comes last: it may wait for those of other groups for long.
"""


def next_disruption(facts: Facts) -> Disruption | Held | None:
    """Return what may cost the group some safety and comes first; None if nothing is to be done."""
    wanted = (found for each in _DISRUPTIONS if (found := each(facts)) is not None)
    first = next(wanted, None)
    return (_mend(facts, first) or first) if isinstance(first, Held) else first


def _mend(facts: Facts, held: Held) -> RestartPod | None:
    """Return the restart of a pod that may be what is waited for; None if that would help nobody.

    The pod of a survivor that does not run, and one of an older template that does not stand: the
    template may be why, and who waits for it to stand would hold it up for ever.
    """
    for restart in find_broken(facts):
        if restart.pod == held.pod:
            return restart
    match rollout(facts):
        case RestartPod(pod=pod) as restart if pod not in standing(facts):
            return restart
    return None


def _disruptive(facts: Facts, footing: Footing) -> Iterator[LookAgain | Disruption]:
    """Yield at most one action that cannot be undone, once two rounds have asked for it."""
    action = next_disruption(facts)
    if action is not None and not isinstance(action, Held):
        yield action if footing.carries(action) else LookAgain(action)


def _accepted(facts: Facts) -> Iterator[Create | Forget]:
    """Keep the spec that a group is built by, and no older one."""
    if facts.problems or not _is_built(facts.group, facts.observed):
        return
    recorded = accepted.accepted_image(facts.observed.children.values())
    image = recorded or ("" if facts.group.spec.image else facts.group.kept_image)
    wanted = accepted.accepted_revision(facts.group, image=image)
    if ref_of(wanted) not in facts.observed.children:
        yield Create(wanted)
        return
    for ref, child in facts.observed.children.items():
        if ref[0] == accepted.KIND and ref != ref_of(wanted):
            yield Forget(ref[1], child["metadata"]["uid"])


def _services_left(group: BrokerGroup, observed: Observed) -> Iterator[Forget]:
    """Delete the Services of pods that went with their members."""
    built = observed.children.get(("StatefulSet", group.name))
    if built is None or pods_asked(built) > group.pods:
        return
    for ordinal in range(group.pods, names.MOST_REPLICAS):
        name = names.pod_service(group.name, ordinal)
        if (child := observed.children.get(("Service", name))) is not None:
            yield Forget(name, child["metadata"].get("uid", ""), kind="Service")


def _blocked_kinds(facts: Facts) -> frozenset[str]:
    """Return the kinds of children that are not made yet.

    Nodes are started with the id of the group they may join, so they wait for it, and for a
    recovery.
    """
    if not facts.group.group_id:
        return frozenset({"ConfigMap", "StatefulSet"})
    return frozenset({"StatefulSet"} if blocks_nodes(facts.recovery) else ())


def _child(facts: Facts, wanted: Manifest) -> Iterator[Apply | Repair]:
    """Bring a child to its form: by applying it if we changed our mind, else by undoing.

    What we apply leaves alone what others own, so that is undone before.
    """
    present = facts.observed.children.get(ref_of(wanted))
    wanted = as_built(wanted, present)
    if present is None:
        yield Repair(wanted) if _was_made(facts, wanted) else Apply(wanted)
        return
    found = drifts(present, wanted)
    if would_stick(facts, wanted["kind"]):
        return
    owners = (each["metadata"].get("ownerReferences") for each in (present, wanted))
    is_new = hash_of(present) != hash_of(wanted) or not includes(*owners)
    if (found and not is_new) or additions(present, wanted):
        told = tuple(each for each in found if each.writer or not is_new)
        yield Repair(wanted, correction(present, wanted), told)
    if is_new:
        yield Apply(_as_seen(wanted, present))


def _was_made(facts: Facts, wanted: Manifest) -> bool:
    """Whether a child that is missing was there once: not the Service of a pod that comes first.

    Services are made before the StatefulSet asks for their pods.
    """
    group = facts.group
    built = facts.observed.children.get(("StatefulSet", group.name))
    pods = pods_asked(built) if built else group.pods
    coming = [("Service", names.pod_service(group.name, n)) for n in range(pods, group.pods)]
    return group.bootstrapped and ref_of(wanted) not in coming


def _as_seen(wanted: Manifest, present: Manifest) -> Manifest:
    """Return a StatefulSet that is applied only to what was seen.

    Its number of pods rests on that: one asked for more meanwhile must not lose members' pods.
    """
    version = present["metadata"].get("resourceVersion")
    if wanted["kind"] != "StatefulSet" or not version:
        return wanted
    return {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}


def differs(present: Manifest | None, wanted: Manifest) -> bool:
    """Whether an object has to be applied."""
    return present is None or not includes(present, wanted)


def _recover(facts: Facts) -> Iterator[Action]:
    """Restore the first volume before there are nodes."""
    group = facts.group
    match facts.recovery:
        case NoClaim():
            yield Create(recovery_claim(group))
        case NoJob():
            yield Create(recovery_job(group))
        case Restored(result):
            yield MarkRestored(names.claim(group.name, 0), result)
        case NotRestoring() | Restoring() | RestoreFailed():
            return
        case unknown:
            assert_never(unknown)


def _scheduled_backup(group: BrokerGroup, observed: Observed) -> Iterator[Create]:
    """Make the backup that is due, even if something else is wrong with the spec."""
    if observed.due and group.bootstrapped and not backup_problems(group):
        yield Create(scheduled_backup(group, observed.due))


def _scheduled_round(group: BrokerGroup, observed: Observed) -> Iterator[Create]:
    """Make the round of compaction that is due; without a compacted topic there is none to make."""
    wanted = observed.round_due and compacted_topics(observed.topics)
    if wanted and group.bootstrapped and not round_problems(group):
        yield Create(scheduled_round(group, observed.round_due))


def _found(facts: Facts, fresh_id: str) -> Iterator[Action]:
    group, observed = facts.group, facts.observed
    if not group.group_id and not _is_built(group, observed):
        if not blocks_nodes(facts.recovery):
            yield RecordGroupId(fresh_id, adopted=False)
        return
    match facts.bootstrap:
        case Empty() if not group.group_id:
            yield RecordGroupId(_configured_group_id(group, observed) or fresh_id, adopted=False)
        case Empty():
            yield _bootstrap(group, observed)
        case Adoptable(group_id):
            yield RecordGroupId(group_id, adopted=True)
        case Waiting() | Lost() | Bootstrapped() | Inconsistent() | Cloned() | NotRestored():
            return
        case unknown:
            assert_never(unknown)


def _is_built(group: BrokerGroup, observed: Observed) -> bool:
    return ("StatefulSet", group.name) in observed.children


def _configured_group_id(group: BrokerGroup, observed: Observed) -> str:
    """Return the id that the nodes were started with, in case the status that had it was lost."""
    config = observed.children.get(("ConfigMap", names.config_map(group.name)))
    return configured_group_id(config["data"]) if config else ""


def _bootstrap(group: BrokerGroup, observed: Observed) -> Bootstrap:
    pods = [names.pod(group.name, n) for n in range(group.pods)]
    members = tuple(
        (observed.nodes[pod].node_id, pod, names.peer_address(group.namespace, group.name, pod))
        for pod in pods
    )
    return Bootstrap(pod=pods[0], group_id=group.group_id, members=members)


def _roles(observed: Observed) -> Iterator[LabelRole]:
    """Relabel by what the nodes say now; a new leader comes first, then the old one."""
    leader = observed.leader
    wanted = {
        name: ("leader" if leader and name == leader[0] else "follower")
        for name, node in observed.nodes.items()
        if node.group_id
    }
    changes = [
        LabelRole(name, role)
        for name, role in sorted(wanted.items())
        if name in observed.pods and observed.pods[name].role != role
    ]
    stale = [
        LabelRole(name, "")
        for name, pod in sorted(observed.pods.items())
        if leader and pod.role == "leader" and name not in wanted
    ]
    yield from sorted(changes, key=lambda change: change.role != "leader")
    yield from stale
