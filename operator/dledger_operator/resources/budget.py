"""The PodDisruptionBudget: evictions take one node at a time, never a majority. Pure."""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources.common import metadata


def budget(group: BrokerGroup) -> Manifest:
    """Return the budget.

    A pod that is not ready counts as disrupted, so a second one is not evicted while one is down.
    A group of one allows its only pod to be evicted: else its machine could never be drained.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(group, group.name),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(group.name)},
        },
    }
