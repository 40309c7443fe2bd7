"""The status of a backup's or recovery's Job, from its manifest and its pods. Pure.

The pipeline writes one line of JSON as the container's termination message: a result, or
``{"error": {"type", "message"}}``. Kubernetes keeps 4096 bytes of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from dledger_operator.api.spec import Json

RESULT_S: Final = 30.0
"""If a Job ended this long ago and no pod shows its result, the result is lost: watches of pods lag
behind those of Jobs by seconds at most."""

_LONGEST: Final = 1024
"""Of an error: an Event's message may have 1 KiB, a condition's 32 (Kubernetes API reference)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPod:
    """A pod of a Job.

    Attributes:
        name: Of the pod.
        created_at: RFC 3339.
        exit_code: Of its container; None until it ended.
        reason: Why it ended, as Kubernetes puts it.
        message: Its container's termination message.
        trouble: Why it does not run, as Kubernetes puts it; empty if that is not known.
        uid: Of the pod.
        idle_since: Since when no container of it runs, before it ended, RFC 3339; else empty.
    """

    name: str
    uid: str = ""
    created_at: str = ""
    idle_since: str = ""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunning:
    """It has not ended; *note* says why it does not run, or how its last try failed."""

    started_at: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded:
    """It succeeded, with the pipeline's result."""

    result: Json = field(default_factory=dict)
    started_at: str = ""
    ended_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """It failed; *error* is ``Type: sentence`` if the pipeline reported one."""

    error: str
    started_at: str = ""
    ended_at: str = ""


JobStatus = JobRunning | JobSucceeded | JobFailed


def is_without(pods: Sequence[JobPod]) -> bool:
    """Whether a Job has no pod now that has not ended: the next one may have been refused."""
    return all(pod.exit_code is not None for pod in pods)


def has_ended(job: Json) -> bool:
    """Whether a Job is over, well or not."""
    rows = (job.get("status") or {}).get("conditions") or ()
    return any(row["type"] in ("Complete", "Failed") and row["status"] == "True" for row in rows)


def job_status(job: Json, pods: Sequence[JobPod], *, now: str, refused: str = "") -> JobStatus:
    """Return the status of a Job.

    Args:
        job: Its manifest.
        pods: Those that there are.
        now: RFC 3339.
        refused: Why Kubernetes did not create its last pod; empty if it did.
    """
    status = job.get("status") or {}
    started_at = str(status.get("startTime") or "")
    ended = {row["type"]: row for row in status.get("conditions") or [] if row["status"] == "True"}
    latest = sorted(pods, key=lambda pod: (pod.created_at, pod.name))
    if failed := ended.get("Failed"):
        ended_at = str(failed.get("lastTransitionTime") or "")
        error = _error(failed, latest, refused)
        return JobFailed(error=error, started_at=started_at, ended_at=ended_at)
    if done := ended.get("Complete"):
        ended_at = str(status.get("completionTime") or done.get("lastTransitionTime") or "")
        return _result(latest, now, started_at=started_at, ended_at=ended_at)
    return JobRunning(started_at=started_at, note=_note(latest, refused))


def _result(pods: Sequence[JobPod], now: str, *, started_at: str, ended_at: str) -> JobStatus:
    """Return the result of a Job that succeeded, once its pod is known."""
    messages = [pod.message for pod in pods if pod.exit_code == 0]
    if messages:
        result = _decoded(messages[-1])
        if result is None or "error" in result:
            error = f"the Job succeeded but reported no result: {messages[-1] or 'nothing'}"
            return JobFailed(error=error[:_LONGEST], started_at=started_at, ended_at=ended_at)
        return JobSucceeded(result=result, started_at=started_at, ended_at=ended_at)
    if seconds_between(ended_at, now) < RESULT_S:
        return JobRunning(started_at=started_at, note="ended; waiting for its result")
    error = "the Job succeeded, but its pod with the result is gone"
    return JobFailed(error=error, started_at=started_at, ended_at=ended_at)


def _error(failed: Json, pods: Sequence[JobPod], refused: str) -> str:
    """Return why a Job failed: the error of its last try, or else Kubernetes' reason."""
    errors = [_pod_error(pod) for pod in pods if pod.exit_code]
    trouble = [pod.trouble for pod in pods if pod.trouble]
    reason = ": ".join(filter(None, (failed.get("reason"), failed.get("message"))))
    if failed.get("reason") == "DeadlineExceeded":
        last = [*errors, *trouble, *filter(None, [_say_refusal(refused)])][-1:]
        return f"{reason}; {last[0]}" if last else reason
    return errors[-1] if errors else trouble[-1] if trouble else reason or "the Job failed"


def _note(pods: Sequence[JobPod], refused: str) -> str:
    if is_without(pods) and refused:
        return _say_refusal(refused)
    if not pods:
        return "its pod is being created"
    if pods[-1].trouble:
        return pods[-1].trouble
    failures = [_pod_error(pod) for pod in pods if pod.exit_code]
    return f"trying again after: {failures[-1]}" if failures else ""


def _say_refusal(why: str) -> str:
    return f"its pod cannot be created: {why}" if why else ""


def _pod_error(pod: JobPod) -> str:
    """Return why a container failed, as far as it said."""
    error = (_decoded(pod.message) or {}).get("error")
    if isinstance(error, Mapping) and error.get("type"):
        return f"{error['type']}: {error.get('message') or ''}"[:_LONGEST]
    # Without a message of its own, it is the end of what the container printed.
    why = pod.reason if pod.reason not in ("", "Error") else f"exit code {pod.exit_code}"
    return ": ".join(filter(None, (why, pod.message.strip()[-_LONGEST:])))


def _decoded(message: str) -> dict[str, Any] | None:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):  # 4096 brackets are deep enough for the second
        return None
    return value if isinstance(value, dict) else None


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds from one RFC 3339 time to another; endless if one cannot be read."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (TypeError, ValueError):
        return float("inf")
