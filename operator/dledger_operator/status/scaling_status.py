"""What the condition Progressing says while a group is scaled out or in. Pure."""

from __future__ import annotations

from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.disruptions import Held, RemoveMember, ReplaceClaim, TransferLeader
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.scaling import scaling
from dledger_operator.status.findings import Finding, pod_said


def scaling_progress(facts: Facts) -> Finding | None:
    """Return how far a founded group is on its way to another size; None if it is not on one."""
    if facts.entering:
        return "True", Reason.SCALING_OUT, _out(facts)
    if facts.leaving or len(facts.wanted) > len(facts.asked):
        return "True", Reason.SCALING_IN, _in(facts)
    return None


def is_catching_up(facts: Facts, name: str) -> bool:
    """Whether a pod is a new member that copies the log, which takes as long as it takes."""
    return name in facts.entering and name in _members(facts)


def _out(facts: Facts) -> str:
    asked, members = facts.asked, _members(facts)
    votes = sum(name in members and name not in facts.entering for name in asked)
    found = f"{votes} of {len(asked)} members vote"
    if learning := [name for name in facts.entering if name in members]:
        return f"{found}; {', '.join(pod_said(facts, name) for name in learning)} is catching up"
    step = scaling(facts)
    if isinstance(step, Held):
        return f"{found}; {step.pod} waits: {_why(facts, step)}"
    if isinstance(step, ReplaceClaim):
        return f"{found}; {step.pod} gets an empty disk, since that of {step.claim} left the group"
    if step is None:
        waiting = ", ".join(pod_said(facts, name) for name in facts.entering)
        return f"{found}; no new member yet: {waiting}"
    return f"{found}; {facts.entering[0]} is next"


def _in(facts: Facts) -> str:
    voters = [row for row in facts.observed.membership if row.voter]
    found = f"{len(voters)} members vote, {len(facts.asked)} are asked for"
    step = scaling(facts)
    if isinstance(step, Held):
        return f"{found}; {step.pod} stays for now: {_why(facts, step)}"
    if isinstance(step, TransferLeader):
        return f"{found}; next {step.leader}, after it handed over"
    if isinstance(step, RemoveMember):
        return f"{found}; next {step.pod}"
    gone = ", ".join(name for name in facts.wanted if name not in facts.asked)
    return f"{found}; pods to go: {gone}"


def _why(facts: Facts, step: Held) -> str:
    return "the group is paused" if facts.group.spec.paused else step.why


def _members(facts: Facts) -> frozenset[str]:
    return frozenset(row.member.name for row in facts.observed.membership)
