"""What is looked up of a group while something is missing: pods' Events, and what they mount."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.absences import Absences
from dledger_operator.controllers.job_troubles import JobTroubles
from dledger_operator.decisions.starts import wanted_mounts
from dledger_operator.observed.job_status import JobPod, JobRunning
from dledger_operator.observed.observed import Observed, Ref
from dledger_operator.resources.wish import wish
from tests.operator.fakes import FakeApi, World
from tests.operator.samples import NOW, bootstrapped, converged

OF = bootstrapped({"tls": {"enabled": True, "secretName": "own"}})
SECRET: Ref = ("Secret", "own")
LATE = "2031-05-06T07:07:30Z"


class _Counting(FakeApi):
    """Has these Secrets, refuses as told, and counts what is asked for."""

    def __init__(
        self,
        *,
        secrets: Iterable[str] = (),
        error: ApiError | None = None,
        events: Iterable[dict[str, Any]] = (),
    ) -> None:
        super().__init__(World())
        self.secrets = set(secrets)
        self.error = error
        self.events = [*events]
        self.asked = self.listed = 0

    async def metadata(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked += 1
        if self.error:
            raise self.error
        return {"name": name} if name in self.secrets else None

    async def events_on(self, kind: str, namespace: str, *, uid: str) -> list[dict[str, Any]]:
        self.listed += 1
        if self.error:
            raise self.error
        return self.events


@dataclass
class _Looking:
    """Absences over an API, with a clock that the test moves."""

    api: _Counting = field(default_factory=_Counting)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        cluster = Cluster(self.api, lambda _kind: None)
        self.absences = Absences(cluster, monotonic_s=lambda: self.now_s, now=lambda: NOW)
        self.jobs = JobTroubles(cluster, monotonic_s=lambda: self.now_s, now=lambda: NOW)

    async def seen(self, observed: Observed, *, afresh: bool = False) -> Observed:
        return await self.absences.seen(
            OF, observed, wanted=lambda: wanted_mounts(OF), afresh=afresh
        )


def _calm() -> Observed:
    return converged(OF)


def _moving() -> Observed:
    observed = converged(OF)
    older = {n: replace(pod, spec_hash="before") for n, pod in observed.pods.items()}
    assert all(pod.spec_hash != wish(OF) for pod in older.values())
    return replace(observed, pods=older)


async def test_what_pods_mount_is_looked_for_before_a_restart_and_afresh_in_the_round_of_it() -> (
    None
):
    """Each five seconds while one may come, and once more when it is about to be done."""
    looking = _Looking()

    first = await looking.seen(_moving())
    again = await looking.seen(_moving())
    assert dict(first.absent) == dict(again.absent) == {SECRET: "does not exist"}
    assert looking.api.asked == 1

    looking.api.secrets.add("own")
    assert dict((await looking.seen(_moving(), afresh=True)).absent) == {}
    looking.api.secrets.clear()
    looking.now_s += 5
    assert SECRET in (await looking.seen(_moving())).absent
    assert looking.api.asked == 3


async def test_a_group_at_rest_is_looked_at_once_a_minute() -> None:
    """A Secret that is deleted under it is known before a pod has to start anew."""
    looking = _Looking(_Counting(secrets={"own"}))
    for _ in range(59):
        assert dict((await looking.seen(_calm())).absent) == {}
        looking.now_s += 1
    assert looking.api.asked == 1

    looking.api.secrets.clear()
    looking.now_s += 1

    assert dict((await looking.seen(_calm())).absent) == {SECRET: "does not exist"}


async def test_another_name_is_looked_for_at_once() -> None:
    """What was seen of the one before says nothing of it."""
    looking = _Looking(_Counting(secrets={"own"}))
    await looking.seen(_moving())

    other = bootstrapped({"tls": {"enabled": True, "secretName": "other"}})
    found = await looking.absences.seen(other, _moving(), wanted=lambda: wanted_mounts(other))

    assert dict(found.absent) == {("Secret", "other"): "does not exist"}


async def test_an_operator_without_a_right_to_secrets_asks_once_and_holds_nothing() -> None:
    """As with the chart's `peerTls: false`; Events of the first pod tell it then."""
    looking = _Looking(_Counting(error=ApiError(403, "forbidden")))

    assert dict((await looking.seen(_moving())).absent) == {}
    looking.now_s += 60
    assert dict((await looking.seen(_moving())).absent) == {}
    assert looking.api.asked == 1


async def test_what_could_not_be_looked_for_is_not_taken_for_there() -> None:
    """What was seen before stays; of what was never seen nobody may rely."""
    blind = _Looking(_Counting(error=ApiError(0, "no answer")))
    assert dict((await blind.seen(_moving())).absent) == {
        SECRET: "could not be looked for: no answer"
    }

    looking = _Looking(_Counting(secrets={"own"}))
    await looking.seen(_moving())
    looking.api.error = ApiError(0, "no answer")
    assert dict((await looking.seen(_moving(), afresh=True)).absent) == {}


async def test_a_config_map_is_known_by_the_watch() -> None:
    """It is a child."""
    observed = _moving()
    ref = ("ConfigMap", "orders-config")
    children = {k: v for k, v in observed.children.items() if k != ref}
    looking = _Looking(_Counting(secrets={"own"}))

    found = await looking.seen(replace(observed, children=children))

    assert dict(found.absent) == {ref: "does not exist"}


def _stuck(idle_since: str = LATE) -> Observed:
    observed = _calm()
    pod = replace(observed.pods["orders-2"], ready=False, idle_since=idle_since, uid="u2")
    return replace(observed, pods={**observed.pods, "orders-2": pod})


async def test_events_are_read_of_pods_that_hang_and_forgotten_when_they_run() -> None:
    """Each five seconds at first; of one that has just begun to start, nothing is asked."""
    event = {"reason": "FailedMount", "message": "no Secret", "lastTimestamp": NOW}
    looking = _Looking(_Counting(secrets={"own"}, events=[event]))

    assert dict((await looking.seen(_stuck("2031-05-06T07:08:00Z"))).unstarted) == {}
    assert looking.api.listed == 0
    for _ in range(2):
        found = await looking.seen(_stuck())
        assert dict(found.unstarted) == {"orders-2": "FailedMount: no Secret"}
    assert looking.api.listed == 1
    assert dict((await looking.seen(_calm())).unstarted) == {}

    looking.api.error = ApiError(0, "no answer")
    looking.now_s += 5
    assert dict((await looking.seen(_stuck())).unstarted) == {}


async def test_a_jobs_refusals_and_its_pods_waits_are_read() -> None:
    """Each five seconds at first; of one that is over, what was said before."""
    event = {"reason": "FailedCreate", "message": "Error creating: quota", "lastTimestamp": NOW}
    looking = _Looking(_Counting(events=[event]))
    job: dict[str, Any] = {"metadata": {"uid": "j"}, "status": {}}

    for _ in range(2):
        found = await looking.jobs.status(OF, job, [])
        assert isinstance(found, JobRunning)
        assert found.note == "its pod cannot be created: quota"
    assert looking.api.listed == 1
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "late"}
    looking.now_s += 60
    over = await looking.jobs.status(OF, {**job, "status": {"conditions": [failed]}}, [])
    assert "quota" in getattr(over, "error", "")
    assert looking.api.listed == 1

    looking.api.events = [{"reason": "FailedMount", "message": "no", "lastTimestamp": NOW}]
    pod = JobPod(name="p", uid="p", idle_since=LATE)
    hangs = await looking.jobs.status(OF, job, [pod])
    assert isinstance(hangs, JobRunning)
    assert hangs.note == f"its pod does not run since {LATE}; FailedMount: no"
    looking.api.error = ApiError(0, "no answer")
    looking.now_s += 60
    assert await looking.jobs.status(OF, job, [pod]) == hangs
