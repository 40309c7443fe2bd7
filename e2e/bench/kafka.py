"""Apache Kafka from Maven Central: three nodes, each a broker and a controller (KRaft).

It acknowledges from the page cache of all replicas that are in sync, unless it is told to flush
each append (`Promise.SYNCED`). Jars are fetched by Maven and compared with
``kafka_java/jars.sha256`` before anything runs them; the sources there start and load it.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.bench.java import compile_java, digest_of
from e2e.bench.kafka_metadata import MalformedAnswer, Metadata, parse, request
from e2e.bench.process_group import NodeState
from e2e.bench.promises import Promise
from e2e.cluster import packages
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps
from e2e.harness.nodes import Link, NodeSpec
from e2e.harness.ports import HOST
from e2e.harness.processes import Command

NAME: Final = "kafka"
SINGLES: Final = "singles"
TOPICS: Final = (SINGLES, "batches")
_SOURCES: Final = Path(__file__).parent / "kafka_java"
_PACKAGES: Final = {"maven": "/usr/bin/mvn", "default-jdk-headless": "/usr/bin/javac"}
_CLUSTER_ID: Final = "YmVuY2gtYmVuY2gtYmVuY2g"
_NODE_JVM: Final = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""As its own start script sets them."""
_LOAD_JVM: Final = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC")
_FOUNDED_S: Final = 180.0
_ASK_S: Final = 0.5
_LENGTH_BYTES: Final = 4


class Kafka:
    """See `System`."""

    warm_up_s = 30.0
    link = Link.BY_PORT

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._class_path = ensure_built(default_layout())

    @property
    def name(self) -> str:
        """See `System`."""
        return f"{NAME} ({self._promise.value})"

    def node(self, spec: NodeSpec, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. Its settings go to a file in its directory."""
        path = spec.directory / "node.properties"
        settings = properties(spec, specs, self._promise)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        return self._java("Node", *_NODE_JVM, arguments=(_CLUSTER_ID, str(path)), level="warn")

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. Its clients find the leaders by themselves."""
        return self._java("Load", *_LOAD_JVM, arguments=(_servers(specs),), answers=True)

    def _java(
        self,
        main: str,
        *options: str,
        arguments: Sequence[str],
        level: str = "error",
        answers: bool = False,
    ) -> Command:
        log = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}"
        argv = ("java", *options, log, "-cp", self._class_path, main, *arguments)
        return Command(argv, answers=answers)

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """See `System`: the topics are made as soon as three nodes can."""
        create = self._java("Load", arguments=(_servers(specs), "create"))
        run(*create.argv, timeout_s=_FOUNDED_S)

    def state(self, spec: NodeSpec) -> NodeState | None:
        """See `System`."""
        told = _ask(spec)
        return None if told is None else node_state(told, _node_id(spec))


def properties(spec: NodeSpec, specs: Sequence[NodeSpec], promise: Promise) -> dict[str, str | int]:
    """Return what a node's file holds: three replicas, two of them at least for an answer."""
    clients, peers = (f"{HOST}:{port}" for port in (spec.client_port, spec.peer_port))
    voters = ",".join(f"{_node_id(each)}@{each.own_address}" for each in specs)
    flush = {"log.flush.interval.messages": 1} if promise is Promise.SYNCED else {}
    return {
        "process.roles": "broker,controller",
        "node.id": _node_id(spec),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{clients},CONTROLLER://{peers}",
        "advertised.listeners": f"PLAINTEXT://{clients}",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(spec.directory / "log"),
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "offsets.topic.replication.factor": 3,
        "auto.create.topics.enable": "false",
        "log.segment.delete.delay.ms": 1000,  # what a row is done with goes from the disk at once
        **flush,
    }


def _node_id(spec: NodeSpec) -> int:
    return spec.index + 1


def _servers(specs: Sequence[NodeSpec]) -> str:
    return ",".join(spec.endpoint for spec in specs)


def _ask(spec: NodeSpec) -> Metadata | None:
    """Ask a node what it knows of the topics; None when it does not answer."""
    try:
        with socket.create_connection((HOST, spec.client_port), timeout=_ASK_S) as connection:
            connection.sendall(request(TOPICS))
            with connection.makefile("rb") as answer:
                length = int.from_bytes(answer.read(_LENGTH_BYTES), "big")
                return parse(answer.read(length))
    except (OSError, MalformedAnswer):
        return None


def node_state(told: Metadata, node_id: int) -> NodeState:
    """Return what a node's metadata say of it; the leader is that of the single records."""
    everything = [part for topic in TOPICS for part in told.get(topic, ())]
    singles = told.get(SINGLES, ())
    is_ready = all(told.get(topic) for topic in TOPICS) and all(
        part.leader > 0 and node_id in part.in_sync for part in everything
    )
    leads = bool(singles) and singles[0].leader == node_id
    return NodeState(leads=leads, term=singles[0].leader_epoch if singles else 0, is_ready=is_ready)


def ensure_built(layout: Layout) -> str:
    """Fetch the jars and compile our sources, unless both are cached; return the class path.

    Raises:
        HarnessError: A jar is not the one that was pinned.
    """
    built = layout.cache / f"kafka-peer-{digest_of(_SOURCES)}"
    if not built.exists():
        steps = Steps()
        packages.ensure(layout, _PACKAGES, steps)
        partial = built.with_suffix(".partial")
        with steps.step("fetch Apache Kafka and compile its load program"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            compile_java(_SOURCES, partial)
            partial.rename(built)
    return f"{built / 'classes'}:{built / 'lib' / '*'}"
