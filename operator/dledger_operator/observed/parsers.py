"""Kubernetes objects to frozen values. Pure.

Called when kopf indexes an object, so that an index holds only what decisions use of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dledger_operator.api import names
from dledger_operator.api.spec import Json
from dledger_operator.observed.job_status import JobPod
from dledger_operator.observed.observed import Pod, Volume
from dledger_operator.observed.starts import (
    FAILED_CREATE,
    LONGEST_WORDS,
    condition,
    event_order,
    has_been_ready,
    idle_since,
    is_looping,
    is_stopped,
    trouble,
)

_EXIT_TOO_OLD: Final = 5
"""Of `dledger node`; see docs/runbooks.md."""


def parse_group(manifest: Json) -> tuple[str, str]:
    """Return namespace and name of the group that a labelled object belongs to."""
    metadata = manifest["metadata"]
    return metadata["namespace"], metadata["labels"][names.GROUP_LABEL]


def with_shared_texts(value: Any) -> Any:
    """Return a copy of a JSON value that has each key and text in common with all other copies.

    Groups differ in few of them, and the children of hundreds are kept.
    """
    if isinstance(value, Mapping):
        return {sys.intern(str(key)): with_shared_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_shared_texts(inner) for inner in value]
    return sys.intern(value) if type(value) is str else value


def parse_pod(manifest: Json) -> Pod:
    """Return a node's pod."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    ready = condition(status, "Ready")
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        ip=status.get("podIP") or "",
        ready=ready.get("status") == "True",
        role=labels.get(names.ROLE_LABEL, ""),
        zone=labels.get(names.ZONE_LABEL, ""),
        host=(manifest.get("spec") or {}).get("nodeName") or "",
        spec_hash=annotations.get(names.SPEC_ANNOTATION, ""),
        restarted_at=annotations.get(names.RESTARTED_AT, ""),
        created_at=metadata.get("creationTimestamp", ""),
        terminating="deletionTimestamp" in metadata,
        held_by=tuple(metadata.get("finalizers") or ()),
        trouble=trouble(status),
        stopped=is_stopped(status),
        idle_since=idle_since(manifest),
        looping=is_looping(status),
        was_ready=has_been_ready(status),
        too_old="" if ready.get("status") == "True" else _too_old(status),
    )


def parse_volume(manifest: Json) -> Volume:
    """Return a volume claim."""
    spec, annotations = manifest["spec"], manifest["metadata"].get("annotations") or {}
    return Volume(
        name=manifest["metadata"]["name"],
        size=spec["resources"]["requests"]["storage"],
        storage_class_name=spec.get("storageClassName") or "",
        phase=(manifest.get("status") or {}).get("phase", "Pending"),
        capacity=((manifest.get("status") or {}).get("capacity") or {}).get("storage", ""),
        recovery=annotations.get(names.RECOVERY_ANNOTATION, ""),
        uid=manifest["metadata"].get("uid", ""),
        volume=spec.get("volumeName") or "",
        removed=annotations.get(names.REMOVED_ANNOTATION, ""),
        terminating="deletionTimestamp" in manifest["metadata"],
    )


def uncreated_pods(events: Iterable[Json], pods: Iterable[str]) -> dict[str, str]:
    """Return which of *pods* a StatefulSet could not create the last time it tried, and why.

    Args:
        events: The Events on the StatefulSet.
        pods: Names of the pods that are missing.
    """
    found: dict[str, str] = {}
    told = sorted(events, key=event_order)
    for pod in pods:
        for event in told:
            message = str(event.get("message") or "")
            if f"Pod {pod} in StatefulSet" not in message:
                continue
            found.pop(pod, None)
            if event.get("reason") == FAILED_CREATE:
                said = message.partition(" error: ")[2] or message
                found[pod] = said[:LONGEST_WORDS]
    return found


def parse_component(manifest: Json) -> str:
    """Return what a labelled pod is for: ``node``, ``backup`` or ``recovery``."""
    return str(manifest["metadata"]["labels"].get(names.COMPONENT_LABEL, ""))


def parse_job_pod(manifest: Json) -> tuple[str, JobPod]:
    """Return the name of the Job that a pod belongs to, and the pod."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    ended = _terminated(status)
    return metadata["labels"].get(names.JOB_LABEL, ""), JobPod(
        name=metadata["name"],
        created_at=metadata.get("creationTimestamp", ""),
        exit_code=ended.get("exitCode"),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or ""),
        trouble="" if ended else trouble(status),
        uid=metadata.get("uid", ""),
        idle_since="" if ended else idle_since(manifest),
    )


def _terminated(status: Json) -> Json:
    """Return how a pod's container ended; if its machine was lost, only the pod has a status."""
    for container in status.get("containerStatuses") or []:
        if ended := (container.get("state") or {}).get("terminated"):
            found: Json = ended
            return found
    if status.get("phase") == "Failed":
        return {"exitCode": 128, "reason": status.get("reason"), "message": status.get("message")}
    return {}


def _too_old(status: Json) -> str:
    """Return the last line of a node that stopped, now or before, since its version is too old."""
    for container in status.get("containerStatuses") or []:
        for state in ("state", "lastState"):
            ended = (container.get(state) or {}).get("terminated") or {}
            if ended.get("exitCode") == _EXIT_TOO_OLD:
                lines = str(ended.get("message") or "").strip().splitlines()
                return lines[-1] if lines else f"exit code {_EXIT_TOO_OLD}"
    return ""
