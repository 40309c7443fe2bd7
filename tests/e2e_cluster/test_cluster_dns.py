"""A cluster's DNS that forwards into the void, and comes back; CoreDNS is played."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.cluster.contents import dns
from e2e.harness import cluster_dns
from e2e.harness.cluster_dns import forwarding_to
from e2e.harness.waiting import HarnessError
from e2e.harness.world import Namespace

KIND = """\
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
    }
    loop
    reload
    loadbalance
}
"""
"""As kubeadm writes it."""


class Played:
    """A cluster that has a configuration of CoreDNS, and forgets all else."""

    kind = "kind"

    def __init__(self) -> None:
        self.data = {"Corefile": KIND}

    def kubectl(self, *args: str, input: str | None = None, **_: Any) -> str:  # noqa: A002
        """Read and write it."""
        if "configmap" in args:
            return json.dumps({"data": self.data})
        if "replace" in args:
            self.data = json.loads(input or "")["data"]
        return (
            json.dumps(
                {
                    "status": {
                        "podIP": "10.1.2.3",
                        "conditions": [{"type": "Ready", "status": "True"}],
                    }
                }
            )
            if "pod" in args
            else "apps/coredns"
        )


def namespace_of(played: Played) -> Namespace:
    """A namespace of it."""
    cluster: Cluster = played  # type: ignore[assignment]
    return Namespace(cluster, "ns")


def _corefile() -> str:
    manifest = next(each for each in dns("image") if each["kind"] == "ConfigMap")
    return str(manifest["data"]["Corefile"])


@pytest.mark.parametrize("before", [KIND, _corefile()], ids=["kind", "local"])
def test_one_server_is_asked_for_what_is_not_the_clusters(before: str) -> None:
    """All else stays, and what would end on a forwarder of its own goes."""
    lines = forwarding_to(before, "10.0.0.1:5300").splitlines()

    assert [line for line in lines if "forward" in line] == ["    forward . 10.0.0.1:5300"]
    assert lines[-2:] == ["    forward . 10.0.0.1:5300", "}"]
    gone = {line for line in before.splitlines() if line not in lines}
    assert all(line.split()[0] in ("forward", "max_concurrent", "loop") for line in gone)
    assert sum(line.count("{") - line.count("}") for line in lines) == 0


def test_a_configuration_without_a_server_is_named() -> None:
    """Rather than written, and DNS gone."""
    with pytest.raises(HarnessError, match="no server block"):
        forwarding_to("", "10.0.0.1:5300")


def test_a_dns_comes_back_also_after_a_run_that_was_killed() -> None:
    """Else the configuration of that run, whose pod is gone, would be kept as the cluster's own."""
    played = Played()

    with cluster_dns.swallowing_dns(namespace_of(played), "image"):
        killed = dict(played.data)
    assert played.data == {"Corefile": KIND}

    assert "10.1.2.3:5300" in killed["Corefile"]
    played.data = killed
    with cluster_dns.swallowing_dns(namespace_of(played), "image"):
        assert played.data["Corefile.before"] == KIND
    assert played.data == {"Corefile": KIND}


def test_the_dns_of_somebodys_cluster_is_left_alone() -> None:
    """`--cluster current` is whatever kubectl talks to."""
    played = Played()
    played.kind = "current"

    with (
        pytest.raises(HarnessError, match="not ours"),
        cluster_dns.swallowing_dns(namespace_of(played), "image"),
    ):
        pass
