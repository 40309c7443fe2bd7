"""The operator's options: command line, each with an environment variable. Pure."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from dledger_operator import names

_PREFIX: Final = "DLEDGER_OPERATOR_"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator is told at start.

    Attributes:
        image: Image of the nodes of groups that name none.
        spark_image: Image of backups and recoveries of groups that name none; may be empty.
        spark_node_selector: Labels of the machines that backups and recoveries run on.
        namespaces: Namespaces to watch; empty means all.
        namespace: Where the operator runs and its Lease lives.
        lease_name: Name of the Lease.
        identity: Who we are to the other operator pods.
        listen: Host and port of /livez, /readyz and /metrics.
        kubeconfig: File to connect by; empty means the pod's service account.
        in_cluster: Whether nodes should let the pods of *namespace* reach their peer port.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    image: str
    spark_image: str = ""
    spark_node_selector: Mapping[str, str] = field(default_factory=dict)
    namespaces: tuple[str, ...] = ()
    namespace: str = "default"
    lease_name: str = names.MANAGER
    identity: str = ""
    listen: tuple[str, int] = ("0.0.0.0", 8080)  # noqa: S104 - a pod listens on all its addresses
    kubeconfig: str = ""
    log_level: str = "INFO"

    @property
    def in_cluster(self) -> bool:
        """Whether the operator runs as a pod."""
        return not self.kubeconfig


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Return the options; ends the process with 2 and a sentence if one is broken."""
    parser = _parser(environ)
    found = parser.parse_args(argv)
    if not found.image:
        parser.error(f"--image (or {_PREFIX}IMAGE) is required: what shall the nodes run?")
    if found.log_level not in _LEVELS:
        parser.error(f"--log-level must be one of {', '.join(_LEVELS)}, not {found.log_level}")
    host, _, port = found.listen.rpartition(":")
    if not port.isdigit() or not host:
        parser.error(f"--listen must be HOST:PORT, not {found.listen}")
    pairs = [word.partition("=") for word in found.spark_node_selector.split(",") if word]
    if not all(key and equals for key, equals, _ in pairs):
        parser.error(f"--spark-node-selector must be KEY=VALUE,…, not {found.spark_node_selector}")
    return Options(
        image=found.image,
        spark_image=found.spark_image,
        spark_node_selector={key: value for key, _, value in pairs},
        namespaces=tuple(filter(None, found.namespaces.replace(",", " ").split())),
        namespace=found.namespace,
        lease_name=found.lease_name,
        identity=found.identity,
        listen=(host.strip("[]"), int(port)),
        kubeconfig=found.kubeconfig,
        log_level=found.log_level,
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger-operator",
        description="Turns BrokerGroup objects into running groups of dledger nodes.",
        epilog=f"Each option can be given as an environment variable too: {_PREFIX}IMAGE and so "
        "on. The command line wins.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")

    def add(name: str, default: str, text: str) -> None:
        variable = _PREFIX + name.upper().replace("-", "_")
        shown = f"default {default}" if default else "default empty"
        parser.add_argument(
            f"--{name}",
            default=environ.get(variable, default),
            help=f"{text} [{variable}, {shown}]",
        )

    add("image", "", "image of the nodes of groups that name none")
    add("spark-image", "", "image of the backups and recoveries of groups that name none")
    add("spark-node-selector", "", "labels of the machines they run on: KEY=VALUE,…; empty: any")
    add("namespaces", "", "namespaces to watch, separated by commas; empty: all of them")
    add("namespace", "default", "namespace the operator runs in and keeps its Lease in")
    add("lease-name", names.MANAGER, "name of the Lease by which one of several operators acts")
    add("identity", socket.gethostname(), "who this process is in the Lease: the pod's name")
    add("listen", "0.0.0.0:8080", "where /livez, /readyz and /metrics are served")
    add("kubeconfig", "", "kubeconfig file; empty: the service account of the pod")
    add("log-level", "INFO", f"one of {', '.join(_LEVELS)}")
    return parser


def _version() -> str:
    try:
        return version("dledger")
    except PackageNotFoundError:
        return "unknown"
