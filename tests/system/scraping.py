"""What the Prometheus operator makes of the chart's objects: a configuration of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedPod:
    """What Prometheus would find in Kubernetes: a pod with labels, and where its port is."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    address: str


def scrape_config(monitor: dict[str, Any], pods: Iterable[ScrapedPod]) -> dict[str, Any]:
    """Return what the Prometheus operator makes of a PodMonitor, with these pods discovered."""
    spec = monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    given = {
        "namespace": "__meta_kubernetes_namespace",
        "pod": "__meta_kubernetes_pod_name",
        "job": _meta(spec["jobLabel"]),
    }
    relabelings = [{"source_labels": [old], "target_label": new} for new, old in given.items()]
    for rule in endpoint.get("relabelings", ()):
        relabelings += [{_snake(key): value for key, value in rule.items()}]
    return {
        "job_name": monitor["metadata"]["name"],
        "metrics_path": endpoint["path"],
        "honor_labels": endpoint["honorLabels"],
        "relabel_configs": relabelings,
        "static_configs": [_target(pod) for pod in pods if _selects(spec["selector"], pod)],
    }


def _selects(selector: dict[str, Any], pod: ScrapedPod) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in expressions)
    chosen = all(pod.labels.get(each["key"]) in each["values"] for each in expressions)
    return chosen and selector["matchLabels"].items() <= pod.labels.items()


def _target(pod: ScrapedPod) -> dict[str, Any]:
    labels = {_meta(label): value for label, value in pod.labels.items()}
    place = {
        "__meta_kubernetes_namespace": pod.namespace,
        "__meta_kubernetes_pod_name": pod.name,
    }
    return {"targets": [pod.address], "labels": labels | place}


def _meta(label: str) -> str:
    return "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: "_" + letter.group().lower(), name)
