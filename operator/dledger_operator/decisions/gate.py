"""Whether a group can bear an act now: the one gate of all that costs it some safety. Pure.

Restarts, rollouts, operations, changes of the members and replacements of lost disks ask `hold`,
and nothing else says whether they may. A voter *stands* if the leader finds it in sync, its node
answers the operator, and its pod is ready and not being deleted: one that ends still answers for
its drain, and is in sync until the very end. An act waits for each voter that it relies on to
stand, so that never more than one is on its way out or in by the operator's doing.

Two acts do not ask: `rollout.healing`, since nothing runs in its pods, and `forcing`, which is for
groups that have no majority left to rely on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

from dledger_operator.decisions.bootstrap_state import Bootstrapped
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.starts import mounts_missing, unmountable


@dataclass(frozen=True, slots=True)
class Restart:
    """A pod ends, and comes back with its disk."""

    pod: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The leader hands over to this voter."""

    to: str


@dataclass(frozen=True, slots=True)
class Enter:
    """One more member is let in."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The claim of one of these members is deleted, and its pod starts with an empty disk."""

    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Replace:
    """An empty disk takes the place of one of these members, whose disks are gone."""

    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Leave:
    """A member leaves that the spec does not ask for."""

    member: str


@dataclass(frozen=True, slots=True)
class Spare:
    """Something goes that is no member's, or was one's that has left."""


Act = Restart | HandOver | Enter | GiveUp | Replace | Leave | Spare


def hold(facts: Facts, act: Act) -> str:
    """Return why an act has to wait, and for whom; empty if it may be done now."""
    match act:
        case Restart(pod):
            why = _tell_unsettled(facts) or _restart_held(facts, pod)
        case HandOver(to):
            why = _tell_unsettled(facts) or _hand_over_held(facts, to)
        case Enter():
            why = _tell_unsettled(facts) or _under_way(facts) or _waited_for(facts, _voters(facts))
        case GiveUp(members) | Replace(members):
            missing = mounts_missing(facts) if isinstance(act, GiveUp) else ""
            why = _majority_lost(facts, members) or _tell_unsettled(facts) or missing
            why = why or _replacement_held(facts, members)
        case Leave(member):
            why = _tell_unsettled(facts) or _leave_held(facts, member)
        case Spare():
            why = _tell_unsettled(facts)
        case unknown:
            assert_never(unknown)
    return why


def standing(facts: Facts) -> frozenset[str]:
    """Return the voters that are in sync, and on no way out of it that anybody knows of."""
    return frozenset(name for name in facts.in_sync if not _fault(facts, name))


def refused(facts: Facts, name: str) -> str:
    """Return what was refused lately about a member, and is not tried yet; empty if nothing."""
    said = facts.observed.refusals.get(("Member", name), "")
    return f"it was refused: {said}" if said else ""


def _tell_unsettled(facts: Facts) -> str:
    """Return why a group is not to be touched at all; empty if it may be."""
    leader = facts.observed.leader
    reasons = (
        (facts.group.spec.paused, "the group is paused"),
        (not facts.group.bootstrapped, "the group is not founded"),
        (bool(facts.problems) and not facts.is_kept, "the spec is refused"),
        (not isinstance(facts.bootstrap, Bootstrapped), "the disks do not agree about their group"),
        (
            leader is None or leader[0] != facts.leader,
            "no leader answers that a majority follows",
        ),
    )
    return next((why for applies, why in reasons if applies), "")


def _restart_held(facts: Facts, name: str) -> str:
    """Return why a pod that may run is not to be restarted now; empty if it may be.

    All other pods that should be there have to be, voters or not. A group of one is down meanwhile,
    which nothing can change.
    """
    if facts.voters == 2:
        return "writes would stop: two voters cannot do without one"
    if why := unmountable(facts, name) or _certificate_held(facts, name):
        return why
    if why := _under_way(facts, frozenset({name})):
        return why
    others = {*_voters(facts), *facts.expected} - {name}
    if why := _waited_for(facts, others):
        return why
    pod = facts.observed.pods[name]
    return f"it is {pod.deletion}" if pod.terminating else ""


def _hand_over_held(facts: Facts, to: str) -> str:
    """Return why the leader may not hand over; empty if it may.

    One that is slow or ends may have to, so voters that do not stand hold it only as a majority.
    """
    if why := _under_way(facts) or _waited_for(facts, {to}):
        return why
    if to not in facts.in_sync:
        return f"no voter: {to}"
    stand, voters = len(standing(facts)), len(_voters(facts))
    return "" if 2 * stand > voters else f"{stand} of {voters} voters stand, no majority"


def _majority_lost(facts: Facts, members: frozenset[str]) -> str:
    """Return that too few disks are left to change anything by; empty if a majority is.

    Nothing else is worth telling then: it is what keeps the group from having a leader.
    """
    voters = _voters(facts)
    left = [name for name in voters if name not in members]
    if 2 * len(left) > len(voters):
        return ""
    return (
        f"the disks of {len(left)} of {len(voters)} voters are left, no majority; a "
        "BrokerOperation ForceNewGroup shows what is left, and can make that the group"
    )


def _replacement_held(facts: Facts, members: frozenset[str]) -> str:
    """Return why these members cannot be done without; empty if they can: all others stand.

    One that is to leave need not, where these are down already and a majority stands all the same:
    it waits for them to stand before it leaves, and each would wait for the other for ever.
    """
    left = {name for name in _voters(facts) if name not in members}
    stand = standing(facts)
    is_costless = members.isdisjoint(stand) and 2 * len(left & stand) > len(_voters(facts))
    relied_on = left - {*facts.leaving} if is_costless else left
    return _under_way(facts, members) or _waited_for(facts, relied_on)


def _leave_held(facts: Facts, name: str) -> str:
    """Return why a member that the spec does not ask for may not leave now; empty if it may.

    All voters that stay for good must stand, whatever is wrong with others that are to leave; and
    there must be a majority of the voters before, and of those after. A learner has no say, so that
    it may go at any time.
    """
    voters = _voters(facts)
    if name not in voters:
        return _under_way(facts, frozenset(_learners(facts)))
    staying = [one for one in voters if one not in facts.leaving]
    if why := _under_way(facts) or _waited_for(facts, staying):
        return why
    there = standing(facts)
    left = there - {name}
    if 2 * len(there) > len(voters) and 2 * len(left) > len(voters) - 1:
        return ""
    return f"{len(there)} of {len(voters)} voters are in sync, too few to lose one"


def _under_way(facts: Facts, but: frozenset[str] = frozenset()) -> str:
    """Return that another change of the members is not over, but for these; empty if none is."""
    known = [row.member.name for row in facts.observed.membership]
    learners = sorted(_learners(facts) - but - set(facts.leaving))
    if learners or len(set(known)) < len(known):
        return f"another change of the members is under way: {', '.join(learners) or 'not over'}"
    return ""


def _certificate_held(facts: Facts, name: str) -> str:
    lacks = name in facts.observed.certificates.lacking
    return "its certificate is not made yet: it could not start" if lacks else ""


def _waited_for(facts: Facts, relied_on: Collection[str]) -> str:
    """Return who of these does not stand, and why; empty if all do."""
    found: dict[str, list[str]] = {}
    for name in sorted(relied_on):
        if why := _fault(facts, name):
            found.setdefault(why, []).append(name)
    return "; ".join(f"{why}: {', '.join(members)}" for why, members in found.items())


def _fault(facts: Facts, name: str) -> str:
    """Return why a member does not stand; empty if it does."""
    pod = facts.observed.pods.get(name)
    reasons = (
        (name in facts.apart, "not in sync"),
        (pod is not None and pod.terminating, "being deleted"),
        (pod is None or not pod.ready, "not ready"),
        (name not in facts.observed.nodes, "no answer from"),
    )
    return next((why for applies, why in reasons if applies), "")


def _voters(facts: Facts) -> list[str]:
    return [row.member.name for row in facts.observed.membership if row.voter]


def _learners(facts: Facts) -> set[str]:
    return {row.member.name for row in facts.observed.membership if not row.voter}
