"""Whether a spec can be acted on as a whole: the CRD's rules again, and what is not built yet.

Pure; asked by plans and by the condition SpecValid. Every leaf of the spec is either acted on, or
compared with its default here, so that no field is ever ignored in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import Any, Final

from dledger_operator.api import names, quantity
from dledger_operator.api.policy import ENFORCED, loosened, tolerates_control_plane
from dledger_operator.api.reasons import Reason
from dledger_operator.api.schedule import fault
from dledger_operator.api.spec import (
    FILE_SCHEME,
    BrokerGroup,
    Recovery,
    Spec,
    Store,
    camel,
)
from dledger_operator.api.texts import (
    CLAIM_NAME,
    ENDPOINT,
    FILE_URL,
    GROUP_ID,
    IMAGE,
    SECRET_NAME,
    STORE_URL,
)
from dledger_operator.decisions.problem import Problem, invalid, misshapen
from dledger_operator.decisions.topic_checks import topic_contradictions
from dledger_operator.observed.observed import Observed
from dledger_operator.resources.statefulset import pods_asked

ACTED_ON: Final = frozenset(
    {
        *("replicas", "image", "storage.size", "storage.storageClassName", "durability"),
        *("resources", "affinity", "topologySpreadConstraints", "tolerations", "nodeSelector"),
        *("priorityClassName", "podLabels", "podAnnotations", "serviceAccountName"),
        *("imagePullSecrets", "securityContext", "autoCreateTopics", "topics", "topicDeletion"),
        "paused",
        *("retention.hours", "retention.diskWatermarkPercent", "retention.groupHours"),
        "monitoring.canary.enabled",  # off is what there is
        *("networkPolicy.clients", "networkPolicy.monitoring", "networkPolicy.egress"),
        "networkPolicy.jobEgress",
        *("tls.enabled", "tls.secretName", "peerTls.caSecretName"),
        *("backup.store.url", "backup.store.secretName", "backup.store.endpoint"),
        *("backup.store.allowHttp", "backup.store.claimName"),
        *("backup.baseEveryHours", "backup.retention.keepDays", "backup.retention.keepLast"),
        *("backup.schedule", "spark.image", "spark.localThreshold"),
        *("spark.executors.max", "spark.executors.cores", "spark.executors.memory"),
        "compaction.schedule",
        *("bootstrap.recovery.store.url", "bootstrap.recovery.store.secretName"),
        *("bootstrap.recovery.store.endpoint", "bootstrap.recovery.groupId"),
        *("bootstrap.recovery.store.allowHttp", "bootstrap.recovery.store.claimName"),
        *("bootstrap.recovery.target.index", "bootstrap.recovery.target.time"),
        "bootstrap.recovery.held",
    }
)
"""Leaves of the spec that something acts on; any other must be at its default."""

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LEAST_STORAGE: Final = "64Mi"
"""On less a node has no room for its log, a snapshot beside the last one, and the largest entry."""
_LEAST_MEMORY: Final = "1Gi"
"""Of a driver or executor: half of that is the JVM's, which needs 450 MiB to start."""
_FOUNDED_ONCE: Final = "bootstrap is immutable: delete the BrokerGroup and create it again"
_GRAVITY: Final = (Reason.INVALID_SPEC, Reason.NOT_ALLOWED, Reason.NOT_IMPLEMENTED_YET)
"""Of several reasons, SpecValid shows the first of these."""


def problems(group: BrokerGroup, observed: Observed) -> tuple[Problem, ...]:
    """Return everything that keeps the spec from being acted on; empty when it is valid."""
    return (
        *_contradictions(group),
        *(Problem(Reason.NOT_ALLOWED, said) for said in _not_allowed(group)),
        *backup_problems(group),
        *_cron_problems("spec.compaction.schedule", group.spec.compaction.schedule),
        *_recovery_problems(group),
        *_tls_problems(group),
        *_volume_contradictions(group, observed),
        *_small_storage(group, observed),
        *topic_contradictions(group, observed),
        *_not_built_yet(group),
        *_too_early(group, observed),
    )


def backup_problems(group: BrokerGroup) -> tuple[Problem, ...]:
    """Return what keeps scheduled backups from being made; what else is wrong does not."""
    backup = group.spec.backup
    return (
        *store_problems(backup.store, "spec.backup.store", group.name),
        *_schedule_problems(group),
        *retention_problems(group),
        *spark_problems(group, needed=_needs_spark(group)),
    )


def round_problems(group: BrokerGroup) -> tuple[Problem, ...]:
    """Return what keeps rounds of compaction from being made; what else is wrong does not."""
    return (
        *replicas_problems(group),
        *store_problems(group.spec.backup.store, "spec.backup.store", group.name),
        *_cron_problems("spec.compaction.schedule", group.spec.compaction.schedule),
        *spark_problems(group),
    )


def _needs_spark(group: BrokerGroup) -> bool:
    spec = group.spec
    return bool(spec.backup.store.url or spec.compaction.schedule) or group.recovers


def store_problems(store: Store, path: str, group: str) -> Iterator[Problem]:
    """Yield why a store cannot be used by *group*; one that says nothing at all is fine."""
    if not store.url and store != Store():
        yield invalid(f"{path}.url is required where anything else of the store is set")
    elif not STORE_URL.fits(store.url):
        yield misshapen(f"{path}.url", store.url, STORE_URL)
    elif store.url.startswith(FILE_SCHEME):
        yield from _claim_problems(store, path, group)
    elif store.url and not store.url.startswith("s3://"):
        yield Problem(
            Reason.NOT_IMPLEMENTED_YET,
            f"{path}.url={store.url}: only s3:// and file:// are reached from pods so far",
        )
    elif store.claim_name:
        yield invalid(f"{path}.claimName is for file:// alone, and {path}.url is {store.url}")
    if not CLAIM_NAME.fits(store.claim_name):
        yield misshapen(f"{path}.claimName", store.claim_name, CLAIM_NAME)
    if not ENDPOINT.fits(store.endpoint):
        yield misshapen(f"{path}.endpoint", store.endpoint, ENDPOINT)
    if store.endpoint.startswith("http://") and not store.allow_http:
        yield invalid(
            f"{path}.endpoint is http://, which is not encrypted, without allowHttp: true"
        )
    if not SECRET_NAME.fits(store.secret_name):
        yield misshapen(f"{path}.secretName", store.secret_name, SECRET_NAME)


def _claim_problems(store: Store, path: str, group: str) -> Iterator[Problem]:
    """Yield why a store on a claim cannot be used."""
    if not FILE_URL.fits(store.url):
        yield misshapen(f"{path}.url", store.url, FILE_URL)
    if not store.claim_name:
        yield invalid(
            f"{path}.url={store.url} needs {path}.claimName: what a pod writes elsewhere than to "
            "the volume of a claim goes with the pod"
        )
    if names.is_claim_of(group, store.claim_name):
        yield invalid(
            f"{path}.claimName={store.claim_name} is the volume of a node: a backup there would be "
            "lost with what it is a backup of"
        )
    elif names.is_claim_of_any(store.claim_name):
        yield invalid(
            f"{path}.claimName={store.claim_name} may be the volume of another group's node: "
            "claims of stores are not called data-NAME-0 and so on"
        )
    if store.endpoint:
        yield invalid(f"{path}.endpoint is for s3:// alone, and {path}.url is {store.url}")


def retention_problems(group: BrokerGroup) -> Iterator[Problem]:
    """Yield why the pipeline would not take what a group says of keeping backups."""
    backup = group.spec.backup
    if backup.base_every_hours < 1:
        yield invalid("spec.backup.baseEveryHours must be at least 1")
    if backup.retention.keep_days < 1 or backup.retention.keep_last < 0:
        yield invalid("spec.backup.retention: keepDays must be at least 1, keepLast at least 0")


def replicas_problems(group: BrokerGroup) -> Iterator[Problem]:
    """Yield why a group cannot have so many nodes; asked before anything is made for each."""
    replicas = group.spec.replicas
    if replicas % 2 == 0 or not 1 <= replicas <= 9:
        yield invalid(f"spec.replicas must be odd, from 1 to 9, not {replicas}")


def spark_problems(group: BrokerGroup, *, needed: bool = True) -> Iterator[Problem]:
    """Yield why no Spark job can be made; without an image only if one is *needed*."""
    spark = group.spec.spark
    if needed and not spark.image:
        yield invalid("spec.spark.image is required: this operator has no default (--spark-image)")
    if not IMAGE.fits(spark.image):
        yield misshapen("spec.spark.image", spark.image, IMAGE)
    yield from (Problem(Reason.NOT_ALLOWED, said) for said in _spark_not_allowed(group))
    if spark.executors.max < 1 or spark.executors.cores < 1:
        yield invalid("spec.spark.executors.max and .cores must be at least 1")
    yield from _at_least("spec.spark.executors.memory", spark.executors.memory, _LEAST_MEMORY)
    yield from _at_least("spec.spark.localThreshold", spark.local_threshold, "0")


def verdict(found: tuple[Problem, ...]) -> Problem:
    """Return the one reason and sentence that SpecValid shows."""
    if not found:
        return Problem(
            Reason.ACCEPTED,
            "every field of the spec is acted on, but for the canary, which does not exist yet",
        )
    worst = min((problem.reason for problem in found), key=_GRAVITY.index)
    return Problem(worst, "; ".join(problem.message for problem in found))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of every field that is not itself a group of fields."""
    for one in fields(value):
        inner, below = getattr(value, one.name), f"{path}{camel(one.name)}"
        if is_dataclass(inner):
            yield from leaves(inner, f"{below}.")
        else:
            yield below, inner


_DEFAULTS: Final = dict(leaves(Spec()))


def _contradictions(group: BrokerGroup) -> Iterator[Problem]:
    spec = group.spec
    if group.unreadable:
        yield invalid(group.unreadable)
    if not _NAME.fullmatch(group.name) or len(group.name) > 50:
        yield invalid("metadata.name must be at most 50 of a-z, 0-9 and '-', letter first")
    yield from replicas_problems(group)
    if not IMAGE.fits(spec.image):
        yield misshapen("spec.image", spec.image, IMAGE)
    for name, keys in (("podLabels", spec.pod_labels), ("podAnnotations", spec.pod_annotations)):
        for key in keys:
            if key.startswith(f"{names.API_GROUP}/"):
                yield invalid(
                    f"spec.{name}[{key}]: keys of {names.API_GROUP}/ are the operator's own: it "
                    "tells pods apart by them"
                )
    try:
        if quantity.parse(spec.storage.size) <= 0:
            yield invalid(f"spec.storage.size must be above zero, not {spec.storage.size}")
    except ValueError as error:
        yield invalid(f"spec.storage.size: {error}")


def _not_allowed(group: BrokerGroup) -> Iterator[str]:
    """Yield what the policy does not allow for the nodes of a group, and the chart's value."""
    spec, policy = group.spec, group.policy
    if spec.image and not policy.allows_image(spec.image):
        yield _image_not_allowed(group, "spec.image", spec.image)
    if not policy.allows_priority_class(spec.priority_class_name):
        allowed = ", ".join(policy.allowed_priority_classes) or "none"
        yield (
            f"spec.priorityClassName={spec.priority_class_name}: is not among the chart's "
            f"allowedPriorityClasses ({allowed})"
        )
    for name, keys in (("podLabels", spec.pod_labels), ("podAnnotations", spec.pod_annotations)):
        for key in policy.denied_keys(keys):
            yield f"spec.{name}[{key}]: is among the chart's deniedPodMetadata"
    if policy.pod_security == ENFORCED:
        yield from (f"{said} (the chart's podSecurity is {ENFORCED})" for said in _loosened(group))


def _spark_not_allowed(group: BrokerGroup) -> Iterator[str]:
    """Yield what the policy does not allow for the Jobs of a group."""
    image = group.spec.spark.image
    if image and not group.policy.allows_image(image):
        yield _image_not_allowed(group, "spec.spark.image", image)


def _image_not_allowed(group: BrokerGroup, path: str, image: str) -> str:
    allowed = ", ".join(group.policy.allowed_images) or "none"
    return (
        f"{path}={image}: is not one of the chart's images nor of allowedImages ({allowed}); "
        "who installed the operator may add it"
    )


def _loosened(group: BrokerGroup) -> Iterator[str]:
    spec = group.spec
    yield from loosened(spec.security_context, "spec.securityContext")
    for number, toleration in enumerate(spec.tolerations):
        if tolerates_control_plane(toleration):
            yield f"spec.tolerations[{number}]: lets pods onto machines of the control plane"
    if spec.service_account_name:
        yield (
            f"spec.serviceAccountName={spec.service_account_name}: clouds and webhooks give pods "
            "the rights of their account"
        )


def _cron_problems(path: str, schedule: str) -> Iterator[Problem]:
    if schedule and (wrong := fault(schedule)):
        yield invalid(f"{path}: {wrong}")


def _schedule_problems(group: BrokerGroup) -> Iterator[Problem]:
    backup = group.spec.backup
    yield from _cron_problems("spec.backup.schedule", backup.schedule)
    if backup.schedule and not backup.store.url:
        yield invalid("spec.backup.schedule needs spec.backup.store.url")


def _recovery_problems(group: BrokerGroup) -> Iterator[Problem]:
    """Yield why a group cannot be founded on what it names, and the way out: not a change."""
    for problem in _recovery_faults(group):
        way_out = "" if group.bootstrapped else f"; {_FOUNDED_ONCE}"
        yield replace(problem, message=f"{problem.message}{way_out}")


def _recovery_faults(group: BrokerGroup) -> Iterator[Problem]:
    recovery = group.spec.bootstrap.recovery
    yield from store_problems(recovery.store, "spec.bootstrap.recovery.store", group.name)
    if recovery != Recovery() and recovery.store == Store():
        yield invalid("spec.bootstrap.recovery needs spec.bootstrap.recovery.store.url")
    if not GROUP_ID.fits(recovery.group_id):
        yield misshapen("spec.bootstrap.recovery.groupId", recovery.group_id, GROUP_ID)
    target = recovery.target
    if target.index and target.time:
        yield invalid("spec.bootstrap.recovery.target takes index or time, not both")
    if target.index < 0:
        yield invalid(f"spec.bootstrap.recovery.target.index must be above 0, not {target.index}")
    if target.time and not _has_zone(target.time):
        wanted = "a time such as 2031-05-06T07:08:09Z"
        yield invalid(f"spec.bootstrap.recovery.target.time must be {wanted}, not {target.time}")


def _tls_problems(group: BrokerGroup) -> Iterator[Problem]:
    """Yield why the certificates that a group asks for cannot be used."""
    tls, authority = group.spec.tls, group.spec.peer_tls.ca_secret_name
    if tls.enabled and not tls.secret_name:
        yield Problem(
            Reason.NOT_IMPLEMENTED_YET,
            "spec.tls.enabled=true: nothing issues certificates for clients yet; name a "
            "kubernetes.io/tls Secret in spec.tls.secretName, or set it back to false: port 8082 "
            "then has a certificate of each node's own",
        )
    if tls.secret_name and not tls.enabled:
        yield invalid("spec.tls.secretName needs spec.tls.enabled: true")
    for path, name in (("tls.secretName", tls.secret_name), ("peerTls.caSecretName", authority)):
        if not SECRET_NAME.fits(name):
            yield misshapen(f"spec.{path}", name, SECRET_NAME)
        if name in names.own_secrets(group.name):
            yield invalid(f"spec.{path}={name} is a Secret of the operator's own")
    if authority and not group.has_peer_tls:
        yield invalid(
            "spec.peerTls.caSecretName: this operator gives nodes no certificates (--peer-tls)"
        )


def _at_least(path: str, value: str, least: str) -> Iterator[Problem]:
    try:
        if quantity.parse(value) < quantity.parse(least):
            yield invalid(f"{path} must be at least {least}, not {value}")
    except ValueError as error:
        yield invalid(f"{path}: {error}")


def _has_zone(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _volume_contradictions(group: BrokerGroup, observed: Observed) -> Iterator[Problem]:
    wanted = group.spec.storage
    for name, size, storage_class in _claims(group, observed):
        if _compare(wanted.size, size) < 0:
            yield invalid(
                f"spec.storage.size={wanted.size}: volumes cannot shrink; set it back to {size}, "
                f"which {name} has"
            )
        if wanted.storage_class_name not in ("", storage_class):
            yield invalid(
                f"spec.storage.storageClassName={wanted.storage_class_name}: {name} has "
                f"{_text(storage_class)}, and a volume cannot change its class; delete the "
                "BrokerGroup, which leaves its volumes, and create it again with "
                f"{_text(storage_class)}"
            )


def too_little_storage(group: BrokerGroup) -> str:
    """Return that the group's volumes are too small to work by; empty if they are not."""
    size = group.spec.storage.size
    if _compare(size, LEAST_STORAGE) >= 0:
        return ""
    return (
        f"spec.storage.size={size} is less than {LEAST_STORAGE}: a node has no room on it for its "
        "log, a snapshot beside the last one, and the largest messages"
    )


def _small_storage(group: BrokerGroup, observed: Observed) -> Iterator[Problem]:
    """Yield that a new group's volumes are too small; one that exists goes on, and is told so."""
    exists = group.bootstrapped or ("StatefulSet", group.name) in observed.children
    if not exists and (said := too_little_storage(group)):
        yield invalid(said)


def _not_built_yet(group: BrokerGroup) -> Iterator[Problem]:
    for path, value in leaves(group.spec):
        if path not in ACTED_ON and value != _DEFAULTS[path]:
            yield _not_yet(f"spec.{path}", value, _DEFAULTS[path])
    for path in group.unknown:
        yield Problem(
            Reason.NOT_IMPLEMENTED_YET, f"{path} is not known to this version; remove the field"
        )


def _too_early(group: BrokerGroup, observed: Observed) -> Iterator[Problem]:
    """Yield that a group that is being founded cannot lose pods: it may be by those very pods."""
    built = observed.children.get(("StatefulSet", group.name))
    if built is None or group.bootstrapped or observed.membership:
        return
    asked = pods_asked(built)
    if group.spec.replicas < asked:
        yield invalid(
            f"spec.replicas={group.spec.replicas}: the group is not founded yet, and may be about "
            f"to be, with {asked} members; set it back to {asked} until it is, or delete it"
        )


def _claims(group: BrokerGroup, observed: Observed) -> Iterator[tuple[str, str, str]]:
    """Yield name, size and class of what the group's volumes were asked to be.

    The StatefulSet's template if there is one; else the claims that an earlier group left.
    """
    built = observed.children.get(("StatefulSet", group.name))
    if built:
        spec = built["spec"]["volumeClaimTemplates"][0]["spec"]
        size = spec["resources"]["requests"]["storage"]
        yield f"StatefulSet {group.name}", size, spec.get("storageClassName") or ""
        return
    for volume in observed.volumes.values():
        yield f"volume claim {volume.name}", volume.size, volume.storage_class_name


def _compare(wanted: str, present: str) -> int:
    try:
        left, right = quantity.parse(wanted), quantity.parse(present)
    except ValueError:
        return 0
    return (left > right) - (left < right)


def _not_yet(path: str, value: object, instead: object) -> Problem:
    return Problem(
        Reason.NOT_IMPLEMENTED_YET,
        f"{path}={_text(value)}: nothing acts on this yet; set it back to {_text(instead)}",
    )


def _text(value: object) -> str:
    """Return a value as it is typed into a manifest."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or '""'
