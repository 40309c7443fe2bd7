"""The examples for Kubernetes: options that there are, ways that are open, a chart that agrees.

That they work is `e2e/stories/test_outage_sidecar.py`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dledger.sidecar.options import add_run_arguments
from dledger_operator.api import names
from dledger_operator.resources.networkpolicy import network_policy
from e2e.cluster import golang
from tests.operator import samples

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "docs/examples/kubernetes"
PAGE: Final = (ROOT / "docs/outage-spool.md").read_text("utf-8")
GIB: Final = 1 << 30


def _read(name: str, kind: str) -> dict[str, Any]:
    text = (EXAMPLES / name).read_text("utf-8")
    (found,) = (each for each in yaml.safe_load_all(text) if each["kind"] == kind)
    return dict(found)


def _containers(workload: dict[str, Any]) -> list[dict[str, Any]]:
    spec = workload["spec"]["template"]["spec"]
    return [*spec["initContainers"], *spec["containers"]]


def _spool(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = (each for each in _containers(workload) if each["name"] == "dledger-spool")
    return found


def _options(workload: dict[str, Any]) -> argparse.Namespace:
    """Return what the command makes of the example's arguments."""
    first, second, *options = _spool(workload)["args"]
    assert (first, second) == ("spool", "run")
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    return parser.parse_args(options)


WORKLOADS: Final = [("statefulset.yaml", "StatefulSet"), ("daemonset.yaml", "DaemonSet")]


@pytest.mark.parametrize(("name", "kind"), WORKLOADS)
def test_an_examples_ports_and_directory_are_those_of_its_options(name: str, kind: str) -> None:
    """Probes ask where metrics are served, and the directory is on the volume."""
    workload = _read(name, kind)
    container, options = _spool(workload), _options(workload)

    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert options.metrics == f"0.0.0.0:{ports['spool-metrics']}"
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": "spool-metrics"}
    (mount,) = container["volumeMounts"]
    assert Path(options.dir).parent == Path(mount["mountPath"])


def test_the_sidecar_is_on_loopback_and_its_claim_is_larger_than_its_spool() -> None:
    """A file system has use for some of its room."""
    workload = _read("statefulset.yaml", "StatefulSet")
    options = _options(workload)
    (claim,) = workload["spec"]["volumeClaimTemplates"]

    assert _spool(workload)["restartPolicy"] == "Always"
    assert options.listen == "127.0.0.1:8081"
    size = claim["spec"]["resources"]["requests"]["storage"]
    assert 1.2 * options.max_bytes <= int(size.removesuffix("Gi")) * GIB


def test_the_daemon_set_tells_clients_of_the_service_of_their_own_machine() -> None:
    """Its pods come and go with other addresses; the Service stays."""
    service, options = _read("daemonset.yaml", "Service"), _options(_read(*WORKLOADS[1]))

    where = service["metadata"]
    assert options.advertise == f"{where['name']}.{where['namespace']}"
    assert service["spec"]["internalTrafficPolicy"] == "Local"


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return bool(selector["matchLabels"].items() <= labels.items())


@pytest.mark.parametrize("name", ["networkpolicy.yaml", "daemonset.yaml"])
def test_an_examples_policy_opens_the_way_to_the_groups_nodes(name: str) -> None:
    """To their client port, and to DNS; each to nothing else."""
    policy = _read(name, "NetworkPolicy")
    dns, nodes = policy["spec"]["egress"]

    assert {row["port"] for row in dns["ports"]} == {53}
    assert nodes["ports"] == [{"port": names.CLIENT_PORT, "protocol": "TCP"}]
    (to,) = nodes["to"]
    assert to["podSelector"]["matchLabels"] == names.selector("orders")


@pytest.mark.parametrize(("name", "kind"), WORKLOADS)
def test_the_groups_policy_lets_in_whom_the_page_says_to_name(name: str, kind: str) -> None:
    """`networkPolicy.clients` of the page names the pods of both examples."""
    (block,) = re.findall(r"^```yaml\n(networkPolicy:\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    policy = network_policy(samples.group(yaml.safe_load(block)), operator_namespace="")
    rule, *_ = policy["spec"]["ingress"]
    workload = _read(name, kind)
    labels = workload["spec"]["template"]["metadata"]["labels"]
    namespace = workload["metadata"].get("namespace", "shop")

    def lets_in(peer: dict[str, Any]) -> bool:
        of_namespace = peer.get("namespaceSelector", _in("shop"))
        of_pod = peer.get("podSelector", {"matchLabels": {}})
        named = {"kubernetes.io/metadata.name": namespace}
        return _matches(of_namespace, named) and _matches(of_pod, labels)

    assert {row["port"] for row in rule["ports"]} >= {names.CLIENT_PORT}
    assert [peer for peer in rule["from"] if lets_in(peer)]


def _in(namespace: str) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def test_the_page_shows_the_sidecar_as_it_is_in_the_example() -> None:
    """Word for word."""
    text = (EXAMPLES / "statefulset.yaml").read_text("utf-8")
    block = text[text.index("      initContainers:") : text.index("      containers:")]

    assert f"```yaml\n{block}```" in PAGE


def _rendered(*values: str) -> list[dict[str, Any]]:
    helm = golang.provide(golang.HELM)
    options = [word for value in values for word in ("--set", value)]
    command = [str(helm), "template", "shop", str(EXAMPLES / "chart"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.e2e
def test_the_chart_makes_the_example() -> None:
    """So what a story shows of the one holds for the other."""
    assert _rendered() == [_read("statefulset.yaml", "StatefulSet")]


@pytest.mark.e2e
def test_the_chart_takes_several_addresses_and_a_class() -> None:
    """Helm has large numbers as floats; the option takes none."""
    (made,) = _rendered(
        "spool.upstream={a:8081,b:8081}", "spool.topics=null", "spool.maxBytes=1099511627776",
        "spool.storageClassName=fast",
    )  # fmt: skip
    options = _options(made)
    (claim,) = made["spec"]["volumeClaimTemplates"]

    assert options.upstream == ["a:8081", "b:8081"]
    assert (options.topic, options.max_bytes) == ([], 1 << 40)
    assert claim["spec"]["storageClassName"] == "fast"
