"""The BrokerBackup that a schedule makes, and the Job of any BrokerBackup. Pure.

The Job is the pipeline, by itself or as a Spark driver, and reads the log from the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger_operator.api import names, quantity
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.schedule import unix_minute
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.resources.certificates import backup_volumes
from dledger_operator.resources.common import metadata, owned_by
from dledger_operator.resources.pipeline import (
    container,
    job_spec,
    pod_spec,
    store_volumes,
    verbatim,
)
from dledger_operator.resources.pods import Place, named_user, pod_template
from dledger_operator.resources.spark import TEMPLATE_DIR, settings

DEADLINE_S: Final = 6 * 3600
"""A backup that takes longer fails, so that the next one can start. At the 85 MB/s that Amazon's
guidelines count for one request to S3, one connection carries 1.8 TB in that time."""
KEPT_S: Final = 24 * 3600
"""Job and pods, with their logs, stay this long after the end: over a night."""
RATE_MB_S: Final = 20
"""At least: the default of the pipeline, which leaves clients their share of a node."""
EXECUTOR_BYTES: Final = 1 << 30
"""Work that is worth one more executor: some 12 s at that rate, in which a pod has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """What there is to copy.

    Attributes:
        last_index: The newest committed entry; 0 leaves it to the pipeline.
        size_bytes: Of the records from the end of the last backup up to it.
    """

    last_index: int = 0
    size_bytes: int = 0


def runs_locally(group: BrokerGroup, store: Store, log: LogRange) -> bool:
    """Whether the Job's own pod does the work, without executor pods.

    It does if the work is too little to be worth them, and if the store is on a claim: most volumes
    are one machine's, and executors may mount nothing.
    """
    little = log.size_bytes < quantity.parse(group.spec.spark.local_threshold)
    return little or bool(store.directory)


def job(backup: BrokerBackup, group: BrokerGroup, *, store: Store, log: LogRange) -> Manifest:
    """Return the Job; the backup owns it, and the group's label says which loop to wake."""
    local = runs_locally(group, store, log)
    executors = 0 if local else _executors(group, log)
    conf = settings(group, store=store, executors=executors)
    args = [*_args(backup, group, log), *_keeping(group, store)]
    args += ["--master", _master(group, local=local), *_runner(store)]
    args += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    name = names.backup_job(backup.name)
    labels = names.job_labels(group.name, "backup")
    pod = _local_pod(group, store, args) if local else _driver_pod(group, store, args, name)
    named = named_user(group)["annotations"]
    template = pod_template(group, Place.JOBS, labels=labels, annotations=named, spec=pod)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owned_by(backup, name, labels),
        "spec": {
            "ttlSecondsAfterFinished": KEPT_S,
            **job_spec(template, deadline_s=DEADLINE_S),
        },
    }


def scheduled_backup(group: BrokerGroup, at: str) -> Manifest:
    """Return the backup for a time of the schedule, RFC 3339; always of the same name.

    It is deleted with the group; what it wrote to the store stays.
    """
    name = names.scheduled_backup(group.name, unix_minute(at))
    described = metadata(group, name)
    described["annotations"] = {names.SCHEDULED_ANNOTATION: at}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BACKUP_KIND,
        "metadata": described,
        "spec": {"group": group.name},
    }


def _args(backup: BrokerBackup, group: BrokerGroup, log: LogRange) -> list[str]:
    pods = (names.pod(group.name, ordinal) for ordinal in range(group.pods))
    nodes = (names.peer_address(group.namespace, group.name, pod) for pod in pods)
    last_index = backup.spec.last_index or log.last_index
    asked = {
        "--group-id": verbatim(group.group_id),
        "--last-index": str(last_index or ""),
        "--rate": str(_rate_mb_s(log.size_bytes)),
    }
    options = [word for option, value in asked.items() if value for word in (option, value)]
    return ["backup", "--endpoint", ",".join(nodes), *options]


def _rate_mb_s(size_bytes: int) -> int:
    """Return how fast nodes are read: gently, but so that half the deadline is enough."""
    return max(RATE_MB_S, -(-size_bytes // (DEADLINE_S // 2 * 1_000_000)))


def _keeping(group: BrokerGroup, store: Store) -> list[str]:
    """Return what the backup makes and deletes beside its entries.

    A group's retention is about the group's store: a BrokerBackup with another one deletes nothing.
    """
    spec = group.spec.backup
    asked = {"--base-every": spec.base_every_hours}
    if store.place == spec.store.place:
        asked |= {"--keep-days": spec.retention.keep_days, "--keep-last": spec.retention.keep_last}
    return [word for option, value in asked.items() if value for word in (option, str(value))]


def _master(group: BrokerGroup, *, local: bool) -> str:
    """Return Spark's master; local work takes no more memory than one executor of so many cores."""
    if local:
        return f"local[{group.spec.spark.executors.cores}]"
    return "k8s://https://kubernetes.default.svc"


def _runner(store: Store) -> list[str]:
    """Return who does the work, where that is not left to the pipeline.

    To a claim any amount goes without Spark: within one pod it would only add its start.
    """
    return ["--runner", "plain"] if store.directory else []


def _executors(group: BrokerGroup, log: LogRange) -> int:
    worth = -(-log.size_bytes // EXECUTOR_BYTES)
    return max(1, min(group.spec.spark.executors.max, worth))


def _local_pod(group: BrokerGroup, store: Store, args: list[str]) -> Manifest:
    return pod_spec(
        group,
        container(group, store, args, reads_nodes=True),
        volumes=[*store_volumes(store), *backup_volumes(group)],
    )


def _driver_pod(group: BrokerGroup, store: Store, args: list[str], config_map: str) -> Manifest:
    """Return the one pod of ours that has API rights: Spark's driver makes its executors itself."""
    mount = {"name": "template", "mountPath": TEMPLATE_DIR, "readOnly": True}
    driver = container(group, store, args, mounts=[mount], reads_nodes=True)
    driver["ports"] = [
        *driver["ports"],
        {"name": "driver", "containerPort": names.DRIVER_PORT, "protocol": "TCP"},
        {"name": "blocks", "containerPort": names.BLOCK_MANAGER_PORT, "protocol": "TCP"},
    ]
    return pod_spec(
        group,
        driver,
        volumes=[
            {"name": "template", "configMap": {"name": config_map}},
            *backup_volumes(group),
        ],
        serviceAccountName=names.backup_access(group.uid),
        automountServiceAccountToken=True,
    )
