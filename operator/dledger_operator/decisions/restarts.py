"""How pods that run are restarted without losing a quorum: in which order, and when not. Pure.

One at a time, and only while all other voters are in sync and their pods ready: first those that
are not in sync, then followers, the leader last, after it handed over. So a pod that does not come
up stops what restarts them by itself.
"""

from __future__ import annotations

from collections.abc import Collection

from dledger_operator.decisions.disruptions import Disruption, Held, RestartPod, TransferLeader
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.membership import change_held


def remaining(facts: Facts, uids: Collection[str]) -> list[str]:
    """Return the pods that are still the ones with these uids, in the order to restart them.

    Those out of sync first, then followers from the highest ordinal down, the leader last.
    """
    left = [name for name, pod in facts.observed.pods.items() if pod.uid in uids]
    left.sort(reverse=True)
    return sorted(left, key=lambda name: (name == facts.leader, name in facts.in_sync))


def restart_next(facts: Facts, uids: Collection[str], reason: str) -> Disruption | Held | None:
    """Return the next step in restarting pods one at a time; None when none is left.

    Args:
        facts: What is seen.
        uids: Those of the pods to restart; another pod of the same name is done already.
        reason: What it is for, as a whole clause.
    """
    left = remaining(facts, uids)
    if not left:
        return None
    name = left[0]
    if why := _restart_held(facts, name):
        return Held(name, why)
    if name == facts.leader and facts.voters > 1:
        return hand_over(facts, reason)
    return RestartPod(pod=name, uid=facts.observed.pods[name].uid, reason=reason)


def hand_over(facts: Facts, reason: str, *, to: str = "") -> TransferLeader | Held:
    """Return the change of the leader to the member *to*; empty lets the leader choose."""
    observed = facts.observed
    if observed.leader is None:
        return Held(to or facts.leader, "the leader does not answer")
    ids = {row.member.name: str(row.member.id) for row in observed.membership}
    name, node = observed.leader
    return TransferLeader(leader=name, term=node.term, to=to, to_id=ids.get(to, ""), reason=reason)


def refused(facts: Facts, name: str) -> str:
    """Return what was refused lately about a member, and is not tried yet; empty if nothing."""
    said = facts.observed.refusals.get(("Member", name), "")
    return f"it was refused: {said}" if said else ""


def _certificate_held(facts: Facts, name: str) -> str:
    lacks = name in facts.observed.certificates.lacking
    return "its certificate is not made yet: it could not start" if lacks else ""


def _restart_held(facts: Facts, name: str) -> str:
    """Return why a pod that may run is not to be restarted now; empty if it may be.

    A group of one is down meanwhile, which nothing can change.
    """
    if why := refused(facts, name) or _certificate_held(facts, name):
        return why
    if not facts.leader:
        return "no leader answers that a majority follows"
    if facts.voters == 2:
        return "writes would stop: two voters cannot do without one"
    if why := change_held(facts, frozenset({name} if facts.voters > 1 else ())):
        return why
    pods = facts.observed.pods
    if pods[name].terminating:
        return "it is being deleted"
    down = [
        other
        for other in facts.expected
        if other != name and (other not in pods or not pods[other].ready or pods[other].terminating)
    ]
    return f"not ready: {', '.join(down)}" if down else ""
