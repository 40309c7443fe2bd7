"""What others did to a child -> which fields drifted, and the patch that sets them back."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.decisions.drift import Drift, correction, drifts, others_fields

WANTED: dict[str, Any] = {
    "kind": "Service",
    "metadata": {"name": "orders", "labels": {"a": "b"}, "annotations": {}},
    "spec": {
        "selector": {"app": "orders"},
        "ports": [{"name": "client", "port": 8081}, {"name": "tls", "port": 8082}],
        "template": {"metadata": {"annotations": {"x": "y"}}},
    },
}


def _present(*managers: tuple[str, dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """Return the wanted object with another spec and the owners of its fields."""
    made = copy.deepcopy(WANTED)
    made["spec"] |= changed
    made["metadata"] |= {
        "resourceVersion": "7",
        "managedFields": [{"manager": who, "fieldsV1": {"f:spec": what}} for who, what in managers],
    }
    return made


ADDED = _present(
    ("kubectl-patch", {"f:selector": {"f:oops": {}}}), selector={"app": "orders", "oops": "typo"}
)
WHOLE = _present(("edit", {"f:selector": {}}), selector={"app": "orders", "oops": "typo"})
DEFAULTED = _present(sessionAffinity="None", clusterIP="10.0.0.1")
RESTART = _present(
    (
        "kubectl-rollout",
        {
            "f:template": {
                "f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}
            }
        },
    ),
    template={"metadata": {"annotations": {"x": "y", "kubectl.kubernetes.io/restartedAt": "2031"}}},
)
_PORTS = [{"name": "client", "port": 9999, "protocol": "TCP"}, {"name": "tls", "port": 8082}]
PORT = _present(
    ("hand", {"f:ports": {'k:{"port":9999,"protocol":"TCP"}': {".": {}, "f:port": {}}}}),
    ports=_PORTS,
)
EQUAL = _present(("other", {"f:selector": {"f:app": {}}}))


@pytest.mark.parametrize(
    ("present", "found", "patch"),
    [
        (ADDED, [Drift("spec.selector.oops", "kubectl-patch")], {"selector": {"oops": None}}),
        (WHOLE, [Drift("spec.selector", "edit")], {"selector": {"oops": None}}),
        (DEFAULTED, [], None),
        (RESTART, [], None),
        (EQUAL, [], None),
        (
            PORT,
            [Drift("spec.ports[0]", "hand"), Drift("spec.ports[0].port")],
            {"ports": WANTED["spec"]["ports"]},
        ),
        (_present(selector={}), [Drift("spec.selector.app")], {"selector": {"app": "orders"}}),
    ],
)
def test_what_others_did_is_named_and_undone(
    present: dict[str, Any], found: list[Drift], patch: dict[str, Any] | None
) -> None:
    """A default has no owner; a wish to restart breaks nothing."""
    assert list(drifts(present, WANTED)) == found
    assert correction(present, WANTED).get("spec") == patch
    assert correction(present, WANTED)["metadata"]["resourceVersion"] == "7"


def test_our_own_corrections_are_no_ones_drift() -> None:
    """What we patched is ours; a webhook's addition to it, which looks alike, is left alone."""
    ours = _present((names.MANAGER, {"f:extra": {}}), extra=1)

    assert drifts(ours, WANTED) == ()
    assert correction(ours, WANTED)["spec"] == {"extra": None}  # when the form changes anyway


def test_only_what_tells_of_others_is_kept_of_an_object() -> None:
    """Statuses, metadata and what we applied are most of managedFields."""
    applied = {"manager": names.MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    updated = {"manager": names.MANAGER, "operation": "Update", "fieldsV1": {"f:spec": {"f:a": {}}}}
    status = {"manager": "k", "operation": "Update", "subresource": "status", "fieldsV1": {}}
    labels = {"manager": "k", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {}}}}
    scaled = {
        "manager": "hpa",
        "operation": "Update",
        "subresource": "scale",
        "fieldsV1": {"f:spec": {"f:replicas": {}}, "f:status": {}},
    }

    found = others_fields({"managedFields": [applied, updated, status, labels, scaled]})

    assert found == [
        {"manager": names.MANAGER, "fieldsV1": {"f:spec": {"f:a": {}}}},
        {"manager": "hpa", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
