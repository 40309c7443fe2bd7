"""What a group's rounds of compaction amount to: the part of its status, and CompactionReady."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.facts import facts_of
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.observed.observed import CompactionSeen, TopicSeen
from dledger_operator.status.compaction_history import compaction_ready, last_round, overdue_from
from dledger_operator.status.status import status
from tests.operator.backup_samples import ENDED
from tests.operator.round_samples import COMPACTED, DID, compact, failed, succeeded
from tests.operator.samples import NOW, bootstrapped, converged

_SEEN = TopicSeen("NORMAL", 8, compaction=CompactionSeen(3_600_000, 86_400_000))
SINCE = "2031-05-01T00:00:00Z"
KNOWN: dict[str, Any] = {"topics": ["prices"], "topicCount": 1, "since": SINCE}
LATER = "2031-05-06T08:00:00Z"
NIGHTLY = {**COMPACTED, "compaction": {"schedule": "0 3 * * *"}}


def _group(spec: dict[str, Any] | None = None, **recorded: Any) -> BrokerGroup:
    return bootstrapped(spec or COMPACTED, compaction={**KNOWN, **recorded})


NONE = bootstrapped()
IDLE = bootstrapped({"compaction": {"schedule": "0 3 * * *"}})
TABLE: list[tuple[BrokerGroup, tuple[BrokerOperation, ...], str, Reason]] = [
    (NONE, (), "Unknown", Reason.COMPACTION_NOT_CONFIGURED),
    (IDLE, (), "Unknown", Reason.NO_COMPACTED_TOPIC),
    (_group(), (), "Unknown", Reason.NO_ROUND_YET),
    (_group(), (compact(),), "Unknown", Reason.NO_ROUND_YET),
    (_group(), (succeeded(),), "True", Reason.ROUND_COMPLETED),
    (_group(lastSucceededAt=ENDED, **DID), (), "True", Reason.ROUND_COMPLETED),
    (_group(), (succeeded(), failed("next", created_at=LATER)), "False", Reason.ROUND_FAILED),
    (_group(), (failed(), succeeded("next", created_at=LATER)), "True", Reason.ROUND_COMPLETED),
    (
        _group(),
        (succeeded(), failed("second", reason="RoundRunning", created_at=LATER)),
        "True",
        Reason.ROUND_COMPLETED,
    ),
    (
        _group(),
        (failed(reason="DeadlineExceeded"),),
        "False",
        Reason.ROUND_FAILED,
    ),
    (_group({**COMPACTED, "retention": {"hours": 24}}), (), "False", Reason.ROUND_OVERDUE),
]


@pytest.mark.parametrize(("of", "rounds", "said", "reason"), TABLE)
def test_each_situation_has_its_reason(
    of: BrokerGroup, rounds: tuple[BrokerOperation, ...], said: str, reason: Reason
) -> None:
    """The newest round that was to run decides; one that was refused beside it does not."""
    found = compaction_ready(of, converged(of, operations=rounds), now=NOW)

    assert found[:2] == (said, reason)
    assert found[2]


@pytest.mark.parametrize(
    ("spec", "recorded", "expected"),
    [
        ({"retention": {"hours": 24}}, {}, "2031-05-05T00:00:00"),
        ({"retention": {"hours": 24}}, {"lastSucceededAt": ENDED}, "2031-05-10T07:05:00"),
        # A schedule that is rarer than four retentions is not late before its time.
        (
            {"retention": {"hours": 1}, "compaction": {"schedule": "0 0 * * *"}},
            {"lastSucceededAt": "2031-05-06T00:05:00Z"},
            "2031-05-08T01:05:00",
        ),
        # Kept for ever: four periods.
        (
            {"retention": {"hours": 0}, "compaction": {"schedule": "0 3 * * *"}},
            {},
            "2031-05-04T03:00:00",
        ),
        ({"retention": {"hours": 0}}, {}, "9999-01-01T00:00:00"),
    ],
)
def test_a_round_is_overdue_after_four_retentions(
    spec: dict[str, Any], recorded: dict[str, str], expected: str
) -> None:
    """Counted from the last that succeeded, or from when a compacted topic was seen."""
    at = overdue_from(_group({**COMPACTED, **spec}), {**KNOWN, **recorded})

    assert at.isoformat() == f"{expected}+00:00"


def test_without_a_compacted_topic_no_round_is_overdue() -> None:
    """Whatever was recorded of one that was deleted."""
    of = _group({"compaction": {"schedule": "0 3 * * *"}})

    last = last_round(of, converged(of), now=NOW)

    assert not {"since", "topics", "topicCount", "nextAt"} & {*last}
    assert overdue_from(of, last).year == 9999


def test_a_first_topic_after_others_were_deleted_waits_for_its_own_round() -> None:
    """A round of theirs, which succeeded long ago, makes nothing overdue at once."""
    recorded = {"lastSucceededAt": "2031-04-01T00:00:00Z", **DID}
    of = bootstrapped({**COMPACTED, "retention": {"hours": 24}}, compaction=recorded)

    last = last_round(of, converged(of), now=NOW)

    assert last["since"] == NOW
    assert overdue_from(of, last).isoformat() == "2031-05-10T07:08:09+00:00"
    assert compaction_ready(of, converged(of), now=NOW)[1] is Reason.ROUND_COMPLETED


@pytest.mark.parametrize("are_told", [True, False])
def test_of_more_topics_than_a_status_lists_all_are_counted(are_told: bool) -> None:
    """When a round is overdue, also while no node tells which there are."""
    many = {f"t{number:03}": _SEEN for number in range(300)}
    of = _group({**COMPACTED, "retention": {"hours": 24}})
    told = last_round(of, converged(of, topics=many), now=NOW)
    after = bootstrapped({**COMPACTED, "retention": {"hours": 24}}, compaction=told)
    seen = converged(after, topics=many if are_told else None)

    found = compaction_ready(after, seen, now=NOW)

    assert (told["topicCount"], len(told["topics"])) == (300, 256)
    assert overdue_from(after, told) == overdue_from(of, KNOWN)
    assert found[1] is Reason.ROUND_OVERDUE
    assert ": 300 compacted topics keep" in found[2]


def test_the_status_goes_on_with_what_is_recorded() -> None:
    """BrokerOperations go by their age, the nodes may be silent, and an old result is no news."""
    of = _group(NIGHTLY, lastSucceededAt=LATER, **(DID | {"letGo": 9}))

    last = last_round(of, converged(of, topics=None, operations=(succeeded(),)), now=NOW)

    assert (last["topics"], last["since"]) == (["prices"], SINCE)
    assert (last["lastSucceededAt"], last["letGo"]) == (LATER, 9)
    assert last["nextAt"] == "2031-05-07T03:00:00Z"


def test_the_first_compacted_topic_is_noted() -> None:
    """The alert counts from then, not from when the group was made."""
    of = bootstrapped(COMPACTED)

    assert last_round(of, converged(of), now=NOW) == {
        "topics": ["prices"],
        "topicCount": 1,
        "since": NOW,
    }


def test_a_round_of_an_earlier_group_says_nothing_of_this_one() -> None:
    """It had the same name."""
    of = replace(bootstrapped(COMPACTED), created_at=LATER)

    assert "name" not in last_round(of, converged(of, operations=(succeeded(),)), now=LATER)


def test_metrics_show_groups_with_compacted_topics() -> None:
    """Infinity follows when there is none any more, which alerts remember; then nothing."""
    metrics, of = Metrics(), _group()
    said = status(facts_of(of, converged(of, operations=(succeeded(),))), now=NOW)

    def value(name: str, **labels: str) -> float | None:
        of_group = {"namespace": "shop", "group": "orders", **labels}
        return metrics.registry.get_sample_value(f"dledger_compaction_{name}", of_group)

    metrics.compaction.show(of, {}, overdue_at=overdue_from(of, {}))
    assert value("overdue_timestamp_seconds") is None
    metrics.compaction.show(of, said, overdue_at=overdue_from(of, said["compaction"]))
    assert value("messages", outcome="let_go") == 300
    assert value("written_bytes") == 5000
    since = value("since_timestamp_seconds")
    assert since is not None
    assert value("overdue_timestamp_seconds") == since + 4 * 72 * 3600
    metrics.compaction.show(of, {}, overdue_at=overdue_from(of, {}))
    assert value("overdue_timestamp_seconds") == float("inf")
    metrics.forget("shop", "orders")
    assert value("overdue_timestamp_seconds") is None
