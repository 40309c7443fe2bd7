"""The CRD, the chart's rights and the operator on a real API server; nodes are played by us.

The API server, etcd and controller manager are real, and so is the operator's process, which runs
with the rights of the chart and nothing more. There are no kubelets: the tests give pods addresses.
"""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any, Final

import pytest

from dledger_operator.decisions import growth
from tests.operator.api_server import ApiServer
from tests.operator.live import Operator, Story, group, leading, volumes_of_class
from tests.waiting import eventually_async

pytestmark = pytest.mark.e2e

CHILDREN: Final = "statefulset,service,configmap,poddisruptionbudget,networkpolicy,pod,pvc,bg"


# --- what the API server takes and refuses; its rules are in test_crd_rules_api_server.py --------


def test_allowed_changes_are_taken(server: ApiServer, namespace: str) -> None:
    """Another size, which only the volumes could forbid; replicas; labels of others."""
    apply = ("apply", "-n", namespace, "-f", "-")

    for spec in (
        {},
        {"storage": {"size": "10240Mi"}},
        {"storage": {"size": "1Ti"}, "replicas": 5},
        {"storage": {"size": "9Gi"}},
        {
            "podLabels": {"team": "shop", "dledger.io.example/a": "b"},
            "podAnnotations": {"a/b": "c"},
        },
    ):
        server.kubectl(*apply, manifest=group(**spec))


def test_without_strict_validation_an_unknown_field_is_dropped(
    server: ApiServer, namespace: str
) -> None:
    """Kubernetes leaves it to the client to ask for strictness; kubectl does by default."""
    apply = ("apply", "-n", namespace, "-f", "-")

    strict = server.kubectl(*apply, manifest=group(colour="red"), check=False)
    server.kubectl(*apply, "--validate=false", manifest=group(colour="red"))

    assert 'unknown field "spec.colour"' in strict.stderr
    assert "colour" not in server.get("bg", "orders", "-n", namespace)["spec"]


def test_scale_goes_through_the_same_rules(server: ApiServer, namespace: str) -> None:
    """The scale subresource is no way around them."""
    server.kubectl("apply", "-n", namespace, "-f", "-", manifest=group())

    done = server.kubectl("scale", "-n", namespace, "bg/orders", "--replicas=4", check=False)

    assert "replicas must be odd" in done.stderr


# --- the operator -----------------------------------------------------------------------------


async def test_a_group_is_built_founded_and_converges_to_no_writes(
    story: Story, operator: Operator
) -> None:
    """The chart's rights suffice, and nothing is written again once all is well."""
    shop = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
    await story.up(
        topics=[{"name": "demo"}],
        resources={"requests": {"cpu": "1000m"}},
        networkPolicy={"clients": [shop], "egress": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]},
    )
    await story.until_condition("Progressing", "False/Complete")

    async def quiet() -> bool:
        writes, listed = (
            operator.metric("dledger_operator_writes_total"),
            await story.list(CHILDREN),
        )
        await asyncio.sleep(3)
        again = await story.list(CHILDREN)
        still = operator.metric("dledger_operator_writes_total") == writes
        return still and _versions(listed) == _versions(again)

    await eventually_async(quiet, "three seconds without a write")
    assert story.nodes.bootstraps == 1
    assert story.nodes.topics == {"demo": 8}
    assert set(operator.metric("dledger_operator_reconcile_errors_total")) == {0}


async def test_a_topic_is_grown(story: Story) -> None:
    """And the Event says so, once."""
    await story.up(topics=[{"name": "demo", "queues": 2}])
    await story.until_condition("Progressing", "False/Complete")

    async def grown() -> bool:
        return story.nodes.topics == {"demo": 4}

    await story.apply(topics=[{"name": "demo", "queues": 4}])
    await eventually_async(grown, "four queues")
    await story.until_condition("Progressing", "False/Complete")

    events = await story.list("events")
    assert [one["message"] for one in events if one["reason"] == "TopicGrown"] == [
        "topic demo has 4 queues; it had 2"
    ]


async def test_a_topic_that_is_taken_off_the_spec_goes_when_the_spec_says_so(
    story: Story,
) -> None:
    """Its messages with it; topics that others made stay."""
    both = [{"name": "demo"}, {"name": "old"}]
    await story.up(topics=both, topicDeletion="Delete")
    await story.until_condition("Progressing", "False/Complete")
    story.nodes.topics["others"] = 8

    async def deleted() -> bool:
        return story.nodes.topics == {"demo": 8, "others": 8}

    await story.apply(topics=both[:1], topicDeletion="Delete")
    await eventually_async(deleted, "old is deleted")
    await story.until_condition("Progressing", "False/Complete")
    assert (await story.status())["topics"] == ["demo"]
    events = await story.list("events")
    assert [one["message"] for one in events if one["reason"] == "TopicDeleted"] == [
        "topic old and its 5 messages: it was taken off the spec"
    ]


async def test_nothing_of_kopf_is_left_on_objects(story: Story) -> None:
    """No finalizer, no annotation: deleting needs no operator."""
    await story.up()

    for item in await story.list(CHILDREN):
        assert "kopf" not in json.dumps(item)
        assert item["kind"] == "PersistentVolumeClaim" or "finalizers" not in item["metadata"]


async def test_members_are_founded_with_names_that_outlive_their_pods(story: Story) -> None:
    """The address is the headless Service's, not the pod's."""
    await story.up()

    assert [member.address for member in story.nodes.members] == [
        f"orders-{n}.orders-nodes.{story.namespace}.svc:20911" for n in range(3)
    ]


async def test_a_change_of_leader_is_labelled_recorded_and_told(story: Story) -> None:
    """Within two seconds."""
    await story.up()

    story.nodes.elect(2)

    async def labelled() -> Any:
        listed = await story.list("pods", "-l", "dledger.io/role=leader")
        return [pod["metadata"]["name"] for pod in listed] == ["orders-2"]

    await eventually_async(labelled, "the label moves", deadline_s=5)
    assert (await story.status())["leader"] == "orders-2"
    events = await story.list("events", "--field-selector", "reason=LeaderChanged")
    assert len(events) == 1


async def test_deleted_and_applied_again_the_group_comes_back_with_its_id(story: Story) -> None:
    """Children go with their owner, claims stay, and the id comes from the volumes."""
    await story.up()
    group_id = (await story.status())["groupId"]

    await story.kubectl("delete", "bg", "orders")

    async def gone() -> bool:
        return not await story.list("statefulset,pods")

    await eventually_async(gone, "the children are gone", deadline_s=60)
    assert len(await story.list("pvc")) == 3
    await story.up()
    assert (await story.status())["groupId"] == group_id
    assert story.nodes.bootstraps == 1
    await story.until_condition("GroupIDConsistent", "True/OneGroupId")


@pytest.mark.parametrize("grows", [True, False])
async def test_volumes_grow_where_their_class_lets_them(story: Story, grows: bool) -> None:
    """The pods go on under a StatefulSet made anew; else the refusal is told, and can be undone."""
    name = f"{story.namespace}-{str(grows).lower()}"
    for made in volumes_of_class(name, grows=grows):
        await story.kubectl("apply", "-f", "-", manifest=made)
    await story.up(storage={"size": "10Gi", "storageClassName": name})

    async def sizes() -> list[str]:
        found = await story.list("pvc")
        return [one["spec"]["resources"]["requests"]["storage"] for one in found]

    async def bound() -> bool:
        return {one["status"]["phase"] for one in await story.list("pvc")} == {"Bound"}

    await eventually_async(bound, "the claims are bound")
    pods = {pod["metadata"]["uid"] for pod in await story.list("pods")}
    before = await story.get("statefulset", "orders")

    await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", _sized("20Gi"))

    if not grows:
        await story.until_condition("Degraded", "True/ApplyRefused")
        assert "must support resize" in await story.message("Degraded")
        await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", _sized("10Gi"))
        await story.until_condition("Degraded", "False/AsExpected")
        assert await sizes() == ["10Gi"] * 3
        return

    async def grown() -> bool:
        built = await story.get("statefulset", "orders")
        return bool(built) and growth.template_size(built) == "20Gi"

    await eventually_async(grown, "the StatefulSet is made anew")
    assert await sizes() == ["20Gi"] * 3
    after = await story.get("statefulset", "orders")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]

    async def adopted() -> bool:
        owners = [pod["metadata"].get("ownerReferences") for pod in await story.list("pods")]
        return all(own and own[0]["uid"] == after["metadata"]["uid"] for own in owners)

    await eventually_async(adopted, "its pods are the new one's")
    assert {pod["metadata"]["uid"] for pod in await story.list("pods")} == pods
    await story.until_condition("Progressing", "False/Complete")
    assert await story.condition("SpecValid") == "True/Accepted"


def _sized(size: str) -> str:
    return _spec({"storage": {"size": size}})


def _spec(fields: dict[str, Any]) -> str:
    return json.dumps({"spec": fields})


async def test_a_pod_that_kubernetes_refuses_is_named_with_its_words(story: Story) -> None:
    """Found: O2. And no longer once the cause is gone."""
    await story.kubectl("create", "quota", "none", "--hard=pods=0")
    await story.apply()

    await story.until_condition("Degraded", "True/PodRefused")
    assert "orders-0 (no pod: " in await story.message("Ready")
    for kind in ("Ready", "Progressing", "Degraded"):
        assert "exceeded quota: none" in await story.message(kind), kind

    await story.kubectl("delete", "quota", "none")
    await story.run_pods()
    await story.until_condition("Degraded", "False/AsExpected")


async def test_nodes_never_mount_a_config_that_is_someone_elses(story: Story) -> None:
    """Found: O11. Not even where the group ran before."""
    await story.up()
    await story.apply(paused=True)
    await story.until_condition("Paused", "True/PausedByUser")
    await story.kubectl("delete", "statefulset/orders", "configmap/orders-config")
    await story.kubectl("create", "configmap", "orders-config", "--from-literal=a=b")

    await story.apply(paused=False)

    async def named() -> bool:
        return "orders-config: the name is taken" in await story.message("Degraded")

    await eventually_async(named, "what is in the way is named")
    assert not await story.list("statefulset")
    await story.kubectl("delete", "configmap/orders-config")
    built = await eventually_async(lambda: story.get("statefulset", "orders"), "the StatefulSet")
    config = await story.get("configmap", "orders-config")
    made = [each["metadata"]["creationTimestamp"] for each in (config, built)]
    assert made == sorted(made)
    assert "group-id" in config["data"]


async def test_a_claim_that_is_someone_elses_is_named(story: Story) -> None:
    """Found: O11. A StatefulSet takes any claim of the right name; labelled, it is the group's."""
    await story.up()
    claim = await story.get("pvc", "data-orders-0")

    await story.kubectl("label", "pvc", "data-orders-0", "dledger.io/group-")

    await story.until_condition("StorageHealthy", "False/ForeignVolume")
    await story.until_condition("Degraded", "True/ForeignVolume")
    assert "data-orders-0" in await story.message("StorageHealthy")
    label = f"dledger.io/group={claim['metadata']['labels']['dledger.io/group']}"
    await story.kubectl("label", "pvc", "data-orders-0", label)
    await story.until_condition("Degraded", "False/AsExpected")


async def test_a_service_of_that_name_is_not_taken_over(story: Story) -> None:
    """It keeps its selector; the condition says what is in the way."""
    await story.kubectl("create", "service", "clusterip", "orders", "--tcp=80")

    await story.apply()

    await story.until_condition("Degraded", "True/ApplyRefused")
    assert (await story.get("service", "orders"))["spec"]["selector"] == {"app": "orders"}


async def test_what_the_api_server_says_of_a_child_is_told(story: Story) -> None:
    """A limit below its request passes the CRD, not the StatefulSet."""
    await story.apply(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})

    await story.until_condition("Degraded", "True/ApplyRefused")
    rows = (await story.status())["conditions"]
    message = next(row["message"] for row in rows if row["type"] == "Degraded")
    assert "must be less than or equal to cpu limit" in message


async def test_a_size_spelled_otherwise_is_no_change(story: Story) -> None:
    """Claims cannot change, and need not."""
    await story.up()

    await story.apply(storage={"size": "10240Mi"}, paused=False)

    await asyncio.sleep(2)
    await story.until_condition("Degraded", "False/AsExpected")
    assert await story.condition("SpecValid") == "True/Accepted"


async def test_a_paused_group_is_only_watched(story: Story) -> None:
    """Nothing is created until it is unpaused."""
    await story.apply(paused=True)
    await story.until_condition("Paused", "True/PausedByUser")
    assert not await story.list("statefulset")

    await story.up(paused=False)


async def test_a_group_that_is_held_in_deletion_says_by_whom(story: Story) -> None:
    """Found: S12. It goes as soon as the finalizer does."""
    await story.up()
    hold = json.dumps({"metadata": {"finalizers": ["example.com/audit"]}})
    await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", hold)

    await story.kubectl("delete", "bg", "orders", "--wait=false")
    await story.until_condition("Progressing", "True/Terminating")

    assert "held by finalizers: example.com/audit;" in await story.message("Progressing")
    assert await story.condition("Available") == "Unknown/Terminating"
    release = json.dumps({"metadata": {"finalizers": None}})
    await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", release)
    await eventually_async(lambda: _is_gone(story), "the group is gone")


async def _is_gone(story: Story) -> bool:
    return bool(await story.get("bg", "orders") == {})


async def test_the_operator_comes_back_with_the_api_server(
    server: ApiServer, operator: Operator, story: Story
) -> None:
    """It lets go after ten seconds without an answer, and takes up again by itself."""
    await story.up()
    server.kill("kube-apiserver")
    gave_up = functools.partial(leading, operator, 0)
    await eventually_async(gave_up, "the operator gives up", deadline_s=40)
    assert operator.metric("dledger_operator_group_condition")
    assert max(operator.metric("dledger_operator_group_age_seconds")) > 0
    story.nodes.elect(1)

    await asyncio.to_thread(server.restart_api_server)

    await eventually_async(functools.partial(leading, operator, 1), "it acts again", deadline_s=40)

    async def followed() -> bool:
        return bool((await story.status())["leader"] == "orders-1")

    await eventually_async(followed, "the new leader is recorded", deadline_s=20)
    assert operator.running


async def test_a_second_operator_waits_and_takes_over(
    server: ApiServer, operator: Operator, story: Story
) -> None:
    """The first lets go of the Lease when it stops; the second founds the group it left.

    It is the last here: none acts for tests after it.
    """
    await eventually_async(functools.partial(leading, operator, 1), "the first acts")
    second = Operator(server, "second")
    await eventually_async(functools.partial(leading, second, 0), "the second waits")

    try:
        first_was = operator.stop()
        await story.up()
    finally:
        second.stop()

    assert first_was == 0


def _versions(listed: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    metadata = [(item["kind"], item["metadata"]) for item in listed]
    return {(kind, each["name"]): each["resourceVersion"] for kind, each in metadata}
