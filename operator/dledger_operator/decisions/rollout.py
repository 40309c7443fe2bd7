"""Which pod is restarted, so that all run what the spec asks for. Pure.

Pods that do not run at all, or never began to, come first, since their restart costs nothing: a
spec taken back heals what it broke, with a leader or without. The others are restarted as
`restarts` has it, so that one that does not come up halts the rollout by itself; and only while it
is the group's turn (`turns`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dledger_operator.decisions.disruptions import Disruption, Held, RestartPod, TransferLeader
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.restarts import remaining, restart_next
from dledger_operator.decisions.starts import mounts_missing, named_missing
from dledger_operator.observed.job_status import seconds_between

COMES_UP_S: Final = 300
"""A restarted pod that takes longer halts the rollout: as long as its startup probe gives it."""
OLDER: Final = "it runs an older template"
BROKEN: Final = "it does not run, and the template is another now"
ALONE: Final = "it runs an older template; clients wait until it is back"


def healing(facts: Facts) -> RestartPod | None:
    """Return the first pod of an older template that does not run; None without one."""
    return next(find_broken(facts), None)


def find_broken(facts: Facts) -> Iterator[RestartPod]:
    """Yield the restarts of all pods of an older template that do not run."""
    if not facts.is_templated or mounts_missing(facts):
        return
    for name in facts.older:
        if _is_broken(facts, name):
            uid = facts.observed.pods[name].uid
            yield RestartPod(pod=name, uid=uid, reason=BROKEN, is_broken=True)


def rollout(facts: Facts) -> Disruption | Held | None:
    """Return what comes next; None once no pod is of an older template."""
    if not facts.older:
        return None
    uids = {facts.observed.pods[name].uid for name in facts.older}
    if not facts.is_templated:
        waiting = remaining(facts, uids)[0]
        if said := mounts_missing(facts):
            return Held(waiting, said)
        return Held(waiting, "the StatefulSet has not the new template yet")
    step = restart_next(facts, uids, ALONE if facts.voters == 1 else OLDER)
    if facts.turn and isinstance(step, RestartPod | TransferLeader):
        return Held(step.pod if isinstance(step, RestartPod) else step.leader, facts.turn)
    return step


def is_rolling(facts: Facts) -> bool:
    """Whether a rollout is under way: pods are of an older template, or the last comes up."""
    if facts.older:
        return True
    rows = facts.group.status.get("conditions") or ()
    reasons = {row["reason"] for row in rows if row["type"] == "Progressing"}
    return bool(reasons & {"RollingOut", "RolloutHalted"}) and bool(coming_up(facts))


def coming_up(facts: Facts) -> tuple[str, ...]:
    """Return the pods that are not ready, or not in sync, with the new template or none at all."""
    pods = facts.observed.pods
    return tuple(
        name
        for name in facts.expected
        if name not in facts.older
        and (name not in pods or not pods[name].ready or name in facts.apart)
    )


def halted(facts: Facts, now: str) -> str:
    """Return which restarted pod does not come up, or what none could start without; else empty.

    What the operator makes itself is only waited for: it is missing for a moment in each group that
    is given certificates.

    Args:
        facts: What is seen.
        now: RFC 3339.
    """
    if not is_rolling(facts):
        return ""
    if facts.older and (said := named_missing(facts)):
        return said
    whys = (_not_up(facts, name, now) for name in coming_up(facts))
    return next(filter(None, whys), "")


def _not_up(facts: Facts, name: str, now: str) -> str:
    """Return why a pod that was restarted does not come up; empty if it may yet."""
    observed, pod = facts.observed, facts.observed.pods.get(name)
    if pod is None:
        why = observed.uncreated.get(name)
        return f"{name} cannot be created: {why}" if why else ""
    if pod.too_old:
        return f"{name}: {pod.too_old}"
    waits = observed.unstarted.get(name, "") if name in facts.stalled else ""
    if pod.stopped or waits:
        return f"{name} does not run: {'; '.join(filter(None, (pod.trouble, waits)))}"
    if pod.was_ready and name not in observed.nodes:
        return ""  # it came up; what it lacks is its machine, or the way there, and no template
    if pod.created_at and seconds_between(pod.created_at, now) >= COMES_UP_S:
        why = pod.trouble or "it is not ready, or not in sync"
        return f"{name} did not come up in {COMES_UP_S} s: {why}"
    return ""


def _is_broken(facts: Facts, name: str) -> bool:
    """Whether nothing of a pod runs, by Kubernetes' word and the nodes'.

    By a word that says so, or since its start takes longer than one does: then no node answered
    from it, and nothing is risked.
    """
    pod = facts.observed.pods[name]
    answers = name in facts.observed.nodes or name in facts.in_sync
    is_dead = pod.stopped or name in facts.stalled
    return is_dead and not (pod.ready or pod.terminating or answers)
