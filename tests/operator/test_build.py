"""Spec -> manifests: a whole group as golden YAML, and what each field changes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Spec
from dledger_operator.observed.observed import ref_of
from dledger_operator.resources import Platform, desired
from dledger_operator.resources.statefulset import image_of
from dledger_operator.resources.wish import RESTARTING
from tests.operator.samples import PLATFORM, body, group

GOLDEN = Path(__file__).parent / "golden"

FULL: dict[str, Any] = {
    "replicas": 5,
    "image": "registry.example/dledger:2.0",
    "storage": {"size": "20Gi", "storageClassName": "fast"},
    "durability": "osBuffer",
    "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "tolerations": [{"key": "broker", "operator": "Exists"}],
    "nodeSelector": {"disk": "nvme"},
    "priorityClassName": "high",
    "podLabels": {"team": "shop", names.GROUP_LABEL: "someone-elses"},
    "podAnnotations": {"note": "hello"},
    "serviceAccountName": "orders",
    "imagePullSecrets": [{"name": "pull"}],
    "securityContext": {"fsGroup": 2000},
    "autoCreateTopics": True,
    "retention": {"hours": 24, "diskWatermarkPercent": 70, "groupHours": 48},
}


CERTIFICATES: dict[str, Any] = {"tls": {"enabled": True, "secretName": "orders-clients"}}
SECURE = replace(PLATFORM, peer_tls=True)


def _child(of: BrokerGroup, kind: str, name: str = "orders") -> dict[str, Any]:
    return {ref_of(manifest): manifest for manifest in desired(of, PLATFORM)}[kind, name]


@pytest.mark.parametrize(
    ("name", "spec", "platform"),
    [
        ("default", {}, PLATFORM),
        ("full", FULL, PLATFORM),
        ("certificates", CERTIFICATES, SECURE),
    ],
)
def test_a_whole_group_is_as_the_golden_file_says(
    name: str, spec: dict[str, Any], platform: Platform, rewrite: bool
) -> None:
    """Every child of a group, byte for byte; the diff of the file is what is reviewed."""
    path = GOLDEN / f"{name}.yaml"
    of = group(spec) if platform is PLATFORM else platform.group(body(spec))

    text = yaml.safe_dump_all(desired(of, platform), sort_keys=True, width=100)

    if rewrite:
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def test_the_children_are_those_that_names_lists() -> None:
    """The condition Progressing counts on that list."""
    assert tuple(ref_of(m) for m in desired(group(), PLATFORM)) == names.children("orders", 3)


def test_every_child_is_owned_by_the_group_and_labelled() -> None:
    """Deleting the group deletes them; the operator watches them by label."""
    for manifest in desired(group(), PLATFORM):
        metadata = manifest["metadata"]
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["uid-1"]
        assert metadata["labels"] == names.labels("orders")


def test_volumes_outlive_the_group() -> None:
    """The claims have no owner and the StatefulSet keeps them."""
    spec = _child(group(), "StatefulSet")["spec"]

    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    assert "ownerReferences" not in spec["volumeClaimTemplates"][0]["metadata"]


def test_pods_have_no_api_rights_and_are_restricted() -> None:
    """No token, no root, no capability, no writable root file system."""
    pod = _child(group(), "StatefulSet")["spec"]["template"]["spec"]
    container = pod["containers"][0]["securityContext"]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True


def test_the_pods_environment_holds_no_service_variables() -> None:
    """A node refuses unknown DLEDGER_ settings, and a Service dledger-x would make one."""
    assert _child(group(), "StatefulSet")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_operators_labels_win_over_the_users() -> None:
    """The selector must always find the pods."""
    labels = _child(group(FULL), "StatefulSet")["spec"]["template"]["metadata"]["labels"]

    assert labels[names.GROUP_LABEL] == "orders"
    assert labels["team"] == "shop"


def _spec_hash(of: BrokerGroup) -> str:
    template = _child(of, "StatefulSet")["spec"]["template"]
    return str(template["metadata"]["annotations"][names.SPEC_ANNOTATION])


def test_what_a_running_pod_cannot_take_over_changes_its_hash() -> None:
    """That is what is rolled out: the image and all that is in the pod's own manifest."""
    hashes = [
        _spec_hash(group(spec))
        for spec in (
            *({}, {"durability": "osBuffer"}, {"image": "mine:1"}, {"podLabels": {"a": "b"}}),
            *({"resources": {"limits": {"memory": "1Gi"}}}, {"nodeSelector": {"disk": "ssd"}}),
            {"tls": {"enabled": True, "secretName": "shop-tls"}},
        )
    ]

    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(
    "spec",
    [
        {"retention": {"hours": 24, "diskWatermarkPercent": 70, "groupHours": 1}},
        {"autoCreateTopics": True, "topics": [{"name": "demo"}]},
        {"storage": {"size": "20Gi"}},
        {"image": PLATFORM.image},
    ],
)
def test_what_needs_no_restart_changes_no_hash(spec: dict[str, Any]) -> None:
    """Nodes take it over while they run, or it is nothing that they see."""
    assert _spec_hash(group(spec)) == _spec_hash(group())


def test_certificates_for_peers_are_a_reason_to_restart_and_another_authority_is_none() -> None:
    """They are mounted into a pod when it is made; what is in them is read while it runs."""
    plain, secured = group(), replace(group(), has_peer_tls=True)
    named = replace(group({"peerTls": {"caSecretName": "ours"}}), has_peer_tls=True)

    assert _spec_hash(plain) != _spec_hash(secured) == _spec_hash(named)


def test_what_serves_clients_is_a_reason_to_restart_only_if_it_is_told() -> None:
    """Unless it is, older images get no setting that they do not know."""
    plain, told = group(), replace(group(), client_server="grpc")

    assert _spec_hash(plain) != _spec_hash(told)
    assert (
        'client_server = "grpc"\n'
        in _child(told, "ConfigMap", "orders-config")["data"]["node.toml"]
    )
    assert "client_server" not in _child(plain, "ConfigMap", "orders-config")["data"]["node.toml"]


def test_door_processes_are_a_setting_of_the_nodes_where_there_are_any() -> None:
    """And a reason to restart them."""
    plain, told = group(), replace(group(), door_processes=2)

    assert _spec_hash(plain) != _spec_hash(told)
    assert "door_processes = 2\n" in _child(told, "ConfigMap", "orders-config")["data"]["node.toml"]
    assert "door_processes" not in _child(plain, "ConfigMap", "orders-config")["data"]["node.toml"]


def test_every_field_of_the_spec_either_restarts_pods_or_is_known_not_to() -> None:
    """A field that is added has to say which."""
    live = {"replicas", "image", "storage", "retention", "auto_create_topics"}
    live |= {"topics", "topic_deletion"}
    later = {"peer_tls", "auth", "expose", "monitoring", "compaction", "plan_approval"}
    beside = {"network_policy", "backup", "spark", "bootstrap", "paused"}

    assert {one.name for one in fields(Spec)} == RESTARTING | live | later | beside


def test_a_group_keeps_its_image_when_the_operator_has_another_default() -> None:
    """What is recorded of it wins over the default, and the spec over that."""
    kept = replace(group(), kept_image="dledger:before")
    asked = replace(group({"image": "mine:1"}), kept_image="dledger:before")

    images = [image_of(_child(of, "StatefulSet")) for of in (group(), kept, asked)]

    assert images == ["dledger:test", "dledger:before", "mine:1"]


def test_a_field_that_disappears_changes_the_hash() -> None:
    """Comparing what is wanted with what is there would not see it."""
    one, two = (_child(group(spec), "StatefulSet") for spec in ({"priorityClassName": "x"}, {}))

    hashes = {m["metadata"]["annotations"][names.HASH_ANNOTATION] for m in (one, two)}
    assert len(hashes) == 2


def test_the_default_image_is_the_operators() -> None:
    """An image in the spec wins."""
    images = [
        _child(group(spec), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["image"]
        for spec in ({}, {"image": "mine:1"})
    ]

    assert images == ["dledger:test", "mine:1"]


def test_only_the_groups_own_pods_and_the_operator_reach_the_peer_port() -> None:
    """It carries Admin. Where the operator is no pod, none of its namespace is let in."""
    inside = _child(group(), "NetworkPolicy")["spec"]["ingress"][2]
    children = {ref_of(m): m for m in desired(group(), Platform(image="i"))}
    outside = children["NetworkPolicy", "orders"]["spec"]["ingress"][2]

    assert inside["ports"] == [{"port": 20911, "protocol": "TCP"}]
    assert len(inside["from"]) == 4
    replication = _child(group(), "NetworkPolicy")["spec"]["ingress"][3]
    assert replication == {
        "ports": [{"port": 20912, "protocol": "TCP"}],
        "from": [{"podSelector": {"matchLabels": names.selector("orders")}}],
    }
    assert len(outside["from"]) == 3
    components = [
        peer["podSelector"]["matchLabels"][names.COMPONENT_LABEL] for peer in outside["from"]
    ]
    assert components == ["node", "backup", "compaction"]


SHOP: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
WATCH: dict[str, Any] = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
OUT: dict[str, Any] = {"ipBlock": {"cidr": "10.9.0.0/16"}}


@pytest.mark.found
def test_the_spec_says_who_reaches_the_nodes_and_whom_they_reach() -> None:
    """Found: K7. Who always belongs stays: other nodes, backups, the operator are clients too."""
    spec = {"networkPolicy": {"clients": [SHOP], "monitoring": [WATCH], "egress": [OUT]}}

    policy = _child(group(spec), "NetworkPolicy")["spec"]

    clients, monitoring, peers, _ = policy["ingress"]
    assert clients["from"] == [SHOP, *peers["from"]]
    assert monitoring == {"ports": [{"port": 8080, "protocol": "TCP"}], "from": [WATCH]}
    assert policy["egress"][-1] == {"to": [OUT]}


@pytest.mark.found
def test_nodes_reach_each_other_and_dns_and_nothing_else_by_themselves() -> None:
    """Found: K7. Not the API server, not the cloud's metadata, not the brokers of others."""
    dns, own = _child(group(), "NetworkPolicy")["spec"]["egress"]

    assert {row["port"] for row in dns["ports"]} == {53, 5353}
    assert own["to"] == [{"podSelector": {"matchLabels": names.selector("orders")}}]


@pytest.mark.found
def test_nobody_reaches_the_pods_of_jobs_but_who_scrapes() -> None:
    """Found: K7. Those who scrape nodes: all, unless the spec says who."""
    policy = _child(group(), "NetworkPolicy", "orders-jobs")["spec"]
    told = _child(group({"networkPolicy": {"monitoring": [WATCH]}}), "NetworkPolicy", "orders-jobs")

    port = {"ports": [{"port": 8080, "protocol": "TCP"}]}
    assert policy["ingress"] == [port]
    assert told["spec"]["ingress"] == [{**port, "from": [WATCH]}]
    (only,) = policy["podSelector"]["matchExpressions"]
    assert only["values"] == ["backup", "compaction", "recovery"]
