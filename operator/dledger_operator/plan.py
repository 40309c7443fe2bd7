"""What to do next: (group, observed) -> actions, in order. Pure and repeatable from any point.

The caller carries them out, observes again and asks again; an empty answer means converged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from dledger_operator import names, quantity
from dledger_operator.checks import problems
from dledger_operator.founding import (
    Adoptable,
    Cloned,
    Empty,
    Founded,
    Inconsistent,
    Lost,
    Waiting,
    founding,
)
from dledger_operator.observed import Observed, ref_of
from dledger_operator.spec import BrokerGroup, Manifest, Topic


@dataclass(frozen=True, slots=True)
class Apply:
    """Bring a child to this form by server-side apply."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class RecordGroupId:
    """Write the id into the status, provided that nobody wrote to the object meanwhile.

    *adopted* tells an id that volumes carry from a new one that the group is to be founded with.
    """

    group_id: str
    adopted: bool


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Tell the node of *pod* to found the group; *members* are (id, name, address)."""

    pod: str
    group_id: str
    members: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class LabelRole:
    """Label a pod with its role; an empty role takes the label off."""

    pod: str
    role: str


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic through the group's client port."""

    topic: Topic


Action = Apply | RecordGroupId | Bootstrap | LabelRole | CreateTopic


def plan(
    group: BrokerGroup, observed: Observed, desired: Sequence[Manifest], *, fresh_id: str
) -> tuple[Action, ...]:
    """Return the next actions.

    Args:
        group: What is wanted and what was recorded.
        observed: What is there.
        desired: The children as they should be, in order (`build.desired`).
        fresh_id: A new group id, used only if one has to be recorded.
    """
    if group.spec.paused:
        return ()
    roles = tuple(_roles(observed))
    if problems(group, observed):
        return roles
    return (
        *(Apply(manifest) for manifest in desired if _differs(observed, manifest)),
        *_found(group, observed, fresh_id),
        *roles,
        *_topics(group, observed),
    )


def includes(present: Any, wanted: Any) -> bool:
    """Whether *present* has everything that *wanted* asks for.

    Maps may have more keys, since the API server fills in defaults; lists have the same length.
    Quantities compare by value: the API server rewrites ``1000m`` as ``1``.
    """
    if isinstance(wanted, Mapping):
        return isinstance(present, Mapping) and all(
            includes(present.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(present, list | tuple)
            and len(present) == len(wanted)
            and all(includes(a, b) for a, b in zip(present, wanted, strict=True))
        )
    if present == wanted or (present is None and wanted in ("", 0, False)):
        return True
    return isinstance(present, str) and quantity.same(present, wanted)


def _differs(observed: Observed, manifest: Manifest) -> bool:
    present = observed.children.get(ref_of(manifest))
    return present is None or not includes(present, manifest)


def _found(group: BrokerGroup, observed: Observed, fresh_id: str) -> Iterator[Action]:
    match founding(group, observed):
        case Empty() if not group.group_id:
            yield RecordGroupId(fresh_id, adopted=False)
        case Empty():
            yield _bootstrap(group, observed)
        case Adoptable(group_id):
            yield RecordGroupId(group_id, adopted=True)
        case Empty() | Waiting() | Lost() | Founded() | Inconsistent() | Cloned():
            return
        case unknown:
            assert_never(unknown)


def _bootstrap(group: BrokerGroup, observed: Observed) -> Bootstrap:
    pods = [names.pod(group.name, n) for n in range(group.spec.replicas)]
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
        if node.joined
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


def _topics(group: BrokerGroup, observed: Observed) -> Iterator[CreateTopic]:
    if observed.topics is None or observed.leader is None:
        return
    for topic in group.spec.topics:
        if topic.name not in observed.topics and ("Topic", topic.name) not in observed.refusals:
            yield CreateTopic(topic)
