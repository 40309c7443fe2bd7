"""The cluster's network: a bridge, a namespace for each node, and routes.

Stray requests to a cluster address must never leave the machine. So pod, service and node
ranges have blackhole routes with a high metric, laid before anything starts and kept when the
cluster is down; routes of a running cluster have precedence over them.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from e2e.cluster.layout import (
    BRIDGE,
    BRIDGE_ADDRESS,
    NODE_RANGE,
    POD_RANGE,
    SERVICE_RANGE,
    ClusterNode,
)
from e2e.cluster.shell import run

RANGES = (NODE_RANGE, POD_RANGE, SERVICE_RANGE)
BLACKHOLE_METRIC = 4200
NAMESPACES = Path("/run/netns")


def blackhole_commands(action: str = "replace") -> list[str]:
    """Lines for ``ip -batch`` that keep cluster addresses on the machine, or "del" the routes."""
    return [f"route {action} blackhole {each} metric {BLACKHOLE_METRIC}" for each in RANGES]


def bridge_commands(nodes: Sequence[ClusterNode]) -> list[str]:
    """Lines that make the bridge, the namespaces and the pairs, on the host's side."""
    prefix = NODE_RANGE.partition("/")[2]
    lines = [
        f"link add {BRIDGE} type bridge",
        f"addr add {BRIDGE_ADDRESS}/{prefix} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    for node in nodes:
        lines += [
            f"netns add {node.namespace}",
            f"link add {node.veth} type veth peer name eth0 netns {node.namespace}",
            f"link set {node.veth} master {BRIDGE} up",
            f"route add {node.pod_range} via {node.address} dev {BRIDGE}",
        ]
    return [*lines, service_route_command(nodes[0])]


def service_route_command(node: ClusterNode) -> str:
    """The line that sends the host's own requests to services through *node*."""
    return f"route replace {SERVICE_RANGE} via {node.address} dev {BRIDGE}"


def node_commands(node: ClusterNode, nodes: Iterable[ClusterNode]) -> list[str]:
    """Lines for inside a node's namespace: its address and the way to the others' pods."""
    prefix = NODE_RANGE.partition("/")[2]
    lines = [
        "link set lo up",
        f"addr add {node.address}/{prefix} dev eth0",
        "link set eth0 up",
        f"route add default via {BRIDGE_ADDRESS}",
    ]
    others = [each for each in nodes if each != node]
    return [*lines, *(f"route add {each.pod_range} via {each.address}" for each in others)]


def overlapping(routes: Iterable[str], ranges: Sequence[str] = RANGES) -> list[str]:
    """Return those of the machine's routes that cover part of the cluster's ranges.

    Args:
        routes: destinations as ``ip route`` prints them; "default" is no overlap.
        ranges: the cluster's.
    """
    ours = [ipaddress.ip_network(each) for each in ranges]
    return [
        each
        for each in routes
        if each != "default"
        and any(ipaddress.ip_network(each, strict=False).overlaps(our) for our in ours)
    ]


def foreign_routes() -> list[str]:
    """Return routes of the machine that are not ours but overlap with our ranges."""
    entries = json.loads(run("ip", "-json", "-4", "route", "show", "table", "main") or "[]")
    others = [
        entry["dst"]
        for entry in entries
        if entry.get("dev") != BRIDGE and entry.get("metric") != BLACKHOLE_METRIC
    ]
    return overlapping(others)


def lay_blackholes() -> None:
    """Keep cluster addresses on the machine from now on."""
    _batch(blackhole_commands())


def lift_blackholes() -> None:
    """Leave no route behind."""
    _batch(blackhole_commands("del"), force=True)


def build(nodes: Sequence[ClusterNode]) -> None:
    """Make the bridge, the namespaces and the routes. The blackholes are there already."""
    _batch(bridge_commands(nodes))
    for node in nodes:
        _batch(node_commands(node, nodes), namespace=node.namespace)
        _forward(node)


def set_cable(node: ClusterNode, *, up: bool) -> None:
    """Pull or plug the host's end of a node's pair; its routes stay as they are."""
    run("ip", "link", "set", node.veth, "up" if up else "down")


def _forward(node: ClusterNode) -> None:
    inside = ("nsenter", f"--net={NAMESPACES / node.namespace}", "--")
    run(*inside, "tee", "/proc/sys/net/ipv4/ip_forward", input="1\n")


def destroy(nodes: Sequence[ClusterNode]) -> None:
    """Remove whatever is there of bridge, pairs and namespaces; routes go with the bridge."""
    links = {entry["ifname"] for entry in json.loads(run("ip", "-json", "link") or "[]")}
    lines = [f"link del {node.veth}" for node in nodes if node.veth in links]
    lines += [f"link del {BRIDGE}"] if BRIDGE in links else []
    present = [node for node in nodes if (NAMESPACES / node.namespace).exists()]
    _batch(lines, force=True)
    for node in present:
        run("ip", "netns", "del", node.namespace, check=False)
        # After a reboot on a /run that survives, this is a plain file and no mount.
        (NAMESPACES / node.namespace).unlink(missing_ok=True)


def _batch(lines: Sequence[str], *, namespace: str | None = None, force: bool = False) -> None:
    if not lines:
        return
    where = ["-n", namespace] if namespace else []
    options = ["-force"] if force else []
    run("ip", *where, *options, "-batch", "-", input="\n".join(lines) + "\n", check=not force)
