"""Where the pods of backups and recoveries go: to the machines that the operator was told of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from dledger_operator.api.spec import BrokerGroup
from dledger_operator.resources import Platform
from dledger_operator.resources.log_job import LogRange
from dledger_operator.resources.recovery import recovery_job
from dledger_operator.resources.statefulset import stateful_set
from tests.operator.backup_samples import LARGE, SMALL, STORE, backup, backup_job, backup_template
from tests.operator.samples import PLATFORM, body

POOL = {"pool": "spark"}
SPEC: dict[str, Any] = {
    "backup": {"store": STORE},
    "bootstrap": {"recovery": {"store": STORE}},
    "nodeSelector": {"disk": "nvme"},
}


def _group(platform: Platform) -> BrokerGroup:
    return platform.group(body(SPEC))


def _selectors(of: BrokerGroup) -> dict[str, dict[str, str] | None]:
    def driver(log: LogRange) -> dict[str, Any]:
        made = backup_job(backup(), of, store=of.spec.backup.store, log=log)
        pod: dict[str, Any] = made["spec"]["template"]["spec"]
        return pod

    template = backup_template(backup(), of, store=of.spec.backup.store)
    pods = {
        "driver": driver(LARGE),
        "local": driver(SMALL),
        "executor": json.loads(template["data"]["executor.json"])["spec"],
        "recovery": recovery_job(of)["spec"]["template"]["spec"],
        "node": stateful_set(of)["spec"]["template"]["spec"],
    }
    return {name: pod.get("nodeSelector") for name, pod in pods.items()}


def test_spark_runs_on_the_machines_that_the_operator_was_told_of() -> None:
    """A recovery runs where the first node may as well, since the volume it fills stays there."""
    selectors = _selectors(_group(replace(PLATFORM, spark_node_selector=POOL)))

    assert selectors == {
        "driver": POOL,
        "local": POOL,
        "executor": POOL,
        "recovery": {"disk": "nvme", **POOL},
        "node": {"disk": "nvme"},
    }


def test_spark_runs_where_nodes_may_when_the_operator_was_told_nothing() -> None:
    """What a spec says of machines is about every pod of its group."""
    selectors = _selectors(_group(PLATFORM))

    assert selectors == {name: {"disk": "nvme"} for name in selectors}
