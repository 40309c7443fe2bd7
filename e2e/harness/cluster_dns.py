"""A cluster whose DNS forwards into the void: what is not the cluster's is asked, never answered.

As behind a firewall, in an air-gapped cluster, or while the upstream DNS is down. The forwarder is
a pod that reads queries and sends nothing back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from e2e.cluster import Cluster
from e2e.harness.pod_watch import is_ready
from e2e.harness.waiting import HarnessError
from e2e.harness.world import PYTHON, Namespace, eventually, restricted_pod

SINK: Final = "dns-sink"
_PORT: Final = 5300
_READS: Final = f"""
import socket
at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
at.bind(("0.0.0.0", {_PORT}))
while True:
    at.recvfrom(4096)
"""
_LOOKS: Final = """
import socket, sys, time
began_s = time.monotonic()
try:
    socket.getaddrinfo("nowhere.example.", 80)
except OSError:
    pass
print(time.monotonic() - began_s)
"""
_SYSTEM: Final = "kube-system"
_COREFILE: Final = "Corefile"
_BEFORE: Final = "Corefile.before"
_FORWARDS: Final = re.compile(r"^\s*(forward|loop)\b[^{\n]*(\{[^}]*\})?\n", re.MULTILINE)
_ROLLOUT_S: Final = 120.0


def forwarding_to(corefile: str, address: str) -> str:
    """Return CoreDNS' configuration with everything beyond the cluster asked for at *address*."""
    kept = _FORWARDS.sub("", corefile)
    head, closing, tail = kept.rpartition("}")
    if not closing:
        raise HarnessError(f"no server block in CoreDNS' configuration:\n{corefile}")
    return f"{head}    forward . {address}\n{closing}{tail}"


@contextmanager
def swallowing_dns(namespace: Namespace, image: str) -> Iterator[None]:
    """Have the cluster's DNS forward to a pod of *namespace* that is silent; undo it at the end.

    What was before is kept beside it, for whoever comes after a run that was killed.
    """
    cluster = namespace.cluster
    if cluster.kind == "current":
        raise HarnessError("the DNS of a cluster that is not ours is left as it is")
    found = cluster.kubectl("-n", _SYSTEM, "get", "configmap", "coredns", "-o", "json")
    before = corefile_before(json.loads(found)["data"])
    container = {"name": "sink", "image": image, "command": [PYTHON, "-c", _READS]}
    namespace.apply(restricted_pod(SINK, container, []))
    address = eventually("the silent DNS reads", lambda: _find_reader(namespace), 60)
    silent = {_COREFILE: forwarding_to(before, f"{address}:{_PORT}"), _BEFORE: before}
    try:
        # It may fail when half of CoreDNS' pods have read it: that is undone, too.
        _configure(cluster, silent)
        yield
    finally:
        _configure(cluster, {_COREFILE: before})


def corefile_before(data: Mapping[str, str]) -> str:
    """Return CoreDNS' configuration as it was before a run that was killed, or is now."""
    return data.get(_BEFORE, data[_COREFILE])


def seconds_of_a_lookup_beyond(namespace: Namespace) -> float:
    """Return how long a pod waits for the address of a name that is not the cluster's."""
    return float(namespace.kubectl("exec", SINK, "--", PYTHON, "-c", _LOOKS))


def _find_reader(namespace: Namespace) -> str:
    """Return the address of the pod once it runs: before, its port would refuse, not swallow."""
    pod = namespace.get("pod", SINK) or {}
    return str(pod["status"]["podIP"]) if is_ready(pod) else ""


def _configure(cluster: Cluster, data: Mapping[str, str]) -> None:
    """Give CoreDNS a configuration, and wait until every one of its pods has read it."""
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "coredns", "namespace": _SYSTEM},
        "data": dict(data),
    }
    cluster.kubectl("replace", "-f", "-", input=json.dumps(manifest))
    listed = cluster.kubectl("-n", _SYSTEM, "get", "deployment,daemonset", "-o", "name").split()
    ours = [each for each in listed if each.endswith("/coredns")]
    cluster.kubectl("-n", _SYSTEM, "rollout", "restart", *ours)
    for each in ours:
        limit = f"--timeout={_ROLLOUT_S:.0f}s"
        cluster.kubectl("-n", _SYSTEM, "rollout", "status", each, limit, timeout_s=_ROLLOUT_S + 10)
