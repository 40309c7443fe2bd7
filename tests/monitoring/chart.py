"""The chart's manifests, rendered by the real helm."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import golang

CHART: Final = Path(__file__).parents[2] / "charts/dledger-operator"
ALL_ON: Final = (
    "dashboards.enabled=true",
    "monitoring.podMonitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
)


PROMETHEUS_OPERATOR: Final = "monitoring.coreos.com/v1"


@cache
def rendered(
    *values: str, check: bool = True, served: str = PROMETHEUS_OPERATOR
) -> tuple[list[dict[str, Any]], str]:
    """Return the manifests with these values, and what helm says on stderr.

    The cluster serves the group *served* besides Kubernetes' own.
    """
    helm = golang.provide(golang.HELM)
    options = [word for value in values for word in ("--set", value)]
    cluster = ("--kube-version", "1.34", *(("--api-versions", served) if served else ()))
    done = subprocess.run(
        [helm, "template", "dledger-operator", CHART, *cluster, *options],
        capture_output=True,
        text=True,
        check=check,
    )
    return list(filter(None, yaml.safe_load_all(done.stdout))), done.stderr


def of_kind(kind: str, *values: str) -> list[dict[str, Any]]:
    """Return the manifests of one kind with these values."""
    manifests, _ = rendered(*values)
    return [manifest for manifest in manifests if manifest["kind"] == kind]
