"""How many pods a group has now, and which members come and go since it is scaled. Pure.

A group that is to have more members gets their pods first. One that is to have fewer keeps each pod
until its member has left, which `scaling` asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dledger_operator.api import names
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.observed.observed import Observed
from dledger_operator.resources.statefulset import pods_asked


def pods_now(group: BrokerGroup, observed: Observed, *, is_led: bool) -> int:
    """Return how many pods there should be: never fewer than before, which takes `RetirePods`.

    Args:
        group: With the spec that is acted on.
        observed: What is there.
        is_led: Whether a majority follows the leader, so that its word on the members counts.
    """
    built = observed.children.get(("StatefulSet", group.name))
    least = max(group.spec.replicas, pods_asked(built) if built else 0)
    members: Iterable[Any] = ()
    if is_led:
        members = [row.member.name for row in observed.membership]
    elif built is None and group.bootstrapped:
        members = [row["name"] for row in group.status.get("members") or ()]
    return max(least, 1 + highest(group, members))


def highest(group: BrokerGroup, members: Iterable[str]) -> int:
    """Return the highest ordinal among *members*; -1 if none of them is a replica."""
    return max((names.ordinal(group.name, name) for name in members), default=-1)


def leaving(group: BrokerGroup, observed: Observed) -> tuple[str, ...]:
    """Return the members, learners too, that the spec does not ask for, from the top."""
    found = {row.member.name for row in observed.membership}
    count = group.spec.replicas
    beyond = {name for name in found if names.ordinal(group.name, name) >= count}
    return tuple(sorted(beyond, key=lambda name: -names.ordinal(group.name, name)))


def entering(group: BrokerGroup, observed: Observed) -> tuple[str, ...]:
    """Return the pods that are to become voters since the group grows, from the lowest.

    A learner may be one whose disk was lost instead. Which it is shows in what the status said
    before; if that is lost, it is taken for the loss.
    """
    rows = observed.membership
    voters = {row.member.name for row in rows if row.voter}
    if not voters:
        return ()
    known = {row.member.name for row in rows}
    top, was_growing = highest(group, voters), _was_growing(group)
    recorded = {row["name"] for row in group.status.get("members") or () if row.get("joining")}
    return tuple(
        name
        for ordinal in range(group.spec.replicas)
        if (name := names.pod(group.name, ordinal)) not in voters
        and (name not in known or name in recorded or (was_growing and ordinal > top))
    )


def _was_growing(group: BrokerGroup) -> bool:
    rows = group.status.get("conditions") or ()
    return any(r["type"] == "Progressing" and r["reason"] == Reason.SCALING_OUT for r in rows)
