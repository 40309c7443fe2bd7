"""What the chart makes of the dashboard, the alerts and the scraping; nothing while it is off."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.monitoring.chart import ALL_ON, CHART, of_kind, rendered

pytestmark = pytest.mark.e2e

KINDS = {"PodMonitor", "PrometheusRule"}


def _is_ours(manifest: dict[str, Any]) -> bool:
    return manifest["kind"] in KINDS or "grafana_dashboard" in manifest["metadata"]["labels"]


def test_nothing_is_rendered_while_it_is_off() -> None:
    """A cluster without the Prometheus operator refuses its kinds, so off is the default."""
    manifests, _ = rendered()

    assert not any(_is_ours(manifest) for manifest in manifests)


@pytest.mark.parametrize("switch", ALL_ON)
def test_each_switch_turns_on_its_own_part_only(switch: str) -> None:
    """One may have Grafana's sidecar and no Prometheus operator."""
    parts = {
        "dashboards": ["ConfigMap"],
        "monitoring.podMonitor": ["PodMonitor", "PodMonitor", "PodMonitor"],
        "monitoring.prometheusRule": ["PrometheusRule"],
    }

    manifests, _ = rendered(switch)

    ours = [manifest["kind"] for manifest in manifests if _is_ours(manifest)]
    assert ours == parts[switch.removesuffix(".enabled=true")]


@pytest.mark.parametrize("switch", sorted(set(ALL_ON) - {"dashboards.enabled=true"}))
def test_without_the_prometheus_operator_helm_says_what_is_missing(switch: str) -> None:
    """Its own sentence speaks of CRDs, which sends one to ours."""
    manifests, said = rendered(switch, check=False, served="")

    assert manifests == []
    sentence = "this cluster has no Prometheus operator (monitoring.coreos.com/v1): install that"
    assert f"{switch.removesuffix('=true')}: {sentence}" in said


def test_the_dashboard_needs_no_prometheus_operator() -> None:
    """It is a ConfigMap."""
    manifests, _ = rendered("dashboards.enabled=true", served="")

    assert any(_is_ours(manifest) for manifest in manifests)


def test_the_dashboards_arrive_as_they_are() -> None:
    """Helm must not take Grafana's braces for its own."""
    (config,) = (m for m in of_kind("ConfigMap", *ALL_ON) if _is_ours(m))

    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {"group": "dashboard", "fleet": "dashboard-fleet", "operator": "dashboard-operator"}
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        f"dledger-{name}.json": json.loads((CHART / f"monitoring/{file}.json").read_text("utf-8"))
        for name, file in files.items()
    }


def test_the_alerts_arrive_as_they_are_with_links_to_where_the_runbooks_are_read() -> None:
    """Helm must not take Prometheus' braces for its own."""
    given = "monitoring.prometheusRule.runbooks=https://wiki.example.com/dledger"

    (rule,) = of_kind("PrometheusRule", *ALL_ON)
    (moved,) = of_kind("PrometheusRule", *ALL_ON, given)

    assert rule["spec"] == yaml.safe_load((CHART / "monitoring/alerts.yaml").read_text("utf-8"))
    urls = [
        each["annotations"]["runbook_url"]
        for group in moved["spec"]["groups"]
        for each in group["rules"]
        if "alert" in each
    ]
    assert urls[0] == "https://wiki.example.com/dledger#dledgernoleader"
    assert len(urls) == len({*urls}) == 25


def test_certificates_that_live_for_days_have_a_line_of_their_own() -> None:
    """They would be on the alert for ever."""
    (rule,) = of_kind("PrometheusRule", *ALL_ON, "monitoring.prometheusRule.certificateDays=2")

    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    (expiring,) = (each for each in rules if each.get("alert") == "DledgerCertificateExpiring")
    assert expiring["expr"].rstrip().endswith("- time() < 2 * 86400")


def test_nodes_are_scraped_where_groups_are_looked_after() -> None:
    """In all namespaces, or in those that the operator watches."""
    _, *everywhere = of_kind("PodMonitor", *ALL_ON)
    _, *somewhere = of_kind("PodMonitor", *ALL_ON, "watchNamespaces={shop,bank}")

    for each in everywhere:
        assert each["spec"]["namespaceSelector"] == {"any": True}
    for each in somewhere:
        assert each["spec"]["namespaceSelector"] == {"matchNames": ["shop", "bank"]}


def test_monitors_carry_the_labels_that_prometheus_selects_them_by() -> None:
    """Most installations of the Prometheus operator look at labelled objects only."""
    values = [
        "monitoring.podMonitor.labels.release=prometheus",
        "monitoring.prometheusRule.labels.release=prometheus",
    ]

    manifests, _ = rendered(*ALL_ON, *values)

    labelled = [m["kind"] for m in manifests if m["metadata"]["labels"].get("release")]
    assert sorted(labelled) == [*["PodMonitor"] * 3, "PrometheusRule"]


@pytest.mark.parametrize(
    "value",
    [
        "dashboards.enable=true",
        "monitoring.podMonitor.interval=often",
        "monitoring.prometheusRule.runbooks=wiki/runbooks.md",
        "monitoring.prometheusRule.certificateDays=0",
    ],
)
def test_a_broken_value_is_refused_by_name(value: str) -> None:
    """A misspelt switch would be off without a word."""
    manifests, said = rendered(value, check=False)

    assert manifests == []
    assert value.partition("=")[0].rpartition(".")[0].replace(".", "/") in said.replace(".", "/")
