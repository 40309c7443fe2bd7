"""What a spec says of pods is said of all pods of its group, whatever one is for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources.recovery import recovery_job
from dledger_operator.resources.statefulset import stateful_set
from tests.operator.backup_samples import LARGE, SMALL, STORE, backup, backup_job, backup_template
from tests.operator.samples import FREE, body

USER: Final = {"runAsUser": 1000650000, "runAsGroup": 1000650000, "fsGroup": 1000650000}
TOLERATIONS: Final = [{"key": "tenant", "operator": "Exists"}]
OF_MACHINES: Final = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
    }
}
APART: Final = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    ]
}
SPEC: Final[dict[str, Any]] = {
    "backup": {"store": STORE},
    "bootstrap": {"recovery": {"store": STORE, "groupId": "old"}},
    "securityContext": USER,
    "tolerations": TOLERATIONS,
    "podLabels": {"team": "pay", "app.kubernetes.io/managed-by": "team-pay"},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "nvme"},
    "affinity": {"nodeAffinity": OF_MACHINES, "podAntiAffinity": APART},
    "priorityClassName": "high",
}


def _of(spec: dict[str, Any], **platform: Any) -> BrokerGroup:
    return replace(FREE, **platform).group(body(spec, groupId="g"))


def _pods(of: BrokerGroup) -> dict[str, Manifest]:
    """Return the template of each kind of pod that a group has."""
    store = of.spec.backup.store
    executor = backup_template(backup(), of, store=store)
    return {
        "node": stateful_set(of)["spec"]["template"],
        "recovery": recovery_job(of)["spec"]["template"],
        "local": backup_job(backup(), of, store=store, log=SMALL)["spec"]["template"],
        "driver": backup_job(backup(), of, store=store, log=LARGE)["spec"]["template"],
        "executor": json.loads(next(iter(executor["data"].values()))),
    }


@pytest.mark.parametrize("kind", _pods(_of(SPEC)))
def test_every_pod_of_a_group_is_as_its_spec_says(kind: str) -> None:
    """Who needs a user of a range, or tolerates a taint, needs it of each of them."""
    pod = _pods(_of(SPEC))[kind]

    spec, metadata = pod["spec"], pod["metadata"]
    assert spec["securityContext"] == {**spec["securityContext"], **USER}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["tolerations"] == TOLERATIONS
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"disk": "nvme"}
    assert spec["affinity"]["nodeAffinity"] == OF_MACHINES
    assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"
    assert metadata["labels"]["team"] == "pay"
    assert metadata["labels"][names.GROUP_LABEL] == "orders"
    assert metadata["labels"].get("app.kubernetes.io/managed-by") != "team-pay"
    ours = metadata["labels"][names.COMPONENT_LABEL]
    assert ours == (kind if kind in ("node", "recovery") else "backup")


def test_a_user_that_sparks_image_does_not_know_is_named_to_it() -> None:
    """By the pod itself: an executor does not start without, and the image cannot be written."""
    pods = _pods(_of(SPEC))
    for kind in ("recovery", "local", "driver", "executor"):
        annotations, spec = pods[kind]["metadata"]["annotations"], pods[kind]["spec"]
        lines = annotations[names.USERS_ANNOTATION].splitlines()
        assert lines[-1] == "dledger:x:1000650000:1000650000::/tmp:/usr/sbin/nologin"
        (volume,) = (one for one in spec["volumes"] if "downwardAPI" in one)
        (mount,) = (
            one
            for one in spec["containers"][0]["volumeMounts"]
            if one["mountPath"] == "/etc/passwd"
        )
        assert (mount["name"], mount["subPath"]) == (volume["name"], "passwd")
    assert names.USERS_ANNOTATION not in pods["node"]["metadata"]["annotations"]


def test_what_nodes_say_of_each_other_is_theirs() -> None:
    """A backup's pod that had to be apart from every node would have no machine left."""
    pods = _pods(_of(SPEC))

    near = {kind for kind, pod in pods.items() if "podAntiAffinity" in pod["spec"]["affinity"]}
    assert near == {"node", "recovery"}
    assert {k for k, pod in pods.items() if "priorityClassName" in pod["spec"]} == near


def test_machines_for_spark_win_over_those_for_nodes() -> None:
    """Whoever installs the operator knows where Spark's image is, and where it may work."""
    pods = _pods(_of(SPEC, spark_node_selector={"pool": "spark"}))

    for kind in ("local", "driver", "executor"):
        assert pods[kind]["spec"]["nodeSelector"] == {"pool": "spark"}
        assert "affinity" not in pods[kind]["spec"]
        assert pods[kind]["spec"]["tolerations"] == TOLERATIONS
    assert pods["recovery"]["spec"]["nodeSelector"] == {"disk": "nvme", "pool": "spark"}
    assert pods["node"]["spec"]["nodeSelector"] == {"disk": "nvme"}


def test_a_spec_that_says_nothing_of_pods_adds_nothing() -> None:
    """Restricted all the same."""
    said = {key: SPEC[key] for key in ("backup", "bootstrap")}
    for kind, pod in _pods(_of(said)).items():
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001, kind
        assert "tolerations" not in pod["spec"]
        assert "imagePullSecrets" not in pod["spec"]
        assert kind == "node" or "annotations" not in pod["metadata"]
