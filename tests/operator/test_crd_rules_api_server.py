"""Each rule of the CRDs with a manifest that is taken and one that is refused, on an API server.

The table is complete by construction: `crd_rules` reads from the CRDs what they demand. Where a
schema gives the bound, so are the manifests; those of the CEL rules are written here.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest

from dledger_operator.api import names
from tests.operator.api_server import ApiServer
from tests.operator.backup_samples import ON_CLAIM, STORE
from tests.operator.crd_rules import RULE, Constraint, Rows, Samples, constraints, rows, schemas

pytestmark = pytest.mark.e2e

GROUP: Final = names.KIND
BACKUP: Final = names.BACKUP_KIND
OPERATION: Final = names.OPERATION_KIND
PLURALS: Final = {
    GROUP: names.PLURAL,
    BACKUP: names.BACKUP_PLURAL,
    OPERATION: names.OPERATION_PLURAL,
}

RESTART: Final = {"kind": "Restart", "restart": {"all": True}}
TRANSFER: Final = {"kind": "TransferLeader", "transferLeader": {"to": "orders-1"}}
REPLACE: Final = {"kind": "ReplaceMember", "replaceMember": {"member": "orders-2"}}
FORCE: Final = {"kind": "ForceNewGroup", "forceNewGroup": {"groupId": "x"}}


def _quantity(unit: str) -> Any:
    return lambda size: "1".rjust(size - len(unit), "0") + unit


def _cron(size: int) -> str:
    return ("0" if size % 2 else "10") + ",0" * ((size - 9) // 2) + " * * * *"


def _time(size: int) -> str:
    return f"2031-01-01T00:00:00{'.0'.ljust(size - 20, '0') if size > 20 else ''}Z"


_IN_STORE: Final = {
    "url": lambda size: "s3://b".ljust(size, "b"),
    "endpoint": lambda size: "https://b".ljust(size, "b"),
}
SAMPLES: Final = {
    GROUP: Samples(
        schemas()[GROUP],
        least={
            "": {},
            "spec.backup.store": {"backup": {"store": STORE}},
            "spec.backup.store.claimName": {"backup": {"store": {"url": "file:///backups"}}},
            "spec.backup.schedule": {"backup": {"store": STORE}},
            "spec.bootstrap.recovery": {"bootstrap": {"recovery": {"store": STORE}}},
            "spec.bootstrap.recovery.store.claimName": {
                "bootstrap": {"recovery": {"store": {"url": "file:///backups"}}}
            },
        },
        texts={
            "spec.resources.limits.a": _quantity(""),
            "spec.resources.requests.a": _quantity(""),
            "spec.storage.size": _quantity("Gi"),
            "spec.storage.autoGrow.maxSize": _quantity("Gi"),
            "spec.spark.executors.memory": _quantity("Gi"),
            "spec.spark.localThreshold": _quantity("Gi"),
            "spec.backup.schedule": _cron,
            "spec.backup.verifySchedule": _cron,
            "spec.compaction.schedule": _cron,
            "spec.bootstrap.recovery.target.time": _time,
            **{
                f"spec.{store}.{name}": make
                for store in ("backup.store", "bootstrap.recovery.store")
                for name, make in _IN_STORE.items()
            },
        },
    ),
    BACKUP: Samples(
        schemas()[BACKUP],
        least={
            "": {"group": "orders"},
            "spec.store": {"group": "orders", "store": STORE},
            "spec.store.claimName": {"group": "orders", "store": {"url": "file:///backups"}},
        },
        texts={f"spec.store.{name}": make for name, make in _IN_STORE.items()},
    ),
    OPERATION: Samples(
        schemas()[OPERATION],
        least={
            "": {"group": "orders", **RESTART},
            "spec.restart.pods": {"group": "orders", "kind": "Restart"},
            "spec.transferLeader": {"group": "orders", "kind": "TransferLeader"},
            "spec.replaceMember": {"group": "orders", "kind": "ReplaceMember"},
            "spec.forceNewGroup": {"group": "orders", "kind": "ForceNewGroup"},
        },
    ),
}


# --- the CEL rules, and what no schema gives ----------------------------------------------------

_IMAGE: Final = (
    ("", "r.example:5000/team/dledger:v1@sha256:0a", "d"),
    (" ", "-x", "a b", "a\n", "$(id)"),
)
_QUANTITY: Final = (("1", "0.5Gi", "1e3", "2Ti"), ("0", "-1", "", "ten", "10 Gi", "0Gi"))
_OF_A_SECRET: Final = (("", "a", "a.b-c", "0"), ("A", "a/b", "-a", "a-", "a_b", "a b"))
_NEITHER_OR_BOTH: Final[Sequence[Mapping[str, Any]]] = (
    {},
    {"pods": []},
    {"all": False},
    {"all": True, "pods": ["a"]},
)
_OURS: Final[tuple[Sequence[dict[str, str]], Sequence[dict[str, str]]]] = (
    ({}, {"a/b": "c"}, {"dledger.io.example/a": "b"}, {"dledger.io": "a"}),
    ({"dledger.io/role": "leader"}, {"a": "b", "dledger.io/": "c"}),
)

STORES: Final[Mapping[str, tuple[Sequence[Any], Sequence[Any]]]] = {
    "store.url is required where store.secretName or store.endpoint is set": (
        ({}, {"url": "s3://b", "secretName": "s"}, {"url": "", "secretName": "", "endpoint": ""}),
        ({"secretName": "s"}, {"endpoint": "https://s3.example"}, {"url": "", "secretName": "s"}),
    ),
    "store.claimName is required where store.url is file://, and is for file:// alone": (
        ({"url": "file:///backups", "claimName": "c"}, {"url": "s3://b", "claimName": ""}),
        ({"url": "file:///backups"}, {"url": "s3://b", "claimName": "c"}, {"claimName": "c"}),
    ),
    "store.url with file:// must be below /backups, /mnt, /srv or /var/backups, "
    "such as file:///backups/orders": (
        tuple(
            {**ON_CLAIM, "url": f"file:///{path}"}
            for path in ("backups", "mnt/a", "srv/a/b.c", "var/backups/_a")
        ),
        tuple(
            {**ON_CLAIM, "url": f"file:///{path}"}
            for path in ("opt/dledger", "tmp", "backups/../etc", "backupsother", "mnt/", "var/log")
        ),
    ),
    "store.endpoint is for s3:// alone": (
        ({**ON_CLAIM, "endpoint": ""}, {"url": "s3://b", "endpoint": "https://s3.example"}),
        ({**ON_CLAIM, "endpoint": "https://s3.example"},),
    ),
    "store.endpoint is http://, which is not encrypted, without store.allowHttp: true": (
        (STORE, {"url": "s3://b", "endpoint": "https://s3.example", "allowHttp": False}),
        ({**STORE, "allowHttp": False}, {"url": "s3://b", "endpoint": "http://s3.example"}),
    ),
}
FIELDS_OF_STORES: Final[Mapping[str, tuple[str, Sequence[Any], Sequence[Any]]]] = {
    "url": (
        "store.url must be a URL such as s3://bucket/path",
        ({}, {"url": "s3://b"}, {"url": "s3a+x.y-z://b/a'(1)~!*,=@%+_.-/"}),
        tuple(
            {"url": url} for url in ("bucket", "S3://b", "s3://", "s3:b", "s3://b/a b", "s3://-")
        ),
    ),
    "secretName": (
        "store.secretName must be the name of a Secret",
        tuple({**STORE, "secretName": name} for name in _OF_A_SECRET[0]),
        tuple({**STORE, "secretName": name} for name in _OF_A_SECRET[1]),
    ),
    "claimName": (
        "store.claimName must be the name of a PersistentVolumeClaim",
        tuple({**ON_CLAIM, "claimName": name} for name in ("a", "a.b-c", "0")),
        tuple({**ON_CLAIM, "claimName": name} for name in _OF_A_SECRET[1]),
    ),
    "endpoint": (
        "store.endpoint must be an address such as http://s3.storage.svc:9000",
        tuple(
            {**STORE, "endpoint": address}
            for address in ("", "https://s3.example", "http://[fd00::1]:9000", "http://a:1/b_~./")
        ),
        tuple(
            {**STORE, "endpoint": address}
            for address in ("s3.example", "ftp://s3", "https://", "https://a:123456", "https://a?b")
        ),
    ),
}


def _stores(kind: str, *path: str, least: Mapping[str, Any]) -> Iterator[tuple[str, Rows]]:
    """Yield the rows of a store, wherever it stands."""

    def around(store: Any) -> dict[str, Any]:
        for name in reversed(path):
            store = {name: store}
        return {**least, **store}

    where = ".".join(("spec", *path))
    for message, (taken, refused) in STORES.items():
        yield (
            f"{kind} {where} {RULE} {message}",
            Rows(tuple(map(around, taken)), tuple(map(around, refused))),
        )
    for name, (message, taken, refused) in FIELDS_OF_STORES.items():
        yield (
            f"{kind} {where}.{name} {RULE} {message}",
            Rows(tuple(map(around, taken)), tuple(map(around, refused))),
        )


def _at(path: str, values: tuple[Sequence[Any], Sequence[Any]], **beside: Any) -> Rows:
    """Return rows with values at a path of names."""

    def around(value: Any) -> dict[str, Any]:
        for name in reversed(path.split(".")):
            value = {name: value}
        return {**beside, **value}

    taken, refused = values
    return Rows(tuple(map(around, taken)), tuple(map(around, refused)))


def _recovery(**said: Any) -> dict[str, Any]:
    return {"bootstrap": {"recovery": {"store": STORE, **said}}}


def _auto_grow(size: str, most: str, *, enabled: bool = True) -> dict[str, Any]:
    return {"storage": {"size": size, "autoGrow": {"enabled": enabled, "maxSize": most}}}


def _operation(*blocks: Mapping[str, Any], **said: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"group": "orders"}
    for block in blocks:
        spec |= block
    return spec | said


def _only_for(kind: str, block: str, whole: Mapping[str, Any]) -> tuple[str, Rows]:
    """Return the rows of the block that a kind of operation needs."""
    others = [one for one in (RESTART, TRANSFER, REPLACE, FORCE) if one["kind"] != kind]
    return (
        f"{OPERATION} spec {RULE} spec.{block} is required for kind {kind}, and is for it alone",
        Rows(
            (_operation(whole), *map(_operation, others)),
            (_operation(kind=kind), *(_operation(whole, other) for other in others)),
        ),
    )


def _kept_for(hours: int | None) -> dict[str, Any]:
    kept = {} if hours is None else {"retention": {"hours": hours}}
    return {"retention": {"hours": 24}, "topics": [{"name": "a", **kept}]}


def _compacted(enabled: bool, **more: Any) -> dict[str, Any]:
    return {"topics": [{"name": "a", "compaction": {"enabled": enabled}, **more}]}


WRITTEN: Final[dict[str, Rows]] = {
    f"{GROUP}  required spec": Rows(({},), (None,)),
    f"{GROUP}  {RULE} metadata.name must be at most 50 characters of a-z, 0-9 and '-', starting "
    "with a letter: the Services and pods are named after it": Rows(
        ("a" * 50, "a", "a-1"), ("a" * 51, "1st", "a.b"), names=True
    ),
    f"{GROUP} spec {RULE} bootstrap is immutable: a group is founded once, as its first spec "
    "says": Rows(
        (_recovery(), {**_recovery(), "paused": True}),
        ({}, _recovery(groupId="g"), {"bootstrap": {}}),
        before=_recovery(),
    ),
    f"{GROUP} spec {RULE} topics[].retention.hours must not be shorter than retention.hours, for "
    "which the group keeps all messages in one log; 0 is for ever": Rows(
        tuple(_kept_for(each) for each in (None, 0, 24, 25)),
        tuple(_kept_for(each) for each in (1, 23)),
    ),
    f"{GROUP} spec.topics[] {RULE} topics[].compaction.enabled cannot change: a topic is compacted "
    "only from when it is made. Copy its messages into a new topic; to take a wrong value back, "
    "take the topic off the list with topicDeletion: Retain, and add it again": Rows(
        (_compacted(True), {"topics": []}, {"topics": [{"name": "b"}]}),
        (_compacted(False), {"topics": [{"name": "a"}]}),
        before=_compacted(True),
    ),
    f"{GROUP} spec.topics[] {RULE} topics[].queues of a compacted topic cannot change: the queue "
    "of a key goes by their number. Copy its messages into a new topic": Rows(
        (_compacted(True, queues=8), _compacted(True)),
        (_compacted(True, queues=4), _compacted(True, queues=16)),
        before=_compacted(True),
    ),
    f"{GROUP} spec.topics[] {RULE} topics[].retention.hours is not for a compacted topic, which "
    "keeps the newest message of each key for ever": Rows(
        (_compacted(True), _compacted(False, retention={"hours": 0})),
        (_compacted(True, retention={"hours": 0}), _compacted(True, retention={"hours": 720})),
    ),
    f"{GROUP} spec.replicas {RULE} replicas must be odd (1, 3, 5, 7 or 9): an even number needs a "
    "larger majority and survives no more failures": _at(
        "replicas", ((1, 3, 5, 7, 9), (2, 4, 6, 8))
    ),
    f"{GROUP} spec.image {RULE} must be the name of an image": _at("image", _IMAGE),
    f"{GROUP} spec.storage {RULE} storage.autoGrow.maxSize must be at least storage.size": Rows(
        (
            _auto_grow("10Gi", "10240Mi"),
            _auto_grow("2Ti", "1Ti", enabled=False),
            {"storage": {"size": "2Ti"}},
        ),
        (
            _auto_grow("10Gi", "10737418239"),
            {"storage": {"size": "101Gi", "autoGrow": {"enabled": True}}},
        ),
    ),
    f"{GROUP} spec.storage.size {RULE} storage.size must be a quantity above zero, such as "
    "10Gi": _at("storage.size", _QUANTITY),
    f"{GROUP} spec.storage.storageClassName {RULE} storage.storageClassName is immutable: a "
    "volume cannot change its class": Rows(
        ({"storage": {"storageClassName": "fast", "size": "1Ti"}},),
        ({}, {"storage": {"storageClassName": "other"}}),
        before={"storage": {"storageClassName": "fast"}},
    ),
    f"{GROUP} spec.storage.autoGrow.maxSize {RULE} storage.autoGrow.maxSize must be a quantity "
    "above zero, such as 100Gi": _at("storage.autoGrow.maxSize", _QUANTITY),
    **{
        f"{GROUP} spec.resources.{name}{{}} {RULE} must be a quantity such as 500m or 2Gi": _at(
            f"resources.{name}",
            (
                ({"cpu": 1}, {"cpu": "500m", "memory": "2Gi"}),
                ({"a": "much"}, {"a": "2 Gi"}, {"a": ""}),
            ),
        )
        for name in ("limits", "requests")
    },
    **{
        f"{GROUP} spec.{name} {RULE} keys of dledger.io/ are the operator's own: it tells pods "
        "apart by them": _at(name, _OURS)
        for name in ("podLabels", "podAnnotations")
    },
    f"{GROUP} spec.topics[].name {RULE} topics[].name must be of letters, digits, '%', '_' and "
    "'-'": Rows(
        tuple({"topics": [{"name": one}]} for one in ("a", "%", "Zz09_-")),
        tuple({"topics": [{"name": one}]} for one in ("a b", "a.b", "a|b", "ä", "$a", "a\n")),
    ),
    f"{GROUP} spec.topics[].name {RULE} names of topics that begin with %DLQ% or %RETRY% are kept "
    "for dead letters": Rows(
        tuple({"topics": [{"name": one}]} for one in ("%DLQ", "a%DLQ%", "%dlq%g")),
        tuple({"topics": [{"name": one}]} for one in ("%DLQ%g", "%RETRY%g")),
    ),
    f"{GROUP} spec.peerTls.caSecretName {RULE} peerTls.caSecretName must be the name of a "
    "Secret": _at("peerTls.caSecretName", _OF_A_SECRET),
    f"{GROUP} spec.tls {RULE} tls.secretName and tls.issuerRef exclude each other: give the "
    "certificate, or who issues it": _at(
        "tls",
        (
            (
                {"secretName": "s"},
                {"issuerRef": {"name": "i"}},
                {"secretName": "", "issuerRef": {"name": "i"}},
                {"secretName": "s", "issuerRef": {}},
                {"secretName": "s", "issuerRef": {"name": ""}},
            ),
            ({"secretName": "s", "issuerRef": {"name": "i"}},),
        ),
    ),
    f"{GROUP} spec.tls.secretName {RULE} tls.secretName must be the name of a Secret": _at(
        "tls.secretName", _OF_A_SECRET
    ),
    f"{GROUP} spec.backup {RULE} backup.schedule needs backup.store.url": _at(
        "backup",
        (
            ({"schedule": "@daily", "store": STORE}, {"schedule": ""}),
            ({"schedule": "@daily"}, {"schedule": "@daily", "store": {"url": ""}}),
        ),
    ),
    f"{GROUP} spec.spark.image {RULE} must be the name of an image": _at("spark.image", _IMAGE),
    f"{GROUP} spec.spark.executors.memory {RULE} spark.executors.memory must be a quantity of at "
    "least 1Gi": _at("spark.executors.memory", (("1Gi", "1024Mi"), ("1023Mi", "1Ki", "much", ""))),
    f"{GROUP} spec.spark.localThreshold {RULE} spark.localThreshold must be a quantity such as "
    "2Gi": _at("spark.localThreshold", (("0", "2Gi"), ("-1", "little", ""))),
    f"{GROUP} spec.bootstrap.recovery {RULE} bootstrap.recovery needs "
    "bootstrap.recovery.store.url": _at(
        "bootstrap.recovery",
        (
            ({}, {"groupId": ""}, {"target": {}}, {"groupId": "g", "store": {"url": "s3://b"}}),
            ({"groupId": "g"}, {"target": {"index": 1}}, {"groupId": "g", "store": {"url": ""}}),
        ),
    ),
    f"{GROUP} spec.bootstrap.recovery.groupId {RULE} bootstrap.recovery.groupId must be an id: "
    "letters, digits, '.', '_' and '-'": Rows(
        tuple(_recovery(groupId=one) for one in ("", "6f9619ff-8b86", "a._-", "A" * 64)),
        tuple(_recovery(groupId=one) for one in ("-a", "a/b", "a b", "..")),
    ),
    f"{GROUP} spec.bootstrap.recovery.target {RULE} bootstrap.recovery.target takes index or "
    "time, not both": Rows(
        (
            _recovery(target={}),
            _recovery(target={"index": 1}),
            _recovery(target={"time": "2031-01-01T00:00:00Z"}),
        ),
        (_recovery(target={"index": 1, "time": "2031-01-01T00:00:00Z"}),),
    ),
    **dict(_stores(GROUP, "backup", "store", least={})),
    **dict(_stores(GROUP, "bootstrap", "recovery", "store", least={})),
    f"{BACKUP}  required spec": Rows(({"group": "orders"},), (None,)),
    f"{BACKUP}  {RULE} metadata.name must be at most 63 characters of a-z, 0-9 and '-': the Job "
    "is named after it": Rows(("a" * 63, "0", "a-1"), ("a" * 64, "a.b"), names=True),
    f"{BACKUP} spec {RULE} spec is immutable: a BrokerBackup is one backup; create another": Rows(
        ({"group": "orders", "lastIndex": 7},),
        (
            {"group": "orders"},
            {"group": "orders", "lastIndex": 8},
            {"group": "other", "lastIndex": 7},
            {"group": "orders", "lastIndex": 7, "store": STORE},
        ),
        before={"group": "orders", "lastIndex": 7},
    ),
    **dict(_stores(BACKUP, "store", least={"group": "orders"})),
    f"{OPERATION}  required spec": Rows((_operation(RESTART),), (None,)),
    f"{OPERATION} spec {RULE} spec is immutable: a BrokerOperation is one act; create "
    "another": Rows(
        (_operation(TRANSFER),),
        (
            _operation(TRANSFER, transferLeader={"to": "orders-2"}),
            _operation(RESTART),
            _operation(TRANSFER, deadlineSeconds=5),
        ),
        before=_operation(TRANSFER),
    ),
    f"{OPERATION} spec.kind enum": Rows(
        (*map(_operation, (RESTART, TRANSFER, REPLACE, FORCE)), _operation(kind="Compact")),
        (_operation(kind="Rebuild"),),
    ),
    f"{OPERATION} spec.kind type": Rows((_operation(RESTART),), (_operation(kind=7),)),
    **dict(
        (
            _only_for("TransferLeader", "transferLeader", TRANSFER),
            _only_for("Restart", "restart", RESTART),
            _only_for("ReplaceMember", "replaceMember", REPLACE),
            _only_for("ForceNewGroup", "forceNewGroup", FORCE),
        )
    ),
    f"{OPERATION} spec {RULE} spec.deadlineSeconds is not for a confirmed ForceNewGroup, which is "
    "not left half done": Rows(
        (
            _operation(FORCE, forceNewGroup={}, deadlineSeconds=5),
            _operation(FORCE, forceNewGroup={"groupId": ""}, deadlineSeconds=5),
            _operation(RESTART, deadlineSeconds=5),
        ),
        (_operation(FORCE, deadlineSeconds=5),),
    ),
    f"{OPERATION} spec.restart {RULE} spec.restart needs either pods, or all: true": Rows(
        tuple(
            _operation(kind="Restart", restart=one)
            for one in ({"all": True}, {"pods": ["orders-0"]}, {"pods": ["a"], "all": False})
        ),
        tuple(_operation(kind="Restart", restart=one) for one in _NEITHER_OR_BOTH),
    ),
}

ALL: Final[dict[str, Constraint]] = {
    one.key: one for kind, schema in schemas().items() for one in constraints(kind, schema)
}
"""Everything that a manifest can be refused for."""


def table() -> dict[str, Rows]:
    """Return the rows of each constraint: those that are written, and the bounds of the others."""
    made = {
        key: rows(one, SAMPLES[one.kind])
        for key, one in ALL.items()
        if key not in WRITTEN and one.keyword != RULE
    }
    return {**made, **WRITTEN}


def test_a_keyword_that_no_manifest_tries_is_seen() -> None:
    """Else a new kind of constraint would be passed over."""
    schema = {"properties": {"spec": {"type": "integer", "multipleOf": 2}}}

    with pytest.raises(AssertionError, match="no manifest tries the keyword multipleOf"):
        list(constraints(GROUP, schema))


def test_a_rule_without_a_row_and_a_row_without_a_rule_are_seen() -> None:
    """A rule whose words change is both."""
    whole = schemas()[OPERATION]
    rules = whole["properties"]["spec"]["x-kubernetes-validations"]
    rules[0] = {**rules[0], "message": "spec is immutable"}

    wanted = {one.key for one in constraints(OPERATION, whole)}
    there = {key for key in table() if ALL[key].kind == OPERATION}

    assert wanted - there == {f"{OPERATION} spec {RULE} spec is immutable"}
    assert len(there - wanted) == 1


def test_every_constraint_has_a_manifest_that_is_taken_and_one_that_is_refused() -> None:
    """And no row is about a rule that is gone."""
    found = table()

    assert sorted(ALL) == sorted(found)
    assert [key for key, row in found.items() if not row.accepted or not row.refused] == []


# --- the API server ------------------------------------------------------------------------------


_NUMBERS: Final = itertools.count()


class Client:
    """Asks the API server whether it would take an object, as `kubectl --dry-run=server` does."""

    def __init__(self, server: ApiServer) -> None:
        files = server.kubeconfig.parent
        context = ssl.create_default_context(cafile=files / "ca.crt")
        context.load_cert_chain(files / "admin.crt", files / "admin.key")
        host = server.url.removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, context=context, timeout=60)

    def send(
        self, manifest: Mapping[str, Any], *, replaces: bool = False, dry: bool = True
    ) -> dict[str, Any]:
        """Return the object that the API server makes of it, or the Status that it answers."""
        path = f"/apis/{names.API_VERSION}/namespaces/default/{PLURALS[manifest['kind']]}"
        path += f"/{manifest['metadata']['name']}" * replaces
        asked = "&".join(("fieldValidation=Strict", *(("dryRun=All",) if dry else ())))
        self._connection.request(
            "PUT" if replaces else "POST",
            f"{path}?{asked}",
            body=json.dumps(manifest),
            headers={"Content-Type": "application/json"},
        )
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[Client]:
    """A client of the administrator's."""
    with contextlib.closing(Client(server)) as made:
        yield made


def _manifest(kind: str, spec: Any, name: str = "orders", version: str = "") -> dict[str, Any]:
    made = {
        "apiVersion": names.API_VERSION,
        "kind": kind,
        "metadata": {"name": name, **({"resourceVersion": version} if version else {})},
    }
    return made if spec is None else {**made, "spec": spec}


def _answers(client: Client, kind: str, row: Rows, asked: Sequence[Any]) -> list[dict[str, Any]]:
    if row.names:
        least = SAMPLES[kind].least[""]
        return [client.send(_manifest(kind, least, name)) for name in asked]
    if row.before is None:
        return [client.send(_manifest(kind, spec)) for spec in asked]
    name = f"before-{next(_NUMBERS)}"
    there = client.send(_manifest(kind, row.before, name), dry=False)
    version = there["metadata"]["resourceVersion"]
    manifests = [_manifest(kind, spec, name, version) for spec in asked]
    return [client.send(manifest, replaces=True) for manifest in manifests]


NOT_ASKED: Final = "some validation rules were not checked"
"""What the API server adds where a schema's own refusal keeps it from asking the CEL rules."""


def _faults(one: Constraint, answer: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a refusal: it names the field, says why, and nothing else."""
    if answer["kind"] != "Status":
        return ["is taken"]
    causes = [
        cause
        for cause in answer.get("details", {}).get("causes", ())
        if NOT_ASKED not in cause["message"]
    ]
    told = [(cause["field"], cause["message"]) for cause in causes]
    if not any(one.words in message for _, message in told):
        return [f"is refused with {answer['message']!r}, not {one.words!r}"]
    return [f"{field}: {message}" for field, message in told if not _names(one, field, message)]


def _names(one: Constraint, field: str, message: str) -> bool:
    """Whether a refusal is about the field or a part of it."""
    if field == "<nil>":
        return (one.where or "metadata.name") in message
    told = field.lstrip(".").replace("[a]", ".a")
    return told == one.where or told.startswith((f"{one.where}.", f"{one.where}["))


@pytest.mark.parametrize("kind", list(PLURALS))
def test_what_a_rule_takes_is_taken(client: Client, kind: str) -> None:
    """At the very bound."""
    wrong = [
        f"{key}: {answer['message']}"
        for key, row in table().items()
        if ALL[key].kind == kind
        for answer in _answers(client, kind, row, row.accepted)
        if answer["kind"] == "Status"
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", list(PLURALS))
def test_what_a_rule_refuses_is_refused_with_a_sentence_that_names_the_field(
    client: Client, kind: str
) -> None:
    """One beyond the bound, for that reason alone."""
    wrong = [
        f"{key}: {fault}"
        for key, row in table().items()
        if ALL[key].kind == kind
        for answer in _answers(client, kind, row, row.refused)
        for fault in _faults(ALL[key], answer)
    ]

    assert not wrong, "\n".join(wrong)


UNKNOWN: Final[list[tuple[str, dict[str, Any], str]]] = [
    (GROUP, {"colour": "red"}, "spec.colour"),
    (GROUP, {"storage": {"sise": "1Gi"}}, "spec.storage.sise"),
    (GROUP, {"affinity": {"nodeAfinity": {}}}, "spec.affinity.nodeAfinity"),
    (
        GROUP,
        {"networkPolicy": {"monitoring": [{"pods": {}}]}},
        "spec.networkPolicy.monitoring[0].pods",
    ),
    (BACKUP, {"group": "orders", "colour": "red"}, "spec.colour"),
    (BACKUP, {"group": "orders", "store": {"uri": "s3://b"}}, "spec.store.uri"),
    (OPERATION, _operation(RESTART, colour="red"), "spec.colour"),
]


@pytest.mark.parametrize(("kind", "spec", "path"), UNKNOWN)
def test_a_field_that_is_none_is_refused_and_named(
    client: Client, kind: str, spec: dict[str, Any], path: str
) -> None:
    """Where strictness is asked for, as kubectl does by default."""
    assert f'unknown field "{path}"' in client.send(_manifest(kind, spec))["message"]
