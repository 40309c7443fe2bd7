"""What BrokerBackups and BrokerOperations have in common, as the API has it. Pure."""

from __future__ import annotations

from typing import Any

from dledger_operator.api.schedule_times import scheduled_at
from dledger_operator.api.spec import Json


def common_fields(body: Json) -> dict[str, Any]:
    """Return who an object is, and what was last recorded of it, as both classes name it."""
    metadata = body["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "generation": metadata.get("generation", 1),
        "version": metadata.get("resourceVersion", ""),
        "created_at": metadata.get("creationTimestamp", ""),
        "scheduled_at": scheduled_at(metadata),
        "status": body.get("status") or {},
    }
