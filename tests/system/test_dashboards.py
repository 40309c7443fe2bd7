"""The chart's dashboards and alerts on a real Prometheus that scrapes a real group and operator.

Targets get their labels by the chart's own PodMonitors. The group's processes are real; the
operator is the shipped task of one group over an API server in memory, its metrics served for real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml

from dledger.client import Client
from dledger.common.http import HealthServer
from dledger.rpc.rocketmq_stubs import definition, service
from dledger_operator.api import names
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.reconcile import Clock, Reconciler
from dledger_operator.controllers.reconcile_loop import GroupLoop
from dledger_operator.metrics.metrics import Metrics
from dledger_pipeline.errors import PipelineError
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress, registry
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.object_store.store import Store
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from e2e.harness.prometheus import INTERVAL, Prometheus
from tests.monitoring.chart import ALL_ON, CHART, of_kind
from tests.operator.fakes import FakeApi, FakeNodes, FakeWatched, World
from tests.operator.samples import PLATFORM
from tests.requests.rocketmq_client import RocketClient, message
from tests.sidecar.test_parent import started
from tests.system.scraping import ScrapedPod, scrape_config
from tests.waiting import eventually_blocking

pytestmark = [pytest.mark.alone, pytest.mark.e2e, pytest.mark.slow]

NAMESPACE, GROUP = "shop", "orders"
SETTINGS = (f"group={GROUP}", "segment_bytes=8388608")
DASHBOARD = json.loads((CHART / "monitoring/dashboard.json").read_text("utf-8"))
DASHBOARDS = [
    json.loads(path.read_text("utf-8"))
    for path in sorted((CHART / "monitoring").glob("dashboard*.json"))
]
EMPTY_WHEN_WELL = ("ALERTS{", 'reason!="AsExpected"')
"""In queries of what is wrong."""
WITHOUT_TLS = {
    "dledger_client_certificate_expiry_timestamp_seconds",
    "dledger_client_certificate_refused",
    "dledger_peer_certificate_expiry_timestamp_seconds",
}
"""Of which this group has no series."""
OF_ROUNDS = "dledger_compaction_"
"""Of compacted topics, which the group has none of; their alert has a story of its own."""
OF_ANOTHER = {"dledger_operator_managed_elsewhere"}
"""There only while a group is another operator's."""
CHOSEN = {
    "$__rate_interval": "20s",
    "$__range": "10m",
    "$namespace": NAMESPACE,
    "$group": GROUP,
}
DEADLINE_S = 120


class Background(threading.Thread):
    """A coroutine on an event loop of its own, until stopped."""

    def __init__(self, work: Any) -> None:
        super().__init__(daemon=True)
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work)
        self.start()

    def run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    def stop(self) -> None:
        """Cancel the coroutine and wait for its end."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self.join(30)


async def look_after_a_group(metrics: Metrics) -> None:
    """Be the operator of one group, made and backed up just now."""
    world = World()
    now = Clock().now()
    store = {"url": "s3://backups/orders", "secretName": "backups"}
    world.put_group({"backup": {"store": store}})
    world.objects[names.KIND, GROUP]["metadata"]["creationTimestamp"] = now
    backup = {"name": "first", "completedAt": now, "lastIndex": 1, "manifest": "manifests/1.json"}
    world.objects[names.KIND, GROUP]["status"] = {"backup": backup}
    reconciler = Reconciler(
        world.group,
        cluster=Cluster(FakeApi(world), metrics.wrote),
        nodes=FakeNodes(world),
        watched=FakeWatched(world),
        platform=PLATFORM,
        metrics=metrics,
        lease_s=lambda: 0.0,
    )
    metrics.leading.set(1)
    metrics.groups.set(1)
    metrics.operated("Restart", "Succeeded")
    ends_s = time.time() + 365 * 86400
    metrics.show_certificates(NAMESPACE, GROUP, ca=ends_s, peers=ends_s)
    task = GroupLoop(reconciler, metrics)
    try:
        while True:
            task.update(world.group)
            world.run_pods()
            await asyncio.sleep(0.5)
    finally:
        await task.close()


class BackingUp(threading.Thread):
    """Backs the group up again and again, as a Job does, and serves metrics of that.

    The log that has grown meanwhile is read slowly, so that a scrape sees it grow.
    """

    def __init__(self, directory: Path, admins: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._request = BackupRequest(
            endpoints=tuple(admins),
            store=Store.open(f"file://{directory}/store"),
            target_bytes=1 << 16,
            runner=RunnerName.PLAIN,
        )
        self._progress = Progress("backup")
        self._over = threading.Event()
        self._health = HealthServer(
            ("127.0.0.1", 0), live=str, ready=str, registry=registry(self._progress)
        )
        self.port = self._health.port
        self._health.start()
        self.start()

    def run(self) -> None:
        while not self._over.wait(1):
            with contextlib.suppress(PipelineError):  # while a node is killed
                backup(self._request, self._progress)

    def stop(self) -> None:
        """End after the backup that runs."""
        self._over.set()
        self.join(120)
        self._health.close()


async def leave_some(port: int) -> None:
    """Have a message of a FIFO topic wait for its group, and another one be a dead letter."""
    address = f"127.0.0.1:{port}"
    async with Client(address, timeout_s=30) as native, RocketClient(port) as client:
        await native.create_topic("ordered", "FIFO", queues=1)
        await native.create_topic("spoiled", queues=1)
        await native.create_topic("later", "DELAY", queues=1)
        kind: dict[str, Any] = {"message_type": definition.MessageType.FIFO}
        for number, name in enumerate("aab"):
            await client.send(message(number, topic="ordered", message_group=name, **kind))
        for _ in range(2):
            await client.receive("ordered", group="in-order", batch=1, invisible_s=3600)
        await client.send(message(2, topic="spoiled"))
        _, (given,), _ = await client.receive("spoiled", group="gave-up", wait_s=5)
        request = service.ForwardMessageToDeadLetterQueueRequest(
            group=definition.Resource(name="gave-up"),
            topic=definition.Resource(name="spoiled"),
            receipt_handle=given.system_properties.receipt_handle,
            message_id=given.system_properties.message_id,
            delivery_attempt=1,
            max_delivery_attempts=1,
        )
        await client.call("ForwardMessageToDeadLetterQueue", request)


async def send_messages(ports: list[int]) -> None:
    """Send to every node in turn; every tenth message is one that is refused."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(RocketClient(port, timeout_s=5.0)) for port in ports
        ]
        for number in range(1 << 30):
            body = b"" if number % 10 == 0 else b"x" * 100
            with contextlib.suppress(grpc.aio.AioRpcError):
                await clients[number % len(clients)].send(message(number, body))
                if number % 50 == 0:
                    later: dict[str, Any] = {
                        "message_type": definition.MessageType.DELAY,
                        "delivery_timestamp": {"seconds": int(time.time()) + 2},
                    }
                    client = clients[number // 50 % len(clients)]
                    await client.send(message(number, topic="later", **later))
            await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Watched:
    """A group, and the Prometheus that watches it."""

    group: DevGroup
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A group under a light load, its operator, and Prometheus with the chart's alerts."""
    directory = tmp_path_factory.mktemp("watched")
    with contextlib.ExitStack() as stack:
        group = DevGroup(directory / "data", free_port_range(), *SETTINGS)
        stack.callback(group.stop)
        announced = group.announced()
        ports = [int(endpoint.rpartition(":")[2]) for endpoint in announced["endpoints"]]
        metrics = Metrics()
        stack.callback(Background(look_after_a_group(metrics)).stop)
        health = HealthServer(("127.0.0.1", 0), live=str, ready=str, registry=metrics.registry)
        health.start()
        stack.callback(health.close)
        backing_up = BackingUp(directory, announced["adminEndpoints"])
        stack.callback(backing_up.stop)
        configs = _scrape_configs(ports, health.port, backing_up.port)
        metrics_port = free_port_range()
        sidecar, _ = started(directory / "spool", "--metrics", f"127.0.0.1:{metrics_port}")
        stack.callback(_end, sidecar)
        configs.append(_scrape_of_a_sidecar(metrics_port))
        prometheus = Prometheus(directory, configs, _rules())
        stack.callback(prometheus.stop)
        eventually_blocking(prometheus.is_up, "Prometheus answers", DEADLINE_S)
        asyncio.run(leave_some(ports[0]))
        stack.callback(Background(send_messages(ports)).stop)
        yield Watched(group, prometheus)


def _scrape_configs(
    client_ports: list[int], operator_port: int, job_port: int
) -> list[dict[str, Any]]:
    """Return what the chart's PodMonitors make Prometheus scrape."""
    pods = [
        ScrapedPod(
            namespace=NAMESPACE,
            name=f"node-{number}",
            labels=names.labels(GROUP),
            address=f"127.0.0.1:{port + 300}",
        )
        for number, port in enumerate(client_ports)
    ]
    (deployment,) = of_kind("Deployment", *ALL_ON)
    operator = ScrapedPod(
        namespace="dledger-system",
        name="dledger-operator-0",
        labels=deployment["spec"]["template"]["metadata"]["labels"],
        address=f"127.0.0.1:{operator_port}",
    )
    job = ScrapedPod(
        namespace=NAMESPACE,
        name="first-backup-x2x4z",
        labels=names.job_labels(GROUP, "backup"),
        address=f"127.0.0.1:{job_port}",
    )
    return [
        scrape_config(monitor, [*pods, operator, job]) for monitor in of_kind("PodMonitor", *ALL_ON)
    ]


def _scrape_of_a_sidecar(port: int) -> dict[str, Any]:
    """Return how an application's own PodMonitor scrapes its sidecar."""
    labels = {"namespace": NAMESPACE, "pod": "web-0"}
    static = [{"targets": [f"127.0.0.1:{port}"], "labels": labels}]
    return {"job_name": "web", "scrape_interval": INTERVAL, "static_configs": static}


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=30)


def _rules() -> dict[str, Any]:
    """Return the chart's alerts, firing after seconds; `promtool` tests them as they are."""
    rules: dict[str, Any] = yaml.safe_load((CHART / "monitoring/alerts.yaml").read_text("utf-8"))
    for group in rules["groups"]:
        group["interval"] = INTERVAL
        for rule in group["rules"]:
            if "alert" in rule:
                rule["for"] = "5s"
    return rules


def _filled_in(query: str) -> str:
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    return query


def _has_data(series: list[dict[str, Any]]) -> bool:
    """Whether there is a number: a quantile of nothing is NaN."""
    values = [value for each in series for _, value in each.get("values") or [each["value"]]]
    return any(math.isfinite(float(value)) for value in values)


def _queries() -> list[tuple[str, str, bool]]:
    """Return title, query and whether it is instant, of every target of every panel."""
    return [
        (panel["title"], _filled_in(target["expr"]), target["instant"])
        for dashboard in DASHBOARDS
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        if not any(each in target["expr"] for each in (*EMPTY_WHEN_WELL, *WITHOUT_TLS))
    ]


def _empty(
    prometheus: Prometheus, asked: Sequence[tuple[str, str, bool]]
) -> list[tuple[str, str, bool]]:
    """Return those of the queries that have no data now; a busy machine misses a scrape."""

    def ask(query: str, *, instant: bool) -> list[dict[str, Any]]:
        return prometheus.query(query) if instant else prometheus.query_range(query, seconds=60)

    return [
        (title, query, instant)
        for title, query, instant in asked
        if not _has_data(ask(query, instant=instant))
    ]


def _firing(prometheus: Prometheus, name: str) -> list[dict[str, Any]]:
    return [
        alert
        for alert in prometheus.alerts()
        if alert["labels"]["alertname"] == name and alert["state"] == "firing"
    ]


def test_every_target_is_scraped_and_named_by_its_group(watched: Watched) -> None:
    """By the chart's relabelling; the operator speaks of a group in another namespace."""
    prometheus = watched.prometheus

    eventually_blocking(lambda: len(prometheus.query("up == 1")) == 6, "all are up", DEADLINE_S)

    nodes = prometheus.query(f'up{{job="dledger", namespace="{NAMESPACE}", group="{GROUP}"}}')
    assert {each["metric"]["node"] for each in nodes} == {"node-0", "node-1", "node-2"}
    (run,) = prometheus.query(f'up{{job="backup", namespace="{NAMESPACE}", group="{GROUP}"}}')
    assert run["metric"]["pod"] == "first-backup-x2x4z"
    told = eventually_blocking(
        lambda: prometheus.query('dledger_operator_group_condition{condition="Available"} == 1'),
        "the operator tells of the group",
        DEADLINE_S,
    )
    assert told[0]["metric"]["namespace"] == NAMESPACE
    assert told[0]["metric"]["pod"] == "dledger-operator-0"


def test_every_rule_is_evaluated_and_a_healthy_group_raises_no_alert(watched: Watched) -> None:
    """Every series that a rule speaks of is there. What is said of disks is this machine's."""
    prometheus = watched.prometheus
    named = {name for rule in prometheus.rules() for name in _metrics_of(rule["query"])}
    asked = {each for each in named - WITHOUT_TLS - OF_ANOTHER if OF_ROUNDS not in each}

    eventually_blocking(
        lambda: all(prometheus.query(name) for name in asked),
        "every metric of the alerts is there",
        DEADLINE_S,
    )
    eventually_blocking(
        lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"},
        "every rule was evaluated",
        DEADLINE_S,
    )

    assert len(asked) >= 24
    of_disks = {"DledgerSlowSyncs", "DledgerDiskFilling"}
    of_the_group = [rule["name"] for rule in prometheus.rules() if rule["type"] == "alerting"]
    eventually_blocking(
        lambda: not any(_firing(prometheus, name) for name in {*of_the_group} - of_disks),
        "all is quiet",
        DEADLINE_S,
    )


def _metrics_of(query: str) -> set[str]:
    """Return the series that are scraped: not those that rules record, with a colon beside."""
    return set(re.findall(r"(?<!:)\b(?:dledger_\w+|up)\b(?!:)", query))


def test_every_query_of_the_dashboards_returns_data_through_a_failover(watched: Watched) -> None:
    """The leader is killed under load; afterwards no panel is empty."""
    state = eventually_blocking(watched.group.whole, "the group is whole", DEADLINE_S)
    prometheus = watched.prometheus
    eventually_blocking(
        lambda: prometheus.query('sum(dledger_requests_total{code="OK"}) > 20'),
        "the load is seen",
        DEADLINE_S,
    )

    os.kill(state["pids"][state["leader"]], signal.SIGKILL)

    eventually_blocking(
        lambda: prometheus.query('sum(dledger_elections_total{cause!="Bootstrap"}) > 0'),
        "another node has won an election",
        DEADLINE_S,
    )
    eventually_blocking(watched.group.whole, "the group is whole", DEADLINE_S)
    (led_for,) = eventually_blocking(
        lambda: prometheus.query("time() - max(dledger_leader_since_timestamp_seconds)"),
        "the new leader says since when it leads",
        DEADLINE_S,
    )
    assert 0 < float(led_for["value"][1]) < 2 * DEADLINE_S
    left = [each for each in _queries() if OF_ROUNDS not in each[1]]

    def all_answered() -> bool:
        left[:] = _empty(prometheus, left)
        return not left

    with contextlib.suppress(AssertionError):
        eventually_blocking(all_answered, "every query has returned data", DEADLINE_S)
    assert left == []


def test_the_variables_of_the_dashboard_offer_the_group(watched: Watched) -> None:
    """A namespace first, then its groups."""
    offered = {}
    for variable in DASHBOARD["templating"]["list"]:
        asked = (
            re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            if (variable["type"] == "query")
            else None
        )
        if asked is not None:
            selector, label = _filled_in(asked.group(1)), asked.group(2)
            offered[variable["name"]] = watched.prometheus.label_values(label, selector)

    assert offered == {"namespace": [NAMESPACE], "group": [GROUP]}


def test_the_loss_of_a_majority_raises_the_alert_and_its_return_ends_it(watched: Watched) -> None:
    """Two nodes are killed and stay dead for a while; the third cannot lead."""
    state = eventually_blocking(watched.group.whole, "the group is whole", DEADLINE_S)
    prometheus = watched.prometheus
    before = _firing(prometheus, "DledgerNoLeader")

    watched.group.process.send_signal(signal.SIGSTOP)  # or it would start them again
    try:
        for pid in state["pids"][:2]:
            os.kill(pid, signal.SIGKILL)
        (alert,) = eventually_blocking(
            lambda: _firing(prometheus, "DledgerNoLeader"), "the alert fires", DEADLINE_S
        )
    finally:
        watched.group.process.send_signal(signal.SIGCONT)

    assert before == []
    assert alert["labels"] == {
        "alertname": "DledgerNoLeader",
        "namespace": NAMESPACE,
        "group": GROUP,
        "severity": "critical",
    }
    assert f"{NAMESPACE}/{GROUP} has no leader" in alert["annotations"]["summary"]
    eventually_blocking(
        lambda: not _firing(prometheus, "DledgerNoLeader"), "the alert ends", DEADLINE_S
    )
    annotation = _filled_in(DASHBOARD["annotations"]["list"][0]["expr"])
    shown = prometheus.query_range(annotation, seconds=300)
    assert "DledgerNoLeader" in {each["metric"]["alertname"] for each in shown}
