"""The operator's options: the command line, and an environment variable for each. Pure."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dledger.common.version import VERSION
from dledger_operator.api import names
from dledger_operator.api.policy import (
    ANY,
    DENIED_POD_METADATA,
    ENFORCED,
    OVERRIDABLE,
    Policy,
    RoleRef,
)
from dledger_operator.resources import Platform

_DOOR_PROCESSES: Final = ("0", "1", "2", "3", "4")
_PREFIX: Final = "DLEDGER_OPERATOR_"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one operator process.

    Attributes:
        platform: What groups are made with: images, labels of machines, what they may ask for.
        namespaces: Namespaces to watch; empty means all.
        namespace: Where the operator runs and its Lease lives.
        lease_name: Name of the Lease; with the namespace, the operator's mark on its groups.
        identity: This process's name in the Lease.
        listen: Host and port of /livez, /readyz and /metrics.
        kubeconfig: File to connect by; empty means the pod's service account.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    platform: Platform
    namespaces: tuple[str, ...] = ()
    namespace: str = "default"
    lease_name: str = names.MANAGER
    identity: str = ""
    listen: tuple[str, int] = ("0.0.0.0", 8080)  # noqa: S104 - a pod listens on all its addresses
    kubeconfig: str = ""
    log_level: str = "INFO"


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Return the options; ends the process with 2 and a sentence if one is broken."""
    parser = _parser(environ)
    found = parser.parse_args(argv)
    if not found.image:
        parser.error(f"--image (or {_PREFIX}IMAGE) is required: name the image that nodes run")
    if found.log_level not in _LEVELS:
        parser.error(f"--log-level must be one of {', '.join(_LEVELS)}, not {found.log_level}")
    if found.peer_tls not in ("on", "off"):
        parser.error(f"--peer-tls must be on or off, not {found.peer_tls}")
    if found.client_server not in ("", "grpc", "native"):
        parser.error(f"--client-server must be grpc or native, not {found.client_server}")
    _check_door_processes(found, parser)
    host, _, port = found.listen.rpartition(":")
    if not port.isdigit() or not host:
        parser.error(f"--listen must be HOST:PORT, not {found.listen}")
    pairs = [word.partition("=") for word in found.spark_node_selector.split(",") if word]
    if not all(key and equals for key, equals, _ in pairs):
        parser.error(f"--spark-node-selector must be KEY=VALUE,…, not {found.spark_node_selector}")
    platform = Platform(
        image=found.image,
        namespace="" if found.kubeconfig else found.namespace,
        spark_image=found.spark_image,
        spark_node_selector={key: value for key, _, value in pairs},
        policy=_policy(found, parser),
        peer_tls=found.peer_tls == "on",
        client_server=found.client_server,
        door_processes=int(found.door_processes),
        operator=f"{found.namespace}/{found.lease_name}",
    )
    return Options(
        platform=platform,
        namespaces=_words(found.namespaces),
        namespace=found.namespace,
        lease_name=found.lease_name,
        identity=found.identity,
        listen=(host.strip("[]"), int(port)),
        kubeconfig=found.kubeconfig,
        log_level=found.log_level,
    )


def _check_door_processes(found: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if found.door_processes not in _DOOR_PROCESSES:
        parser.error(f"--door-processes must be 0 to 4, not {found.door_processes}")
    if found.door_processes != "0" and found.client_server == "grpc":
        parser.error("--door-processes goes with --client-server native alone")


def _policy(found: argparse.Namespace, parser: argparse.ArgumentParser) -> Policy:
    """Return what groups may ask for; ends the process with 2 and a sentence if it is broken."""
    images = _words(found.allowed_images)
    for image in images:
        if image != ANY and "/" not in image:
            parser.error(
                f"--allowed-images: {image} is a whole registry or none: write {image}/ for all of "
                "it, or a repository with its registry"
            )
    if found.pod_security not in (ENFORCED, OVERRIDABLE):
        parser.error(
            f"--pod-security must be {ENFORCED} or {OVERRIDABLE}, not {found.pod_security}"
        )
    kind, _, name = found.driver_role.partition("/")
    if kind not in ("Role", "ClusterRole") or not name:
        parser.error(
            f"--driver-role must be Role/NAME or ClusterRole/NAME, not {found.driver_role}"
        )
    return Policy(
        allowed_images=images,
        allowed_priority_classes=_words(found.allowed_priority_classes),
        denied_pod_metadata=_words(found.denied_pod_metadata),
        pod_security=found.pod_security,
        driver_role=RoleRef(kind=kind, name=name),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger-operator",
        description="Turns BrokerGroup objects into running groups of dledger nodes.",
        epilog=f"Each option can be given as an environment variable too: {_PREFIX}IMAGE and so "
        "on. The command line wins.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")

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
    add("allowed-images", "", "other images that groups may name: PREFIX/, REPOSITORY,…; * is any")
    add("allowed-priority-classes", "", "priority classes that groups may name: NAME,…; * is any")
    add(
        *("denied-pod-metadata", ",".join(DENIED_POD_METADATA)),
        "prefixes of keys that labels and annotations of pods may not have: PREFIX,…; * is all",
    )
    add("pod-security", ENFORCED, f"{ENFORCED}, or {OVERRIDABLE} by the spec of a group")
    add(
        "peer-tls",
        "on",
        "on: nodes get certificates, and their peer ports speak mutual TLS; or off",
    )
    add("client-server", "", "what serves clients' ports: grpc or native; empty: as the image does")
    add("door-processes", "0", "processes of each node that serve clients' ports: 0 to 4; 0: none")
    add("driver-role", "ClusterRole/dledger-operator-drivers", "what Spark drivers are bound to")
    add("namespaces", "", "namespaces to watch, separated by commas; empty: all of them")
    add("namespace", "default", "namespace the operator runs in and keeps its Lease in")
    add("lease-name", names.MANAGER, "name of the Lease that one of several operators holds to act")
    add("identity", socket.gethostname(), "name of this process in the Lease: the pod's name")
    add("listen", "0.0.0.0:8080", "where /livez, /readyz and /metrics are served")
    add("kubeconfig", "", "kubeconfig file; empty: the service account of the pod")
    add("log-level", "INFO", f"one of {', '.join(_LEVELS)}")
    return parser
