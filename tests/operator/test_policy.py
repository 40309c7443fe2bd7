"""What whoever installed the operator lets a group ask for: images, priorities, pod security."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger_operator.api.policy import DENIED_POD_METADATA, Policy, repository
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.backups import plan_backup
from dledger_operator.decisions.checks import problems, verdict
from dledger_operator.observed.observed import Observed
from tests.operator.backup_samples import STORE, backup, observed
from tests.operator.samples import GROUP_ID, PLATFORM, body, group

CHART = Path(__file__).parents[2] / "charts/dledger-operator"


def _held(spec: dict[str, Any], **policy: Any) -> BrokerGroup:
    """Return a group under the chart's own policy, but for these parts of it."""
    platform = replace(PLATFORM, policy=Policy(**policy))
    return platform.group(body(spec, groupId=GROUP_ID, term=1))


@pytest.mark.parametrize(
    ("entry", "image", "allowed"),
    [
        ("*", "evil/node:1", True),
        ("registry.example/team/", "registry.example/team/dledger:2", True),
        ("registry.example/team/", "registry.example/teams/dledger:2", False),
        ("registry.example/dledger", "registry.example/dledger", True),
        ("registry.example/dledger", "registry.example/dledger:2", True),
        ("registry.example/dledger", "registry.example/dledger@sha256:ab", True),
        ("registry.example/dledger", "registry.example/dledger-evil:2", False),
        ("registry.example/dledger", "registry.example/dledger/evil:2", False),
        ("registry.example", "registry.example:5000/evil", False),
        ("registry.example/d:1", "registry.example/d:1@sha256:ab", True),
        ("registry.example/d:1", "registry.example/d:12", False),
    ],
)
def test_an_image_is_allowed_by_repository_or_by_what_is_below_a_path(
    entry: str, image: str, allowed: bool
) -> None:
    """Never by the mere beginning of a name, which others may register too."""
    assert Policy(allowed_images=(entry,)).allows_image(image) is allowed


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("dledger:1", "dledger"),
        ("dledger", "dledger"),
        ("r.example:5000/a/b", "r.example:5000/a/b"),
        ("r.example:5000/a/b:1@sha256:ab", "r.example:5000/a/b"),
        ("a/b@sha256:ab", "a/b"),
    ],
)
def test_a_repository_is_an_image_without_tag_and_digest(image: str, name: str) -> None:
    """Every version of the operator's own images is allowed: groups pin the one they run."""
    assert repository(image) == name


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("spec.image=evil/node:1", {"image": "evil/node:1"}),
    (
        "spec.spark.image=evil/spark:1",
        {"backup": {"store": STORE}, "spark": {"image": "evil/spark:1"}},
    ),
    ("spec.priorityClassName=system-node-critical", {"priorityClassName": "system-node-critical"}),
    (
        "spec.podAnnotations[k8s.v1.cni.cncf.io/networks]",
        {"podAnnotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/host"}},
    ),
    (
        "spec.podLabels[azure.workload.identity/use]",
        {"podLabels": {"azure.workload.identity/use": "true"}},
    ),
    ("spec.securityContext.runAsUser", {"securityContext": {"runAsUser": 0}}),
    ("spec.securityContext.runAsGroup", {"securityContext": {"runAsGroup": 0}}),
    ("spec.securityContext.fsGroup", {"securityContext": {"fsGroup": 0}}),
    (
        "spec.securityContext.supplementalGroups",
        {"securityContext": {"supplementalGroups": [7, 0]}},
    ),
    ("spec.securityContext.runAsNonRoot", {"securityContext": {"runAsNonRoot": False}}),
    (
        "spec.securityContext.seccompProfile",
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    ),
    (
        "spec.securityContext.appArmorProfile",
        {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    ),
    (
        "spec.securityContext.sysctls",
        {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    ),
    (
        "spec.securityContext.seLinuxOptions",
        {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
    ),
    ("spec.tolerations[0]", {"tolerations": [{"operator": "Exists"}]}),
    (
        "spec.tolerations[1]",
        {"tolerations": [{"key": "a"}, {"key": "node-role.kubernetes.io/control-plane"}]},
    ),
    ("spec.serviceAccountName=cloud-admin", {"serviceAccountName": "cloud-admin"}),
]


@pytest.mark.found
@pytest.mark.parametrize(("words", "spec"), REFUSED)
def test_what_the_chart_does_not_allow_is_refused_by_name(words: str, spec: dict[str, Any]) -> None:
    """Found: K2, K6. The sentence names the chart's value that decides it."""
    found = problems(_held(spec), Observed())

    assert [problem.reason for problem in found] == [Reason.NOT_ALLOWED]
    assert words in found[0].message
    assert "the chart's" in found[0].message
    assert problems(group(spec), Observed()) == ()


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"image": "dledger:test", "spark": {"image": "dledger-spark:test"}},
        {"image": "dledger:older", "spark": {"image": "dledger-spark:older@sha256:ab"}},
        {"podLabels": {"team": "shop"}, "podAnnotations": {"note": "hello"}},
        {"securityContext": {"runAsUser": 2000, "fsGroup": 2000, "runAsNonRoot": True}},
        {"securityContext": {"fsGroupChangePolicy": "Always", "sysctls": []}},
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}},
        {"tolerations": [{"key": "broker", "operator": "Exists"}]},
    ],
)
def test_what_loosens_nothing_is_allowed(spec: dict[str, Any]) -> None:
    """Other users, groups and taints are a group's own affair."""
    assert problems(_held(spec), Observed()) == ()


@pytest.mark.found
def test_a_backup_does_not_run_an_image_that_is_not_allowed() -> None:
    """Found: K2. It says so, and starts when the group says otherwise."""
    of = _held({"backup": {"store": STORE}, "spark": {"image": "evil/spark:1"}})

    assert plan_backup(backup(), observed(group=of)) == ()


def test_each_value_allows_what_it_names() -> None:
    """And no more."""
    spec = {
        "image": "r.example/team/x:1",
        "priorityClassName": "high",
        "podAnnotations": {"k8s.v1.cni.cncf.io/networks": "fast"},
    }
    policy: dict[str, Any] = {
        "allowed_images": ("r.example/team/",),
        "allowed_priority_classes": ("high",),
        "denied_pod_metadata": (),
    }

    assert problems(_held(spec, **policy), Observed()) == ()
    for part in policy:
        rest = {name: value for name, value in policy.items() if name != part}
        assert len(problems(_held(spec, **rest), Observed())) == 1


def test_all_keys_can_be_denied() -> None:
    """Where nobody knows what the webhooks of a cluster read."""
    of = _held({"podLabels": {"a": "b"}}, denied_pod_metadata=("*",))

    assert [problem.reason for problem in problems(of, Observed())] == [Reason.NOT_ALLOWED]


def test_a_spec_that_is_wrong_is_told_before_one_that_is_not_allowed() -> None:
    """The sentences of both are there."""
    told = verdict(problems(_held({"image": "evil/x", "replicas": 2}), Observed()))

    assert told.reason is Reason.INVALID_SPEC
    assert "evil/x" in told.message


def test_the_charts_values_are_the_operators_own() -> None:
    """An operator without the chart is held to the same."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))

    assert tuple(values["deniedPodMetadata"]) == DENIED_POD_METADATA
    assert values["podSecurity"] == Policy().pod_security
    assert not values["allowedImages"]
    assert not values["allowedPriorityClasses"]
