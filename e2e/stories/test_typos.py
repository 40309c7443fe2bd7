"""A typo in a spec, corrected a minute later: told by name, healed by the correction."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.cluster.image import Image
from e2e.cluster.pki import Authority
from e2e.harness.pod_watch import is_ready
from e2e.harness.world import BrokerGroup, Namespace, eventually, group_manifest
from e2e.stories.traffic import begin, end

pytestmark = pytest.mark.long

RIGHT = "orders-clients"
TYPO = "orders-cleints"
TOLD_S = 120.0
"""A pod is given 30 s to start, and a kubelet says what it waits for every two minutes at worst."""
HEALED_S = 240.0


def _tls(secret: str) -> dict[str, Any]:
    return {"tls": {"enabled": True, "secretName": secret}}


def _certificate() -> dict[str, Any]:
    """Return the clients' certificate as whoever has typed its name made it."""
    pair = Authority("clients").issue("orders", hosts=("orders",))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": RIGHT},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": pair.certificate, "tls.key": pair.key},
    }


def _wait_told(group: BrokerGroup, kind: str, *words: str) -> None:
    def is_told() -> bool:
        said = group.condition(kind).get("message", "")
        return all(word in said for word in words)

    eventually(f"{kind} says {', '.join(words)}", is_told, TOLD_S)


@pytest.mark.parametrize("replicas", [3, 1])
def test_a_typo_in_a_secrets_name_costs_no_pod(
    namespace: Namespace, workload_image: Image, replicas: int
) -> None:
    """Found: S1. In a group's first spec, and in a running group whose machines lose power."""
    namespace.apply(_certificate(), group_manifest("orders", replicas=replicas, **_tls(TYPO)))
    group = namespace.group("orders")
    _wait_told(group, "Degraded", f"Secret {TYPO} does not exist", "spec.tls.secretName")
    _wait_told(group, "Ready", "orders-0", "FailedMount", TYPO)
    group.wait_settled(group.change(**_tls(RIGHT)), HEALED_S)
    before = group.uids()
    traffic = begin(namespace, workload_image)

    group.change(**_tls(TYPO))
    eventually(
        "the rollout halts",
        lambda: group.condition("Progressing").get("reason") == "RolloutHalted",
        TOLD_S,
    )
    _wait_told(group, "Degraded", f"Secret {TYPO} does not exist", "make it, or name another")
    assert group.uids() == before, "a pod was restarted that could not start again"
    for pod in before:
        group.kill_pod(pod)
    group.wait_others(before, is_ready, HEALED_S)
    after = group.uids()
    group.wait_settled(group.change(**_tls(RIGHT)), HEALED_S)
    end(traffic)

    assert group.uids() == after
