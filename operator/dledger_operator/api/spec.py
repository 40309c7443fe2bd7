"""A BrokerGroup as a frozen value: the spec of `crds/brokergroup.yaml`, field for field.

Python names are snake_case, the CRD's camelCase. Fields typed `Json` are Kubernetes' own types and
are passed on unchanged. Built by `BrokerGroup.parse` in `controllers`, taken by every pure
function.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from dledger_operator.api import names
from dledger_operator.api.policy import Policy

Json = Mapping[str, Any]
Manifest = dict[str, Any]


FILE_SCHEME = "file://"
_MOST_REPLICAS = 99
"""Far more than the CRD lets through (`checks.replicas_problems`)."""


class InvalidSpecError(ValueError):
    """A value of the spec cannot be read; *path* names the field."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoGrow:
    """Growing the volumes as they fill."""

    enabled: bool = False
    max_size: str = "100Gi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The volume of each node; sizes are quantities."""

    size: str = "10Gi"
    storage_class_name: str = ""
    deletion_policy: str = "Retain"
    auto_grow: AutoGrow = AutoGrow()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """When old messages are dropped, and consumer groups that nobody uses."""

    hours: int = 72
    disk_watermark_percent: int = 85
    group_hours: int = 720


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCompaction:
    """Keeping the newest message of each key of one topic for ever; chosen when it is made."""

    enabled: bool = False
    min_lag_hours: int = 1
    tombstone_hours: int = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRetention:
    """How long one topic keeps its messages. Attributes: hours: 0: for ever; None: is not said."""

    hours: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that must exist."""

    name: str = ""
    type: str = "NORMAL"
    queues: int = 8
    retention: TopicRetention = TopicRetention()
    compaction: TopicCompaction = TopicCompaction()


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerRef:
    """A cert-manager issuer."""

    name: str = ""
    kind: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """The authority of the nodes' certificates for each other; empty: the operator's own."""

    ca_secret_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The certificate that nodes show clients."""

    enabled: bool = False
    secret_name: str = ""
    issuer_ref: IssuerRef = IssuerRef()


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """Users and permissions."""

    enabled: bool = False
    users_secret_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expose:
    """How clients outside the cluster reach the nodes."""

    type: str = "ClusterIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicy:
    """Who reaches the nodes, whom they and Jobs reach: Kubernetes' NetworkPolicyPeers."""

    clients: tuple[Json, ...] = ()
    monitoring: tuple[Json, ...] = ()
    egress: tuple[Json, ...] = ()
    job_egress: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A message written and read back all the time."""

    enabled: bool = True
    interval_seconds: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """What watches the group."""

    canary: Canary = Canary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Where backups live: in a bucket, with credentials in the Secret, or on a volume claim."""

    url: str = ""
    secret_name: str = ""
    claim_name: str = ""
    endpoint: str = ""
    allow_http: bool = False

    @property
    def place(self) -> tuple[str, str, str]:
        """What two stores differ by if they hold different objects."""
        return self.url, self.endpoint, self.claim_name

    @property
    def directory(self) -> str:
        """Where a pod mounts the claim; empty for a store that is not on one."""
        return self.url.removeprefix(FILE_SCHEME) if self.url.startswith(FILE_SCHEME) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRetention:
    """When old backups go; 0 for *keep_last* keeps none for their number."""

    keep_days: int = 30
    keep_last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """Copies of the log in a store."""

    store: Store = Store()
    schedule: str = ""
    base_every_hours: int = 24
    retention: BackupRetention = BackupRetention()
    verify_schedule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When topics that ask for it are compacted."""

    schedule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executors:
    """The executor pods of a Spark job."""

    max: int = 4
    cores: int = 1
    memory: str = "2Gi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """Overrides for the Spark jobs."""

    image: str = ""
    executors: Executors = Executors()
    local_threshold: str = "2Gi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How far to restore; neither means everything."""

    index: int = 0
    time: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Founding a group from a backup.

    *held* is what becomes of messages that the group which was backed up held until they were due:
    ``hold``, ``fire`` or ``drop``.
    """

    store: Store = Store()
    group_id: str = ""
    target: Target = Target()
    held: str = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """How a group is founded when not empty."""

    recovery: Recovery = Recovery()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is wanted; the defaults are the CRD's."""

    replicas: int = 3
    image: str = ""
    storage: Storage = Storage()
    durability: str = "sync"
    resources: Json = field(default_factory=dict)
    affinity: Json = field(default_factory=dict)
    topology_spread_constraints: tuple[Json, ...] = ()
    tolerations: tuple[Json, ...] = ()
    node_selector: Json = field(default_factory=dict)
    priority_class_name: str = ""
    pod_labels: Json = field(default_factory=dict)
    pod_annotations: Json = field(default_factory=dict)
    service_account_name: str = ""
    image_pull_secrets: tuple[Json, ...] = ()
    security_context: Json = field(default_factory=dict)
    retention: Retention = Retention()
    auto_create_topics: bool = False
    topics: tuple[Topic, ...] = ()
    topic_deletion: str = "Retain"
    tls: Tls = Tls()
    peer_tls: PeerTls = PeerTls()
    auth: Auth = Auth()
    expose: Expose = Expose()
    network_policy: NetworkPolicy = NetworkPolicy()
    monitoring: Monitoring = Monitoring()
    backup: Backup = Backup()
    compaction: Compaction = Compaction()
    spark: Spark = Spark()
    bootstrap: Bootstrap = Bootstrap()
    paused: bool = False
    plan_approval: str = "Automatic"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroup:
    """One BrokerGroup object: who it is, what is wanted, what was last recorded of it.

    Attributes:
        namespace: Where it lives.
        name: Also the name of its StatefulSet.
        uid: Kubernetes' id of this object; the children's owner references have it.
        generation: Counts changes of the spec.
        spec: What is wanted.
        raw_spec: The same as the API has it.
        unknown: Paths of spec fields that this version of the operator does not know.
        unreadable: Why the spec could not be read; it is then the default and not acted on.
        status: The last status this operator wrote, as the CRD has it.
        created_at: RFC 3339.
        spark_node_selector: The operator's labels of machines that run backups and recoveries.
        kept_image: The image that its nodes run while the spec names none: the recorded one, since
            a newer operator's default is for new groups.
        kept_pods: How many pods there should be now, once that is known: a group that is scaled has
            its pods before, and keeps them after, they are members.
        policy: What the installation of the operator lets the spec ask for.
        has_peer_tls: Whether its nodes speak mutual TLS with each other and with the operator.
        client_server: What serves its clients' ports, as the operator was told; empty: what the
            nodes do by themselves.
        door_processes: How many processes of each node do that, as the operator was told; 0: none.
        handed_to: The operator that its annotation names; empty without one.
        deleted_at: When its deletion was asked for, RFC 3339; empty if it was not.
        finalizers: Who holds up its deletion.
    """

    KIND: ClassVar[str] = "BrokerGroup"

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec
    raw_spec: Json = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    unreadable: str = ""
    status: Json = field(default_factory=dict)
    created_at: str = ""
    spark_node_selector: Mapping[str, str] = field(default_factory=dict)
    kept_image: str = ""
    kept_pods: int = 0
    policy: Policy = field(default_factory=Policy)
    has_peer_tls: bool = False
    client_server: str = ""
    door_processes: int = 0
    takes_turns: bool = True
    handed_to: str = ""
    deleted_at: str = ""
    finalizers: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        body: Json,
        *,
        image: str = "",
        spark_image: str = "",
        spark_node_selector: Mapping[str, str] | None = None,
        policy: Policy | None = None,
        has_peer_tls: bool = False,
        client_server: str = "",
        door_processes: int = 0,
    ) -> Self:
        """Build it from the API's object; a value of a wrong type makes it *unreadable*.

        *image* and *spark_image* are used where the spec names none; the other arguments are the
        operator's own.
        """
        meta = body["metadata"]
        unknown: list[str] = []
        unreadable = ""
        try:
            spec = read(Spec, body.get("spec") or {}, "spec", unknown)
            _check_countable(spec)
        except InvalidSpecError as error:
            spec, unreadable = Spec(), str(error)
        if not spec.spark.image:
            spec = replace(spec, spark=replace(spec.spark, image=spark_image))
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            generation=meta.get("generation", 0),
            spec=spec,
            raw_spec=body.get("spec") or {},
            unknown=tuple(unknown),
            unreadable=unreadable,
            status=body.get("status") or {},
            created_at=meta.get("creationTimestamp", ""),
            spark_node_selector=spark_node_selector or {},
            kept_image=image,
            policy=policy or Policy(),
            has_peer_tls=has_peer_tls,
            client_server=client_server,
            door_processes=door_processes,
            takes_turns=(meta.get("annotations") or {}).get(names.TURN_ANNOTATION) != "none",
            handed_to=str((meta.get("annotations") or {}).get(names.OPERATOR_ANNOTATION, "")),
            deleted_at=meta.get("deletionTimestamp", ""),
            finalizers=tuple(meta.get("finalizers") or ()),
        )

    @property
    def operator(self) -> str:
        """The operator that put its mark on it; empty if none did yet."""
        return str(self.status.get("operator") or "")

    @property
    def group_id(self) -> str:
        """The recorded id of the group; empty before one is recorded."""
        return str(self.status.get("groupId") or "")

    @property
    def recorded_topics(self) -> frozenset[str]:
        """The topics that the status records as the spec's: those it may delete later."""
        return frozenset(self.status.get("topics") or ())

    @property
    def image(self) -> str:
        """The image of its nodes."""
        return self.spec.image or self.kept_image

    @property
    def pods(self) -> int:
        """How many pods there should be now; see `decisions.extent`."""
        return self.kept_pods or self.spec.replicas

    @property
    def recovers(self) -> bool:
        """Whether it is to be founded on a backup."""
        return bool(self.spec.bootstrap.recovery.store.url)

    @property
    def bootstrapped(self) -> bool:
        """Whether a leader was ever seen: from then on it must never be founded again."""
        return int(self.status.get("term") or 0) > 0


def _check_countable(spec: Spec) -> None:
    """Refuse more replicas than can be listed: conditions list them before they refuse them."""
    if spec.replicas > _MOST_REPLICAS:
        raise InvalidSpecError("spec.replicas", f"cannot be {spec.replicas}")


@cache
def camel(name: str) -> str:
    """Return the CRD's spelling of a field: ``max_size`` -> ``maxSize``."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


@cache
def _shape(cls: Any) -> tuple[dict[str, Any], dict[str, str]]:
    return get_type_hints(cls), {camel(f.name): f.name for f in fields(cls)}


def read(cls: Any, data: Any, path: str, unknown: list[str]) -> Any:
    """Return the dataclass *cls* of the API's object *data*; *unknown* collects fields it lacks.

    Raises:
        InvalidSpecError: A value has a wrong type; *path* is where *data* lies.
    """
    if not isinstance(data, Mapping):
        raise InvalidSpecError(path, f"must be an object, not {data!r}")
    hints, known = _shape(cls)
    unknown.extend(f"{path}.{key}" for key in data if key not in known)
    return cls(
        **{
            name: _convert(hints[name], data[key], f"{path}.{key}", unknown)
            for key, name in known.items()
            if data.get(key) is not None
        }
    )


def read_known(cls: Any, data: Any) -> tuple[Any, str]:
    """Return *data* as the dataclass *cls* and why it could not be read, which is then the default.

    A field that *cls* lacks is a reason, too: this version would not act on it.
    """
    unknown: list[str] = []
    try:
        spec = read(cls, data, "spec", unknown)
    except InvalidSpecError as error:
        return cls(), str(error)
    return spec, f"{', '.join(unknown)}: not known to this version" if unknown else ""


def _convert(kind: Any, value: Any, path: str, unknown: list[str]) -> Any:
    if isinstance(kind, types.UnionType):  # of a type and None, which stands for no value
        kind = get_args(kind)[0]
    if is_dataclass(kind):
        return read(kind, value, path, unknown)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise InvalidSpecError(path, f"must be a list, not {value!r}")
        item = get_args(kind)[0]
        return tuple(_convert(item, one, f"{path}[{n}]", unknown) for n, one in enumerate(value))
    wanted = Mapping if isinstance(kind, types.GenericAlias) or get_origin(kind) else kind
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise InvalidSpecError(path, f"cannot be {value!r}")
    return value
