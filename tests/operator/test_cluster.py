"""Objects of the API -> frozen values, and whose objects are whose."""

from __future__ import annotations

from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.cluster.cluster import left_over, owned
from dledger_operator.observed.observed import Pod, Volume
from dledger_operator.observed.parsers import parse_pod, parse_volume
from tests.operator.samples import group


def _pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "orders-0", "labels": {}}, "status": status}


def test_a_running_pod_is_read() -> None:
    """Labels, address and readiness."""
    pod = _pod(podIP="10.0.0.1", conditions=[{"type": "Ready", "status": "True"}])
    pod["metadata"]["labels"] = {
        "dledger.io/role": "leader",
        "topology.kubernetes.io/zone": "z1",
    }
    pod["metadata"]["annotations"] = {
        "dledger.io/spec-hash": "h1",
        "kubectl.kubernetes.io/restartedAt": "then",
    }
    pod["metadata"]["deletionTimestamp"] = "now"

    assert parse_pod(pod) == Pod(
        name="orders-0",
        ip="10.0.0.1",
        ready=True,
        role="leader",
        zone="z1",
        spec_hash="h1",
        restarted_at="then",
        terminating=True,
        was_ready=True,
    )


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({}, ""),
        ({"containerStatuses": [_waiting("ContainerCreating")]}, ""),
        (
            {"containerStatuses": [_waiting("ErrImagePull", "no such image")]},
            "ErrImagePull: no such image",
        ),
        ({"containerStatuses": [_waiting("CrashLoopBackOff")]}, "CrashLoopBackOff"),
        (
            {
                "containerStatuses": [
                    _waiting("CrashLoopBackOff", "back-off 20s restarting failed container")
                    | {"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                ]
            },
            "CrashLoopBackOff: OOMKilled, exit code 137",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "state": {"running": {}},
                        "lastState": {"terminated": {"exitCode": 1, "message": "a\nno disk\n"}},
                    }
                ]
            },
            "started again after Error, exit code 1: no disk",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]},
            "0/3 nodes",
        ),
    ],
)
def test_a_pods_trouble_is_told_in_kubernetes_words(status: dict[str, Any], trouble: str) -> None:
    """A pod that is merely starting has none."""
    assert parse_pod(_pod(**status)).trouble == trouble


def _ended(exit_code: int, message: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": "Error", "message": message}}


@pytest.mark.parametrize(
    ("container", "ready", "too_old"),
    [
        ({"state": _ended(5, "logs\ndledger node: upgrade\n")}, False, "dledger node: upgrade"),
        (_waiting("CrashLoopBackOff") | {"lastState": _ended(5, "upgrade")}, False, "upgrade"),
        ({"state": {"running": {}}, "lastState": _ended(5, "upgrade")}, False, "upgrade"),
        ({"state": {"running": {}}, "lastState": _ended(5, "upgrade")}, True, ""),
        ({"state": _ended(5, "")}, False, "exit code 5"),
        ({"state": _ended(1, "a bug")}, False, ""),
        ({"state": {"running": {}}}, False, ""),
    ],
)
def test_the_last_words_of_a_node_that_is_too_old_are_read(
    container: dict[str, Any], ready: bool, too_old: str
) -> None:
    """By its exit code, while it is down or on its way up; what is over is not told again."""
    condition = {"type": "Ready", "status": str(ready)}

    pod = parse_pod(_pod(containerStatuses=[container], conditions=[condition]))

    assert pod.too_old == too_old


def test_a_claim_is_read() -> None:
    """What was asked for, and what was given."""
    claim = {
        "metadata": {"name": "data-orders-0"},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"},
        "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
    }

    assert parse_volume(claim) == Volume(
        name="data-orders-0", size="1Gi", storage_class_name="fast", capacity="2Gi"
    )


def _owned_by(uid: str, kind: str = "BrokerGroup", name: str = "orders") -> dict[str, Any]:
    owner = {"kind": kind, "name": name, "uid": uid, "controller": True}
    return {"kind": "Service", "metadata": {"ownerReferences": [owner], "labels": {}}}


def test_ownership_is_by_uid() -> None:
    """The same name may have belonged to a deleted group, or belong to another kind."""
    assert owned(_owned_by("uid-1"), group())
    assert not owned(_owned_by("uid-0"), group())
    assert left_over(_owned_by("uid-0"), group())
    assert not left_over(_owned_by("uid-0", kind="Deployment"), group())
    assert not left_over(_owned_by("uid-0", name="other"), group())


def test_an_unlabelled_object_without_owner_is_someone_elses() -> None:
    """Only what carries all our labels was ours once."""
    labels = {"dledger.io/group": "orders"}

    assert not owned({"kind": "Service", "metadata": {"labels": labels}}, group())


@pytest.mark.found
def test_an_account_is_not_taken_over_for_its_labels() -> None:
    """Found: K1. Who may label one would lend its rights to the pods of a group."""
    metadata = {"labels": names.labels("orders")}

    assert owned({"kind": "Service", "metadata": metadata}, group())
    for kind in ("ServiceAccount", "RoleBinding"):
        assert not owned({"kind": kind, "metadata": metadata}, group())


@pytest.mark.found
def test_an_owner_that_is_not_the_controller_does_not_count() -> None:
    """An object may name many owners; one of them decides."""
    owners = [
        {"kind": "Deployment", "name": "db", "uid": "uid-7", "controller": True},
        {"kind": "BrokerGroup", "name": "orders", "uid": "uid-1"},
    ]

    assert not owned({"kind": "ConfigMap", "metadata": {"ownerReferences": owners}}, group())
