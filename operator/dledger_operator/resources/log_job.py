"""The Job of a backup, and of a round of compaction: the pipeline, reading the log. Pure.

It works by itself, or as a Spark driver with executor pods where there is much to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger_operator.api import names, quantity
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.resources.common import Owner, owned_by
from dledger_operator.resources.pipeline import (
    container,
    job_spec,
    pod_spec,
    store_volumes,
    verbatim,
)
from dledger_operator.resources.pods import Place, named_user, pod_template
from dledger_operator.resources.spark import TEMPLATE_DIR, executor_template, settings

DEADLINE_S: Final = 6 * 3600
"""Who takes longer fails, so that the next one can start. At the 85 MB/s that Amazon's guidelines
count for one request to S3, one connection carries 1.8 TB in that time."""
KEPT_S: Final = 24 * 3600
"""Job and pods, with their logs, stay this long after the end: over a night."""
RATE_MB_S: Final = 20
"""At least: the default of the pipeline, which leaves clients their share of a node."""
EXECUTOR_BYTES: Final = 1 << 30
"""Work that is worth one more executor: some 12 s at that rate, in which a pod has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """What there is to read.

    Attributes:
        last_index: The newest committed entry; 0 leaves it to the pipeline.
        size_bytes: Of the records up to it that are to be read.
    """

    last_index: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWork:
    """What one Job does.

    Attributes:
        owner: The object that it is done for, and deleted with.
        name: Of the Job, and of the ConfigMap with its executors' template.
        component: The label of Job and pods: what kind of work it is.
        args: Of the pipeline: its command and what only this kind of work is told.
        store: Where it reads or writes beside the nodes; one without URL: nowhere.
        reads_only: Whether it writes nothing there.
        log: How much there is to read.
        certificate: The volume with what its driver shows nodes.
        deadline_s: How long it may take.
    """

    owner: Owner
    name: str
    component: str
    args: tuple[str, ...]
    store: Store
    log: LogRange
    certificate: tuple[Manifest, ...]
    reads_only: bool = False
    deadline_s: int = DEADLINE_S


def runs_locally(group: BrokerGroup, store: Store, log: LogRange) -> bool:
    """Whether the Job's own pod does the work, without executor pods.

    It does if the work is too little to be worth them, and if the store is on a claim: most volumes
    are one machine's, and executors may mount nothing.
    """
    little = log.size_bytes < quantity.parse(group.spec.spark.local_threshold)
    return little or bool(store.directory)


def log_job(group: BrokerGroup, work: LogWork) -> Manifest:
    """Return the Job; its owner owns it, and the group's label says which loop to wake."""
    local = runs_locally(group, work.store, work.log)
    executors = 0 if local else _executors(group, work.log)
    conf = settings(group, store=work.store, executors=executors)
    args = [*work.args, "--master", _master(group, local=local), *_runner(work.store)]
    args += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    labels = names.job_labels(group.name, work.component)
    pod = _local_pod(group, work, args) if local else _driver_pod(group, work, args)
    named = named_user(group)["annotations"]
    template = pod_template(group, Place.JOBS, labels=labels, annotations=named, spec=pod)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owned_by(work.owner, work.name, labels),
        "spec": {
            "ttlSecondsAfterFinished": KEPT_S,
            **job_spec(template, deadline_s=work.deadline_s),
        },
    }


def template_of(group: BrokerGroup, work: LogWork) -> Manifest:
    """Return the ConfigMap that a driver with executors mounts."""
    return executor_template(
        work.owner, group, name=work.name, component=work.component, store=work.store
    )


def node_args(group: BrokerGroup, log: LogRange, *, last_index: int = 0) -> list[str]:
    """Return the options that say which nodes are read, up to where, and how fast."""
    pods = (names.pod(group.name, ordinal) for ordinal in range(group.pods))
    nodes = (names.peer_address(group.namespace, group.name, pod) for pod in pods)
    asked = {
        "--group-id": verbatim(group.group_id),
        "--last-index": str(last_index or ""),
        "--rate": str(_rate_mb_s(log.size_bytes)),
    }
    options = [word for option, value in asked.items() if value for word in (option, value)]
    return ["--endpoint", ",".join(nodes), *options]


def _rate_mb_s(size_bytes: int) -> int:
    """Return how fast nodes are read: gently, but so that half the deadline is enough."""
    return max(RATE_MB_S, -(-size_bytes // (DEADLINE_S // 2 * 1_000_000)))


def _master(group: BrokerGroup, *, local: bool) -> str:
    """Return Spark's master; local work takes no more memory than one executor of so many cores."""
    if local:
        return f"local[{group.spec.spark.executors.cores}]"
    return "k8s://https://kubernetes.default.svc"


def _runner(store: Store) -> list[str]:
    """Return who does the work, where that is not left to the pipeline.

    With a claim any amount goes without Spark: within one pod it would only add its start.
    """
    return ["--runner", "plain"] if store.directory else []


def _executors(group: BrokerGroup, log: LogRange) -> int:
    worth = -(-log.size_bytes // EXECUTOR_BYTES)
    return max(1, min(group.spec.spark.executors.max, worth))


def _local_pod(group: BrokerGroup, work: LogWork, args: list[str]) -> Manifest:
    return pod_spec(
        group,
        container(group, work.store, args, reads_only=work.reads_only, reads_nodes=True),
        volumes=[*store_volumes(work.store), *work.certificate],
    )


def _driver_pod(group: BrokerGroup, work: LogWork, args: list[str]) -> Manifest:
    """Return the one pod of ours that has API rights: Spark's driver makes its executors itself."""
    mount = {"name": "template", "mountPath": TEMPLATE_DIR, "readOnly": True}
    driver = container(group, work.store, args, mounts=[mount], reads_nodes=True)
    driver["ports"] = [
        *driver["ports"],
        {"name": "driver", "containerPort": names.DRIVER_PORT, "protocol": "TCP"},
        {"name": "blocks", "containerPort": names.BLOCK_MANAGER_PORT, "protocol": "TCP"},
    ]
    return pod_spec(
        group,
        driver,
        volumes=[
            {"name": "template", "configMap": {"name": work.name}},
            *work.certificate,
        ],
        serviceAccountName=names.backup_access(group.uid),
        automountServiceAccountToken=True,
    )
