"""What the operator reads: objects that users write, what their pods say, its own options."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from google.protobuf.message import DecodeError

from dledger.client.admin_client import _status
from dledger.errors import DledgerError
from dledger.rpc.pb import dledger_pb2 as pb
from dledger_operator import options
from dledger_operator.api import names
from dledger_operator.api.brokerbackup import BrokerBackup
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.nodes import bounded
from dledger_operator.decisions.backups import plan_backup
from dledger_operator.decisions.checks import problems, verdict
from dledger_operator.decisions.facts import facts_of
from dledger_operator.decisions.log_jobs import LogJobObserved
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.job_status import job_status
from dledger_operator.observed.observed import Observed, Pod
from dledger_operator.observed.parsers import parse_job_pod
from dledger_operator.resources import Platform, desired
from dledger_operator.resources.log_job import LogRange
from dledger_operator.resources.recovery import recovery_claim, recovery_job
from dledger_operator.status.backup_status import backup_events, backup_status
from dledger_operator.status.status import status
from tests.fuzz.clients import Protobuf
from tests.fuzz.mutation import NUMBERS, TEXTS, any_value, json_bytes, mutated, nested, spoil
from tests.fuzz.target import Broken, Target

_NOW: Final = "2031-05-06T07:08:09Z"
_GROUP_ID: Final = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
_PLATFORM: Final = Platform(image="dledger:x", namespace="dledger-system", spark_image="spark:x")
_STORE: Final = {"url": "s3://b/p", "endpoint": "http://s3:9000", "secretName": "s3"}
_SPECS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {
        "replicas": 3,
        "image": "dledger:1",
        "storage": {"size": "10Gi", "storageClassName": "fast"},
        "durability": "sync",
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"disk": "fast"},
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsUser": 10_001},
        "retention": {"hours": 72, "diskWatermarkPercent": 85, "groupHours": 720},
        "topics": [{"name": "orders", "type": "NORMAL", "queues": 8}],
        "backup": {"store": _STORE, "schedule": "5 4 * * *"},
        "spark": {"image": "", "executors": {"max": 4, "cores": 1, "memory": "2Gi"},
                  "localThreshold": "2Gi"},
    },
    {"bootstrap": {"recovery": {"store": _STORE, "groupId": _GROUP_ID, "target": {"index": 7}}}},
    {"bootstrap": {"recovery": {"store": _STORE, "target": {"time": _NOW}}}},
)  # fmt: skip


def _group(spec: Any, **status_: Any) -> BrokerGroup:
    metadata = {"namespace": "shop", "name": "orders", "uid": "uid-1", "generation": 1}
    return _PLATFORM.group({"metadata": metadata, "spec": spec, "status": status_})


def _json_of(data: bytes) -> Any:
    """Return the object as the API server would hand it on; None if it would not take it."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return None if _has_surrogates(value) else value


def _has_surrogates(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError):
        return True
    return False


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, path)


def checked_manifests(manifests: Sequence[Mapping[str, Any]]) -> None:
    """Raise Broken unless the API can take the manifests, and the kubelet expands nothing."""
    for manifest in manifests:
        json.dumps(manifest, allow_nan=False)
        for path, text in _texts(manifest):
            if "$(" in text.replace("$$", "") and (".args" in path or ".command" in path):
                raise Broken(f"the kubelet would expand {text!r:.60} in {path[-30:]}")


class GroupSpecs(Target):
    """A BrokerGroup's spec: its conditions say what is wrong, or everything can be made of it."""

    name = "group-specs"

    def draw(self, rng: Random) -> bytes:
        spec = rng.choice(_SPECS)
        return json_bytes(spec if rng.random() < 0.1 else spoil(rng, spec))

    def mutate(self, rng: Random, data: bytes) -> bytes:
        value = _json_of(data)
        return self.draw(rng) if value is None else json_bytes(spoil(rng, value))

    def feed(self, data: bytes) -> Hashable:
        spec = _json_of(data)
        if not isinstance(spec, dict):
            return "no object"
        group = _group(spec, groupId=_GROUP_ID)
        observed = Observed()
        facts = facts_of(group, observed)
        said = status(facts, now=_NOW)
        json.dumps(said, allow_nan=False)
        wrong = problems(group, observed)
        verdict(wrong)
        if wrong:
            return "refused", len(wrong) > 1
        made = list(desired(group, _PLATFORM))
        if group.recovers:
            made += [recovery_claim(group), recovery_job(group)]
        checked_manifests(made)
        plan(facts, made, fresh_id="id")
        return group.recovers, bool(group.spec.topics)


class BackupSpecs(Target):
    """A BrokerBackup beside its group: a final word of what is wrong, or a Job."""

    name = "backup-specs"
    _SEEDS: ClassVar = (
        {"group": "orders", "store": _STORE, "lastIndex": 7},
        {"group": "orders"},
    )

    def draw(self, rng: Random) -> bytes:
        spec = rng.choice(self._SEEDS)
        spec = spec if rng.random() < 0.3 else spoil(rng, spec)
        groups = [each for each in _SPECS if "backup" in each or not each]
        of_group = rng.choice(groups)
        of_group = of_group if rng.random() < 0.5 else spoil(rng, of_group)
        at = rng.choice((_NOW, any_value(rng, 1)))
        return json_bytes([spec, of_group, at, rng.choice((0, 1, 3 << 30))])

    def mutate(self, rng: Random, data: bytes) -> bytes:
        value = _json_of(data)
        return self.draw(rng) if value is None else json_bytes(spoil(rng, value))

    def feed(self, data: bytes) -> Hashable:
        parts = _json_of(data)
        if not isinstance(parts, list) or len(parts) != 4:
            return "no object"
        spec, of_group, at, size = parts
        if not isinstance(spec, dict) or not isinstance(of_group, dict):
            return "no object"
        annotations = {names.SCHEDULED_ANNOTATION: at if isinstance(at, str) else ""}
        backup = BrokerBackup.parse(
            {
                "metadata": {"namespace": "shop", "name": "first", "uid": "u", "generation": 1,
                             "annotations": annotations},
                "spec": spec,
            }
        )  # fmt: skip
        log = LogRange(last_index=9, size_bytes=size if type(size) is int and size > 0 else 0)
        observed = LogJobObserved(group=_group(of_group, groupId=_GROUP_ID, term=1), log=log)
        said = backup_status(backup, observed, now=_NOW)
        json.dumps(said, allow_nan=False)
        list(backup_events({}, said))
        actions = plan_backup(backup, observed)
        checked_manifests([action.manifest for action in actions])
        return said["phase"], len(actions)


class JobWords(Target):
    """What a user's container leaves as its termination message: a result, or an error."""

    name = "job-words"
    _RESULT: ClassVar = {
        "phase": "Completed", "groupId": _GROUP_ID, "term": 3, "firstIndex": 1,
        "lastIndex": 47, "records": 47, "bytes": 500, "objectBytes": 90, "objects": 2,
        "newObjects": 2, "manifest": "manifests/47.json",
    }  # fmt: skip
    _LONGEST: ClassVar = 4_096
    """What the kubelet keeps of a message."""

    def draw(self, rng: Random) -> bytes:
        seed = rng.choice((self._RESULT, {"error": {"type": "E", "message": "m"}}))
        way = rng.randrange(5)
        text = nested(rng).encode() if way == 0 else json_bytes(spoil(rng, seed))
        text = mutated(rng, text) if way == 1 else text
        return bytes([rng.randrange(4)]) + text[: self._LONGEST]

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return data[:1] + mutated(rng, data[1:])[: self._LONGEST]

    def feed(self, data: bytes) -> Hashable:
        way, message = data[:1], data[1 : self._LONGEST].decode("utf-8", "replace")
        failed = way in (b"\0", b"\1")
        ended = {"exitCode": 1 if failed else 0, "reason": "Error", "message": message}
        _, pod = parse_job_pod(
            {
                "metadata": {"name": "p", "labels": {names.JOB_LABEL: "j"}},
                "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
            }
        )
        over = [{"type": "Failed" if way == b"\0" else "Complete", "status": "True"}]
        job = {"status": {"startTime": _NOW, "conditions": over if way != b"\1" else []}}
        done = job_status(job, [pod], now=_NOW)
        backup = BrokerBackup.parse(
            {"metadata": {"namespace": "shop", "name": "first", "uid": "u"}, "spec": {}}
        )
        observed = LogJobObserved(group=_group(_SPECS[1], groupId=_GROUP_ID, term=1), job=done)
        said = backup_status(backup, observed, now=_NOW)
        json.dumps(said, allow_nan=False).encode()
        for number in _numbers(said):
            if abs(number) >= 1 << 63:
                raise Broken("the API has no such number")
        return str(said["phase"])


def _numbers(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _numbers(inner)


class NodeWords(Protobuf):
    """A node's Status, of an image that a user chose: a plan and a status come of it, whatever."""

    name = "node-words"
    refuses = (DecodeError, DledgerError)
    _MEMBER: ClassVar = pb.MemberStatus(
        member=pb.Member(id="id-0", name="orders-0", address="a:1"), role="leader", match_index=7,
        voter=True, connected=True,
    )  # fmt: skip
    seeds = (
        pb.StatusResponse(
            node_id="id-0", name="orders-0", group="orders", group_id=_GROUP_ID, role="leader",
            term=3, leader_id="id-0", commit_index=7, applied_index=7, last_index=7, ready=True,
            members=[_MEMBER, _MEMBER],
            last_failover=pb.Failover(
                from_id="id-1", to_id="id-0", term=3, cause="Timeout", detected_ms=1,
                elected_ms=2, first_ack_ms=3, at_ms=1_700_000_000_000,
            ),
            storage_used_bytes=5, storage_capacity_bytes=10,
        ),
        pb.StatusResponse(node_id="id-0", name="orders-0", group="orders"),
    )  # fmt: skip

    def feed(self, data: bytes) -> Hashable:
        view = bounded(_status(pb.StatusResponse.FromString(data)))
        pods = {
            f"orders-{n}": Pod(name=f"orders-{n}", ip=f"10.0.0.{n}", ready=True) for n in range(3)
        }
        nodes = {"orders-0": view, "orders-1": replace(view, node_id="id-1", role="follower")}
        observed = Observed(pods=pods, nodes=nodes)
        made = None
        for recorded in ({}, {"groupId": _GROUP_ID, "term": 2, "leader": "orders-0"}):
            group = _group({}, **recorded)
            made = made or desired(group, _PLATFORM)
            facts = facts_of(group, observed)
            plan(facts, made, fresh_id="id")
            json.dumps(status(facts, now=_NOW), allow_nan=False).encode()
        return view.role, view.last_failover is None


class OperatorOptions(Target):
    """The operator's options and environment: options, or a sentence and exit code 2."""

    name = "options"
    _KEYS: ClassVar = ("image", "spark-image", "spark-node-selector", "namespaces", "namespace",
                       "lease-name", "identity", "listen", "kubeconfig", "log-level")  # fmt: skip

    def draw(self, rng: Random) -> bytes:
        values = (*TEXTS, *map(str, NUMBERS), "0.0.0.0:8080", "[::]:8080", "a=b,c=d", "INFO")
        environ = {"DLEDGER_OPERATOR_IMAGE": "x"} if rng.random() < 0.9 else {}
        for _ in range(rng.randrange(4)):
            key = "DLEDGER_OPERATOR_" + rng.choice(self._KEYS).upper().replace("-", "_")
            environ[key] = rng.choice(values)
        words = []
        for _ in range(rng.randrange(3)):
            words += [f"--{rng.choice(self._KEYS)}", rng.choice(values)]
        return json_bytes([environ, words])

    def mutate(self, rng: Random, data: bytes) -> bytes:
        value = _json_of(data)
        return self.draw(rng) if value is None else json_bytes(spoil(rng, value))

    def feed(self, data: bytes) -> Hashable:
        value = _json_of(data)
        if not isinstance(value, list) or len(value) != 2:
            return "none"
        environ, words = value
        if not isinstance(environ, dict) or not isinstance(words, list):
            return "none"
        environ = {str(key): str(each) for key, each in environ.items()}
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            try:
                found = options.parse([str(word) for word in words], environ)
            except SystemExit as ended:
                return "refused", ended.code
        if not 0 <= found.listen[1] < 1 << 16:
            raise Broken(f"it would listen on port {found.listen[1]}")
        return bool(found.namespaces), bool(found.kubeconfig)
