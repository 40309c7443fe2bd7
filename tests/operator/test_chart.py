"""What the chart makes of its values, by Helm: rights, policies, and what the operator is told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dledger_operator.api import names
from dledger_operator.api.policy import Policy, RoleRef
from dledger_operator.options import parse
from e2e.cluster import golang
from e2e.cluster.layout import default_layout
from e2e.cluster.tools import find_kubectl
from tests.monitoring.chart import CHART, PROMETHEUS_OPERATOR, rendered
from tests.operator.api_server import ApiServer, running

pytestmark = [pytest.mark.e2e, pytest.mark.found]

IN_TWO: Final = "watchNamespaces={shop,bank}"
ROOT: Final = CHART.parents[1]
RBAC: Final = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def _made(*values: str) -> list[dict[str, Any]]:
    manifests, _ = rendered(*values)
    return manifests


def _refs(*values: str) -> set[tuple[str, str, str]]:
    """Return kind, namespace and name of what gives rights."""
    found = (m for m in _made(*values) if m["kind"] in RBAC)
    return {(m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in found}


def _operators_rules(*values: str) -> list[dict[str, Any]]:
    """Return the rules of every role that is bound to the operator's account."""
    manifests = _made(*values)
    bindings = [
        m["roleRef"] for m in manifests if m["kind"] in ("RoleBinding", "ClusterRoleBinding")
    ]
    bound = {(ref["kind"], ref["name"]) for ref in bindings}
    roles = (m for m in manifests if (m["kind"], m["metadata"]["name"]) in bound)
    return [rule for role in roles for rule in role["rules"]]


def _policy(*values: str) -> Policy:
    """Return what the operator makes of its pod's environment."""
    (deployment,) = (m for m in _made(*values) if m["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return parse(
        [], {row["name"]: row.get("value", "") for row in container["env"]}
    ).platform.policy


def test_the_operator_is_told_what_the_values_say() -> None:
    """Without values it is as strict as without a chart."""
    given = _policy(
        "allowedImages={r.example/team/,r.example/d}",
        "allowedPriorityClasses={high}",
        "podSecurity=overridable",
        IN_TWO,
    )

    assert _policy() == Policy()
    assert given.allowed_images == ("r.example/team/", "r.example/d")
    assert given.allowed_priority_classes == ("high",)
    assert given.pod_security == "overridable"
    assert given.driver_role == RoleRef(kind="Role", name="dledger-operator-drivers")


@pytest.mark.parametrize("value", ["allowedImages={registry.example}", "podSecurity=lax"])
def test_a_value_that_would_allow_too_much_is_refused(value: str) -> None:
    """A bare registry is the beginning of others' names."""
    manifests, said = rendered(value, check=False)

    assert manifests == []
    assert value.partition("=")[0] in said


def test_with_namespaces_the_operator_has_rights_in_these_alone() -> None:
    """Found: K5. The two ClusterRoles that are left add to Kubernetes' own, bound to nobody."""
    found = _refs(IN_TWO)

    assert not {ref for ref in found if ref[0] == "ClusterRoleBinding"}
    assert {name for kind, _, name in found if kind == "ClusterRole"} == {
        "dledger-operator-view",
        "dledger-operator-edit",
        "dledger-operator-operate",
    }
    for namespace in ("shop", "bank"):
        for name in ("dledger-operator", "dledger-operator-drivers"):
            assert ("Role", namespace, name) in found
    assert not {ref for ref in _refs(IN_TWO, "rbac.aggregate=false") if ref[0] == "ClusterRole"}


def _egress(*values: str) -> list[dict[str, Any]]:
    """Return whom the operator's pods reach by the chart's policy."""
    (policy,) = (m for m in _made(*values) if m["kind"] == "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    found: list[dict[str, Any]] = policy["spec"]["egress"]
    return found


def test_the_operator_reaches_what_it_needs_where_all_is_denied_by_default() -> None:
    """Found: S13. A policy that says nothing of egress allows none of it there."""
    needed = ("networkPolicy.egress=needed", "networkPolicy.apiServerPorts={16443}")
    dns, api, nodes = _egress(*needed, IN_TWO)

    assert _egress() == [{}]
    assert {row["port"] for row in dns["ports"]} == {53, 5353}
    assert api == {"ports": [{"port": 16443, "protocol": "TCP"}]}
    assert {row["port"] for row in nodes["ports"]} == {20911, 8081}
    (to,) = nodes["to"]
    assert names.selector("any").items() > to["podSelector"]["matchLabels"].items()
    (where,) = to["namespaceSelector"]["matchExpressions"]
    assert where["values"] == ["shop", "bank"]
    (to,) = _egress(*needed)[2]["to"]
    assert to["namespaceSelector"] == {}


def test_in_namespaces_alone_the_operator_needs_nothing_of_the_cluster() -> None:
    """Who may make nothing there installs it all the same; the CRDs are an administrator's."""
    made = _made(IN_TWO, "rbac.aggregate=false", "admissionPolicy.enabled=false")

    cluster = {m["kind"] for m in made if "namespace" not in m["metadata"]}
    assert cluster <= {"CustomResourceDefinition"}
    secrets = [
        m["metadata"]["namespace"]
        for m in made
        if m["kind"] == "Role" and any("secrets" in rule["resources"] for rule in m["rules"])
    ]
    assert sorted(secrets) == ["bank", "shop"]


@pytest.mark.parametrize("values", [(), (IN_TWO,)])
def test_the_operator_may_neither_make_pods_nor_write_roles(values: Any) -> None:
    """Found: K2, K5. It may bind the drivers' Role by its name, without having what that allows."""
    rules = _operators_rules(*values)

    deleted = [rule for rule in rules if {"delete", "deletecollection", "*"} & {*rule["verbs"]}]
    assert {resource for rule in deleted for resource in rule["resources"]} == {
        "brokerbackups",
        "brokeroperations",
        "persistentvolumeclaims",
        "services",
        "statefulsets",
        "controllerrevisions",
        "pods",
    }
    assert not any({"deletecollection", "*"} & {*rule["verbs"]} for rule in deleted)
    pods = [rule["verbs"] for rule in rules if "pods" in rule["resources"]]
    assert {*pods[0]} == {"list", "watch", "patch", "delete"}
    assert all(verbs == pods[0] for verbs in pods)
    roles = [rule for rule in rules if {"roles", "clusterroles"} & {*rule["resources"]}]
    assert all(rule["verbs"] == ["bind"] for rule in roles)
    assert all(rule["resourceNames"] == ["dledger-operator-drivers"] for rule in roles)
    plain = _operators_rules(*values, "peerTls=false")
    assert not any("secrets" in rule["resources"] for rule in plain)
    secrets = [rule["verbs"] for rule in rules if "secrets" in rule["resources"]]
    assert secrets
    assert all(verbs == ["get", "create", "patch"] for verbs in secrets)


def test_somebody_elses_binding_of_nobody_keeps_no_release_from_being_installed(
    tmp_path: Path,
) -> None:
    """A RoleBinding without subjects is a valid one, and was `nil pointer dereference` to Helm."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    overlap = chart / "templates/overlap.yaml"
    asked = 'lookup "rbac.authorization.k8s.io/v1" "RoleBinding" $namespace ""'
    text = overlap.read_text("utf-8")
    assert text.count(asked) == 1
    found = 'dict "items" (list (dict "metadata" (dict "name" "nobodys")))'
    overlap.write_text(text.replace(asked, found), "utf-8")
    few = "rbac.aggregate=false,admissionPolicy.enabled=false,watchNamespaces={bank}"
    helm = golang.provide(golang.HELM)

    typed = (helm, "template", "two", chart, "--kube-version", "1.34", "--set", few)

    done = subprocess.run(typed, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_only_who_has_admin_may_create_operations() -> None:
    """One of them may lose what was acknowledged; the operator itself makes rounds alone."""
    roles = [made for made in _made() if made["kind"] == "ClusterRole"]
    may = {
        role["metadata"]["name"]: [
            label
            for label in role["metadata"]["labels"]
            if label.startswith("rbac.authorization.k8s.io/aggregate")
        ]
        for role in roles
        for rule in role["rules"]
        if "brokeroperations" in rule["resources"] and "create" in rule["verbs"]
    }

    assert may.pop("dledger-operator") == []
    assert [*may.values()] == [["rbac.authorization.k8s.io/aggregate-to-admin"]]


def test_the_admission_policies_come_with_kubernetes_that_has_them() -> None:
    """And are there to be turned off."""
    kinds = [m["kind"] for m in _made()]
    off = [m["kind"] for m in _made("admissionPolicy.enabled=false")]

    assert kinds.count("ValidatingAdmissionPolicy") == 2
    assert kinds.count("ValidatingAdmissionPolicyBinding") == 2
    assert not [kind for kind in off if "Admission" in kind]


def test_the_operators_own_pod_takes_connections_on_one_port() -> None:
    """Found: K7. From everybody, or from whom the values name."""
    peer = "networkPolicy.monitoring[0].podSelector.matchLabels.app=prometheus"

    (open_to_all,) = (m for m in _made() if m["kind"] == "NetworkPolicy")
    (narrow,) = (m for m in _made(peer) if m["kind"] == "NetworkPolicy")

    ports = [{"port": 8080, "protocol": "TCP"}]
    assert open_to_all["spec"]["ingress"] == [{"ports": ports}]
    assert narrow["spec"]["ingress"] == [
        {"ports": ports, "from": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]}
    ]
    assert open_to_all["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == (
        "dledger-operator"
    )


# --- the commands that README.md and the chart tell people to type --------------------------


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[ApiServer]:
    """A cluster that never saw us."""
    shop = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    with running(tmp_path, first=[shop]) as server:
        yield server


def _typed(server: ApiServer, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody would who has kubectl and helm."""
    helm = golang.provide(golang.HELM)
    folders = (find_kubectl(default_layout()).parent, helm.with_name("helm").parent)
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(server.kubeconfig)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def _from_readme(beginning: str) -> str:
    """Return the one command of README.md that begins so, with its continued lines."""
    text = (ROOT / "README.md").read_text("utf-8")
    (command,) = re.findall(rf"^{beginning}(?:.*\\\n)*.*$", text, re.MULTILINE)
    return str(command)


def _kind_of_prometheus(kind: str, plural: str) -> dict[str, Any]:
    """Return a CRD that takes anything, in place of the Prometheus operator's."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    group = PROMETHEUS_OPERATOR.partition("/")[0]
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def test_what_readme_and_helm_say_to_type_works(empty: ApiServer, tmp_path: Path) -> None:
    """Without and with the Prometheus operator, and for CRDs that Helm made."""
    monitoring = _from_readme("helm upgrade")

    installed = _typed(empty, _from_readme("helm install"))
    assert installed.returncode == 0, installed.stderr
    early = _typed(empty, monitoring)
    assert early.returncode == 1
    assert "this cluster has no Prometheus operator" in early.stderr

    new = tmp_path / "new"
    shutil.copytree(CHART, new)
    changed = new / "crds" / "brokergroup.yaml"
    text = changed.read_text("utf-8")
    changed.write_text(text.replace("description: ", "description: New. ", 1), "utf-8")
    (command,) = re.findall(r"^ +(helm show crds CHART .*)$", installed.stdout, re.MULTILINE)
    upgraded = _typed(empty, command.replace("CHART", str(new)))
    assert upgraded.returncode == 0, upgraded.stderr
    assert "New. " in empty.kubectl("get", "crd", "brokergroups.dledger.io", "-o", "yaml").stdout

    kinds = (("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules"))
    crds = [_kind_of_prometheus(*names) for names in kinds]
    empty.kubectl("apply", "-f", "-", manifest={"apiVersion": "v1", "kind": "List", "items": crds})
    for _, plural in kinds:
        crd = f"crd/{plural}.monitoring.coreos.com"
        empty.kubectl("wait", "--for=condition=Established", "--timeout=30s", crd)
    late = _typed(empty, monitoring)
    assert late.returncode == 0, late.stderr
    made = empty.get("podmonitors,prometheusrules", "-n", "dledger-system")["items"]
    assert sorted(each["kind"] for each in made) == [*["PodMonitor"] * 3, "PrometheusRule"]
