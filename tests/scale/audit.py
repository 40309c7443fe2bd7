"""The API server's audit log: what the operator asked for, and when. Read from its file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from tests.operator.live import SYSTEM

ACCOUNT: Final = f"system:serviceaccount:{SYSTEM}:dledger-operator"
WRITES: Final = frozenset({"create", "update", "patch", "delete"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the operator, answered at *at_s* in Unix seconds."""

    verb: str
    resource: str
    namespace: str
    name: str
    at_s: float

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES

    @property
    def kind(self) -> str:
        return f"{self.verb} {self.resource}"


def arguments(directory: Path) -> list[str]:
    """Return the API server's arguments for a log of the operator's requests in *directory*."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
    }
    (directory / "audit.yaml").write_text(yaml.safe_dump(policy))
    return [
        f"--audit-policy-file={directory / 'audit.yaml'}",
        f"--audit-log-path={directory / 'audit.log'}",
    ]


def requests(directory: Path) -> list[Request]:
    """Return all requests that the log has, oldest first; watches count when they end."""
    path = directory / "audit.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(_parsed(lines), key=lambda request: request.at_s)


def counted(found: Sequence[Request], start_s: float, end_s: float) -> Counter[str]:
    """Return how many requests of each kind came in a span of time."""
    return Counter(one.kind for one in found if start_s <= one.at_s < end_s)


def _parsed(lines: Sequence[str]) -> Iterator[Request]:
    for line in lines:
        said: dict[str, Any] = json.loads(line)
        target = said.get("objectRef") or {}
        resource = "/".join(
            filter(None, (target.get("resource", said["requestURI"]), target.get("subresource")))
        )
        yield Request(
            verb=said["verb"],
            resource=resource,
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            at_s=datetime.fromisoformat(said["requestReceivedTimestamp"]).timestamp(),
        )
