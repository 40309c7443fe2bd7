"""Two operators on one API server: a group is one operator's, and the other one says so.

The second is another release: it has a Lease of its own, and so another mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from dledger_operator.decisions.ownership import HANDOVER_S
from e2e.cluster import golang
from tests.monitoring.chart import CHART
from tests.operator.api_server import ApiServer
from tests.operator.live import SYSTEM, Operator, Story, new_story
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

FIRST: Final = f"{SYSTEM}/dledger-operator"
SECOND: Final = f"{SYSTEM}/two"
QUIET_S: Final = 5.0
"""Two operators that fight have written dozens of times by then."""
_LIST: Final = {"apiVersion": "v1", "kind": "List"}
HANDED: Final = "dledger.io/operator="


def _lease_rights() -> list[dict[str, Any]]:
    """Return what the chart of a second release makes for its Lease."""
    metadata = {"name": "two-lease", "namespace": SYSTEM}
    api = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
    account = {"kind": "ServiceAccount", "name": "dledger-operator", "namespace": SYSTEM}
    return [
        {
            "apiVersion": f"{api}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{**rule, "verbs": ["create", "get", "update"]}],
        },
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": "two-lease"},
            "subjects": [account],
        },
    ]


@pytest.fixture
async def group(server: ApiServer, namespace: str) -> AsyncIterator[Story]:
    """A group `orders` whose nodes answer; the operators are each test's own."""
    async with new_story(server, namespace, "orders") as made:
        yield made


@contextlib.contextmanager
def _first(server: ApiServer, *args: str) -> Iterator[Operator]:
    """Run the first release's operator while the block runs."""
    made = Operator(server, "first", *args)
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def _second(server: ApiServer, *args: str) -> Iterator[Operator]:
    """Run a second release's operator while the block runs."""
    server.kubectl("apply", "-f", "-", manifest={**_LIST, "items": _lease_rights()})
    made = Operator(server, "second", "--lease-name", "two", *args)
    try:
        yield made
    finally:
        made.stop()


async def _told(story: Story, reason: str) -> list[str]:
    events = await story.list("events")
    return [one["message"] for one in events if one["reason"] == reason]


async def _marks(story: Story) -> dict[str, Any]:
    """Return what a second writer or a restart would change."""
    built = await story.get("statefulset", story.name)
    policies = await story.list("networkpolicies")
    pods = await story.list("pods")
    return {
        "generation": built["metadata"]["generation"],
        "policies": [one["metadata"]["generation"] for one in policies],
        "pods": sorted(one["metadata"]["uid"] for one in pods),
        "operator": (await story.status())["operator"],
    }


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((), id="same", marks=pytest.mark.long),  # the policies are looked at in both
        pytest.param(("--door-processes", "1"), id="other"),
    ],
)
async def test_of_two_operators_that_see_a_group_one_acts_and_the_other_tells(
    group: Story, server: ApiServer, values: tuple[str, ...]
) -> None:
    """Found: S3. With other values they restarted a voter again and again, and nobody told."""
    with _first(server) as first:
        await group.up()
        await group.until_condition("Degraded", "False/AsExpected")
        before = await _marks(group)

        with _second(server, *values) as second:
            told = await eventually_async(
                functools.partial(_told, group, "ManagedElsewhere"), "the Event of the second"
            )
            await asyncio.sleep(QUIET_S)

            assert await _marks(group) == before
            assert before["operator"] == FIRST
            assert len(second.metric("dledger_operator_managed_elsewhere{")) == 1
            writes = [
                line
                for line in second.get("/metrics").splitlines()
                if line.startswith("dledger_operator_writes_total") and "Event" not in line
            ]
            assert writes == []
        assert len(told) == 1
        assert f"operator {SECOND} leaves it to {FIRST}" in told[0]
        assert first.metric("dledger_operator_managed_elsewhere{") == []


async def test_operators_of_other_namespaces_act_beside_each_other(
    group: Story, server: ApiServer
) -> None:
    """Each puts its mark on its own groups, and has nothing to tell of the other's."""
    other = f"{group.namespace}-b"
    server.kubectl("create", "namespace", other)
    with _first(server, "--namespaces", group.namespace), _second(server, "--namespaces", other):
        async with new_story(server, other, "pay") as beside:
            await group.up()
            await beside.up()

            assert (await beside.status())["operator"] == SECOND
            assert (await group.status())["operator"] == FIRST
            assert await _told(beside, "ManagedElsewhere") == []
            assert await _told(group, "ManagedElsewhere") == []


@pytest.mark.long
async def test_a_group_changes_hands_by_its_annotation_alone(
    group: Story, server: ApiServer
) -> None:
    """From an operator that is gone, too: nobody can tell that from one that is silent.

    No pod is restarted, and who had the group lets go of it.
    """
    with _first(server):
        await group.up()
        await group.until_condition("Degraded", "False/AsExpected")
        before = await _marks(group)

    with _second(server) as second:
        await eventually_async(functools.partial(_told, group, "ManagedElsewhere"))
        await group.kubectl("delete", "service", "orders-leader")
        await asyncio.sleep(QUIET_S)
        assert await group.get("service", "orders-leader") == {}

        await group.kubectl("annotate", "bg", "orders", HANDED + SECOND)
        await asyncio.sleep(HANDOVER_S)
        await eventually_async(lambda: group.get("service", "orders-leader"), "the Service again")
        assert await _marks(group) == {**before, "operator": SECOND}
        (taken,) = await _told(group, "TakenOver")
        assert taken == f"operator {SECOND} acts on it from now on, in place of {FIRST}"

        with _first(server):
            said = f"operator {FIRST} leaves it to {SECOND}, which the annotation"
            await eventually_async(lambda: _has(group, said), "the Event of the first")
            await group.kubectl("annotate", "--overwrite", "bg", "orders", HANDED + FIRST)
            await eventually_async(lambda: _is_of(group, FIRST), "the first one's mark")
            await eventually_async(
                lambda: _has(group, f"operator {SECOND} leaves it to {FIRST}, which the"),
                "the second lets go",
            )
            assert await _marks(group) == before
            assert len(second.metric("dledger_operator_managed_elsewhere{")) == 1


async def _has(story: Story, said: str) -> bool:
    return any(said in one for one in await _told(story, "ManagedElsewhere"))


async def _is_of(story: Story, mark: str) -> bool:
    return bool((await story.status())["operator"] == mark)


# --- the chart --------------------------------------------------------------------------------


def _helm(server: ApiServer, *args: str, values: str = "") -> str:
    """Return what helm says when it fails; empty if it does not."""
    done = subprocess.run(
        [
            *(str(golang.provide(golang.HELM)), *args, "--create-namespace"),
            *(word for value in values.split() for word in ("--set", value)),
        ],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip() if done.returncode else ""


def test_the_chart_refuses_a_release_that_would_see_namespaces_of_another(
    server: ApiServer,
) -> None:
    """Found: S3. By a sentence that says whose they are; a release is no stranger to itself."""
    few = "rbac.aggregate=false admissionPolicy.enabled=false "
    tried = ("install", "two", str(CHART), "-n", "op-two", "--dry-run=server")
    for namespace in ("shop", "bank", "op-two"):
        server.kubectl("create", "namespace", namespace)
    own = ("upgrade", "--install", "one", str(CHART), "-n", "op-one")

    assert _helm(server, *own, values="watchNamespaces={shop,bank}") == ""

    one = "op-one/one-dledger-operator looks after groups in"
    assert f"{one} namespace bank already" in _helm(
        server, *tried, values="watchNamespaces={bank,pay}"
    )
    assert f"{one} namespace bank already" in _helm(
        server, *tried, values=few + "watchNamespaces={bank}"
    )
    assert f"{one} namespace shop, bank already" in _helm(server, *tried)
    assert _helm(server, *tried, values=few + "watchNamespaces={pay}") == ""
    assert _helm(server, *tried, values="watchNamespaces={bank} refuseOverlap=false") == ""
    assert _helm(server, *own, "--reset-values") == ""
    said = _helm(server, *tried)
    assert f"{one} all namespaces already. A group has one operator" in said
