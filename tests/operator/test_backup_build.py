"""BrokerBackup -> manifests: golden YAML of each Job, and what each field changes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest, Store
from dledger_operator.resources.backup import scheduled_backup
from dledger_operator.resources.log_job import LogRange
from dledger_operator.resources.recovery import recovery_claim, recovery_job
from dledger_operator.resources.spark import access, settings
from dledger_operator.resources.statefulset import stateful_set
from dledger_pipeline.cli.main import _parser
from tests.operator.backup_samples import (
    LARGE,
    ON_CLAIM,
    SMALL,
    STORE,
    backup,
    backup_job,
    backup_template,
)
from tests.operator.samples import GROUP_ID, bootstrapped, group

GOLDEN = Path(__file__).parent / "golden"
AT = "2031-05-06T03:00:00Z"
RECOVERY = {"store": STORE, "groupId": "old", "target": {"index": 99}}
OF = bootstrapped({"backup": {"store": STORE}})
CLAIMING = bootstrapped({"backup": {"store": {**ON_CLAIM, "secretName": "key"}}})


def _backup_manifests(log: LogRange) -> list[Manifest]:
    one, store = backup(), OF.spec.backup.store
    return [
        *access(OF),
        backup_template(one, OF, store=store),
        backup_job(one, OF, store=store, log=log),
    ]


def _recovering(**recovery: Any) -> BrokerGroup:
    return group({"bootstrap": {"recovery": {**RECOVERY, **recovery}}})


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _text)

MANIFESTS = {
    "backup-to-a-claim": [
        backup_job(backup(), CLAIMING, store=CLAIMING.spec.backup.store, log=LARGE),
        recovery_job(_recovering(store=ON_CLAIM)),
    ],
    "backup-by-executors": _backup_manifests(LARGE),
    "backup-local": _backup_manifests(SMALL)[-1:],
    "recovery": [recovery_claim(_recovering()), recovery_job(_recovering())],
    "scheduled": [scheduled_backup(OF, AT)],
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_what_is_made_is_as_the_golden_file_says(name: str, rewrite: bool) -> None:
    """Byte for byte; the diff of the file is what is reviewed."""
    path = GOLDEN / f"{name}.yaml"

    text = yaml.dump_all(MANIFESTS[name], Dumper=_Readable, sort_keys=True, width=100)

    if rewrite:
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def _pod(manifest: Manifest) -> Manifest:
    found: Manifest = manifest["spec"]["template"]["spec"]
    return found


def _args(manifest: Manifest) -> list[str]:
    found: list[str] = _pod(manifest)["containers"][0]["args"]
    return found


def _job(log: LogRange = SMALL, of: BrokerGroup = OF, **spec: Any) -> Manifest:
    return backup_job(backup(spec), of, store=of.spec.backup.store, log=log)


def _executor(of: BrokerGroup = OF) -> Manifest:
    template = backup_template(backup(), of, store=of.spec.backup.store)
    found: Manifest = json.loads(template["data"]["executor.json"])
    return found


PODS = {
    "driver": _pod(_job(LARGE)),
    "local": _pod(_job(SMALL)),
    "recovery": _pod(recovery_job(_recovering())),
    "executor": _executor()["spec"],
}


@pytest.mark.parametrize("kind", PODS)
def test_every_pod_is_restricted(kind: str) -> None:
    """As Pod Security asks of a namespace at level "restricted"."""
    pod = PODS[kind]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]  # noqa: S108


@pytest.mark.parametrize("kind", PODS)
def test_only_the_driver_of_executors_has_a_token(kind: str) -> None:
    """Everything else has no business with the API server."""
    assert PODS[kind]["automountServiceAccountToken"] is (kind == "driver")


@pytest.mark.parametrize("kind", PODS)
def test_no_manifest_has_a_credential_in_it(kind: str) -> None:
    """They come by reference; who may read the Job may not read the Secret."""
    rows = PODS[kind]["containers"][0]["env"]
    ours = [row for row in rows if row["name"].startswith("AWS_")]

    assert all("secretKeyRef" in row["valueFrom"] for row in ours)
    assert ours


def test_a_claim_is_mounted_where_the_stores_url_says_and_written_by_backups_alone() -> None:
    """By the Job's own pod, however large the work is: executors mount nothing."""
    large, restoring = (_pod(made) for made in MANIFESTS["backup-to-a-claim"])

    mounts = {
        name: [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "store"]
        for name, pod in (("backup", large), ("recovery", restoring))
    }
    args = large["containers"][0]["args"]
    assert mounts["backup"] == [{"name": "store", "mountPath": "/backups/orders"}]
    assert mounts["recovery"] == [
        {"name": "store", "mountPath": "/backups/orders", "readOnly": True}
    ]
    for pod in (large, restoring):
        claim = {"name": "store", "persistentVolumeClaim": {"claimName": "backups"}}
        assert claim in pod["volumes"]
    assert _option(args, "--master") == ["--master", "local[1]"]
    assert _option(args, "--runner") == ["--runner", "plain"]
    assert large["automountServiceAccountToken"] is False


def test_the_secret_of_a_claim_is_the_manifest_keys() -> None:
    """A directory has no credentials; a key that is named and missing must not go unnoticed."""
    env = _pod(MANIFESTS["backup-to-a-claim"][0])["containers"][0]["env"]

    assert [row["name"] for row in env] == ["POD_NAME", "POD_IP", "DLEDGER_MANIFEST_KEY"]
    assert env[-1]["valueFrom"]["secretKeyRef"] == {"name": "key", "key": "DLEDGER_MANIFEST_KEY"}


def test_a_store_elsewhere_of_the_same_url_is_another_store() -> None:
    """Another claim, or another server: what the group keeps was not said of it."""
    other = replace(CLAIMING.spec.backup.store, claim_name="attic")
    elsewhere = replace(OF.spec.backup.store, endpoint="https://s3.example")

    for of, store in ((CLAIMING, other), (OF, elsewhere)):
        assert "--keep-days" not in _args(backup_job(backup(), of, store=store, log=SMALL))
    assert "--keep-days" in _args(MANIFESTS["backup-to-a-claim"][0])


def test_executors_get_the_credentials_by_reference_too() -> None:
    """Spark makes their environment out of these settings; the region may be missing."""
    conf = settings(OF, store=OF.spec.backup.store, executors=1)

    reference = "spark.kubernetes.executor.secretKeyRef"
    assert conf[f"{reference}.AWS_ACCESS_KEY_ID"] == "s3:AWS_ACCESS_KEY_ID"
    assert conf[f"{reference}.AWS_SECRET_ACCESS_KEY"] == "s3:AWS_SECRET_ACCESS_KEY"
    (region,) = _executor()["spec"]["containers"][0]["env"]
    assert region["valueFrom"]["secretKeyRef"]["optional"] is True


def test_without_a_secret_there_are_no_credentials() -> None:
    """The pods' own identity may do."""
    of = bootstrapped({"backup": {"store": {"url": "s3://b/p"}}})

    env = _pod(_job(LARGE, of))["containers"][0]["env"]
    conf = settings(of, store=of.spec.backup.store, executors=1)

    assert [row["name"] for row in env] == ["POD_NAME", "POD_IP"]
    assert not any("secretKeyRef" in key for key in conf)
    assert _executor(of)["spec"]["containers"][0]["env"] == []


def test_little_work_runs_inside_the_job() -> None:
    """Without executors, rights or a template; below the threshold, not at it."""
    of = bootstrapped({"backup": {"store": STORE}, "spark": {"localThreshold": "1Mi"}})

    below = _job(LogRange(last_index=9, size_bytes=(1 << 20) - 1), of)
    at = _job(LogRange(last_index=9, size_bytes=1 << 20), of)

    assert "local[1]" in _args(below)
    assert not any("kubernetes" in arg for arg in _args(below))
    assert "k8s://https://kubernetes.default.svc" in _args(at)
    assert _pod(at)["serviceAccountName"] == "dledger-uid-1-backup"


@pytest.mark.parametrize(
    ("size_gib", "executors"), [(0, 1), (1, 1), (2, 2), (4, 4), (5, 4), (400, 4)]
)
def test_executors_grow_with_the_work_up_to_the_spec(size_gib: int, executors: int) -> None:
    """One for each GiB."""
    of = bootstrapped({"backup": {"store": STORE}, "spark": {"localThreshold": "0"}})

    args = _args(_job(LogRange(last_index=1, size_bytes=size_gib << 30), of))

    assert f"spark.executor.instances={executors}" in args


def test_an_executors_memory_is_what_the_spec_says() -> None:
    """Heap and the rest together, as its container's limit."""
    of = bootstrapped({"spark": {"executors": {"memory": "4Gi", "cores": 2}}})

    conf = settings(of, store=Store(), executors=1)

    heap, rest = conf["spark.executor.memory"], conf["spark.executor.memoryOverhead"]
    assert int(heap.removesuffix("m")) + int(rest.removesuffix("m")) == 4096
    assert conf["spark.executor.cores"] == "2"


def test_the_driver_asks_for_nothing_but_pods() -> None:
    """What Spark would do with ConfigMaps, Services and claims is turned off."""
    binding = {manifest["kind"]: manifest for manifest in access(OF)}["RoleBinding"]
    conf = settings(OF, store=OF.spec.backup.store, executors=1)

    assert binding["roleRef"]["name"] == "dledger-operator-drivers"
    assert [subject["name"] for subject in binding["subjects"]] == ["dledger-uid-1-backup"]
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
    assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false"
    assert conf["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    assert conf["spark.authenticate"] == "true"


def test_the_range_is_fixed_when_the_job_is_made() -> None:
    """A pod that is made anew must write the same objects; the backup's own index wins."""
    fixed, asked = _args(_job()), _args(_job(lastIndex=7))
    unknown = _args(_job(LogRange()))

    assert fixed[fixed.index("--last-index") + 1] == "4711"
    assert asked[asked.index("--last-index") + 1] == "7"
    assert "--last-index" not in unknown


def test_what_is_kept_is_as_the_group_says() -> None:
    """The fields have the pipeline's meaning; 0 is the same as leaving an option out."""
    kept = {"retention": {"keepDays": 7, "keepLast": 3}, "baseEveryHours": 6}
    of = bootstrapped({"backup": {"store": STORE, **kept}})

    args = _args(_job(of=of))

    assert _option(args, "--keep-days") == ["--keep-days", "7"]
    assert _option(args, "--keep-last") == ["--keep-last", "3"]
    assert _option(args, "--base-every") == ["--base-every", "6"]
    assert _option(_args(_job()), "--keep-days") == ["--keep-days", "30"]
    assert "--keep-last" not in _args(_job())


def test_a_backup_to_a_store_of_its_own_deletes_nothing_there() -> None:
    """The group's retention was said of the group's store."""
    other = Store(url="s3://elsewhere/orders")

    args = _args(backup_job(backup(), OF, store=other, log=SMALL))

    assert "--keep-days" not in args
    assert _option(args, "--base-every") == ["--base-every", "24"]


def test_the_group_that_is_meant_is_named_by_its_id() -> None:
    """Another group at the same address is refused by the pipeline."""
    assert _option(_args(_job()), "--group-id") == ["--group-id", GROUP_ID]


def test_every_node_is_named_to_the_driver() -> None:
    """It reads from whichever answers."""
    args = _args(_job())

    assert args[args.index("--endpoint") + 1] == ",".join(
        f"orders-{n}.orders-nodes.shop.svc:20911" for n in range(3)
    )


def test_a_backup_goes_with_its_object_and_rights_with_the_group() -> None:
    """Deleting a BrokerBackup ends its Job and leaves the next one's rights."""
    owners = {
        manifest["kind"]: manifest["metadata"]["ownerReferences"][0]
        for manifest in MANIFESTS["backup-by-executors"]
    }

    assert owners["Job"]["uid"] == owners["ConfigMap"]["uid"] == "uid-of-first"
    assert owners["ServiceAccount"]["uid"] == owners["RoleBinding"]["uid"] == "uid-1"


def test_pods_of_jobs_are_no_replicas() -> None:
    """No Service, budget or StatefulSet of the group selects them."""
    labels = _job()["spec"]["template"]["metadata"]["labels"]

    assert not names.selector("orders").items() <= labels.items()
    assert labels[names.GROUP_LABEL] == "orders"


def test_executors_are_not_watched_by_the_operator() -> None:
    """They are Spark's; the policies find them by the same labels as the driver."""
    labels = _executor()["metadata"]["labels"]

    assert "app.kubernetes.io/managed-by" not in labels
    assert names.job_selector("orders", "backup").items() <= labels.items()


@pytest.mark.parametrize("length", [1, 50, 56, 57, 63])
def test_a_jobs_name_fits_a_label_whatever_the_backups(length: int) -> None:
    """Kubernetes labels its pods with it; long names stay apart from each other."""
    one, other = (names.backup_job("b" * (length - 1) + end) for end in "xy")

    assert len(one) <= 63
    assert one.endswith("-backup")
    assert one != other


def test_a_scheduled_backups_name_tells_its_time() -> None:
    """The same time gives the same name, so that it cannot be made twice."""
    made = scheduled_backup(OF, AT)

    assert made["metadata"]["name"] == "orders-32263380"
    assert datetime.fromtimestamp(32263380 * 60, UTC) == datetime.fromisoformat(AT)
    assert made["metadata"]["annotations"] == {names.SCHEDULED_ANNOTATION: AT}
    assert made["spec"] == {"group": "orders"}


def test_the_restored_claim_is_the_one_that_the_first_node_will_use() -> None:
    """Same name, same request, no owner: it stays when the group goes."""
    of = group({"storage": {"size": "20Gi", "storageClassName": "fast"}, **_SPEC})
    claim = recovery_claim(of)
    template = stateful_set(of)["spec"]["volumeClaimTemplates"][0]

    assert claim["metadata"]["name"] == "data-orders-0"
    assert claim["spec"] == template["spec"]
    assert claim["metadata"]["labels"] == template["metadata"]["labels"]
    assert "ownerReferences" not in claim["metadata"]


_SPEC: dict[str, Any] = {
    "bootstrap": {"recovery": RECOVERY},
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "broker", "operator": "Exists"}],
    "securityContext": {"fsGroup": 2000, "runAsUser": 2000},
    "imagePullSecrets": [{"name": "pull"}],
}


def test_the_restoring_pod_has_the_place_and_the_user_of_the_node() -> None:
    """A local volume stays where it was first used, and its files belong to who wrote them."""
    of = group(_SPEC)
    node = _pod(stateful_set(of))

    pod = _pod(recovery_job(of))

    for key in ("affinity", "nodeSelector", "tolerations", "imagePullSecrets", "securityContext"):
        assert pod[key] == node[key]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({}, []),
        ({"index": 99}, ["--to-index", "99"]),
        ({"time": "2031-05-06T07:08:09Z"}, ["--to-time", "2031-05-06T07:08:09Z"]),
    ],
)
def test_how_far_to_restore_is_handed_on(target: dict[str, Any], words: list[str]) -> None:
    """Everything, up to an index, or up to a time."""
    args = _args(recovery_job(_recovering(target=target)))

    found = [arg for option in ("--to-index", "--to-time") for arg in _option(args, option)]
    assert found == words
    assert _option(args, "--name") == ["--name", "orders/orders-0"]


def test_without_a_group_id_the_pipeline_finds_it() -> None:
    """A store may hold one group only."""
    assert "--group-id" not in _args(recovery_job(_recovering(groupId="")))


def test_a_job_is_tried_again_a_few_times_but_not_where_that_cannot_help() -> None:
    """Evictions do not count; one pod at a time. The codes are those that `main` returns."""
    spec = _job()["spec"]

    assert spec["backoffLimit"] == 2
    assert spec["activeDeadlineSeconds"] == 6 * 3600
    assert spec["podReplacementPolicy"] == "Failed"
    ignored, fatal = spec["podFailurePolicy"]["rules"]
    assert ignored["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (fatal["action"], fatal["onExitCodes"]["values"]) == ("FailJob", [1, 2])


def test_the_pipelines_last_words_reach_the_operator() -> None:
    """The result file is where Kubernetes takes the termination message from."""
    (container,) = _pod(_job())["containers"]

    path = container["terminationMessagePath"]
    assert container["args"][-2:] != []
    assert _option(container["args"], "--result-file") == ["--result-file", path]


def test_the_pipelines_image_is_the_spec_s_or_the_operators() -> None:
    """An image in the spec wins."""
    images = [
        _pod(_job(of=bootstrapped({"backup": {"store": STORE}, "spark": {"image": image}})))
        for image in ("", "mine:1")
    ]

    assert [pod["containers"][0]["image"] for pod in images] == ["dledger-spark:test", "mine:1"]


@pytest.mark.parametrize(
    "manifest",
    [
        _job(LARGE),
        _job(SMALL),
        recovery_job(_recovering()),
        recovery_job(_recovering(target={"time": "2031-05-06T07:08:09Z"})),
    ],
)
def test_the_pipeline_takes_the_command_line(manifest: Manifest) -> None:
    """It is the contract between the two; the image's entrypoint takes the first word off."""
    args = _args(manifest)

    assert args[0] == "driver"
    parsed = _parser().parse_args(args[1:])
    assert parsed.store == STORE["url"]
    assert parsed.store_endpoint == STORE["endpoint"]


def _option(args: list[str], option: str) -> list[str]:
    """Return an option with its value; nothing if it is not given."""
    return args[args.index(option) : args.index(option) + 2] if option in args else []


def test_a_local_driver_of_a_group_with_another_replica_count_names_all() -> None:
    """One address for each replica."""
    of = replace(OF, spec=replace(OF.spec, replicas=1))

    assert _option(_args(_job(of=of)), "--endpoint")[1] == "orders-0.orders-nodes.shop.svc:20911"


def test_a_large_log_is_read_faster_than_its_deadline_asks() -> None:
    """Clients have their share of a node, unless the Job could not end in time then."""
    small, large = (_args(_job(LogRange(last_index=9, size_bytes=at))) for at in (1 << 30, 10**12))

    assert _option(small, "--rate") == ["--rate", "20"]
    assert _option(large, "--rate") == ["--rate", "93"]
