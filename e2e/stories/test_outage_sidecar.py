"""What a user keeps who has put a spool beside his application: all that was answered OK."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest

from e2e.cluster import Cluster
from e2e.cluster.image import Image
from e2e.cluster.layout import default_layout
from e2e.harness.spooled_sends import PROGRAM, Sends, example, follow, running_program
from e2e.harness.world import (
    PYTHON,
    BrokerGroup,
    Namespace,
    Workload,
    eventually,
    scale_operator,
)
from e2e.stories.traffic import check_whole

TOPIC: Final = "orders"
SPOOL: Final = "dledger-spool"
DIRECTORY: Final = "/var/spool/dledger/orders"
OUTAGE_S: Final = 30.0
ANY_USER: Final = 1_000_660_000
KILL_WHAT_SERVES: Final = (
    "import os; at = open('/proc/1/task/1/children').read().split(); os.kill(int(at[0]), 9)"
)
"""The parent of the sidecar is the container's first process; its other child waits."""
GAUGE: Final = (
    "import urllib.request; "
    "print(urllib.request.urlopen('http://127.0.0.1:8090/metrics').read().decode())"
)
MEMORY: Final = """
import os, pathlib, re
found = [each for each in pathlib.Path("/proc").glob("[0-9]*/smaps_rollup")]
others = [each.read_text() for each in found if each.parent.name != str(os.getpid())]
print(sum(int(re.search(r"Pss: +(\\d+)", each)[1]) for each in others) / 1024)
"""
"""MiB of a container's processes, what they share counted once."""


@pytest.mark.long
def test_an_application_beside_its_spool_sees_no_outage(
    namespace: Namespace, image: Image, workload_image: Image, figures: dict[str, float]
) -> None:
    """All nodes away; what serves is killed; the pod is deleted and comes back in the outage."""
    group = _group(namespace)
    (stateful_set,) = example("statefulset.yaml", image.name, workload_image.name)
    namespace.apply(*running_program(stateful_set, TOPIC))
    with ExitStack() as stack:
        first = stack.enter_context(follow(namespace, "shop-0", "shop"))
        first.go_on(200)
        with _all_nodes_gone(group):
            first.go_on(200)
            _exec(namespace, "shop-0", KILL_WHAT_SERVES)
            first.go_on(200)
            namespace.kubectl("delete", "pod", "shop-0", "--timeout=60s", timeout_s=70)
            before = first.wait_end()
            second = stack.enter_context(follow(namespace, "shop-0", "shop"))
            second.go_on(200)
            _exec(namespace, "shop-0", KILL_WHAT_SERVES)
            second.go_on(200)
            waiting = _status(namespace, "shop-0")
            assert _value(namespace, "shop-0", "dledger_spool_degraded") == 1
            figures["MiB of the sidecar"] = float(_exec(namespace, "shop-0", MEMORY))
        second.go_on(200)
        _wait_drained(namespace, "shop-0")
        assert _is_ready_since_its_start(namespace, "shop-0")
        namespace.kubectl("delete", "statefulset", "shop", "--timeout=60s", timeout_s=70)
        after = second.wait_end()

    assert (before.failed, after.failed) == ((), ())
    assert waiting["depth"] >= 400
    figures["bytes of a message on the disk"] = waiting["bytes"] / waiting["depth"]
    figures["longest send, s"] = max(before.longest_s, after.longest_s)
    _check_stored(namespace, workload_image, before, after)


@pytest.mark.long
def test_a_sidecar_whose_whole_container_is_killed_loses_nothing(
    namespace: Namespace, image: Image, workload_image: Image, figures: dict[str, float]
) -> None:
    """The kubelet makes it anew; the port is closed for that long, as its application is told.

    It runs as a user that the image does not know, as OpenShift gives one to each namespace.
    """
    group, cluster = _group(namespace), namespace.cluster
    if cluster.kind == "current":
        pytest.skip("kills a process of a machine, which a cluster that is not ours keeps")
    (stateful_set,) = example("statefulset.yaml", image.name, workload_image.name)
    _run_as(stateful_set, ANY_USER)
    namespace.apply(*running_program(stateful_set, TOPIC))
    with follow(namespace, "shop-0", "shop") as application:
        application.go_on(200)
        with _all_nodes_gone(group, 0):
            application.go_on(200)
            killed_ms = time.time_ns() // 1_000_000
            cluster.kill_pid(cluster.container_pids(namespace.name, "shop-0", SPOOL)[0])
            eventually("another container", lambda: _restarts(namespace, "shop-0") == 1, 60)
            back_ms = time.time_ns() // 1_000_000
            application.go_on(200)
        application.go_on(200)
        _wait_drained(namespace, "shop-0")
        namespace.kubectl("delete", "statefulset", "shop", "--timeout=60s", timeout_s=70)
        sends = application.wait_end()

    failed_ms = [ms for *_, ms in sends.failed]
    assert all(killed_ms <= ms <= back_ms + 2000 for ms in failed_ms), sends.failed
    figures["sends that failed"] = len(failed_ms)
    figures["seconds until the last of them"] = (
        max(failed_ms, default=killed_ms) - killed_ms
    ) / 1e3
    _check_stored(namespace, workload_image, sends)


@pytest.mark.long
def test_pods_of_a_machine_share_its_spool(
    namespace: Namespace, cluster: Cluster, image: Image, workload_image: Image
) -> None:
    """The application's pod is deleted in the outage, and goes on on the same machine."""
    if cluster.kind == "current":
        pytest.skip("makes a directory on a machine, which a cluster that is not ours keeps")
    group, spool = _group(namespace), Namespace(cluster, f"{namespace.name}-spool")
    machine = next(iter(group.nodes().values()))["spec"]["nodeName"]
    spool.delete()
    cluster.kubectl(
        "apply", "-f", "-", input=json.dumps(_of_machine(namespace, spool, image, machine))
    )
    cluster.kubectl("-n", spool.name, "rollout", "status", f"daemonset/{SPOOL}", "--timeout=60s")
    (pod,) = spool.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}").split()
    try:
        with ExitStack() as stack:
            first = stack.enter_context(_application(namespace, spool, workload_image, machine))
            first.go_on(200)
            with _all_nodes_gone(group, 0):
                first.go_on(200)
                namespace.kubectl("delete", "pod", "shop", "--timeout=60s", timeout_s=70)
                before = first.wait_end()
                second = stack.enter_context(
                    _application(namespace, spool, workload_image, machine)
                )
                second.go_on(200)
                assert _status(spool, pod)["depth"] >= 400
                _exec(spool, pod, KILL_WHAT_SERVES)
                second.go_on(200)
            second.go_on(200)
            _wait_drained(spool, pod)
            namespace.kubectl("delete", "pod", "shop", "--timeout=60s", timeout_s=70)
            after = second.wait_end()
    finally:
        spool.begin_delete()

    assert (before.failed, after.failed) == ((), ())
    _check_stored(namespace, workload_image, before, after)


def _group(namespace: Namespace) -> BrokerGroup:
    return namespace.run_group(topics=[{"name": TOPIC, "type": "NORMAL", "queues": 8}])


def _run_as(workload: dict[str, Any], user: int) -> None:
    spec = workload["spec"]["template"]["spec"]
    spec["securityContext"]["fsGroup"] = user
    for container in (*spec["initContainers"], *spec["containers"]):
        container["securityContext"] |= {"runAsUser": user, "runAsGroup": user}


@contextmanager
def _all_nodes_gone(group: BrokerGroup, at_least_s: float = OUTAGE_S) -> Iterator[None]:
    """Kill all nodes at once, and have nobody make them anew until the end."""
    cluster, began_s = group.namespace.cluster, time.monotonic()
    nodes = group.pods()
    scale_operator(cluster, 0)
    try:
        group.namespace.kubectl("scale", f"statefulset/{group.name}", "--replicas=0")
        for pod in nodes:
            group.kill_pod(pod)
        eventually("the group's pods are gone", lambda: not group.pods(), 60)
        yield
        until_s = began_s + at_least_s
        eventually("the outage has lasted", lambda: time.monotonic() >= until_s, at_least_s + 1)
    finally:
        group.namespace.kubectl("scale", f"statefulset/{group.name}", f"--replicas={len(nodes)}")
        scale_operator(cluster, 1)
    group.wait_available()


def _of_machine(
    namespace: Namespace, spool: Namespace, image: Image, machine: str
) -> dict[str, Any]:
    """Return the DaemonSet's example on one machine: those of the local cluster share a disk."""
    directory = default_layout().state / "spools" / f"{spool.name}-{time.time_ns():x}"
    manifests = example(
        "daemonset.yaml",
        image.name,
        **{
            "dledger-spool.dledger-spool": f"{SPOOL}.{spool.name}",
            "shop": namespace.name,
            "--upstream=orders.shop:8081": f"--upstream=orders.{namespace.name}:8081",
            f"--advertise={SPOOL}.{SPOOL}": f"--advertise={SPOOL}.{spool.name}",
            "/var/lib/dledger-spool": str(directory),
        },
    )
    for each in manifests:
        if each["kind"] == "Namespace":
            each["metadata"]["name"] = spool.name
        else:
            each["metadata"]["namespace"] = spool.name
        if each["kind"] == "DaemonSet":
            each["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": machine}
    return {"apiVersion": "v1", "kind": "List", "items": manifests}


@contextmanager
def _application(
    namespace: Namespace, spool: Namespace, image: Image, machine: str
) -> Iterator[Any]:
    """Run the application as a pod of that machine, and follow what it says."""
    endpoint = f"{SPOOL}.{spool.name}:8081"
    namespace.start_program(
        PROGRAM,
        "shop",
        image.name,
        [PYTHON, f"/workload/{PROGRAM}", endpoint, TOPIC],
        terminationGracePeriodSeconds=30,
        nodeSelector={"kubernetes.io/hostname": machine},
    )
    with follow(namespace, "shop", "workload") as application:
        yield application


def _exec(namespace: Namespace, pod: str, program: str) -> str:
    return namespace.kubectl("exec", pod, "-c", SPOOL, "--", PYTHON, "-c", program)


def _status(namespace: Namespace, pod: str) -> dict[str, Any]:
    """Return what the tool in the spool's own container says of it."""
    asked = ("dledger", "spool", "status", "--dir", DIRECTORY, "--json")
    found: dict[str, Any] = json.loads(namespace.kubectl("exec", pod, "-c", SPOOL, "--", *asked))
    return found


def _wait_drained(namespace: Namespace, pod: str) -> None:
    eventually("an empty spool", lambda: _status(namespace, pod)["depth"] == 0, 120)


def _value(namespace: Namespace, pod: str, metric: str) -> float:
    lines = _exec(namespace, pod, GAUGE).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{metric}{{"))


def _restarts(namespace: Namespace, pod: str) -> int:
    found = namespace.get("pod", pod) or {}
    (sidecar,) = found["status"]["initContainerStatuses"]
    return int(sidecar["restartCount"]) if sidecar["ready"] else 0


def _is_ready_since_its_start(namespace: Namespace, pod: str) -> bool:
    """Whether it was ready all through the outage."""
    found = namespace.get("pod", pod) or {}
    conditions = {each["type"]: each for each in found["status"]["conditions"]}
    (application,) = found["status"]["containerStatuses"]
    started = application["state"]["running"]["startedAt"]
    ready = conditions["Ready"]
    return (
        ready["status"] == "True"
        and abs(_seconds(ready["lastTransitionTime"]) - _seconds(started)) < 5
    )


def _seconds(told: str) -> float:
    return time.mktime(time.strptime(told, "%Y-%m-%dT%H:%M:%SZ"))


def _check_stored(namespace: Namespace, image: Image, *runs: Sends) -> None:
    """Check that all that was answered OK is in the log once, each sender's in its order."""
    acks = [key for run in runs for key in run.acks()]
    asked = ("--endpoint", "orders:8081", "--topic", TOPIC, "--consumer", "none")
    reader = Workload(
        namespace, image, "reader", *asked, "--expect", "/workload/acks",
        files={"acks": "\n".join(acks)},
    )  # fmt: skip
    reader.start()
    summary = check_whole(reader.summary())
    assert summary["expected"] == len(acks) > 0
