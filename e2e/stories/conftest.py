"""One cluster a run, one namespace a story; a failed story leaves its diagnostics in build/."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Generator, Iterator
from typing import TypeAlias

import pytest

from e2e.cluster import Cluster, ClusterError, open_cluster
from e2e.cluster.image import WORKLOAD, Image, build
from e2e.cluster.layout import default_layout
from e2e.cluster.tools import find_kubectl
from e2e.harness.runbook import Reader
from e2e.harness.world import OPERATOR_NAMESPACE, ROOT, Namespace, install_operator

MakeReport: TypeAlias = Generator[None, pytest.TestReport, pytest.TestReport]
Figures: TypeAlias = dict[str, float]
MEASURED = pytest.StashKey[dict[str, Figures]]()
FAILURES = pytest.StashKey[list[str]]()
ATTEMPTS = 2
NOT_UP: list[ClusterError] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every story needs the cluster, alone, and may be told once more; the summary names it then.

    Nothing else in this project is ever rerun. A story that is named as RERUN has found something:
    what each attempt left is in build/diagnostics.
    """
    for item in items:
        if "e2e/stories" in str(item.path):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.alone)
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> MakeReport:
    """Remember how the story failed, for the namespace fixture; each attempt begins anew."""
    report = yield
    if call.when == "setup":
        item.stash[FAILURES] = []
    if report.failed:
        item.stash[FAILURES].append(report.longreprtext)
    return report


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Return where a story puts what it measured; the summary prints it and a file keeps it."""
    measured = request.config.stash.setdefault(MEASURED, {})
    return measured.setdefault(request.node.name, {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what the stories measured, and write it to build/e2e.json."""
    measured = config.stash.get(MEASURED, {})
    if not any(measured.values()):
        return
    terminalreporter.section("measured by stories")
    for story, found in measured.items():
        told = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
        terminalreporter.line(f"{story}: {told}")
    path = ROOT / "build" / "e2e.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Return a running cluster; it stays up for the next run.

    Which it is, why, and what takes minutes to come up, is said even where output is captured.
    What did not come up twice is not tried again for each story that is left: minutes each.
    """
    if len(NOT_UP) == ATTEMPTS:
        raise NOT_UP[-1]
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        found = open_cluster(os.environ.get("E2E_CLUSTER", "auto"))
        try:
            found.up()
        except ClusterError as error:
            NOT_UP.append(error)
            raise
    return found


@pytest.fixture(scope="session")
def image(cluster: Cluster) -> Image:
    """Return the image of the present sources, on every node."""
    built = build()
    cluster.load_image(built.archive, built.name)
    return built


@pytest.fixture(scope="session")
def workload_image(cluster: Cluster) -> Image:
    """Return the image that SDK clients run in, on every node."""
    built = build(WORKLOAD)
    cluster.load_image(built.archive, built.name)
    return built


@pytest.fixture(scope="session")
def operator(cluster: Cluster, image: Image) -> None:
    """Install the operator from its chart."""
    install_operator(cluster, image)


@pytest.fixture
def namespace(
    cluster: Cluster,
    operator: None,  # noqa: ARG001 - installed for the story, not used by name
    request: pytest.FixtureRequest,
) -> Iterator[Namespace]:
    """Return a namespace of the story's own."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:50].strip("-")
    made = Namespace(cluster, f"s-{name}"[:60].strip("-"))
    made.delete()
    made.create()
    yield made
    if failures := request.node.stash[FAILURES]:
        attempt = getattr(request.node, "execution_count", 1)
        folder = ROOT / "build" / "diagnostics" / f"{made.name}-{attempt}"
        cluster.diagnostics(folder)
        (folder / "failure.txt").write_text("\n\n".join(failures), "utf-8")
    made.begin_delete()


@pytest.fixture
def reader(cluster: Cluster, namespace: Namespace) -> Reader:
    """Return somebody who has the documents, and knows the namespace and the group `orders`."""
    words = {"NS": namespace.name, "GROUP": "orders", "OPERATOR_NS": OPERATOR_NAMESPACE}
    kubectl = find_kubectl(default_layout())
    return Reader(kubectl=kubectl, kubeconfig=cluster.kubeconfig, words=words)
