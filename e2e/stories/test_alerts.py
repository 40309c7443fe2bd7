"""Alerts that fire on a real cluster, and what somebody does who has the runbook and nothing else.

Prometheus has the chart's own rules, in which minutes are seconds, and scrapes through the API
server. Each runbook's commands are run as docs/runbooks.md has them.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import Cluster
from e2e.cluster.image import NODE
from e2e.harness.prometheus import Prometheus
from e2e.harness.runbook import Reader, blocks
from e2e.harness.world import (
    OPERATOR,
    OPERATOR_NAMESPACE,
    ROOT,
    BrokerGroup,
    Namespace,
    eventually,
    scale_operator,
)

RULES = ROOT / "charts/dledger-operator/monitoring/alerts.yaml"
SHORT = "15s"
"""What five minutes, a quarter and half an hour are here."""
OF_MACHINES = {"DledgerSlowSyncs", "DledgerClockApart", "DledgerDiskFilling"}
"""What these say is this machine's, which has one disk for all, and is busy."""
DEADLINE_S = 180


@dataclass(frozen=True, slots=True)
class Night:
    """A group, who watches it, and who is woken."""

    group: BrokerGroup
    prometheus: Prometheus
    reader: Reader

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the labels of what fires, by alert; what is said of machines is left out."""
        found = [one for one in self.prometheus.alerts() if one["state"] == "firing"]
        labels = [one["labels"] for one in found if one["labels"]["alertname"] not in OF_MACHINES]
        of_us = [each for each in labels if each.get("namespace") in self._ours]
        return {each["alertname"]: each for each in of_us}

    def wait_fired(self, name: str) -> dict[str, str]:
        """Wait until an alert fires; return its labels."""
        return eventually(f"{name} fires", lambda: self.firing().get(name), DEADLINE_S)

    def wait_ended(self, name: str) -> None:
        """Wait until an alert does not fire any more."""
        eventually(f"{name} ends", lambda: name not in self.firing() or None, DEADLINE_S)

    def wait_quiet(self) -> None:
        """Wait until nothing fires, and the group is sound."""
        self.group.wait_available(DEADLINE_S)
        eventually("nothing fires", lambda: not self.firing() or None, DEADLINE_S)

    @property
    def _ours(self) -> set[str | None]:
        return {None, self.group.namespace.name}


def _in_seconds(rules: dict[str, Any]) -> dict[str, Any]:
    """Return the rules with their windows and waits cut short; days stay."""
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"(\[|offset )(?:15|30)m", rf"\g<1>{SHORT}", rule["expr"])
            if "alert" in rule:
                rule |= {"for": "5s", "keep_firing_for": "1s"}
    return rules


def _describe_targets(namespace: str, address: str) -> list[dict[str, Any]]:
    """Return what finds the three nodes and the operator behind a proxy of the API server."""
    nodes = [
        {
            "targets": [address],
            "labels": {
                "__metrics_path__": f"/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy/metrics",
                "job": "dledger",
                "namespace": namespace,
                "group": "orders",
                "node": pod,
            },
        }
        for pod in ("orders-0", "orders-1", "orders-2")
    ]
    service = f"namespaces/{OPERATOR_NAMESPACE}/services/{OPERATOR}:8080"
    operator = {
        "targets": [address],
        "labels": {
            "__metrics_path__": f"/api/v1/{service}/proxy/metrics",
            "job": "dledger-operator",
            "namespace": OPERATOR_NAMESPACE,
        },
    }
    return [
        {
            "job_name": "through-the-api-server",
            "honor_labels": True,
            "scrape_interval": "2s",
            "static_configs": [*nodes, operator],
        }
    ]


@pytest.fixture
def proxy(cluster: Cluster, reader: Reader) -> Iterator[str]:
    """Return an address at which the API server is reached without a certificate."""
    command = [str(reader.kubectl), f"--kubeconfig={cluster.kubeconfig}", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip()
        process.terminate()


@pytest.fixture
def night(
    cluster: Cluster, namespace: Namespace, reader: Reader, proxy: str, tmp_path: Path
) -> Iterator[Night]:
    """A sound group of three, whose Prometheus finds nothing; all machines are there afterwards."""
    if cluster.kind == "current":
        pytest.skip("cordons machines and stops the operator, which others may need")
    group = namespace.run_group()
    rules = _in_seconds(yaml.safe_load(RULES.read_text("utf-8")))
    prometheus = Prometheus(tmp_path, _describe_targets(namespace.name, proxy), rules)
    made = Night(group, prometheus, reader)
    try:
        eventually("Prometheus answers", lambda: prometheus.is_up() or None, 60)
        eventually("all is scraped", lambda: len(prometheus.query("up == 1")) == 4 or None, 60)
        made.wait_quiet()
        yield made
    finally:
        prometheus.stop()
        for name in cluster.status()["nodes"]:
            cluster.kubectl("uncordon", name)
        scale_operator(cluster, 1)


def _list_cordoned(told: str) -> str:
    """Return the machine that `kubectl get nodes` shows as out of use."""
    return next(line.split()[0] for line in told.splitlines() if "SchedulingDisabled" in line)


def test_three_alerts_fire_and_their_runbooks_end_them(
    cluster: Cluster, namespace: Namespace, night: Night, figures: dict[str, float]
) -> None:
    """An operator scaled to nothing, a machine that was drained and forgotten, a wrong image."""
    began_s = time.monotonic()
    cluster.kubectl("-n", OPERATOR_NAMESPACE, "scale", "deployment", OPERATOR, "--replicas=0")
    labels = night.wait_fired("DledgerOperatorAway")
    look, scale, *_, over = blocks("DledgerOperatorAway")
    told = night.reader.follow(look)
    assert "namespace" not in labels
    assert re.search(rf"{OPERATOR_NAMESPACE} +{OPERATOR} +0/0", told), told
    night.reader.follow(scale)
    night.reader.follow(over)
    night.wait_quiet()
    figures["operator away, fired and ended, s"] = time.monotonic() - began_s

    follower = next(name for name in night.group.pods() if name != night.group.leader())
    cluster.kubectl("cordon", night.group.nodes()[follower]["spec"]["nodeName"])
    namespace.kubectl("delete", "pod", follower, "--wait=false")
    night.wait_fired("DledgerQuorumAtRisk")
    (*looks, uncordon), over = blocks("DledgerQuorumAtRisk")
    told = night.reader.follow(looks)
    assert re.search(rf"{follower} .*Pending", told), told
    night.reader.follow([uncordon], MACHINE=_list_cordoned(told))
    night.reader.follow(over)
    night.wait_quiet()

    night.group.change(image=f"{NODE.repository}:no-such-tag")
    labels = night.wait_fired("DledgerDegraded")
    eventually(
        "the alert has its reason",
        lambda: night.firing().get("DledgerDegraded", labels)["reason"] == "RolloutHalted" or None,
        DEADLINE_S,
    )
    look, fields, back, over = blocks("DledgerDegraded")
    assert "no-such-tag" in night.reader.follow(look)
    assert "image: " in night.reader.follow(fields)
    night.reader.follow(back)
    night.reader.follow(over)
    night.wait_quiet()
    figures["all three, s"] = time.monotonic() - began_s


def test_a_lost_majority_is_forced_by_its_runbook_and_too_few_voters_are_told(
    cluster: Cluster, namespace: Namespace, night: Night, figures: dict[str, float]
) -> None:
    """Two of three disks are lost while no machine takes pods: no leader, then one voter."""
    began_s = time.monotonic()
    survivor = night.group.leader()
    lost = [name for name in night.group.pods() if name != survivor]
    machines = list(cluster.status()["nodes"])
    for machine in machines:
        cluster.kubectl("cordon", machine)
    namespace.kubectl("delete", "pvc", *(f"data-{name}" for name in lost), "--wait=false")
    for name in lost:
        night.group.kill_pod(name)

    night.wait_fired("DledgerNoLeader")
    (look,) = blocks("DledgerNoLeader")
    told = night.reader.follow(look)
    assert all(re.search(rf"{name} .*Pending", told) for name in lost), told
    before, force, succeeded, _by_hand = blocks("A majority of the disks is lost")
    told = night.reader.follow(before)
    assert f"{survivor} would be the group" in told
    night.reader.follow(force, ID=told.split()[-1])
    night.wait_ended("DledgerNoLeader")

    night.wait_fired("DledgerTooFewVoters")
    looks, uncordon, _, over = blocks("DledgerTooFewVoters")
    told = night.reader.follow(looks, POD=survivor)
    assert "Degraded=True 1 of 1 voters in sync" in told, told
    assert night.group.condition("Degraded")["reason"] == "TooFewVoters"
    nodes, one = uncordon
    for _ in machines:
        told = night.reader.follow([nodes])
        night.reader.follow([one], MACHINE=_list_cordoned(told))
    night.reader.follow(over, POD=survivor)
    night.reader.follow(succeeded)
    night.wait_quiet()
    figures["both, s"] = time.monotonic() - began_s
