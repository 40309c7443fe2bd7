"""Two operators on one cluster: one acts and the other tells, until a group is handed over."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster, CommandFailed
from e2e.cluster.image import Image
from e2e.harness.runbook import OPERATOR_PAGE, blocks
from e2e.harness.world import (
    CHART,
    OPERATOR,
    OPERATOR_NAMESPACE,
    BrokerGroup,
    Namespace,
    chart_values,
    eventually,
    install_operator,
)
from e2e.stories.traffic import begin, end

pytestmark = pytest.mark.long

FIRST = f"{OPERATOR_NAMESPACE}/{OPERATOR}"
SECOND = "team/two-dledger-operator"
"""As docs/operator.md names them."""
WAIT = ("--wait", "--timeout", "120s")
ACTS_S = 60.0


@pytest.fixture
def releases(cluster: Cluster, image: Image) -> Iterator[list[str]]:
    """Return what helm is told for an operator like the first, which is there again afterwards."""
    if cluster.kind == "current":
        pytest.skip("uninstalls the operator, which others may need")
    yield chart_values(cluster, image)
    cluster.helm("uninstall", "two", "-n", "team", "--ignore-not-found", "--wait")
    cluster.kubectl("delete", "namespace", "team", "--ignore-not-found", "--wait=false")
    install_operator(cluster, image)


def _do(cluster: Cluster, command: str, *more: str) -> None:
    """Run a command of helm's as a document has it, and *more* arguments."""
    program, *words = shlex.split(command, comments=True)
    assert program == "helm", command
    told = [str(CHART) if word == "charts/dledger-operator" else word for word in words]
    cluster.helm(*told, *more)


def _marks(group: BrokerGroup) -> dict[str, Any]:
    """Return what a second writer, or a restart, would change."""
    built = group.namespace.get("statefulset", group.name) or {"metadata": {}}
    return {
        "generation": built["metadata"].get("generation"),
        "uids": group.uids(),
        "operator": group.status()["operator"],
    }


def _see_acting(group: BrokerGroup) -> None:
    """See that some operator cares for a group: a Service of it comes back."""
    service = f"{group.name}-leader"
    group.namespace.kubectl("delete", "service", service)
    eventually(f"{service} is back", lambda: group.namespace.get("service", service), ACTS_S)


def test_a_group_has_one_operator_until_it_is_handed_to_another(
    namespace: Namespace, workload_image: Image, cluster: Cluster, releases: list[str]
) -> None:
    """Found: S3. The hand-over is that of docs/operator.md; no pod is restarted by any of it."""
    ((uninstall, install, annotate),) = blocks("Two operators", OPERATOR_PAGE)
    group = namespace.run_group()
    traffic = begin(namespace, workload_image)
    group.wait_settled(0)
    before = _marks(group)
    overlapping = ("refuseOverlap=false", f"watchNamespaces={{{namespace.name}}}")
    others = [word for each in (*overlapping, "doorProcesses=1") for word in ("--set", each)]

    with pytest.raises(CommandFailed, match="A group has one operator"):
        _do(cluster, install, *releases, *WAIT)
    _do(cluster, install, *releases, *others, *WAIT)
    told = eventually("the second tells", lambda: group.told("ManagedElsewhere"), ACTS_S)
    _see_acting(group)
    assert f"operator {SECOND} leaves it to {FIRST}" in told[0]
    assert _marks(group) == before
    assert before["operator"] == FIRST
    cluster.helm("uninstall", "two", "-n", "team", "--wait")

    _do(cluster, uninstall)
    _do(cluster, install, *releases, *WAIT)
    namespace.kubectl(*shlex.split(annotate.replace("-n shop ", ""))[1:])
    taken = eventually("it is handed over", lambda: group.told("TakenOver"), ACTS_S)
    _see_acting(group)
    group.wait_settled(0)
    end(traffic, failed=0)

    assert taken == [f"operator {SECOND} acts on it from now on, in place of {FIRST}"]
    assert _marks(group) == {**before, "operator": SECOND}
