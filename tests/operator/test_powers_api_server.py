"""What users, the operator's account and Spark's drivers get from a real API server with the chart.

A user `dev` may create BrokerGroups and BrokerBackups and nothing else. The operator's account and
a driver's are tried with every right in a namespace: what then refuses is the admission policy.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.resources import desired
from dledger_operator.resources.compaction import round_work, scheduled_round
from dledger_operator.resources.log_job import log_job
from dledger_operator.resources.recovery import recovery_claim, recovery_job
from dledger_operator.resources.spark import access
from tests.operator.api_server import ApiServer
from tests.operator.backup_samples import LARGE, SMALL, STORE, backup, backup_job, backup_template
from tests.operator.live import NODE_IMAGE, SPARK_IMAGE, SYSTEM, Story, group, volumes_of_class
from tests.operator.round_samples import compact
from tests.operator.samples import PLATFORM, body
from tests.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.found]

RBAC: Final = "rbac.authorization.k8s.io"
OPERATOR: Final = f"--as=system:serviceaccount:{SYSTEM}:dledger-operator"
KEY: Final = "$(AWS_SECRET_ACCESS_KEY)"


def _account(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}


def _bound(account: str, namespace: str, role: str, *, kind: str = "ClusterRole") -> Manifest:
    """Return what gives an account a role in its namespace."""
    home = SYSTEM if account == "dledger-operator" else namespace
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{account}-{role}"},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": home}],
    }


def _role(name: str, resources: list[str], verbs: list[str], *, of: str = "") -> Manifest:
    rule = {"apiGroups": [of], "resources": resources, "verbs": verbs}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": [rule],
    }


class Power:
    """One API server, seen as different accounts of a namespace."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server = server
        self.namespace = namespace

    def put(self, *manifests: Manifest) -> None:
        """Create objects as the administrator."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self._server.kubectl("apply", "-n", self.namespace, "-f", "-", manifest=items)

    def may(self, account: str, *verb: str) -> str:
        """Return yes or no."""
        who = f"--as=system:serviceaccount:{self.namespace}:{account}"
        args = ("auth", "can-i", *verb, "-n", self.namespace, who)
        return self._server.kubectl(*args, check=False).stdout.strip()

    def answer(self, who: str, *args: str, manifest: Any = None) -> str:
        """Return what the API server has against a request; nothing if it would be done."""
        where = ("-n", self.namespace) if "-n" not in args else ()
        dry = (*args, who, *(() if "--raw" in args else (*where, "--dry-run=server")))
        done = self._server.kubectl(*dry, manifest=manifest, check=False)
        return done.stderr if done.returncode else ""

    def create(self, who: str, manifest: Any) -> str:
        """Return what the API server has against creating an object."""
        if "namespace" in manifest["metadata"]:
            metadata = {**manifest["metadata"], "namespace": self.namespace}
            manifest = {**manifest, "metadata": metadata}
        return self.answer(who, "create", "-f", "-", manifest=manifest)


@pytest.fixture
def power(server: ApiServer, namespace: str) -> Power:
    """The namespace of the test."""
    return Power(server, namespace)


@pytest.fixture
def dev(power: Power) -> str:
    """A user with the right to create our kinds, as kubectl's argument."""
    role = _role("dev", ["brokergroups", "brokerbackups"], ["create", "get"], of=names.API_GROUP)
    power.put(_account("dev"), role, _bound("dev", power.namespace, "dev", kind="Role"))
    return f"--as=system:serviceaccount:{power.namespace}:dev"


# --- users ---------------------------------------------------------------------------------------

EXPANDING: Final[list[tuple[dict[str, Any], str]]] = [
    ({"backup": {"store": {**STORE, "url": f"s3://b/{KEY}"}}}, "store.url must be a URL"),
    ({"backup": {"store": {**STORE, "endpoint": f"http://c/{KEY}"}}}, "store.endpoint must be"),
    ({"backup": {"store": {**STORE, "secretName": KEY}}}, "store.secretName must be"),
    (
        {"bootstrap": {"recovery": {"store": {**STORE, "endpoint": f"http://c/{KEY}"}}}},
        "store.endpoint must be an address",
    ),
    ({"bootstrap": {"recovery": {"store": STORE, "groupId": KEY}}}, "groupId must be an id"),
    ({"bootstrap": {"recovery": {"store": STORE, "groupId": "--master=x"}}}, "must be an id"),
    ({"spark": {"image": "evil/${env:AWS_SECRET_ACCESS_KEY}"}}, "must be the name of an image"),
    ({"image": f"evil/{KEY}"}, "must be the name of an image"),
]


def test_a_text_that_would_be_expanded_is_refused_by_the_api_server(power: Power, dev: str) -> None:
    """Found: K3. In a BrokerGroup and in the store of a BrokerBackup; plain ones are taken."""
    for spec, sentence in EXPANDING:
        assert sentence in power.create(dev, group(**spec)), spec
    for part in ("url", "endpoint", "secretName"):
        store = {**STORE, part: f"{STORE[part]}/{KEY}"}
        assert f"store.{part} must be" in power.create(dev, _backup(store=store)), part
    assert power.create(dev, _backup(store=STORE)) == ""
    assert (
        power.create(dev, group(backup={"store": STORE}, image="r.example:5000/a@sha256:b")) == ""
    )


def _backup(**spec: Any) -> Manifest:
    metadata = {"name": "first"}
    spec = {"group": "orders", **spec}
    kind = {"apiVersion": names.API_VERSION, "kind": names.BACKUP_KIND}
    return {**kind, "metadata": metadata, "spec": spec}


async def test_nobody_elses_account_runs_a_users_backup(
    story: Story, power: Power, dev: str
) -> None:
    """Found: K1. Not one that is called as ours once were, nor one that has the very name."""
    secrets = _role("secrets", ["secrets"], ["get"])
    bound = _bound("orders-backup", power.namespace, "secrets", kind="Role")
    power.put(_account("orders-backup"), secrets, bound)
    story.nodes.record_bytes = 1 << 20
    wanted = group(backup={"store": STORE}, spark={"localThreshold": "0"})
    await story.kubectl("create", dev, "-f", "-", manifest=wanted)
    await story.run_pods()
    await story.until_condition("Available", "True/LeaderElected")
    ours = names.backup_access((await story.get("bg", "orders"))["metadata"]["uid"])
    power.put(_account(ours))

    await story.kubectl("create", dev, "-f", "-", manifest=_backup())

    async def refused() -> bool:
        status = (await story.get("bgb", "first")).get("status", {})
        taken = f"ServiceAccount {ours}: the name is taken"
        return bool(taken in status.get("message", ""))

    await eventually_async(refused, "the status says whose account it is")
    assert not await story.list("jobs")
    assert not await story.list("pods", "-l", names.JOB_LABEL)
    assert [power.may(each, "create", "pods") for each in (ours, "orders-backup")] == ["no", "no"]


async def test_what_a_user_may_not_ask_for_becomes_no_pod(story: Story, dev: str) -> None:
    """Found: K2, K6. The condition names the field and the chart's value."""
    asked: dict[str, Any] = {
        "image": "evil/node:1",
        "priorityClassName": "system-node-critical",
        "podAnnotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/host"},
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
    }

    await story.kubectl("create", dev, "-f", "-", manifest=group(**asked))

    await story.until_condition("SpecValid", "False/NotAllowed")
    rows = {row["type"]: row["message"] for row in (await story.status())["conditions"]}
    for words in ("evil/node:1", "system-node-critical", "k8s.v1.cni", "tolerations[0]", "runAs"):
        assert words in rows["SpecValid"]
    assert not await story.list("statefulset,pods")


async def test_kubernetes_own_roles_know_our_kinds(power: Power) -> None:
    """Whoever has edit in a namespace works with groups there; nobody writes statuses."""
    accounts = ("view", "edit", "admin")
    power.put(*map(_account, accounts))
    power.put(*(_bound(role, power.namespace, role) for role in accounts))

    async def aggregated() -> bool:
        return power.may("edit", "create", "brokergroups.dledger.io") == "yes"

    await eventually_async(aggregated, "the roles are put together")
    for verb, answers in (
        (("get", "brokergroups.dledger.io"), ["yes", "yes", "yes"]),
        (("create", "brokerbackups.dledger.io"), ["no", "yes", "yes"]),
        (("patch", "brokergroups.dledger.io", "--subresource=scale"), ["no", "yes", "yes"]),
        (("patch", "brokergroups.dledger.io", "--subresource=status"), ["no", "no", "no"]),
    ):
        assert [power.may(account, *verb) for account in accounts] == answers, verb


# --- the operator's account ----------------------------------------------------------------------


def _of(namespace: str) -> BrokerGroup:
    """Return a group of this namespace, as the operator has it."""
    spec = {"backup": {"store": STORE}, "bootstrap": {"recovery": {"store": STORE}}}
    made = body(spec, groupId="g", term=1)
    made["metadata"]["namespace"] = namespace
    return PLATFORM.group(made)


def _changed(manifest: Manifest, path: str, value: Any) -> Manifest:
    """Return a copy with another value at a path such as ``spec.template.spec.hostPID``."""
    copy: Manifest = json.loads(json.dumps(manifest))
    at: Any = copy
    *way, last = path.split(".")
    for step in way:
        at = at[int(step)] if step.isdigit() else at.setdefault(step, {})
    at[int(last) if isinstance(at, list) else last] = value
    return copy


def _container(path: str) -> str:
    return f"spec.template.spec.containers.0.{path}"


def _secret(name: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "db", "key": key}}}


_VOLUMES: Final = "spec.template.spec.volumes"
_MOUNTED: Final = ("config", "tmp")
TEMPLATES: Final[list[tuple[str, Any, str]]] = [
    ("spec.template.spec.automountServiceAccountToken", True, "no pod gets a token"),
    ("spec.template.spec.hostNetwork", True, "anything of its machine"),
    (_VOLUMES, [{"name": name, "hostPath": {"path": "/"}} for name in _MOUNTED], "its machine"),
    (
        _VOLUMES,
        [{"name": name, "secret": {"secretName": "db"}} for name in _MOUNTED],
        "as a volume",
    ),
    (_container("image"), "evil/node:1", "not among the chart's"),
    (_container("image"), "dledger-evil:test", "not among the chart's"),
    (_container("image"), "dledger:5000/evil", "not among the chart's"),
    (_container("securityContext.allowPrivilegeEscalation"), True, "than a restricted one"),
    (_container("env.0"), _secret("X", "password"), "anything of a Secret"),
    (_container("envFrom"), [{"secretRef": {"name": "db"}}], "anything of a Secret"),
]
_CRITICAL: Final = "system-node-critical"
_TOLERATIONS: Final[list[dict[str, Any]]] = [
    {"operator": "Exists"},
    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
]
_UNCONFINED: Final = {"type": "Unconfined"}
CONTEXTS: Final[list[tuple[str, Any, str]]] = [
    ("securityContext.runAsUser", 0, "as root"),
    ("securityContext.runAsUser", None, "as root"),
    ("securityContext.runAsNonRoot", False, "as root"),
    ("securityContext.runAsGroup", 0, "as root"),
    ("securityContext.fsGroup", 0, "as root"),
    ("securityContext.supplementalGroups", [0], "as root"),
    ("securityContext.seccompProfile", _UNCONFINED, "seccomp profile"),
    ("securityContext.seccompProfile", None, "seccomp profile"),
    ("securityContext.appArmorProfile", _UNCONFINED, "seccomp profile"),
    ("securityContext.seLinuxOptions", {"type": "spc_t"}, "seccomp profile"),
    ("securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}], "as root"),
    ("containers.0.securityContext.runAsUser", 0, "restricted"),
    ("containers.0.securityContext.runAsNonRoot", False, "restricted"),
    ("containers.0.securityContext.seccompProfile", _UNCONFINED, "restricted"),
    ("containers.0.securityContext.capabilities", {}, "restricted"),
    ("containers.0.ports", [{"containerPort": 1, "hostPort": 22}], "restricted"),
    ("priorityClassName", _CRITICAL, "priority class"),
    ("nodeName", "control-plane", "of its machine"),
    ("tolerations", _TOLERATIONS[:1], "tolerates"),
    ("tolerations", _TOLERATIONS[1:], "tolerates"),
]
"""What is wrong with a pod's spec, for a template and for an executor."""


def _claimed(name: str, claim: str) -> list[dict[str, Any]]:
    return [{"name": name, "persistentVolumeClaim": {"claimName": claim}}]


async def test_the_operators_account_makes_only_what_the_operator_makes(
    server: ApiServer, power: Power
) -> None:
    """Found: K5. With every right in the namespace: the admission policy is what refuses."""
    power.put(_bound("dledger-operator", power.namespace, "cluster-admin"))
    of = _of(power.namespace)
    children = {manifest["kind"]: manifest for manifest in desired(of, PLATFORM)}
    children |= {manifest["kind"]: manifest for manifest in access(of)}
    by_executors, local = (
        backup_job(backup(), of, store=of.spec.backup.store, log=n) for n in (LARGE, SMALL)
    )
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": _plain_pod()}
    unlabelled = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}

    async def in_force() -> bool:
        return "ValidatingAdmissionPolicy" in power.create(OPERATOR, unlabelled)

    await eventually_async(in_force, "the admission policy is in force")
    due = scheduled_round(of, "2031-05-06T07:00:00Z")
    compacting = log_job(of, round_work(compact(), of, log=SMALL, again_in_s=0))
    jobs = (by_executors, local, compacting)
    for manifest in (*children.values(), *jobs, recovery_claim(of), due):
        assert power.create(OPERATOR, manifest) == "", manifest["kind"]

    handing_over = {"group": "orders", "kind": "TransferLeader", "transferLeader": {"to": "a"}}
    labelled = {**pod, "metadata": {"name": "x", "labels": names.labels("orders")}}
    unowned = _changed(children["ConfigMap"], "metadata.ownerReferences", [])
    admin = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    role = {**_role("x", ["pods"], ["get"]), "metadata": children["Service"]["metadata"]}
    for manifest, words in (
        (pod, "managed-by=dledger-operator"),
        (labelled, "the operator makes no pods"),
        (unlabelled, "managed-by=dledger-operator"),
        (unowned, "what a BrokerGroup, BrokerBackup or BrokerOperation owns"),
        (role, "makes no Roles"),
        (_changed(due, "spec", handing_over), "but rounds of compaction of a schedule"),
        (_changed(due, "metadata.annotations", {}), "but rounds of compaction of a schedule"),
        (_changed(due, "spec.group", "another"), "but rounds of compaction of a schedule"),
        (_changed(children["ServiceAccount"], "metadata.name", "x"), "no accounts but those"),
        (_changed(children["RoleBinding"], "roleRef", admin), "binds the drivers' Role"),
        (_changed(children["RoleBinding"], "subjects.0.name", "default"), "binds the drivers'"),
        (_changed(children["Service"], "spec.type", "LoadBalancer"), "inside the cluster"),
        (_changed(children["NetworkPolicy"], "spec.podSelector", {}), "selects no pods but"),
        (_changed(by_executors, "spec.template.spec.serviceAccountName", "x"), "gets a token"),
        *((_changed(local, path, value), words) for path, value, words in TEMPLATES[:5]),
        *((_changed(children["StatefulSet"], path, v), words) for path, v, words in TEMPLATES),
    ):
        assert words in power.create(OPERATOR, manifest), manifest["kind"]


async def test_the_operators_account_makes_no_pod_that_is_more_than_a_restricted_one(
    power: Power,
) -> None:
    """Found: A10. Nor one that mounts a claim of a node, or has a volume by its name."""
    power.put(_bound("dledger-operator", power.namespace, "cluster-admin"))
    of = _of(power.namespace)
    nodes = next(m for m in desired(of, PLATFORM) if m["kind"] == "StatefulSet")
    on_claim = {"url": "file:///backups", "claimName": "backups"}
    spec = {"backup": {"store": on_claim}, "bootstrap": {"recovery": {"store": on_claim}}}
    claiming = body(spec, groupId="g", term=1)
    claiming["metadata"]["namespace"] = power.namespace
    group = PLATFORM.group(claiming)
    local = backup_job(backup(), group, store=group.spec.backup.store, log=SMALL)
    restoring, claim = recovery_job(group), recovery_claim(group)

    async def in_force() -> bool:
        return "as root" in power.create(OPERATOR, _of_pod(local, *CONTEXTS[0][:2]))

    await eventually_async(in_force, "the admission policy is in force")
    for made in (nodes, local, restoring, claim):
        assert power.create(OPERATOR, made) == "", made["kind"]
    tolerating = _of_pod(nodes, "tolerations", [{"key": "dedicated", "operator": "Exists"}])
    assert power.create(OPERATOR, tolerating) == ""
    for path, value, words in CONTEXTS:
        for made in (nodes, local):
            assert words in power.create(OPERATOR, _of_pod(made, path, value)), path

    templates = nodes["spec"]["volumeClaimTemplates"]
    two = [*templates, {**templates[0], "metadata": {"name": "wal"}}]
    template = "spec.volumeClaimTemplates.0.spec"
    rows: list[tuple[Manifest, str, Any, str]] = [
        (nodes, _VOLUMES, [*_claimed("config", "db"), *_claimed("tmp", "db")], "its machine"),
        (local, f"{_VOLUMES}.1", _claimed("store", "data-db-0")[0], "claim of a node"),
        (restoring, f"{_VOLUMES}.1", _claimed("data", "data-orders-1")[0], "claim of a node"),
        (restoring, f"{_VOLUMES}.1", _claimed("data", "data-db-0")[0], "claim of a node"),
        (restoring, "metadata.labels", names.job_labels("orders", "backup"), "claim of a node"),
        (nodes, f"{template}.volumeName", "somebodys", "a volume by its name"),
        (nodes, f"{template}.dataSource", {"kind": "PersistentVolumeClaim", "name": "x"}, "a copy"),
        (nodes, "spec.volumeClaimTemplates", two, "a volume by its name"),
        (claim, "spec.volumeName", "somebodys", "a volume by its name"),
        (claim, "spec.selector", {"matchLabels": {"of": "db"}}, "a volume by its name"),
        (claim, "metadata.name", "data-db-0", "no claims but those of nodes"),
    ]
    for made, path, value, words in rows:
        assert words in power.create(OPERATOR, _changed(made, path, value)), (path, value)


def _of_pod(manifest: Manifest, path: str, value: Any) -> Manifest:
    """Return a copy with another value in the pod that it makes; None: without one."""
    changed = _changed(manifest, f"spec.template.spec.{path}", value)
    found: Manifest = _without_none(changed)
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _plain_pod() -> Manifest:
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "x", "image": NODE_IMAGE, "securityContext": context}
    user = {"runAsNonRoot": True, "runAsUser": 7, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "automountServiceAccountToken": False,
        "securityContext": user,
        "containers": [container],
    }


async def test_the_operators_account_changes_and_deletes_nothing_of_others(
    server: ApiServer, power: Power
) -> None:
    """Found: K5. Its own rights cover every ConfigMap of the cluster: `coredns` is not its own."""
    power.put(_bound("dledger-operator", power.namespace, "cluster-admin"))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "orders-0", "labels": names.labels("orders")},
        "spec": _plain_pod(),
    }
    power.put(pod, _account("velero"), *(_claim(n, of) for n, of in CLAIMS))
    coredns = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "coredns", "namespace": "kube-system"},
    }
    server.kubectl("create", "-f", "-", manifest=coredns)
    ours = json.dumps({"metadata": {"labels": names.labels("orders")}})
    role, image = (
        json.dumps(patch)
        for patch in (
            {"metadata": {"labels": {names.ROLE_LABEL: "leader"}}},
            {"spec": {"containers": [{"name": "x", "image": SPARK_IMAGE}]}},
        )
    )

    async def in_force() -> bool:
        return "deletes nothing" in power.answer(OPERATOR, "delete", "pod", "orders-0")

    await eventually_async(in_force, "the admission policy is in force")
    patch = ("patch", "pod", "orders-0", "-p")
    assert power.answer(OPERATOR, *patch, role) == ""
    for words, *request in (
        ("their label dledger.io/role", *patch, image),
        ("their label dledger.io/role", "annotate", "pod", "orders-0", "k8s.v1.cni.cncf.io/x=y"),
        ("managed-by", "patch", "configmap", "coredns", "-n", "kube-system", "-p", '{"data":{}}'),
        ("managed-by", "patch", "configmap", "coredns", "-n", "kube-system", "-p", ours),
        ("managed-by", "patch", "serviceaccount", "velero", "-p", ours),
        ("deletes nothing", "delete", "serviceaccount", "velero"),
        ("deletes nothing", "delete", "pvc", "data-db-0"),
        ("deletes nothing", "delete", "pvc", "wal-orders-0"),
    ):
        assert words in power.answer(OPERATOR, *request), request
    assert power.answer(OPERATOR, "delete", "pvc", "data-orders-0") == ""


CLAIMS = (("data-db-0", ""), ("wal-orders-0", "orders"), ("data-orders-0", "orders"))


def _claim(name: str, group: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "labels": names.labels(group) if group else {}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }


async def test_the_operators_account_deletes_only_finished_backups_of_a_schedule(
    server: ApiServer, power: Power
) -> None:
    """One that runs, or that somebody made by hand, is not its to delete; all have its label."""
    power.put(_bound("dledger-operator", power.namespace, "cluster-admin"))
    scheduled = {names.SCHEDULED_ANNOTATION: "2031-05-06T03:00:00Z"}
    for name, marks, labels, phase in (
        ("old", scheduled, names.labels("orders"), "Completed"),
        ("failed", scheduled, names.labels("orders"), "Failed"),
        ("running", scheduled, names.labels("orders"), "Running"),
        ("unlabelled", scheduled, {}, "Completed"),
        ("by-hand", {}, names.labels("orders"), "Completed"),
    ):
        made = _backup()
        made["metadata"] = {"name": name, "annotations": marks, "labels": labels}
        power.put(made)
        status = json.dumps({"status": {"phase": phase}})
        patch = ("--subresource=status", "--type=merge", "-p", status)
        server.kubectl("patch", "bgb", name, "-n", power.namespace, *patch)

    async def in_force() -> bool:
        return "deletes nothing but" in power.answer(OPERATOR, "delete", "bgb", "by-hand")

    await eventually_async(in_force, "the admission policy is in force")
    for name in ("old", "failed"):
        assert power.answer(OPERATOR, "delete", "bgb", name) == ""
    for name in ("running", "unlabelled", "by-hand"):
        assert "deletes nothing but" in power.answer(OPERATOR, "delete", "bgb", name), name


async def test_the_operators_account_grows_claims_and_releases_pods_and_no_more(
    server: ApiServer, power: Power
) -> None:
    """A claim of the group may ask for more; a StatefulSet goes only without its pods."""
    power.put(_bound("dledger-operator", power.namespace, "cluster-admin"))
    power.put(group(paused=True))
    uid = server.get("bg", "orders", "-n", power.namespace)["metadata"]["uid"]
    power.put(*(_stateful_set(name, uid) for name in ("orders", "db")))
    foreign = ("label", "statefulset", "db", "app.kubernetes.io/managed-by-", "-n", power.namespace)
    server.kubectl(*foreign)

    async def in_force() -> bool:
        return "deletes nothing" in power.answer(OPERATOR, "delete", "statefulset", "db")

    await eventually_async(in_force, "the admission policy is in force")
    delete = ("delete", "statefulset")
    assert power.answer(OPERATOR, *delete, "orders", "--cascade=orphan") == ""
    for how in ("background", "foreground"):
        assert "without their pods" in power.answer(OPERATOR, *delete, "orders", f"--cascade={how}")
    assert "without their pods" in power.answer(OPERATOR, *delete, "db", "--cascade=orphan")
    for made in volumes_of_class("growing", grows=True):
        server.kubectl("apply", "-f", "-", manifest=made)
    claim = recovery_claim(_of(power.namespace))
    power.put(_changed(claim, "spec.storageClassName", "growing"))

    async def bound() -> bool:
        found = server.get("pvc", claim["metadata"]["name"], "-n", power.namespace)
        return bool(found["status"]["phase"] == "Bound")

    await eventually_async(bound, "the claim is bound, so that it can change")
    more = {"resources": {"requests": {"storage": "20Gi"}}}
    patch = ("patch", "pvc", claim["metadata"]["name"], "-p")
    assert power.answer(OPERATOR, *patch, json.dumps({"spec": more})) == ""
    for spec in ({"volumeAttributesClassName": "gold"}, {**more, "volumeAttributesClassName": "x"}):
        answer = power.answer(OPERATOR, *patch, json.dumps({"spec": spec}))
        assert "nothing of a volume claim but" in answer


def _stateful_set(name: str, uid: str) -> Manifest:
    """Return one of the group's, as it is made, under another name."""
    (made,) = (one for one in desired(_of(""), PLATFORM) if one["kind"] == "StatefulSet")
    named = _changed(made, "metadata.name", name)
    found: Manifest = _changed(named, "metadata.ownerReferences.0.uid", uid)
    del found["metadata"]["namespace"]
    return found


# --- a driver's account --------------------------------------------------------------------------


def _executor(namespace: str) -> Manifest:
    """Return an executor as Spark makes it of the template."""
    of = _of(namespace)
    template = backup_template(backup(), of, store=of.spec.backup.store)
    pod: Manifest = json.loads(template["data"]["executor.json"])
    pod["metadata"]["name"] = "executor"
    (container,) = pod["spec"]["containers"]
    container["image"] = SPARK_IMAGE
    container["env"].append(_secret("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"))
    # What Spark adds: KubernetesExecutorBuilder's steps, without those that settings turn off.
    container |= {
        "args": ["executor"],
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"containerPort": 7079, "name": "blockmanager", "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
    }
    container["env"].append({"name": "SPARK_LOCAL_DIRS", "value": "/var/data/spark-1"})
    container["volumeMounts"].append(
        {"mountPath": "/var/data/spark-1", "name": "spark-local-dir-1"}
    )
    pod["metadata"]["labels"] |= {"spark-app-selector": "spark-1", "spark-role": "executor"}
    spec = pod["spec"]
    spec["volumes"].append({"name": "spark-local-dir-1", "emptyDir": {}})
    spec |= {"hostname": "backup-exec-1", "restartPolicy": "Never"}
    return pod


async def test_a_driver_makes_and_deletes_executors_and_nothing_else(power: Power) -> None:
    """Found: K2. Its right to make pods was the right to use every account and Secret."""
    ours = names.backup_access(_of("").uid)
    driver = f"--as=system:serviceaccount:{power.namespace}:{ours}"
    power.put(*map(_account, (ours, "velero")), _bound(ours, power.namespace, "cluster-admin"))
    executor = _executor(power.namespace)
    database = {**executor, "metadata": {"name": "db"}}
    power.put(executor, database)

    async def in_force() -> bool:
        return "executors of its own account" in power.answer(driver, "delete", "pod", "db")

    await eventually_async(in_force, "the admission policy is in force")
    assert power.answer(driver, "delete", "pod", "executor") == ""
    everything = f"/api/v1/namespaces/{power.namespace}/pods?dryRun=All"
    assert "executors of its own account" in power.answer(driver, "delete", "--raw", everything)
    another = _changed(executor, "metadata.name", "another")
    assert power.create(driver, another) == ""
    for path, value, words in (
        ("spec.serviceAccountName", "velero", "of its own account"),
        ("spec.automountServiceAccountToken", True, "gets no token"),
        ("spec.volumes.0", {"name": "tmp", "secret": {"secretName": "db"}}, "no volume but"),
        ("spec.containers.0.image", "evil/spark:1", "not among the chart's"),
        ("spec.containers.0.env.0", _secret("X", "password"), "the keys of a store"),
        ("metadata.labels", names.job_labels("orders", "backup"), "of its own account"),
    ):
        assert words in power.create(driver, _changed(another, path, value)), path


async def test_a_driver_makes_no_executor_that_is_more_than_a_restricted_pod(
    server: ApiServer, power: Power
) -> None:
    """Found: A10. Where the namespace itself would take any pod; what Kubernetes adds stays."""
    label = ("label", "namespace", power.namespace, "--overwrite")
    server.kubectl(*label, "pod-security.kubernetes.io/enforce=privileged")
    ours = names.backup_access(_of("").uid)
    driver = f"--as=system:serviceaccount:{power.namespace}:{ours}"
    power.put(_account(ours), _bound(ours, power.namespace, "cluster-admin"))
    executor = _executor(power.namespace)

    def of_executor(path: str, value: Any) -> Manifest:
        made: Manifest = _without_none(_changed(executor, f"spec.{path}", value))
        return made

    async def in_force() -> bool:
        return "as root" in power.create(driver, of_executor(*CONTEXTS[0][:2]))

    await eventually_async(in_force, "the admission policy is in force")
    assert power.create(driver, executor) == ""
    dedicated = of_executor("tolerations", [{"key": "dedicated", "operator": "Exists"}])
    assert power.create(driver, _changed(dedicated, "metadata.name", "dedicated")) == ""
    for path, value, words in (
        *CONTEXTS,
        ("volumes.0", {"name": "tmp", **_claimed("tmp", "db")[0]}, "no volume but"),
    ):
        assert words in power.create(driver, of_executor(path, value)), path
