"""Which pods do not start, and what a pod would mount that is not there. Pure.

A pod is restarted only when it could start again: what it would mount is looked for before. What
cannot be looked for (docs/adr/0060) only Events tell, of the first pod that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.observed.job_status import seconds_between
from dledger_operator.observed.observed import Observed, Pod, Ref
from dledger_operator.resources.mounts import list_mounts
from dledger_operator.resources.statefulset import stateful_set
from dledger_operator.resources.wish import wish

if TYPE_CHECKING:
    from dledger_operator.decisions.facts import Facts

GRACE_S: Final = 30
"""A pod of which nothing runs for so long is not just starting: making a container takes seconds,
and a kubelet tries what failed six times in it."""
PULLED_S: Final = 300
"""So long an image may take to be pulled, of which neither pod nor Events say anything."""


def find_stalled(pods: Mapping[str, Pod], now: str, *, for_s: float = GRACE_S) -> tuple[str, ...]:
    """Return the pods of which nothing has run for so long at the time *now* (RFC 3339)."""
    return tuple(
        name
        for name, pod in sorted(pods.items())
        if pod.idle_since
        and not (pod.ready or pod.terminating)
        and seconds_between(pod.idle_since, now) >= for_s
    )


def is_starting(pods: Mapping[str, Pod], now: str) -> bool:
    """Whether the time that some pod is given to start is not over yet."""
    idle = [name for name, pod in pods.items() if pod.idle_since and not pod.terminating]
    return len(idle) > len(find_stalled(pods, now, for_s=PULLED_S))


def wanted_mounts(group: BrokerGroup) -> tuple[Ref, ...]:
    """Return the ConfigMaps and Secrets that a node's pod would mount now."""
    return list_mounts(stateful_set(group)["spec"]["template"])


def missing_mounts(wanted: Iterable[Ref], absent: Mapping[Ref, str]) -> dict[Ref, str]:
    """Return what of *wanted* is not there, and why, by the word of who looked."""
    return {ref: absent[ref] for ref in wanted if ref in absent}


def mounts_missing(facts: Facts) -> str:
    """Return what the pods of the newest template would wait for, and what to do; else empty."""
    return "; ".join(_said(facts.group, ref, why) for ref, why in _missing(facts).items())


def named_missing(facts: Facts) -> str:
    """Return the same of what the spec names alone, which the operator cannot make."""
    return "; ".join(
        _said(facts.group, ref, why)
        for ref, why in _missing(facts).items()
        if not is_own(facts.group, ref)
    )


def unmountable(facts: Facts, name: str) -> str:
    """Return why a pod that is deleted now would not come back as it was; empty if it would.

    For want of a Secret or a ConfigMap it would not start, and without its claim it would start
    with an empty disk.
    """
    if said := mounts_missing(facts):
        return said
    claim, observed = names.claim_of(name), facts.observed
    volume = observed.volumes.get(claim)
    if claim in observed.foreign or (volume is not None and not volume.terminating):
        return ""
    why = "does not exist" if volume is None else "is being deleted"
    again = "it would come back with an empty disk, which BrokerOperation ReplaceMember is for"
    return f"PersistentVolumeClaim {claim} {why}: {again}"


def would_stick(facts: Facts, kind: str) -> bool:
    """Whether a child of this kind waits, since no pod could start from a new template now.

    Pods that start anew for whatever reason are then made from the template that there is, and find
    the configuration that goes with it.
    """
    built = facts.observed.children.get(("StatefulSet", facts.group.name))
    if built is None or kind not in ("StatefulSet", "ConfigMap"):
        return False
    is_new = _annotation(built, names.SPEC_ANNOTATION) != wish(facts.group)
    return is_new and mounts_missing(facts) != ""


def is_own(group: BrokerGroup, ref: Ref) -> bool:
    """Whether the operator makes what a pod mounts, so that it will make it again."""
    kind, name = ref
    return kind == "ConfigMap" or name in names.own_secrets(group.name)


def may_restart_soon(group: BrokerGroup, observed: Observed) -> bool:
    """Whether pods may be restarted in this round or the next: cheap, and true too often."""
    built = observed.children.get(("StatefulSet", group.name))
    if built is None:
        return False
    asked_at, wanted = _annotation(built, names.RESTARTED_AT), wish(group)
    return any(not one.finished for one in observed.operations) or any(
        not pod.ready
        or pod.terminating
        or pod.spec_hash not in ("", wanted)
        or asked_at not in ("", pod.restarted_at)
        for pod in observed.pods.values()
    )


def _missing(facts: Facts) -> dict[Ref, str]:
    absent = facts.observed.absent
    return missing_mounts(wanted_mounts(facts.group), absent) if absent else {}


def _annotation(stateful_set: Manifest, key: str) -> str:
    metadata = stateful_set["spec"]["template"].get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(key, ""))


def _said(group: BrokerGroup, ref: Ref, why: str) -> str:
    kind, name = ref
    if is_own(group, ref):
        return f"{kind} {name} {why}; the operator makes it again"
    return f"{kind} {name} {why}, and spec.tls.secretName names it: make it, or name another"
