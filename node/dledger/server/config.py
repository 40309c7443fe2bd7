"""Settings of one node: a flat TOML file, each key overridable by ``DLEDGER_<KEY>``.

Checked once, here. A broken value is refused with the key's name; nothing is guessed.
"""

from __future__ import annotations

import ipaddress
import socket
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from dledger.common import defaults
from dledger.common.dns import host_to_ask
from dledger.common.words import check_group_id
from dledger.errors import InvalidArgument

Durability = Literal["sync", "osBuffer"]
RestoredHeld = Literal["hold", "fire", "drop"]
ClientServerKind = Literal["grpc", "native"]

ENV_PREFIX: Final = "DLEDGER_"
HEARTBEAT_TICKS: Final = 2  # 100 ms
GRPC: Final = "grpc"
NATIVE: Final = "native"
ELECTION_TIMEOUT_TICKS: Final = 10  # 0.5 s: five lost heartbeats, so a failover is below a second
_RESOLVE_RETRY_S: Final = 0.5  # a pod's name appears some seconds after the pod
_NOT_SETTINGS: Final = frozenset({"DLEDGER_CONFIG"})


class ConfigError(Exception):
    """A setting is missing, unknown or out of bounds; *key* names it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one node is told at start.

    Attributes:
        name: Stable name of the replica, such as ``orders-0``.
        group: Name of the broker group, such as ``orders``.
        group_id: The id of the group that an empty disk may join, or found; empty: none. A disk
            that belongs to a group already stays with that.
        data_dir: Directory of the log and the state files; one node only.
        advertise_host: Where clients reach this node: an IPv4 address, or a name that has one.
        peer_host: IPv4 address at which a node that knows no member yet answers this one; empty:
            advertise_host. Members are called where their membership says.
        listen_host: IPv4 address to listen on.
        client_port: RocketMQ and dledger.v1 gRPC.
        client_tls_port: The same with TLS; 0 turns it off.
        peer_port: Peers and Admin.
        replication_port: Where entries come from peers; 0: any that is free, which they are told.
        http_port: /livez, /readyz and /metrics.
        client_server: What serves the two client ports: ``grpc``, gRPC's own server, or ``native``,
            ours (`door`).
        door_processes: How many processes serve the client ports for the node (`door_process`); 0:
            the node itself does. They are for machines with more than 4 cores.
        tick_ms: Length of a Raft tick.
        heartbeat_ticks: Ticks between a leader's heartbeats.
        election_timeout_ticks: Least ticks without a leader before an election; up to half as many
            more.
        election_handicap_ticks: How much longer than others this node waits before it campaigns:
            its election priority; 0 is the highest.
        segment_bytes: Largest size of a commit log segment; on a small volume it is a 32nd of that.
        scrub_bytes_per_s: How fast the log is read to look for rot; 0 turns that off.
        durability: ``sync``, or ``osBuffer`` to acknowledge from the page cache.
        auto_create_topics: Whether topics are created on first use; consumer groups always are.
        default_queues: Queues of a topic that is created on first use.
        snapshot_bytes: Log between two snapshots of the broker's state; a restart replays at most
            about that much.
        snapshot_entries: Entries that there must be between two, too.
        storage_bytes: What this node was given of the disk, which it may share with others: the
            watermark is a part of this; 0: the whole file system.
        retention_hours: Age at which messages go, whole segments at a time; 0: they never do.
        disk_watermark_percent: How much of its storage a node may use before the oldest segments go
            early; 0: messages never go for lack of room.
        group_retention_hours: How long a consumer group is kept that nobody uses; 0: for ever.
        restored_held: What becomes, in a group that is founded on a restored log, of messages that
            the group it was copied from still held: ``hold``, they wait for a word; ``fire``, they
            are delivered when they are due, as they are there; ``drop``, they are cancelled.
        leader_follows_clients: Whether leadership goes to the node that most requests come to.
        drain_s: How long a node that is told to stop goes on serving, not ready and not leading:
            until whoever routes clients to it has noticed, so that none is sent to a dead address.
        shutdown_grace_s: Longest time SIGTERM may take.
        tls_cert_file: PEM certificate chain; empty: self-signed.
        tls_key_file: PEM key of it.
        peer_tls_dir: Directory with the certificates for TLS between peers (`rpc.peer_tls`); empty:
            peers speak plain text.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    name: str
    group: str
    data_dir: Path
    advertise_host: str
    group_id: str = ""
    peer_host: str = ""
    listen_host: str = "0.0.0.0"  # noqa: S104 - a pod listens on all its addresses
    client_port: int = 8081  # of RocketMQ's proxy
    client_tls_port: int = 8082  # the next one, since a port speaks one or the other
    peer_port: int = 20911  # apart from 10911, where RocketMQ's own brokers are
    replication_port: int = 20912  # the next one
    http_port: int = 8080  # where probes and scrapers look
    client_server: ClientServerKind = NATIVE
    door_processes: int = 0  # on few cores they only cost (docs/adr/0037)
    tick_ms: int = defaults.TICK_MS
    heartbeat_ticks: int = HEARTBEAT_TICKS
    election_timeout_ticks: int = ELECTION_TIMEOUT_TICKS
    election_handicap_ticks: int = 0
    segment_bytes: int = defaults.SEGMENT_BYTES
    scrub_bytes_per_s: int = 8 << 20  # 10 GiB in 21 minutes
    durability: Durability = "sync"
    auto_create_topics: bool = True
    default_queues: int = defaults.QUEUES
    snapshot_bytes: int = 256 << 20  # what a restart replays at most (`make bench-restart`: 1.6 s)
    snapshot_entries: int = 1000  # a state is worth some; else large messages would snapshot often
    storage_bytes: int = 0
    retention_hours: int = defaults.RETENTION_HOURS
    disk_watermark_percent: int = defaults.WATERMARK_PERCENT
    group_retention_hours: int = defaults.GROUP_RETENTION_HOURS
    restored_held: RestoredHeld = "hold"
    leader_follows_clients: bool = True
    drain_s: int = 0  # only a Service's routes lag behind
    shutdown_grace_s: int = 20  # below the 30 s after which Kubernetes kills
    tls_cert_file: str = ""
    tls_key_file: str = ""
    peer_tls_dir: str = ""
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        """Check every value. Raises ConfigError."""
        for key in ("name", "group", "advertise_host"):
            if not getattr(self, key):
                raise ConfigError(key, "must not be empty")
        _check_ipv4("listen_host", self.listen_host)
        if self.peer_host:
            _check_ipv4("peer_host", self.peer_host)
        if ":" in self.advertise_host:  # no name has one
            _check_ipv4("advertise_host", self.advertise_host)
        if self.group_id:
            _check_group_id("group_id", self.group_id)
        for key, (low, high) in _BOUNDS.items():
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(key, f"must be {low} to {high}, not {value}")
        for key, choices in _CHOICES.items():
            value = getattr(self, key)
            if value not in choices:
                raise ConfigError(key, f"{value!r} is none of {', '.join(choices)}")
        self._check_times()
        self._check_together()

    def _check_together(self) -> None:
        if self.door_processes and self.client_server != NATIVE:
            raise ConfigError("door_processes", f"goes with client_server {NATIVE} alone")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ConfigError("tls_key_file", "goes together with tls_cert_file")

    def _check_times(self) -> None:
        if self.drain_s >= self.shutdown_grace_s:
            raise ConfigError("drain_s", "must be less than shutdown_grace_s")
        if self.election_timeout_ticks < 4 * self.heartbeat_ticks:
            raise ConfigError("election_timeout_ticks", "must be at least 4 heartbeat_ticks")
        if not 0 <= self.election_handicap_ticks <= 4 * self.election_timeout_ticks:
            raise ConfigError("election_handicap_ticks", "must be 0 to 4 election_timeout_ticks")


_PORT: Final = (1, 65535)  # 0 would be any
# What is outside is a slip of the pen: too small to work by, or too large for any disk.
_BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "client_port": _PORT,
    "client_tls_port": (0, 65535),
    "peer_port": _PORT,
    "replication_port": (0, 65535),
    "http_port": _PORT,
    "door_processes": (0, 4),
    "tick_ms": (1, 1000),
    "heartbeat_ticks": (1, 100),
    "election_timeout_ticks": (4, 1000),
    "segment_bytes": (1 << 20, 1 << 30),
    "scrub_bytes_per_s": (0, 1 << 30),
    "default_queues": (1, 1024),
    "snapshot_bytes": (1 << 20, 1 << 40),
    "snapshot_entries": (1, 1 << 40),
    "storage_bytes": (0, 1 << 60),
    "retention_hours": (0, 1_000_000),
    "disk_watermark_percent": (0, 99),
    "group_retention_hours": (0, 1_000_000),
    "drain_s": (0, 60),
    "shutdown_grace_s": (1, 600),
}
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "client_server": (GRPC, NATIVE),
    "durability": ("sync", "osBuffer"),
    "restored_held": ("hold", "fire", "drop"),
    "log_level": ("DEBUG", "INFO", "WARNING", "ERROR"),
}


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read the file (if any), then the environment, and check the result.

    Raises:
        ConfigError: Names the key that is missing, unknown, of the wrong type or out of bounds.
    """
    values = _read_file(path) if path is not None else {}
    known = {field.name: field for field in fields(Settings)}
    for key in values:
        if key not in known:
            raise ConfigError(key, f"unknown key in {path}; known: {', '.join(sorted(known))}")
    for variable, text in environ.items():
        if variable.startswith(ENV_PREFIX) and variable not in _NOT_SETTINGS:
            key = variable.removeprefix(ENV_PREFIX).lower()
            if key not in known:
                raise ConfigError(variable, "unknown environment setting")
            values[key] = text
    return Settings(**{key: _convert(known[key], value) for key, value in _complete(values, known)})


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        why = f"cannot read {path} ({error.strerror}); name a TOML file"
        raise ConfigError("config", why) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from error


def _complete(values: dict[str, Any], known: dict[str, Field[Any]]) -> list[tuple[str, Any]]:
    for key, field in known.items():
        if field.default is MISSING and key not in values:
            raise ConfigError(
                key, f"is required; set it in the config file or as {ENV_PREFIX}{key.upper()}"
            )
    return list(values.items())


def _convert(field: Field[Any], value: Any) -> Any:
    convert = {
        "Path": _path,
        "int": _integer,
        "bool": _boolean,
        "str": _string,
        "Durability": _string,
        "RestoredHeld": _string,
        "ClientServerKind": _string,
    }[str(field.type)]
    return convert(field.name, value)


def _path(key: str, value: object) -> Path:
    return Path(_string(key, value))


def _string(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(key, f"must be a string, not {value!r}")
    return value


def _integer(key: str, value: object) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError as error:
            raise ConfigError(key, f"must be an integer, not {value!r}") from error
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(key, f"must be an integer, not {value!r}")
    return value


def _boolean(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigError(key, f"must be true or false, not {value!r}")


def _check_group_id(key: str, group_id: str) -> None:
    try:
        check_group_id(group_id)
    except InvalidArgument as error:
        raise ConfigError(key, str(error)) from error


def _check_ipv4(key: str, host: str) -> None:
    try:
        ipaddress.IPv4Address(host)
    except ValueError as error:
        raise ConfigError(key, f"must be an IPv4 address, not {host!r}") from error


def resolve(host: str, *, wait_s: float, sleep: Callable[[float], None] = time.sleep) -> str:
    """Return the IPv4 address of *host*; a name may need a moment until it is known.

    Raises:
        ConfigError: It has none within *wait_s*.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            asked = host_to_ask(host)
            found = socket.getaddrinfo(asked, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
            return str(found[0][4][0])
        except OSError as error:
            if time.monotonic() >= end_s:
                reason = f"{host!r} has no IPv4 address: {error}"
                raise ConfigError("advertise_host", reason) from error
        sleep(_RESOLVE_RETRY_S)
