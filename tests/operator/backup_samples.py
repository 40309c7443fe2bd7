"""BrokerBackups and what is seen of them, to begin a test with: of the group `orders` in `shop`."""

from __future__ import annotations

from typing import Any

from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.spec import BrokerGroup, Store
from dledger_operator.decisions.log_jobs import LogJobObserved
from dledger_operator.observed.job_status import JobSucceeded
from dledger_operator.resources.backup import backup_work
from dledger_operator.resources.log_job import LogRange, log_job, template_of
from tests.operator.samples import GROUP_ID, NOW, bootstrapped

STORE: dict[str, Any] = {
    "url": "s3://backups/orders",
    "endpoint": "http://s3.storage.svc:9000",
    "allowHttp": True,
    "secretName": "s3",
}
ON_CLAIM: dict[str, Any] = {"url": "file:///backups/orders", "claimName": "backups"}
STARTED, ENDED = "2031-05-06T07:00:00Z", "2031-05-06T07:05:00Z"
AS_OF = "2031-05-06T07:01:00Z"
RESULT: dict[str, Any] = {
    "phase": "Completed",
    "groupId": GROUP_ID,
    "term": 3,
    "firstIndex": 1,
    "lastIndex": 4711,
    "asOf": "2031-05-06T07:01:00.250Z",
    "records": 4711,
    "bytes": 5_000_000,
    "objectBytes": 900_000,
    "objects": 2,
    "newObjects": 2,
    "manifest": "manifests/00000000000000004711.json",
}
SUCCEEDED = JobSucceeded(result=RESULT, started_at=STARTED, ended_at=ENDED)
SMALL = LogRange(last_index=4711, size_bytes=5_000_000)
LARGE = LogRange(last_index=4711, size_bytes=3 << 30)


def backup_body(
    spec: dict[str, Any] | None = None, *, name: str = "first", **more: Any
) -> dict[str, Any]:
    """Return a BrokerBackup as the API has it; *more* goes into its metadata."""
    metadata = {
        "namespace": "shop",
        "name": name,
        "uid": f"uid-of-{name}",
        "generation": 1,
        "creationTimestamp": STARTED,
        **more,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BACKUP_KIND,
        "metadata": metadata,
        "spec": {"group": "orders", **(spec or {})},
    }


def backup(
    spec: dict[str, Any] | None = None,
    *,
    name: str = "first",
    status: dict[str, Any] | None = None,
    scheduled_at: str = "",
    **more: Any,
) -> BrokerBackup:
    """Return a backup with this spec and recorded status."""
    annotations = {names.SCHEDULED_ANNOTATION: scheduled_at} if scheduled_at else {}
    body = backup_body(spec, name=name, annotations=annotations, **more)
    return BrokerBackup.parse({**body, "status": status or {}})


def completed(
    name: str = "first", *, ended_at: str = ENDED, as_of: str = AS_OF, **more: Any
) -> BrokerBackup:
    """Return a backup that came to its end."""
    status = {
        "phase": "Completed",
        "groupId": GROUP_ID,
        "range": {"first": 1, "last": 4711},
        "manifest": RESULT["manifest"],
        "message": "well",
        "completedAt": ended_at,
        **({"asOf": as_of} if as_of else {}),
    }
    return backup(name=name, status=status, **more)


def failed(name: str = "first", **more: Any) -> BrokerBackup:
    """Return a backup that failed."""
    status = {"phase": "Failed", "message": "StoreDenied: no", "completedAt": NOW}
    return backup(name=name, status=status, **more)


def observed(**changes: Any) -> LogJobObserved:
    """Return what is seen of a backup that can start at once."""
    group = bootstrapped({"backup": {"store": STORE}})
    return LogJobObserved(**{"group": group, "log": SMALL, **changes})


def backup_job(
    one: BrokerBackup, of: BrokerGroup, *, store: Store, log: LogRange
) -> dict[str, Any]:
    """Return the Job of a backup."""
    return log_job(of, backup_work(one, of, store=store, log=log))


def backup_template(one: BrokerBackup, of: BrokerGroup, *, store: Store) -> dict[str, Any]:
    """Return the ConfigMap with the template of a backup's executors."""
    return template_of(of, backup_work(one, of, store=store, log=LARGE))
