"""Whether a group was founded, as far as its volumes show. Pure; asked by plans and conditions.

The one decision that could lose all messages is made here: a group is founded only if every replica
answers, every disk is empty, and no leader was ever seen. Anything else is adopted or left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dledger.common.status import NodeStatus
from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.observed.observed import Observed


@dataclass(frozen=True, slots=True)
class Waiting:
    """Too few replicas answer to decide.

    Attributes:
        missing: The pods that do not answer.
        carried: The group id of each that answers and carries one.
    """

    missing: tuple[str, ...]
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Empty:
    """Every replica answers and none carries a group id: the group may be founded.

    All disks are empty, or the first has a log restored from a backup.
    """


@dataclass(frozen=True, slots=True)
class Lost:
    """Every disk is empty although the group was founded: it must not be founded again."""


@dataclass(frozen=True, slots=True)
class Adoptable:
    """Volumes carry one group id, and no group was founded with the recorded one, if any.

    Their id is recorded, and nothing is founded.
    """

    group_id: str


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """Every id that is carried is the recorded one.

    Attributes:
        joining: Unjoined pods that the leader will bring in by itself.
        replaced: Unjoined pods under the name of a member whose disk had another node id.
    """

    joining: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Inconsistent:
    """Volumes carry other ids than the recorded one, or than each other: pod to group id."""

    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotRestored:
    """No disk is in a group, and they are not what a restored group begins with.

    That is a restored log on the first disk and nothing on the others; *restored* names the pods
    that have one.
    """

    restored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cloned:
    """Several pods show one node id: a disk was copied. Names of the pods."""

    pods: tuple[str, ...]


BootstrapState = (
    Waiting | Empty | Lost | Adoptable | Bootstrapped | Inconsistent | Cloned | NotRestored
)


def bootstrap_state(group: BrokerGroup, observed: Observed) -> BootstrapState:
    """Return the state of a group's bootstrap, from what its nodes report."""
    nodes = observed.nodes
    if cloned := _cloned(nodes):
        return Cloned(cloned)
    carried = {name: node.group_id for name, node in nodes.items() if node.group_id}
    wanted = [names.pod(group.name, n) for n in range(group.pods)]
    missing = tuple(name for name in wanted if name not in nodes)
    if not carried:
        if missing:
            return Waiting(missing)
        return Lost() if group.bootstrapped else _not_bootstrapped(group, nodes)
    ids = set(carried.values())
    if len(ids) > 1 or (group.bootstrapped and ids != {group.group_id or next(iter(ids))}):
        return Inconsistent(carried)
    if ids == {group.group_id}:
        return _bootstrapped(observed)
    enough = not missing or 2 * len(carried) > group.pods
    return Adoptable(ids.pop()) if enough else Waiting(missing, carried)


def _not_bootstrapped(group: BrokerGroup, nodes: Mapping[str, NodeStatus]) -> Empty | NotRestored:
    """Return whether the group may be founded: never an empty one where a backup was asked for."""
    restored = tuple(sorted(name for name, node in nodes.items() if node.recovered_to))
    expected = (names.pod(group.name, 0),) if restored or group.recovers else ()
    return Empty() if restored == expected else NotRestored(restored)


def _cloned(nodes: Mapping[str, NodeStatus]) -> tuple[str, ...]:
    ids = [node.node_id for node in nodes.values()]
    return tuple(sorted(name for name, node in nodes.items() if ids.count(node.node_id) > 1))


def _bootstrapped(observed: Observed) -> Bootstrapped:
    members = observed.membership
    ids = {row.member.id for row in members}
    member_names = {row.member.name for row in members}
    joining, replaced = [], []
    for name, node in sorted(observed.nodes.items()):
        if node.group_id:
            continue
        if not members or node.node_id in ids:
            joining.append(name)
        elif name in member_names:
            replaced.append(name)
    return Bootstrapped(tuple(joining), tuple(replaced))
