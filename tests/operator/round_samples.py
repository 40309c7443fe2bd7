"""Rounds of compaction and what is seen of them, to begin a test with: of `orders` in `shop`."""

from __future__ import annotations

from typing import Any

from dledger_operator.api import names
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.decisions.rounds import RoundObserved
from dledger_operator.observed.job_status import JobSucceeded
from tests.operator.backup_samples import ENDED, SMALL, STARTED
from tests.operator.samples import bootstrapped

COMPACTED: dict[str, Any] = {"topics": [{"name": "prices", "compaction": {"enabled": True}}]}
RESULT: dict[str, Any] = {
    "phase": "Completed",
    "asOfIndex": 4711,
    "kept": 12,
    "letGo": 300,
    "later": 7,
    "writtenBytes": 5000,
    "topicCount": 1,
    "topics": ["prices"],
}
DID = {key: value for key, value in RESULT.items() if key != "phase"}
SUCCEEDED = JobSucceeded(result=RESULT, started_at=STARTED, ended_at=ENDED)


def round_body(name: str = "now", *, scheduled_at: str = "", **spec: Any) -> dict[str, Any]:
    """Return a BrokerOperation of kind Compact as the API has it."""
    metadata: dict[str, Any] = {
        "namespace": "shop",
        "name": name,
        "uid": f"uid-of-{name}",
        "generation": 1,
        "creationTimestamp": STARTED,
    }
    if scheduled_at:
        metadata["annotations"] = {names.SCHEDULED_ANNOTATION: scheduled_at}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.OPERATION_KIND,
        "metadata": metadata,
        "spec": {"group": "orders", "kind": "Compact", "deadlineSeconds": 3600, **spec},
    }


def compact(
    name: str = "now",
    *,
    status: dict[str, Any] | None = None,
    created_at: str = STARTED,
    scheduled_at: str = "",
    **spec: Any,
) -> BrokerOperation:
    """Return a round with this spec and recorded status."""
    body = round_body(name, scheduled_at=scheduled_at, **spec)
    body["metadata"]["creationTimestamp"] = created_at
    return BrokerOperation.parse({**body, "status": status or {}})


def succeeded(name: str = "now", *, ended_at: str = ENDED, **more: Any) -> BrokerOperation:
    """Return a round that did what it was for."""
    status = {
        "phase": "Succeeded",
        "message": "well",
        "startedAt": STARTED,
        "finishedAt": ended_at,
        "compaction": DID,
    }
    return compact(name, status=status, **more)


def failed(name: str = "now", *, reason: str = "RoundFailed", **more: Any) -> BrokerOperation:
    """Return a round that failed."""
    status = {
        "phase": "Failed",
        "message": "StoreDenied: no",
        "finishedAt": ENDED,
        "conditions": [{"type": "Complete", "status": "False", "reason": reason}],
    }
    return compact(name, status=status, **more)


def observed(**changes: Any) -> RoundObserved:
    """Return what is seen of a round that can start at once."""
    group = bootstrapped(COMPACTED)
    return RoundObserved(**{"group": group, "log": SMALL, "topics": ("prices",), **changes})
