"""What keeps a pod from running, by its own status and by the Events on it. Pure.

A container that waits says why by one of the kubelet's words, but for what comes before it: while
volumes are attached and mounted and the sandbox is made it says ContainerCreating, or
PodInitializing, and only Events say what that waits for. Called by `parsers` for each pod, and with
Events by `cluster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from dledger_operator.api.spec import Json

BACK_OFF: Final = "CrashLoopBackOff"
SHORT_WAITS: Final = ("ContainerCreating", "PodInitializing")
"""What every container waits for in its first moments, and may for ever."""
FAILED_CREATE: Final = "FailedCreate"
LONGEST_WORDS: Final = 300
"""Of a node's last line, or an Event's: they end up in conditions and Events."""

_FAILURES: Final = {
    "FailedAttachVolume": 1,
    "FailedMount": 2,
    "FailedMapVolume": 2,
    "FailedMountOnFilesystemMismatch": 2,
    "VolumeResizeFailed": 2,
    "FileSystemResizeFailed": 2,
    "FailedPrepareDynamicResources": 2,
    "NetworkNotReady": 3,
    "FailedCreatePodSandBox": 3,
    "FailedPodSandBoxStatus": 3,
    "FailedCreatePodContainer": 4,
    "FailedToRetrieveImagePullSecret": 4,
}
"""Warnings on a pod that say why nothing of it runs, and at which step of its start: volumes are
attached, mounted, the sandbox is made, images are pulled (Kubernetes' pkg/kubelet/events)."""
_STEPS_DONE: Final = {
    "SuccessfulAttachVolume": 1,
    "SuccessfulMountVolume": 2,
    "Pulling": 3,
    "Pulled": 4,
    "Created": 4,
    "Started": 4,
}
"""What says that a step is behind the pod, and so all steps before."""
_NO_CAUSE: Final = "Unable to attach or mount volumes"
"""How the kubelet begins what says of volumes only that they are still missing."""
_SIMILAR: Final = "(combined from similar events): "
_LOOP_S: Final = 10.0
"""A container that ended is started again at once, and after so long or longer if it did before."""
_TRIED_S: Final = 150.0
"""A mount is tried again after two minutes at the latest (nestedpendingoperations in Kubernetes):
of several failures of one step, one that is so much older than another is over."""


def condition(status: Json, kind: str) -> Json:
    """Return a condition of a pod; empty without it."""
    rows = status.get("conditions") or []
    found: Json = next((row for row in rows if row["type"] == kind), {})
    return found


def trouble(status: Json) -> str:
    """Return why a pod does not run, in Kubernetes' words; empty when that is not known.

    How its container ended says more than that it is started again later, and stays the same.
    """
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "not scheduled")
    for container in _containers(status):
        state = container.get("state") or {}
        ended = (container.get("lastState") or {}).get("terminated") or {}
        waiting = state.get("waiting") or {}
        if waiting.get("reason") == BACK_OFF and ended:
            return f"{BACK_OFF}: {end(ended)}"
        if waiting and waiting.get("reason") not in SHORT_WAITS:
            return ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
        if "terminated" in state:
            return end(state["terminated"])
        if ended and condition(status, "Ready").get("status") != "True":
            return f"started again after {end(ended)}"
    return ""


def is_stopped(status: Json) -> bool:
    """Whether a pod is not placed on a machine, or waits for more than its container's making."""
    if condition(status, "PodScheduled").get("status") == "False":
        return True
    waiting = ((one.get("state") or {}).get("waiting") or {} for one in _containers(status))
    return any(each.get("reason", "") not in SHORT_WAITS for each in waiting if each)


def idle_since(manifest: Json) -> str:
    """Return since when no container of a pod runs, RFC 3339; empty if one does or soon will.

    That is when its last container ended, or else when it was placed on a machine. What runs before
    its containers does not count.
    """
    status = manifest.get("status") or {}
    containers = status.get("containerStatuses") or []
    is_ready = condition(status, "Ready").get("status") == "True"
    states = [one.get("state") or {} for one in containers]
    is_up = any("running" in state or _reason(state) == BACK_OFF for state in states)
    if is_ready or is_up:
        return ""
    if not containers and status.get("phase", "Pending") != "Pending":
        return ""
    scheduled = condition(status, "PodScheduled")
    times = [str(manifest["metadata"].get("creationTimestamp") or "")]
    if scheduled.get("status") == "True":
        times.append(str(scheduled.get("lastTransitionTime") or ""))
    for container in containers:
        for state in ("state", "lastState"):
            ended = (container.get(state) or {}).get("terminated") or {}
            times.append(str(ended.get("finishedAt") or ""))
    return max(times)


def has_been_ready(status: Json) -> bool:
    """Whether a pod was ready since its containers were started: it is, or ceased to be later.

    Until it is, its condition has the time at which its start began.
    """
    ready = condition(status, "Ready")
    states = [one.get("state") or {} for one in status.get("containerStatuses") or ()]
    started = [str((state.get("running") or {}).get("startedAt") or "") for state in states]
    if ready.get("status") == "True" or not (started and all(started)):
        return ready.get("status") == "True"
    return str(ready.get("lastTransitionTime") or "") > max(started)


def is_looping(status: Json) -> bool:
    """Whether a container of a pod ends again and again: the kubelet waits before it goes on."""
    if condition(status, "Ready").get("status") == "True":
        return False
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        ended = (container.get("lastState") or {}).get("terminated") or {}
        if _reason(state) == BACK_OFF:
            return True
        started_at = str((state.get("running") or {}).get("startedAt") or "")
        if started_at and _apart_s(str(ended.get("finishedAt") or ""), started_at) >= _LOOP_S:
            return True
    return False


def end(ended: Json) -> str:
    """Return how a container ended: reason, exit code, and its last words."""
    said = f"{ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}"
    lines = str(ended.get("message") or "").strip().splitlines()
    return f"{said}: {lines[-1][:LONGEST_WORDS]}" if lines else said


def start_failures(events: Iterable[Json]) -> str:
    """Return what the Events on a pod say of why nothing of it runs now; empty if nothing.

    Args:
        events: All on one pod, in any order.
    """
    current: dict[str, tuple[str, int]] = {}
    for event in sorted(events, key=event_order):
        reason, at = str(event.get("reason") or ""), event_order(event)[0]
        if reason in _STEPS_DONE:
            done = _STEPS_DONE[reason]
            current = {said: found for said, found in current.items() if found[1] > done}
        elif reason in _FAILURES:
            message = str(event.get("message") or "").removeprefix(_SIMILAR)
            step = 0 if message.startswith(_NO_CAUSE) else _FAILURES[reason]
            current = {said: found for said, found in current.items() if found[1] >= step}
            current[f"{reason}: {' '.join(message.split())}"] = at, step
    return "; ".join(sorted(_of_now(current)))[:LONGEST_WORDS]


def refused_pod(events: Iterable[Json]) -> str:
    """Return why a Job's last pod could not be created; empty if it was, or was not tried.

    Args:
        events: All on one Job, in any order.
    """
    said = ""
    for event in sorted(events, key=event_order):
        message = str(event.get("message") or "")
        if event.get("reason") == FAILED_CREATE:
            said = message.removeprefix(_SIMILAR).removeprefix("Error creating: ")
        elif event.get("reason") == "SuccessfulCreate":
            said = ""
    return said[:LONGEST_WORDS]


def event_order(event: Json) -> tuple[str, bool]:
    """Return when an Event was last seen; of the same second, a failure comes first."""
    series = event.get("series") or {}
    at = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(at or ""), event.get("reason") != FAILED_CREATE


def _reason(state: Json) -> str:
    return str((state.get("waiting") or {}).get("reason") or "")


def _containers(status: Json) -> Iterator[Json]:
    """Yield the statuses of a pod's containers, after those that run before and are not over."""
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode") != 0:
            yield container
    yield from status.get("containerStatuses") or ()


def _of_now(current: dict[str, tuple[str, int]]) -> Iterator[str]:
    """Yield the failures that are tried still, those without a cause only if there is no other."""
    newest = max((at for at, _ in current.values()), default="")
    causes = [said for said, (_, step) in current.items() if step]
    for said, (at, step) in current.items():
        if (step or not causes) and _apart_s(at, newest) < _TRIED_S:
            yield said


def _apart_s(earlier: str, later: str) -> float:
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (TypeError, ValueError):
        return 0.0
