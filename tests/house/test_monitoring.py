"""One set of names: metrics, docs/catalogue.yaml, the dashboards, the alerts and their runbooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from dledger.common.metrics import NodeMetrics, Sample
from dledger.spool.counters import SpoolCollector, SpoolCounters
from dledger_operator.metrics.metrics import Metrics
from dledger_pipeline.jobs.progress import Progress, registry
from scripts.catalogue import load

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/dledger-operator"
CATALOGUE = load()
OF_A_GROUP = "dledger-group"
DASHBOARDS = {
    each["uid"]: each
    for path in sorted((CHART / "monitoring").glob("dashboard*.json"))
    for each in [json.loads(path.read_text("utf-8"))]
}
GROUPS = yaml.safe_load((CHART / "monitoring/alerts.yaml").read_text("utf-8"))["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
OF_EVERY_NODE = ("group", "node")
OF_EVERY_RUN = ("command",)
OF_THE_TARGET = {
    "up",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}

_OF_NODES = r"\bdledger_(?!operator|backup|compaction_(?!lies))\w+|\bup\b|\bprocess_\w+"

Row = tuple[str, tuple[str, ...], str]
"""Type, labels and meaning of a metric."""


def _node_registry() -> CollectorRegistry:
    metrics = NodeMetrics("orders", "orders-0")
    sample: dict[str, Any] = {each.name: 0 for each in fields(Sample)}
    of_leaders: dict[str, dict[str, float]] = {
        "follower_lag_entries": {"orders-1": 0},
        "dead_letters": {"billing": 1},
    }
    of_leaders["fifo_waiting"] = {"billing": 0.5}
    metrics.publish(Sample(**sample | {"role": "leader"} | of_leaders))
    return metrics.registry


def _spool_registry() -> CollectorRegistry:
    none = SpoolCounters(**dict.fromkeys(SpoolCounters.__dataclass_fields__, 0))
    made = CollectorRegistry()
    made.register(SpoolCollector({"spool": lambda: none}))
    return made


def _rows(registry: CollectorRegistry, *, besides: tuple[str, ...] = ()) -> dict[str, Row]:
    """Return every metric of ours by the name that a query uses."""
    declared: dict[str, tuple[str, ...]] = {
        name: collector._labelnames
        for name, collector in registry._names_to_collectors.items()
        if hasattr(collector, "_labelnames")
    }
    rows = {}
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        seen = next((tuple(sample.labels) for sample in family.samples), ())
        labels = declared.get(name, seen)
        shown = tuple(label for label in labels if label not in besides)
        if name.startswith("dledger_"):
            rows[name] = (family.type, shown, family.documentation)
    return rows


def _catalogued(of: str) -> dict[str, Row]:
    listed = CATALOGUE.metrics[of]
    found = {one.name: (one.type, one.labels, one.means) for one in listed}
    assert len(found) == len(listed), "a metric is there twice"
    return found


def _names() -> set[str]:
    of_a_run = _rows(registry(Progress("backup")))
    return {
        *_rows(_node_registry()),
        *_rows(Metrics().registry),
        *of_a_run,
        *_rows(_spool_registry()),
    }


def _panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def _queries() -> Iterator[str]:
    for dashboard in DASHBOARDS.values():
        for panel in _panels(dashboard):
            yield from (target["expr"] for target in panel["targets"])
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                yield variable["query"]["query"]
    yield from (rule["expr"] for rule in RULES)


def test_the_catalogue_lists_every_metric_of_a_node() -> None:
    """Name, type, labels and meaning, word for word as the code has them."""
    assert _catalogued("nodes") == _rows(_node_registry(), besides=OF_EVERY_NODE)


def test_the_catalogue_lists_every_metric_of_the_operator() -> None:
    """Backups included."""
    assert _catalogued("operator") == _rows(Metrics().registry)


def test_the_catalogue_lists_every_metric_of_a_backup_that_runs() -> None:
    """And of the other commands."""
    run = _rows(registry(Progress("backup")), besides=OF_EVERY_RUN)

    assert _catalogued("runs") == run


def test_every_metric_that_is_asked_for_exists() -> None:
    """A query of a metric that was renamed shows an empty panel, and an alert that never fires."""
    suffixes = r"(?:_bucket|_sum|_count)?$"
    known = _names()

    for query in _queries():
        for name in re.findall(r"\b(?:dledger_\w+|process_\w+|up)\b(?=[{\[)\s,-]|$)", query):
            assert name in OF_THE_TARGET or re.sub(suffixes, "", name) in known, query


def test_every_metric_is_shown_or_explained() -> None:
    """Nobody looks at what is not on a dashboard; these few are for other uses."""
    asked = " ".join(_queries())
    elsewhere = {
        "dledger_backup_last_success_timestamp_seconds",
        "dledger_door_processes",
        "dledger_door_restarts_total",
        "dledger_peer_plain_text_accepted",
        "dledger_let_go_messages_total",
        "dledger_erase_lies_total",
    }

    assert {name for name in _names() if name not in asked} == elsewhere


# -- the dashboards ----------------------------------------------------------------------------


def test_each_dashboard_is_one_that_grafana_imports() -> None:
    """A fixed uid, no id, a schema version, and variables that ask for labels."""
    assert {*DASHBOARDS} == {OF_A_GROUP, "dledger-fleet", "dledger-operator"}
    for dashboard in DASHBOARDS.values():
        variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
        assert dashboard["id"] is None
        assert dashboard["schemaVersion"] >= 36
        assert variables["datasource"]["type"] == "datasource"

    variables = {each["name"]: each for each in DASHBOARDS[OF_A_GROUP]["templating"]["list"]}
    for name in ("namespace", "group"):
        assert variables[name]["query"]["query"].startswith("label_values(dledger_term")
        assert variables[name]["definition"] == variables[name]["query"]["query"]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_panel_says_what_it_shows_and_in_which_unit(uid: str) -> None:
    """And asks the chosen data source, for the chosen group where one is chosen."""
    for panel in _panels(DASHBOARDS[uid]):
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs), panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            of_all = uid != OF_A_GROUP
            ours = not of_all and "dledger_operator_reconcile_seconds" not in target["expr"]
            chosen = target["expr"].count('namespace="$namespace", group="$group"')
            assert chosen == target["expr"].count("{") if ours else chosen == 0, target["expr"]


def test_the_fleet_has_a_column_for_each_question_of_the_night() -> None:
    """Rows of two queries are one where namespace and group are: no other label may differ."""
    (table,) = (
        panel for panel in _panels(DASHBOARDS["dledger-fleet"]) if panel["title"] == "Every group"
    )
    merged, organized = table["transformations"]
    renamed = organized["options"]["renameByName"]
    shown = [renamed[each] for each in renamed if each not in organized["options"]["excludeByName"]]

    assert merged["id"] == "merge"
    assert {*shown} == {
        *("Namespace", "Group", "Asked", "Voters", "In sync", "Margin", "Leader", "Leads for"),
        *("Why degraded", "Spec refused", "Newest backup", "Certificate days", "Seen"),
    }
    for target in table["targets"]:
        assert (target["format"], target["instant"]) == ("table", True)
        assert f"Value #{target['refId']}" in renamed
        assert "by (namespace, group" in target["expr"]
    styled = [each["matcher"]["options"] for each in table["fieldConfig"]["overrides"]]
    assert {*styled} <= {*renamed.values()}


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_have_ids_and_places_of_their_own(uid: str) -> None:
    """Grafana would move what overlaps."""
    panels = DASHBOARDS[uid]["panels"]
    ids = [panel["id"] for panel in panels]

    assert len(set(ids)) == len(ids)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


# -- the alerts --------------------------------------------------------------------------------


def test_every_alert_has_a_runbook() -> None:
    """Its meaning, its likely cause and what to do; no runbook is left without its alert."""
    assert [one.name for one in CATALOGUE.alerts] == [*ALERTS]
    for one in CATALOGUE.alerts:
        url = ALERTS[one.name]["annotations"]["runbook_url"]
        assert url == f"docs/runbooks.md#{one.name.lower()}"
        assert all((one.means, one.cause, one.to_do)), one.name


def test_every_alert_is_worth_being_woken_for() -> None:
    """It lasts, it has a severity, as in the catalogue, and names the group, or a spool's pod."""
    severities = {one.name: one.severity for one in CATALOGUE.alerts}

    assert severities == {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}
    for name, rule in ALERTS.items():
        assert "for" in rule or "min_over_time" in rule["expr"], name
        whose = "pod, spool" if "dledger_spool_" in rule["expr"] else "group"
        assert re.search(rf"(by|on) \(namespace, {whose}", rule["expr"]), name
        assert "{{ $labels.namespace }}" in rule["annotations"]["summary"], name


def test_no_alert_is_computed_only_from_what_it_watches() -> None:
    """What the operator alone says dies with it: it is remembered, or there is an alert of that."""
    away = ALERTS["DledgerOperatorAway"]["expr"]
    assert away.startswith("absent(dledger_operator_leading == 1)")

    for name, rule in ALERTS.items():
        of_nodes = re.findall(_OF_NODES, rule["expr"])
        remembered = {each for each in RECORDED if each in rule["expr"]}
        assert of_nodes or remembered, name
    for name in RECORDED:
        assert any(re.search(rf"{name}(\[| offset)", rule["expr"]) for rule in RULES), name
