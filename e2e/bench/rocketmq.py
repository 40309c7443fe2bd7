"""RocketMQ from Maven Central: three brokers in DLedger mode, a name server and a proxy.

Its brokers acknowledge when a majority has a message in its page cache: in DLedger mode no setting
makes them sync first. Jars are fetched by Maven and compared with ``rocketmq/jars.sha256`` before
anything runs them.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from e2e.bench import java_sdk, remoting
from e2e.bench.java import class_path
from e2e.bench.process_group import NodeState
from e2e.cluster.layout import default_layout
from e2e.harness.nodes import Link, NodeSpec
from e2e.harness.ports import HOST, free_ports
from e2e.harness.processes import Command
from e2e.harness.waiting import HarnessError, eventually

NAME: Final = "rocketmq 5.5"
PROMISE: Final = "acknowledged from the page cache of a majority"
BROKERS: Final = 3
_ROLES: Final = ("n0", "n1", "n2", "names", "proxy")
_CLUSTER: Final = "bench"
_SOURCES: Final = Path(__file__).parent / "rocketmq"
_HEAP: Final = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")
_OPENED: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)
"""What its own start scripts give a JVM of 9 or later, as far as it is needed."""
_MAINS: Final = {
    "names": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "proxy": "org.apache.rocketmq.proxy.ProxyStartup",
    "broker": "org.apache.rocketmq.broker.BrokerStartup",
}
_FOUNDED_S: Final = 180.0
_ASK_S: Final = 0.5


class RocketMQ:
    """See `System`. Its specs are those of `placed`: the brokers, the name server, the proxy."""

    name = NAME
    warm_up_s = java_sdk.WARM_UP_S
    link = Link.NONE

    def __init__(self, program: java_sdk.Program = java_sdk.SDK_LOAD) -> None:
        self._program = program
        self._class_path = class_path(default_layout(), "rocketmq", _SOURCES, f"fetch {NAME}")
        self._names = ""

    def node(self, spec: NodeSpec, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. Each waits for those that it needs."""
        self._names = specs[_ROLES.index("names")].endpoint
        home = spec.directory
        (home / "conf").mkdir(parents=True, exist_ok=True)
        config = home / "conf" / "own.conf"
        if spec.name == "names":
            config.write_text(properties({"listenPort": spec.client_port, **_stores(home)}))
            return self._java(home, "names", "-c", str(config))
        if spec.name == "proxy":
            config.write_text(json.dumps(proxy_settings(spec, self._names)))
            arguments = ("-pc", str(config), "-pm", "cluster", "-n", self._names)
            return self._java(home, "proxy", *arguments, after=BROKERS)
        config.write_text(properties(broker_settings(spec, specs[:BROKERS], self._names)))
        return self._java(home, "broker", "-c", str(config), after=0)

    def _java(self, home: Path, role: str, *arguments: str, after: int | None = None) -> Command:
        first = (sys.executable, "-m", "e2e.bench.remoting", self._names, str(after))
        waits = () if after is None else first
        options = (*_HEAP, *_OPENED, f"-Duser.home={home}", "-cp", self._class_path)
        environment = {"ROCKETMQ_HOME": str(home), "RMQ_PROXY_HOME": str(home)}
        return Command((*waits, "java", *options, _MAINS[role], *arguments), environment)

    def load(self, specs: Sequence[NodeSpec]) -> Command:
        """See `System`. All clients come through the proxy."""
        proxy = specs[_ROLES.index("proxy")]
        client = proxy.directory.parent / "client"
        return java_sdk.load_command(self._program, [proxy.endpoint], client)

    def found(self, specs: Sequence[NodeSpec]) -> None:
        """See `System`: make the topics that the clients use, and say which are read in order."""
        proxy = specs[_ROLES.index("proxy")]
        eventually("RocketMQ's proxy listens", lambda: _listens(proxy.client_port), _FOUNDED_S)

        def is_made() -> bool:
            known = remoting.brokers(self._names)
            if known is None or known.master is None:
                return False
            try:
                for topic in self._program.topics:
                    self._make(known.master, topic)
            except (OSError, remoting.RemotingError):
                return False
            return True

        eventually("RocketMQ makes its topics", is_made, _FOUNDED_S, 1.0)

    @staticmethod
    def _make(master: str, topic: java_sdk.Topic) -> None:
        remoting.make_topic(master, topic.name, java_sdk.QUEUES, topic.type)
        for group in topic.groups:
            remoting.make_ordered_group(master, group)

    def state(self, spec: NodeSpec) -> NodeState | None:
        """See `System`: the name server is asked for a broker, which tells no term."""
        if spec.name not in _ROLES[:BROKERS]:
            is_ready = _listens(spec.client_port)
            return NodeState(leads=False, term=0, is_ready=is_ready)
        known = remoting.brokers(self._names)
        if known is None:
            return None
        is_ready = spec.endpoint in known.addresses
        return NodeState(leads=spec.endpoint == known.master, term=0, is_ready=is_ready)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), _ASK_S).close()
    except OSError:
        return False
    return True


def placed(root: Path) -> tuple[NodeSpec, ...]:
    """Return the five processes with directories below *root*, at ports that are free now.

    Each has three neighbouring ports: a broker's own, one for its peers, and the one two below
    its own, on which it listens as well whatever is set.
    """
    free = free_ports(20 * len(_ROLES))
    threes = zip(free[::3], free[1::3], free[2::3], strict=False)
    neighbours = [three for three in threes if three[2] == three[0] + 2]
    if len(neighbours) < len(_ROLES):
        raise HarnessError("no free ports beside each other for RocketMQ")
    return tuple(
        NodeSpec(
            index=index,
            name=name,
            directory=root / name,
            client_port=own,
            peer_port=peer,
            http_port=below,
            replication_port=peer,
            link_host=HOST,
            link_port=peer,
        )
        for index, (name, (below, peer, own)) in enumerate(zip(_ROLES, neighbours, strict=False))
    )


def broker_settings(
    spec: NodeSpec, all_brokers: Sequence[NodeSpec], names: str
) -> dict[str, object]:
    """Return a broker's settings: all are one DLedger group, the rest is as it comes."""
    return {
        "brokerClusterName": _CLUSTER,
        "brokerName": _CLUSTER,
        "brokerIP1": HOST,
        "listenPort": spec.client_port,
        "namesrvAddr": names,
        "storePathRootDir": spec.directory / "store",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": _CLUSTER,
        "dLegerPeers": ";".join(f"{each.name}-{each.own_address}" for each in all_brokers),
        "dLegerSelfId": spec.name,
    }


def proxy_settings(spec: NodeSpec, names: str) -> dict[str, object]:
    """Return the proxy's settings."""
    return {
        "rocketMQClusterName": _CLUSTER,
        "proxyMode": "CLUSTER",
        "namesrvAddr": names,
        "grpcServerPort": spec.client_port,
        "remotingListenPort": spec.peer_port,
        "localServeAddr": HOST,
    }


def _stores(home: Path) -> dict[str, object]:
    return {"kvConfigPath": home / "kv.json", "configStorePath": home / "names.properties"}


def properties(settings: dict[str, object]) -> str:
    """Return settings as a file of Java properties."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())
