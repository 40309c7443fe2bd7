"""Whom the pods of backups and recoveries reach: as much as a policy can say of a store."""

from __future__ import annotations

from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.resources.job_egress import store_rules
from dledger_operator.resources.networkpolicy import job_policy, store_policy
from dledger_operator.resources.spark import access
from tests.operator.backup_samples import ON_CLAIM, STORE, backup
from tests.operator.samples import bootstrapped

pytestmark = pytest.mark.found

NODES = {"to": [{"podSelector": {"matchLabels": names.selector("orders")}}]}


def _egress(of: BrokerGroup) -> list[Manifest]:
    policy = job_policy(of)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    egress: list[Manifest] = policy["egress"]
    return egress


def _tcp(*ports: int) -> dict[str, Any]:
    return {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def _namespace(name: str) -> dict[str, Any]:
    return {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}]}


def _store(endpoint: str = "", **more: Any) -> Store:
    return Store(url="s3://b/p", endpoint=endpoint, secret_name="s", **more)  # noqa: S106


def test_jobs_reach_names_nodes_and_the_stores_of_the_group() -> None:
    """Found: A9. Until then a Job reached whatever the endpoint of a backup named."""
    stores = {"backup": {"store": STORE}, "bootstrap": {"recovery": {"store": STORE}}}
    dns, nodes, *rest = _egress(bootstrapped(stores))

    assert {row["port"] for row in dns["ports"]} == {53, 5353}
    assert nodes == {**_tcp(names.PEER_PORT), **NODES}
    assert rest == [_namespace("storage")]


def test_jobs_of_a_store_on_a_claim_reach_names_and_nodes() -> None:
    """There is no store on the network."""
    assert len(_egress(bootstrapped({"backup": {"store": ON_CLAIM}}))) == 2
    assert len(_egress(bootstrapped())) == 2


def test_jobs_reach_what_the_spec_names() -> None:
    """For a store whose ports no policy can know: a balancer of the same cluster, a proxy."""
    peer = {"ipBlock": {"cidr": "10.9.0.0/16"}}

    assert _egress(bootstrapped({"networkPolicy": {"jobEgress": [peer]}}))[-1] == {"to": [peer]}


@pytest.mark.parametrize(
    ("endpoint", "rules"),
    [
        ("", [_tcp(443)]),
        ("https://s3.example.com", [_tcp(443)]),
        ("https://s3.example.com:8443/x", [_tcp(8443)]),
        ("http://s3.storage.svc:9000", [_namespace("storage")]),
        ("http://s3.storage.svc.cluster.local.:9000", [_namespace("storage")]),
        ("http://s3.storage:9000", [_namespace("storage"), _tcp(9000)]),
        ("http://s3:9000", [{"to": [{"podSelector": {}}]}]),
        ("http://10.1.2.3:9000", [{**_tcp(9000), "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]}]),
        ("https://[fd00::1]", [{**_tcp(443), "to": [{"ipBlock": {"cidr": "fd00::1/128"}}]}]),
        ("http://169.254.169.254", []),
        ("http://[fe80::1]:9000", []),
    ],
)
def test_a_store_is_what_a_policy_can_know_of_it(endpoint: str, rules: list[Manifest]) -> None:
    """Its address, else the namespace that its name is of, else its port."""
    assert store_rules(_store(endpoint)) == rules


def test_port_80_of_a_store_is_not_a_clouds_metadata() -> None:
    """There every pod would be told what its machine may."""
    (rule,) = store_rules(_store("http://s3.example.com"))

    assert rule["ports"] == _tcp(80)["ports"]
    four, six = (peer["ipBlock"] for peer in rule["to"])
    assert (four["cidr"], six["cidr"]) == ("0.0.0.0/0", "::/0")
    assert "169.254.0.0/16" in four["except"]
    assert "fd00:ec2::/32" in six["except"]


def test_a_store_without_keys_may_ask_for_those_of_a_role() -> None:
    """Nothing else of the metadata's network."""
    *_, rule = store_rules(Store(url="s3://b/p"))

    assert rule["ports"] == _tcp(80)["ports"]
    assert {peer["ipBlock"]["cidr"] for peer in rule["to"]} == {
        "169.254.169.254/32",
        "169.254.170.23/32",
    }


def test_a_backup_opens_the_way_to_its_own_store() -> None:
    """It goes with the backup."""
    own = backup({"store": {**STORE, "endpoint": "https://elsewhere.example.com"}})

    policy = store_policy(own, bootstrapped())

    assert policy["metadata"]["ownerReferences"][0]["kind"] == names.BACKUP_KIND
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert policy["spec"]["egress"] == [_tcp(443)]
    assert policy["spec"]["podSelector"]["matchLabels"] == names.job_selector("orders", "backup")


def test_a_driver_reaches_its_executors_and_the_api_server() -> None:
    """By the ports that API servers have: no policy can name its address."""
    (policy,) = (m for m in access(bootstrapped()) if m["kind"] == "NetworkPolicy")

    workers, api = policy["spec"]["egress"]

    (peer,) = workers["to"]
    assert peer["podSelector"]["matchLabels"][names.GROUP_LABEL] == "orders"
    (only,) = peer["podSelector"]["matchExpressions"]
    assert (only["key"], only["values"]) == (names.COMPONENT_LABEL, ["backup", "compaction"])
    assert api == _tcp(443, 6443)
