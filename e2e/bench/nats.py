"""NATS JetStream, the version that ``natsload/go.mod`` pins: streams of three replicas on files.

It acknowledges from the page cache of a majority and syncs every two minutes, unless it is told to
sync always (`Promise.SYNCED`): then its Raft log is synced on a majority before.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Any, Final

from e2e.bench.process_group import NodeState
from e2e.bench.promises import Promise
from e2e.cluster import golang
from e2e.cluster.shell import run
from e2e.harness.nodes import Link, NodeSpec
from e2e.harness.ports import HOST
from e2e.harness.processes import Command

NAME: Final = "nats"
SINGLES: Final = "SINGLES"
_ASK_S: Final = 0.5
_FOUNDED_S: Final = 150.0


class Nats:
    """See `System`."""

    warm_up_s = 5.0
    link = Link.BY_PORT

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._server = golang.provide(golang.NATS_PEER)
        self._load = golang.provide(golang.NATS_LOAD)

    @property
    def name(self) -> str:
        """See `System`."""
        return f"{NAME} ({self._promise.value})"

    def node(self, spec: NodeSpec, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. Its settings go to a file in its directory."""
        path = spec.directory / "server.conf"
        path.write_text(config(spec, specs, self._promise), "utf-8")
        return Command((self._server, "-c", path))

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. Its clients come to the server that leads their stream."""
        return Command((self._load, _servers(specs)), answers=True)

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """See `System`: the streams are made as soon as three servers can."""
        run(self._load, _servers(specs), "create", timeout_s=_FOUNDED_S)

    def state(self, spec: NodeSpec) -> NodeState | None:
        """See `System`."""
        url = f"http://{HOST}:{spec.http_port}/jsz?accounts=true&streams=true"
        try:
            with urllib.request.urlopen(url, timeout=_ASK_S) as response:
                return parse_streams(json.load(response), spec.name)
        except (OSError, ValueError):
            return None


def config(spec: NodeSpec, specs: Sequence[NodeSpec], promise: Promise) -> str:
    """Return a server's settings: JSON, which its format includes."""
    always = {"sync_interval": "always"} if promise is Promise.SYNCED else {}
    store = {"store_dir": str(spec.directory / "store"), "max_file_store": "64G"}
    settings = {
        "server_name": spec.name,
        "listen": spec.endpoint,
        "http": f"{HOST}:{spec.http_port}",
        "jetstream": store | always,
        "cluster": {
            "name": "bench",
            "listen": spec.own_address,
            "routes": [f"nats://{each.link_address}" for each in specs],
        },
    }
    return json.dumps(settings, indent=1)


def _servers(specs: Sequence[NodeSpec]) -> str:
    return ",".join(f"nats://{spec.endpoint}" for spec in specs)


def parse_streams(told: dict[str, Any], name: str) -> NodeState:
    """Read what ``/jsz`` of the server *name* says of the streams.

    It tells no term. Only the leader of a stream knows whether the others have all of it.
    """
    streams = [
        stream
        for account in told.get("account_details") or ()
        for stream in account.get("stream_detail") or ()
    ]
    clusters = {stream["name"]: stream.get("cluster") or {} for stream in streams}
    own = [each for each in clusters.values() if each.get("leader") == name]
    are_current = all(
        replica.get("current", False) and not replica.get("offline", False)
        for each in own
        for replica in each.get("replicas") or ()
    )
    is_ready = SINGLES in clusters and all(each.get("leader") for each in clusters.values())
    return NodeState(
        leads=clusters.get(SINGLES, {}).get("leader") == name,
        term=0,
        is_ready=is_ready and are_current,
    )
