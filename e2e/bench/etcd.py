"""etcd, the version that `e2e.cluster.golang` pins: every put is synced on a majority."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

from e2e.bench.process_group import NodeState
from e2e.cluster import golang
from e2e.harness.nodes import Link, NodeSpec
from e2e.harness.ports import HOST
from e2e.harness.processes import Command

_ASK_S = 0.5
_QUOTA_BYTES = 8 << 30
"""Room for the history of all rows, so that no compaction costs it anything."""


class Etcd:
    """See `System`."""

    name = "etcd"
    warm_up_s = 5.0
    link = Link.BY_PORT

    def __init__(self) -> None:
        self._server = golang.provide(golang.ETCD_PEER)
        self._load = golang.provide(golang.ETCD_LOAD)

    def node(self, spec: NodeSpec, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. Its peers' addresses are advertised, so each is a link that can be cut."""
        cluster = ",".join(f"{each.name}=http://{each.link_address}" for each in specs)
        clients = f"http://{HOST}:{spec.client_port}"
        options = {
            "name": spec.name,
            "data-dir": str(spec.directory / "data"),
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": f"http://{spec.own_address}",
            "initial-advertise-peer-urls": f"http://{spec.link_address}",
            "initial-cluster": cluster,
            "initial-cluster-state": "new",
            "quota-backend-bytes": str(_QUOTA_BYTES),
            "log-level": "warn",
        }
        argv = [f"--{name}={value}" for name, value in options.items()]
        return Command((self._server, *argv))

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """See `System`."""
        endpoints = ",".join(f"http://{HOST}:{spec.client_port}" for spec in specs)
        return Command((self._load, endpoints), answers=True)

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """See `System`. Its command line founds the cluster."""

    def state(self, spec: NodeSpec) -> NodeState | None:
        """See `System`."""
        url = f"http://{HOST}:{spec.client_port}/v3/maintenance/status"
        request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_ASK_S) as response:  # noqa: S310
                return parse_status(json.load(response))
        except (OSError, ValueError):
            return None


def parse_status(told: dict[str, Any]) -> NodeState:
    """Read the answer of Maintenance.Status, numbers in strings as its gateway writes them."""
    leader = told.get("leader", "0")
    return NodeState(
        leads=leader == told["header"]["member_id"],
        term=int(told.get("raftTerm", 0)),
        is_ready=leader != "0" and not told.get("errors"),
        last_index=int(told.get("raftIndex", 0)),
    )
