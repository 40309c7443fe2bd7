"""What conditions are made of: a finding, and what is said of a pod in one. Pure."""

from __future__ import annotations

from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.facts import Facts

Finding = tuple[str, Reason, str]
"""Status (True, False, Unknown), reason and message of a condition."""


def pod_said(facts: Facts, name: str) -> str:
    """Return a pod's name, with why it does not run or is not ready where that is known."""
    pod, node = facts.observed.pods.get(name), facts.observed.nodes.get(name)
    if pod is None:
        refused = facts.observed.uncreated.get(name)
        return f"{name} (no pod: {refused})" if refused else f"{name} (no pod)"
    said = facts.observed.disbelieved.get(name, "") or (node.not_ready_reason if node else "")
    why = pod.trouble or said
    return f"{name} ({why})" if why else name
