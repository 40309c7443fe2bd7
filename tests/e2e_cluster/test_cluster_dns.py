"""What a story makes of CoreDNS' configuration: beyond the cluster, one server is asked."""

from __future__ import annotations

import pytest

from e2e.cluster.contents import dns
from e2e.harness.cluster_dns import forwarding_to
from e2e.harness.waiting import HarnessError

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
