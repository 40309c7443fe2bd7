"""Scaling on a real API server, with played nodes: 1-3-5-3-1, a change of mind, an operator killed.

A played kubelet starts pods and gives each the disk of its claim, a new one for a new claim; nodes
refuse what no operator may ask of a leader, and remember it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger_operator.api import names
from tests.operator.api_server import ApiServer
from tests.operator.kubelet import Kubelet, running, settled
from tests.operator.live import Operator, Story, group, new_story, replace_operator
from tests.operator.test_powers_api_server import OPERATOR, Power, _bound
from tests.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.long]


async def _scaled(story: Story, replicas: int, deadline_s: float = 120) -> None:
    """Scale a group as people do, and wait until it is done."""
    await story.kubectl("scale", f"brokergroup/{story.name}", f"--replicas={replicas}")
    await settled(story, replicas, deadline_s)


async def test_one_three_five_three_one_whatever_becomes_of_the_operator(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """Killed at each act, before it has the answer: each member comes and goes once."""

    def killed_there() -> None:
        replace_operator(server, operators)

    async with new_story(server, namespace, "orders", nodes=5) as story:
        kubelet = Kubelet(story)
        async with running(kubelet, 1):
            story.nodes.acted = kubelet.saw = killed_there
            await _scaled(story, 3)
            await _scaled(story, 5)
            assert await story.list("pvc", "-l", "dledger.io/group=orders")
            story.nodes.elect(4)
            await _scaled(story, 3)
            await _scaled(story, 1)
            claims = {one["metadata"]["name"]: one for one in await story.list("pvc")}
            killed = len(operators) - 1
            story.nodes.acted = kubelet.saw = lambda: None
            await _scaled(story, 3)
        told = [each["reason"] for each in await story.list("events")]

    assert story.nodes.faults == []
    marks = {
        name: (one["metadata"].get("annotations") or {}).get(names.REMOVED_ANNOTATION)
        for name, one in claims.items()
    }
    assert marks == {"data-orders-0": None} | {f"data-orders-{n}": f"node-{n}" for n in range(1, 5)}
    joined = [(f"node-{n}", "") for n in range(1, 5)]
    left = [("", f"node-{n}") for n in (4, 3, 2, 1)]
    again = [("node-1-again", ""), ("node-2-again", "")]
    assert story.nodes.changes == [*joined, *left, *again]
    assert killed >= len(joined) + len(left) + 1
    assert told.count("ClaimReplaced") == 2


async def test_a_change_of_mind_is_met_by_what_is_there(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """Out and back while one learns; in and back with one gone: neither waits for the other."""
    async with new_story(server, namespace, "orders", nodes=5) as story:
        kubelet = Kubelet(story)
        async with running(kubelet):
            kubelet.is_catching_up = False
            await story.kubectl("scale", "brokergroup/orders", "--replicas=5")

            async def learns() -> bool:
                return bool(story.nodes.learners)

            await eventually_async(learns, "one learns")
            await story.until_condition("Progressing", "True/ScalingOut")
            assert await story.message("Progressing") == (
                "3 of 5 members vote; orders-3 is catching up"
            )
            assert await story.condition("Degraded") == "False/AsExpected"
            await _scaled(story, 3)
            kubelet.is_catching_up = True
            await _scaled(story, 5)

            one_left = asyncio.Event()

            def back_as_soon_as_one_left() -> None:
                story.nodes.acted = lambda: None
                server.kubectl("scale", "brokergroup/orders", "--replicas=5", "-n", namespace)
                one_left.set()

            story.nodes.acted = back_as_soon_as_one_left  # the operator has no answer before that
            await story.kubectl("scale", "brokergroup/orders", "--replicas=1")
            await asyncio.wait_for(one_left.wait(), 60)
            await settled(story, 5)

    assert operators[-1].running
    assert story.nodes.faults == []
    ids = {one.id for one in story.nodes.members}
    assert {"node-0", "node-1", "node-2"} <= ids
    assert "node-3" not in ids, "it left as a learner"
    assert "node-4" not in ids, "it left as a voter"


async def test_somebody_elses_claim_is_no_new_pods_disk(
    server: ApiServer, operators: list[Operator], namespace: str
) -> None:
    """Kubernetes would mount any claim of the right name; taken back, nothing is wrong."""
    async with new_story(server, namespace, "orders", nodes=5) as story:  # noqa: SIM117
        async with running(Kubelet(story)):
            await story.kubectl("apply", "-f", "-", manifest=_claim("data-orders-4", ""))
            await story.kubectl("scale", "brokergroup/orders", "--replicas=5")
            await story.until_condition("Degraded", "True/ApplyRefused")
            assert "data-orders-4 is taken by" in await story.message("Degraded")
            assert (await story.get("statefulset", "orders"))["spec"]["replicas"] == 3
            await _scaled(story, 3)

    assert operators[-1].running
    assert story.nodes.changes == []


def _claim(name: str, group: str, **marks: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    labels = names.labels(group) if group else {}
    metadata = {"name": name, "labels": labels, "annotations": marks}
    kind = "PersistentVolumeClaim"
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def _service(name: str, owner: str = "") -> dict[str, Any]:
    """Return a Service of the group with the uid *owner*; of nobody if that is empty."""
    who = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "orders"}
    owners = [{**who, "uid": owner, "controller": True}] if owner else []
    metadata = {"name": name, "labels": names.labels("orders"), "ownerReferences": owners}
    spec = {"selector": names.selector("orders"), "ports": [{"port": 8081}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


async def test_the_account_marks_claims_and_deletes_services_of_pods_and_no_more(
    server: ApiServer, namespace: str
) -> None:
    """What scaling takes, and what the admission policy keeps from it with any right."""
    power = Power(server, namespace)
    power.put(group("orders"))
    owner = server.get("bg", "orders", "-n", namespace)["metadata"]["uid"]
    power.put(
        _bound("dledger-operator", namespace, "cluster-admin"),
        _claim("data-orders-0", "orders", **{names.REMOVED_ANNOTATION: "node-9", "theirs": "x"}),
        _claim("data-db-0", ""),
        _service("orders-3-client", owner),
        _service("orders", owner),
        _service("orders-4-client"),
        _service("db-3-client", owner),
    )

    async def in_force() -> bool:
        return "deletes nothing" in power.answer(OPERATOR, "delete", "service", "orders")

    await eventually_async(in_force, "the admission policy is in force")
    mark, ours = f"{names.REMOVED_ANNOTATION}=node-0", ("annotate", "pvc", "data-orders-0")
    for request in (
        (*ours, mark, "--overwrite"),
        (*ours, f"{names.RECOVERY_ANNOTATION}=done"),
        ("delete", "service", "orders-3-client"),
    ):
        assert power.answer(OPERATOR, *request) == "", request
    for words, *refused in (
        ("in no other way", *ours, "volume.kubernetes.io/selected-node=mine"),
        ("in no other way", *ours, "theirs=y", "--overwrite"),
        ("in no other way", *ours, f"{names.REMOVED_ANNOTATION}-"),
        ("in no other way", "label", "pvc", "data-orders-0", "team=shop"),
        ("managed-by", "annotate", "pvc", "data-db-0", mark),
        ("deletes nothing", "delete", "service", "orders-4-client"),
        ("deletes nothing", "delete", "service", "db-3-client"),
    ):
        assert words in power.answer(OPERATOR, *refused), refused
