"""What is decided of one round of compaction: why it waits, what it makes, what its result says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.reasons import Reason
from dledger_operator.decisions.outcomes import Going, Outcome, Rejected, Waits
from dledger_operator.decisions.rounds import (
    RoundObserved,
    again_in_s,
    plan_round,
    result_of,
    round_outcome,
)
from dledger_operator.observed.job_status import JobFailed, JobRunning, JobSucceeded
from dledger_operator.resources.compaction import scheduled_round
from dledger_operator.status.operation_status import operation_status
from tests.operator.backup_samples import LARGE, ON_CLAIM, STORE
from tests.operator.round_samples import (
    COMPACTED,
    DID,
    RESULT,
    SUCCEEDED,
    compact,
    observed,
    succeeded,
)
from tests.operator.samples import GROUP_ID, NOW, bootstrapped, group

SCHEDULED = compact("due", scheduled_at="2031-05-06T07:00:00Z")
NO_IMAGE = group({**COMPACTED, "spark": {"image": "no such image"}})


@pytest.mark.parametrize(
    ("one", "seen", "kind", "reason"),
    [
        (compact(), observed(), Waits, Reason.CREATING),
        (compact(), observed(group=None), Waits, Reason.GROUP_MISSING),
        (compact(), observed(group=bootstrapped({"paused": True})), Waits, Reason.PAUSED_BY_USER),
        (compact(), observed(group=NO_IMAGE), Waits, Reason.GROUP_SPEC_INVALID),
        (compact(), observed(topics=None), Waits, Reason.WAITING_FOR_GROUP),
        (compact(), observed(log=None), Waits, Reason.WAITING_FOR_GROUP),
        (compact(), observed(topics=()), Rejected, Reason.NO_COMPACTED_TOPIC),
        (compact(), observed(predecessor="nightly"), Waits, Reason.WAITING_FOR_TURN),
        (compact(), observed(rival="due"), Rejected, Reason.ROUND_RUNNING),
        (SCHEDULED, observed(rival="now"), Waits, Reason.WAITING_FOR_TURN),
        (compact(), observed(refusals={("Job", "x"): "no"}), Waits, Reason.APPLY_REFUSED),
        (compact(unknown=1), observed(), Rejected, Reason.INVALID_SPEC),
        (compact(), observed(job=JobFailed(error="E: no")), Rejected, Reason.ROUND_FAILED),
        (
            compact(deadlineSeconds=60),
            observed(predecessor="nightly"),
            Rejected,
            Reason.DEADLINE_EXCEEDED,
        ),
    ],
)
def test_why_a_round_does_not_run_has_a_reason(
    one: BrokerOperation, seen: RoundObserved, kind: type[Outcome], reason: Reason
) -> None:
    """What it waits for, or why it never will; and then no Job is made."""
    found = round_outcome(one, seen, now=NOW)

    assert isinstance(found, kind)
    assert getattr(found, "reason", None) is reason
    assert (plan_round(one, seen, now=NOW) == ()) == (reason is not Reason.CREATING)


def test_a_round_that_runs_is_not_ended_by_what_comes_beside_it() -> None:
    """Neither by a backup that waits for it, nor by a topic that is deleted meanwhile."""
    seen = observed(job=JobRunning(), predecessor="nightly", topics=(), log=None)

    assert isinstance(round_outcome(compact(), seen, now=NOW), Going)


def test_what_a_round_did_is_in_its_status() -> None:
    """And when its Job began, however short it was."""
    status = operation_status(
        compact(), round_outcome(compact(), observed(job=SUCCEEDED), now=NOW), now=NOW
    )

    assert (status["phase"], status["compaction"]) == ("Succeeded", DID)
    assert status["startedAt"] == SUCCEEDED.started_at
    for said in ("entry 4711", "1 topics", "300 messages were let go", "12 copied", "7 go later"):
        assert said in status["message"]


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"kept": -1, "letGo": "many", "later": True, "writtenBytes": 1 << 70, "asOfIndex": None},
        {"topics": "prices"},
        {"topics": {"prices": {}}, "topicCount": [1]},
    ],
)
def test_a_result_that_is_none_of_ours_is_read_as_nothing(result: dict[str, Any]) -> None:
    """The API server refuses a whole status for one value that its schema does not have."""
    assert result_of(result) == dict.fromkeys(DID, 0) | {"topics": []}


def test_a_huge_result_is_cut() -> None:
    """At what the schema has room for."""
    found = result_of({**RESULT, "topics": [f"{n:0>1000}"[::-1] for n in range(1000)]})

    assert len(found["topics"]) == 256
    assert {len(name) for name in found["topics"]} == {127}


def test_a_round_tells_how_many_topics_there_are_where_not_all_names_have_room() -> None:
    """The pipeline leaves the names that fit into a termination message, and their number."""
    done = JobSucceeded(result={**RESULT, "topicCount": 10_000})

    status = operation_status(
        compact(), round_outcome(compact(), observed(job=done), now=NOW), now=NOW
    )

    assert (status["compaction"]["topicCount"], status["compaction"]["topics"]) == (
        10_000,
        ["prices"],
    )
    assert "of 10000 topics" in status["message"]


def _job(seen: RoundObserved, one: BrokerOperation | None = None) -> dict[str, Any]:
    (create,) = plan_round(one or compact(), seen, now=NOW)
    made: dict[str, Any] = create.manifest
    assert made["kind"] == "Job"
    return made


def test_a_round_is_a_job_with_a_certificate_of_its_own() -> None:
    """Backups' may read; only this one may tell nodes what to let go of."""
    of = bootstrapped({**COMPACTED, "backup": {"store": STORE}})
    of = type(of)(**{name: getattr(of, name) for name in of.__slots__} | {"has_peer_tls": True})

    made = _job(observed(group=of))
    pod = made["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]

    assert [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v] == [
        names.compactor_tls("orders")
    ]
    assert args[:3] == ["driver", "compact", "--endpoint"]
    assert args[3].count("orders-nodes") == 3
    assert args[args.index("--group-id") + 1] == GROUP_ID
    assert args[args.index("--store") + 1] == STORE["url"]
    assert made["metadata"]["labels"][names.COMPONENT_LABEL] == "compaction"
    assert made["metadata"]["ownerReferences"][0]["kind"] == "BrokerOperation"
    assert made["spec"]["activeDeadlineSeconds"] == 3600


def test_a_round_needs_no_store() -> None:
    """The nodes have all that it rests on."""
    args = _job(observed())["spec"]["template"]["spec"]["containers"][0]["args"]

    assert not [word for word in args if word.startswith("--store")]
    assert "--again-in" not in args


def test_a_store_on_a_claim_is_only_read() -> None:
    """A round writes nothing there."""
    of = bootstrapped({**COMPACTED, "backup": {"store": ON_CLAIM}})

    pod = _job(observed(group=of))["spec"]["template"]["spec"]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "store"]

    assert mount["readOnly"]


def test_much_log_is_read_by_executors_that_show_a_backups_certificate() -> None:
    """They only read. Rights, policy and template come first, and then the Job."""
    seen = observed(log=LARGE)

    made = [one.manifest for one in plan_round(compact(), seen, now=NOW)]
    (template,) = [one for one in made if one["kind"] == "ConfigMap"]
    executor = json.loads(template["data"]["executor.json"])

    assert "Job" not in [one["kind"] for one in made]
    assert executor["metadata"]["labels"][names.COMPONENT_LABEL] == "compaction"


def test_a_round_tells_when_the_one_after_the_next_comes() -> None:
    """The next may fail; what retention drops by then is copied now."""
    hourly = bootstrapped({**COMPACTED, "compaction": {"schedule": "0 * * * *"}})

    assert again_in_s(hourly, now="2031-05-06T07:00:01Z") == 2 * 3600 - 1
    assert again_in_s(bootstrapped(COMPACTED), now=NOW) == 0
    args = _job(observed(group=hourly))["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--again-in") + 1] == f"{again_in_s(hourly, now=NOW)}s"


def test_a_scheduled_round_has_a_name_of_its_time() -> None:
    """However often it is made, it is one; and it may wait for a backup, and then take as long."""
    made = scheduled_round(bootstrapped(COMPACTED), "2031-05-06T07:00:00Z")

    assert made["metadata"]["name"] == "orders-compaction-32263620"
    parsed = BrokerOperation.parse({**made, "metadata": {**made["metadata"], "uid": "u"}})
    assert parsed.scheduled_at == "2031-05-06T07:00:00Z"
    assert parsed.is_round
    assert not parsed.unreadable
    assert parsed.spec.deadline_seconds == 6 * 3600


def test_a_finished_round_is_never_made_again() -> None:
    """Its status says so, also when its Job is gone."""
    assert operation_status(succeeded(), Going("x"), now=NOW) == succeeded().status
