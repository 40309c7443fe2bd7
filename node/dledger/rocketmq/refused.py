"""The response of any method to a request that is refused: its status, and nothing else."""

from __future__ import annotations

from typing import Any

from dledger.errors import DledgerError
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import status_of


def refused_response(method: str, error: DledgerError) -> Any:
    """Return the response of the method of that name with the status of *error*."""
    kind = "TelemetryCommand" if method == "Telemetry" else f"{method}Response"
    return getattr(service, kind)(status=status_of(error))
