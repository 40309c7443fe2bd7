"""Whether a spec can be acted on as a whole: the CRD's rules again, and what is not built yet.

Pure. Every leaf of the spec is either acted on, or compared with its default here, so that a field
can never be ignored: the condition SpecValid names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from dledger_operator import quantity
from dledger_operator.observed import Observed
from dledger_operator.reasons import Reason
from dledger_operator.spec import BrokerGroup, Spec, Topic, camel

ACTED_ON: Final = frozenset(
    {
        *("replicas", "image", "storage.size", "storage.storageClassName", "durability"),
        *("resources", "affinity", "topologySpreadConstraints", "tolerations", "nodeSelector"),
        *("priorityClassName", "podLabels", "podAnnotations", "serviceAccountName"),
        *("imagePullSecrets", "securityContext", "autoCreateTopics", "topics", "paused"),
        "monitoring.canary.enabled",  # off is what there is
    }
)
"""Leaves of the spec that something acts on; any other must be at its default."""

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a spec is not acted on, in a sentence that names the field."""

    reason: Reason
    message: str


def problems(group: BrokerGroup, observed: Observed) -> tuple[Problem, ...]:
    """Return everything that keeps the spec from being acted on; empty when it is valid."""
    return (
        *_contradictions(group),
        *_volume_contradictions(group, observed),
        *_not_built_yet(group),
        *_changes_not_built_yet(group, observed),
    )


def verdict(found: tuple[Problem, ...]) -> Problem:
    """Return the one reason and sentence that SpecValid shows."""
    if not found:
        return Problem(
            Reason.ACCEPTED,
            "the spec is acted on; retention and the canary, at their defaults, do nothing yet",
        )
    invalid = any(problem.reason is Reason.INVALID_SPEC for problem in found)
    reason = Reason.INVALID_SPEC if invalid else Reason.NOT_IMPLEMENTED_YET
    return Problem(reason, "; ".join(problem.message for problem in found))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of every field that is not itself a group of fields."""
    for one in fields(value):
        inner, below = getattr(value, one.name), f"{path}{camel(one.name)}"
        if is_dataclass(inner):
            yield from leaves(inner, f"{below}.")
        else:
            yield below, inner


_DEFAULTS: Final = dict(leaves(Spec()))
_TOPIC_DEFAULTS: Final = dict(leaves(Topic()))


def _contradictions(group: BrokerGroup) -> Iterator[Problem]:
    spec = group.spec
    if group.unreadable:
        yield _invalid(group.unreadable)
    if not _NAME.fullmatch(group.name) or len(group.name) > 50:
        yield _invalid("metadata.name must be at most 50 of a-z, 0-9 and '-', letter first")
    if spec.replicas % 2 == 0 or not 1 <= spec.replicas <= 9:
        yield _invalid(f"spec.replicas must be odd, from 1 to 9, not {spec.replicas}")
    try:
        if quantity.parse(spec.storage.size) <= 0:
            yield _invalid(f"spec.storage.size must be above zero, not {spec.storage.size}")
    except ValueError as error:
        yield _invalid(f"spec.storage.size: {error}")


def _volume_contradictions(group: BrokerGroup, observed: Observed) -> Iterator[Problem]:
    wanted = group.spec.storage
    for name, size, storage_class in _claims(group, observed):
        if _compare(wanted.size, size) < 0:
            yield _invalid(f"spec.storage.size cannot shrink: {name} has {size}")
        if wanted.storage_class_name not in ("", storage_class):
            yield _invalid(
                f"spec.storage.storageClassName cannot change: {name} has {storage_class!r}"
            )


def _not_built_yet(group: BrokerGroup) -> Iterator[Problem]:
    for path, value in leaves(group.spec):
        if path not in ACTED_ON and value != _DEFAULTS[path]:
            yield _not_yet(f"spec.{path}", value, _DEFAULTS[path])
    for topic in group.spec.topics:
        for path, value in leaves(topic):
            default = _TOPIC_DEFAULTS[path]
            if path not in ("name", "queues") and value != default:
                yield _not_yet(f"spec.topics[{topic.name}].{path}", value, default)
    for path in group.unknown:
        yield Problem(
            Reason.NOT_IMPLEMENTED_YET, f"{path} is not known to this version; remove the field"
        )


def _changes_not_built_yet(group: BrokerGroup, observed: Observed) -> Iterator[Problem]:
    recorded = group.status.get("members") if group.founded else ()
    built = observed.children.get(("StatefulSet", group.name))
    as_built = built["spec"].get("replicas", 0) if built else 0
    members = len(observed.membership or recorded or ()) or as_built
    if members and members != group.spec.replicas:
        yield _not_yet("spec.replicas", group.spec.replicas, members)
    wanted = group.spec.storage.size
    for name, size, _ in _claims(group, observed):
        if _compare(wanted, size) > 0:
            yield Problem(
                Reason.NOT_IMPLEMENTED_YET,
                f"spec.storage.size={wanted}: growing volumes is not implemented yet; "
                f"set it back to {size}, which {name} has",
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


def _invalid(message: str) -> Problem:
    return Problem(Reason.INVALID_SPEC, message)


def _not_yet(path: str, value: object, instead: object) -> Problem:
    return Problem(
        Reason.NOT_IMPLEMENTED_YET,
        f"{path}={_text(value)}: nothing acts on this yet; set it back to {_text(instead)}",
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or '""'
