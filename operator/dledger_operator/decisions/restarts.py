"""How pods that run are restarted without losing a quorum: in which order, and when not. Pure.

One at a time, and only while all others stand (`gate`): first those that do not, then followers,
the leader last, after it handed over. So a pod that does not come up stops what restarts them by
itself.
"""

from __future__ import annotations

from collections.abc import Collection

from dledger_operator.decisions.disruptions import Disruption, Held, RestartPod, TransferLeader
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.gate import Restart, hold, refused, standing


def remaining(facts: Facts, uids: Collection[str]) -> list[str]:
    """Return the pods that are still the ones with these uids, in the order to restart them.

    Those that do not stand first, then followers from the highest ordinal down, the leader last.
    """
    left = [name for name, pod in facts.observed.pods.items() if pod.uid in uids]
    left.sort(reverse=True)
    stand = standing(facts)
    return sorted(left, key=lambda name: (name == facts.leader, name in stand))


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
    if why := refused(facts, name) or hold(facts, Restart(name)):
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
