"""A real Prometheus as a child process, for tests of the chart's alerts and dashboards."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import golang

INTERVAL: Final = "1s"
_DIRECTLY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without the machine's proxy, which does not reach this machine's loopback."""


class Prometheus:
    """A running Prometheus; it scrapes and evaluates every second.

    Args:
        directory: Where configuration, data and log go.
        scrape_configs: As in its configuration file.
        rules: The contents of its one rule file.
    """

    def __init__(
        self, directory: Path, scrape_configs: list[dict[str, Any]], rules: dict[str, Any]
    ) -> None:
        config = {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["rules.yaml"],
            "scrape_configs": scrape_configs,
        }
        (directory / "rules.yaml").write_text(yaml.safe_dump(rules), "utf-8")
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config), "utf-8")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._log = directory / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    golang.provide(golang.PROMETHEUS),
                    f"--config.file={directory / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query."""
        result: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return result

    def query_range(self, expression: str, *, seconds: int) -> list[dict[str, Any]]:
        """Return the series of a query over the last *seconds*, with each evaluation's value."""
        now_s = int(time.time())
        asked = {"query": expression, "start": now_s - seconds, "end": now_s, "step": INTERVAL}
        result: list[dict[str, Any]] = self._get("query_range", **asked)["result"]
        return result

    def label_values(self, label: str, selector: str) -> list[str]:
        """Return the values that a label has on the series of a selector."""
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": selector})
        return values

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are pending or firing."""
        alerts: list[dict[str, Any]] = self._get("alerts")["alerts"]
        return alerts

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules with their health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def is_up(self) -> bool:
        """Whether it answers queries."""
        assert self._process.poll() is None, self._log.read_text("utf-8")
        try:
            with _DIRECTLY.open(f"http://{self._address}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)

    def _get(self, path: str, **parameters: object) -> Any:
        asked = f"{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with _DIRECTLY.open(f"http://{self._address}/api/v1/{asked}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
