"""What conditions are made of: a finding, and what is said of a pod in one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.recovery import RestoreFailed, Restoring

Finding = tuple[str, Reason, str]
"""Status (True, False, Unknown), reason and message of a condition."""


def pod_said(facts: Facts, name: str) -> str:
    """Return a pod's name, with why it does not run or is not ready where that is known."""
    pod, node = facts.observed.pods.get(name), facts.observed.nodes.get(name)
    unstarted = facts.observed.unstarted.get(name, "")
    if pod is None:
        refused = facts.observed.uncreated.get(name)
        return f"{name} (no pod: {refused})" if refused else f"{name} (no pod)"
    said = facts.observed.disbelieved.get(name, "") or (node.not_ready_reason if node else "")
    why = pod.trouble or said
    if name in facts.stalled:
        why = "; ".join(filter(None, (f"does not run since {pod.idle_since}", why, unstarted)))
    if pod.terminating:
        why = pod.deletion
    return f"{name} ({why})" if why else name


def recovery_sentence(facts: Facts) -> str:
    """Return how far the first volume is restored, or why it cannot be."""
    match facts.recovery:
        case RestoreFailed(error):
            return f"the first volume could not be restored: {error}"
        case Restoring(note) if note:
            return f"the first volume is being restored ({note})"
        case _:
            return "the first volume is being restored"


def not_ready(facts: Facts) -> list[str]:
    """Return the pods that the spec asks for and that are absent, not ready, or deleted."""
    pods = facts.observed.pods
    return [n for n in facts.asked if n not in pods or not pods[n].ready or pods[n].terminating]


def each_said(words: Mapping[str, str], verb: str = "") -> str:
    """Return what is said of each pod, in their order."""
    between = f" {verb} " if verb else ": "
    return "; ".join(f"{name}{between}{said}" for name, said in sorted(words.items()))


def pods_said(facts: Facts, wanted: Iterable[str]) -> str:
    """Return the names of pods, each with why it does not run or is not ready."""
    return ", ".join(pod_said(facts, name) for name in wanted)
