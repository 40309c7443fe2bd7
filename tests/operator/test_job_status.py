"""A Job, its pods and their termination messages -> the Job's status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dledger_operator.observed.job_status import (
    JobFailed,
    JobPod,
    JobRunning,
    JobSucceeded,
    has_ended,
    job_status,
    seconds_between,
)
from dledger_operator.observed.parsers import parse_component, parse_job_pod
from tests.operator.backup_samples import ENDED, RESULT, STARTED

NOW = "2031-05-06T07:05:10Z"
LATER = "2031-05-06T07:06:00Z"
DENIED = json.dumps({"error": {"type": "StoreDenied", "message": "s3://b denies access"}})


def _job(*ended: dict[str, Any], **status: Any) -> dict[str, Any]:
    conditions = [{"status": "True", **row} for row in ended]
    return {"status": {"startTime": STARTED, "conditions": conditions, **status}}


COMPLETE = _job({"type": "Complete", "lastTransitionTime": ENDED}, completionTime=ENDED)


def _failed(reason: str = "BackoffLimitExceeded", message: str = "too many") -> dict[str, Any]:
    row = {"type": "Failed", "reason": reason, "message": message, "lastTransitionTime": ENDED}
    return _job(row)


def _pod(number: int = 1, **changes: Any) -> JobPod:
    created = f"2031-05-06T07:0{number}:00Z"
    return JobPod(**{"name": f"p{number}", "created_at": created, **changes})


def test_a_job_that_ended_well_has_the_result_of_its_pod() -> None:
    """As the pipeline wrote it."""
    pod = _pod(exit_code=0, message=json.dumps(RESULT))

    assert job_status(COMPLETE, [pod], now=NOW) == JobSucceeded(
        result=RESULT, started_at=STARTED, ended_at=ENDED
    )


def test_the_result_of_the_try_that_succeeded_counts() -> None:
    """Earlier ones failed."""
    pods = [
        _pod(2, exit_code=0, message=json.dumps(RESULT)),
        _pod(1, exit_code=1, message=DENIED),
    ]

    assert isinstance(job_status(COMPLETE, pods, now=NOW), JobSucceeded)


def test_a_result_that_is_not_in_sight_yet_is_awaited() -> None:
    """The watch of pods may lag behind that of Jobs."""
    assert job_status(COMPLETE, [], now=NOW) == JobRunning(
        started_at=STARTED, note="ended; waiting for its result"
    )


def test_a_result_that_never_comes_is_lost() -> None:
    """Without it nobody knows what was published: that is no success."""
    found = job_status(COMPLETE, [], now=LATER)

    assert isinstance(found, JobFailed)
    assert "its pod with the result is gone" in found.error


@pytest.mark.parametrize("message", ["", "no json", "[1]", '"text"', "17", "[" * 4096, DENIED])
def test_an_end_without_a_result_is_no_success(message: str) -> None:
    """Whatever the container printed instead."""
    found = job_status(COMPLETE, [_pod(exit_code=0, message=message)], now=NOW)

    assert isinstance(found, JobFailed)
    assert "reported no result" in found.error


def test_a_failed_job_has_the_typed_error_of_its_last_try() -> None:
    """In the pipeline's words."""
    pods = [
        _pod(1, exit_code=1, message='{"error": {"type": "Other"}}'),
        _pod(2, exit_code=1, message=DENIED),
    ]

    assert job_status(_failed(), pods, now=NOW) == JobFailed(
        error="StoreDenied: s3://b denies access", started_at=STARTED, ended_at=ENDED
    )


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (_pod(exit_code=1, reason="Error", message="Traceback\nboom"), "exit code 1: Traceback"),
        (_pod(exit_code=137, reason="OOMKilled"), "OOMKilled"),
        (_pod(exit_code=137, reason="OOMKilled", message="half a line"), "OOMKilled: half a line"),
        (_pod(exit_code=2, reason="Error"), "exit code 2"),
        (_pod(exit_code=1, message='{"error": "text"}'), 'exit code 1: {"error": "text"}'),
        (_pod(exit_code=1, message='{"error": {"type":'), 'exit code 1: {"error": {"type":'),
        (_pod(trouble="ErrImagePull: no such image"), "ErrImagePull: no such image"),
    ],
)
def test_without_a_typed_error_what_is_known_is_told(pod: JobPod, words: str) -> None:
    """Such as the end of the container's output, which Kubernetes hands on."""
    found = job_status(_failed(), [pod], now=NOW)

    assert isinstance(found, JobFailed)
    assert found.error.startswith(words)


def test_a_job_that_fails_without_a_pod_has_kubernetes_words() -> None:
    """There is nothing else."""
    found = job_status(_failed(message="Job has reached the specified backoff limit"), [], now=NOW)

    assert isinstance(found, JobFailed)
    assert found.error == "BackoffLimitExceeded: Job has reached the specified backoff limit"


def test_a_deadline_is_told_with_what_was_wrong_before_it() -> None:
    """The pod that hung is deleted; an earlier one may have told."""
    pods = [_pod(exit_code=1, message=DENIED)]

    found = job_status(_failed("DeadlineExceeded", "too long"), pods, now=NOW)

    assert isinstance(found, JobFailed)
    assert found.error == "DeadlineExceeded: too long; StoreDenied: s3://b denies access"


@pytest.mark.parametrize(
    ("pods", "note"),
    [
        ([], "its pod is being created"),
        ([_pod()], ""),
        ([_pod(trouble="0/3 nodes")], "0/3 nodes"),
        ([_pod(1, exit_code=1, message=DENIED), _pod(2)], "trying again after: StoreDenied"),
        ([_pod(1, exit_code=1, message=DENIED), _pod(2, trouble="0/3 nodes")], "0/3 nodes"),
    ],
)
def test_a_job_at_work_tells_what_holds_it_up(pods: list[JobPod], note: str) -> None:
    """So that waiting for a Secret or an image is seen at once."""
    found = job_status(_job(), pods, now=NOW)

    assert isinstance(found, JobRunning)
    assert found.note.startswith(note)
    assert bool(found.note) == bool(note)


def test_a_job_without_a_status_is_at_work() -> None:
    """Its controller has not seen it yet."""
    assert isinstance(job_status({}, [], now=NOW), JobRunning)


def test_conditions_that_are_not_true_are_no_end() -> None:
    """Such as one of a suspended Job."""
    assert isinstance(
        job_status(_job({"type": "Failed", "status": "False"}), [], now=NOW), JobRunning
    )


@pytest.mark.parametrize("text", ["", "yesterday", "2031-05-06"])
def test_a_time_that_cannot_be_read_is_long_ago(text: str) -> None:
    """Nothing waits for it."""
    assert seconds_between(text, NOW) == float("inf")


def _manifest(status: dict[str, Any]) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-name": "j", "app.kubernetes.io/component": "backup"}
    return {"metadata": {"name": "p", "labels": labels}, "status": status}


def test_a_pod_that_ended_is_read() -> None:
    """Exit code, reason and the words it ended with."""
    ended = {"exitCode": 1, "reason": "Error", "message": DENIED}

    pod = _manifest({"containerStatuses": [{"state": {"terminated": ended}}]})

    assert parse_job_pod(pod) == (
        "j",
        JobPod(name="p", exit_code=1, reason="Error", message=DENIED),
    )
    assert parse_component(pod) == "backup"


def test_a_pod_whose_machine_went_has_failed() -> None:
    """Nobody wrote down how its container ended."""
    _, pod = parse_job_pod(_manifest({"phase": "Failed", "reason": "NodeLost", "message": "gone"}))

    assert pod == JobPod(name="p", exit_code=128, reason="NodeLost", message="gone")


def test_a_pod_at_work_has_no_end() -> None:
    """And no trouble."""
    _, pod = parse_job_pod(_manifest({"containerStatuses": [{"state": {"running": {}}}]}))

    assert pod == JobPod(name="p")


@pytest.mark.parametrize(
    ("pods", "note"),
    [
        ([], "its pod cannot be created: no room"),
        ([_pod(exit_code=1, message=DENIED)], "its pod cannot be created: no room"),
        ([_pod(trouble="0/3 nodes")], "0/3 nodes"),
    ],
)
def test_a_pod_that_kubernetes_refuses_is_told(pods: list[JobPod], note: str) -> None:
    """Until another pod is there."""
    found = job_status(_job(), pods, now=NOW, refused="no room")

    assert isinstance(found, JobRunning)
    assert found.note == note


def test_a_deadline_is_told_with_the_refusal_that_filled_it() -> None:
    """There never was a pod that could have told."""
    found = job_status(_failed("DeadlineExceeded", "too long"), [], now=NOW, refused="no room")

    assert isinstance(found, JobFailed)
    assert found.error == ("DeadlineExceeded: too long; its pod cannot be created: no room")


def test_only_a_job_that_is_over_has_ended() -> None:
    """Well or not."""
    assert has_ended(COMPLETE)
    assert has_ended(_failed())
    assert not has_ended(_job())
    assert not has_ended(_job({"type": "Failed", "status": "False"}))
