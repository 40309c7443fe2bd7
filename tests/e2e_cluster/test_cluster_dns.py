"""A cluster's DNS that forwards into the void, and comes back; CoreDNS is played."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.harness import cluster_dns
from e2e.harness.waiting import HarnessError
from e2e.harness.world import Namespace

COREFILE = """\
.:53 {
    errors
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    loop
    cache 30
}
"""


class Played:
    """A cluster that has a configuration of CoreDNS, and forgets all else."""

    kind = "kind"

    def __init__(self) -> None:
        self.data = {"Corefile": COREFILE}

    def kubectl(self, *args: str, input: str | None = None, **_: Any) -> str:  # noqa: A002
        """Read and write it."""
        if "configmap" in args:
            return json.dumps({"data": self.data})
        if "replace" in args:
            self.data = json.loads(input or "")["data"]
        return json.dumps({"status": {"podIP": "10.1.2.3"}}) if "pod" in args else "apps/coredns"


def namespace_of(played: Played) -> Namespace:
    """A namespace of it."""
    cluster: Cluster = played  # type: ignore[assignment]
    return Namespace(cluster, "ns")


def test_everything_beyond_the_cluster_goes_to_one_address() -> None:
    """In the place of what forwarded, with its block, and of what looks for loops."""
    made = cluster_dns.forwarding_to(COREFILE, "10.1.2.3:5300")

    assert " ".join(made.split()) == ".:53 { errors cache 30 forward . 10.1.2.3:5300 }"


def test_a_dns_comes_back_also_after_a_run_that_was_killed() -> None:
    """Else the configuration of that run, whose pod is gone, would be kept as the cluster's own."""
    played = Played()

    with cluster_dns.swallowing_dns(namespace_of(played), "image"):
        killed = dict(played.data)
    assert played.data == {"Corefile": COREFILE}

    assert "10.1.2.3:5300" in killed["Corefile"]
    played.data = killed
    with cluster_dns.swallowing_dns(namespace_of(played), "image"):
        assert played.data["Corefile.before"] == COREFILE
    assert played.data == {"Corefile": COREFILE}


def test_the_dns_of_somebodys_cluster_is_left_alone() -> None:
    """`--cluster current` is whatever kubectl talks to."""
    played = Played()
    played.kind = "current"

    with (
        pytest.raises(HarnessError, match="not ours"),
        cluster_dns.swallowing_dns(namespace_of(played), "image"),
    ):
        pass
