"""Observed -> status: conditions as a table, what is worth a write, what is worth an Event."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from dledger.common.status import FailoverRecord
from dledger_operator.api.brokeroperation import RUNNING, BrokerOperation
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.observed.observed import Observed, Pod, TopicSeen
from dledger_operator.status.conditions import conditions
from dledger_operator.status.status import VOLATILE_S, Event, events, status, worth_writing
from tests.operator.documented import is_documented
from tests.operator.samples import (
    GROUP_ID,
    NOW,
    bootstrapped,
    converged,
    group,
    joined,
    member,
    members,
    node,
    pods,
    unjoined,
)


def _status(of: BrokerGroup, observed: Observed) -> dict[str, Any]:
    return status(facts_of(of, observed), now=NOW)


def _condition(of: BrokerGroup, observed: Observed, kind: str) -> tuple[str, str, str]:
    rows = {row["type"]: row for row in _status(of, observed)["conditions"]}
    row = rows[kind]
    return row["status"], row["reason"], row["message"]


def _row(facts: Facts, kind: str) -> dict[str, Any]:
    return next(row for row in status(facts, now=NOW)["conditions"] if row["type"] == kind)


def _seen(**changes: Any) -> Observed:
    return converged(bootstrapped(), **changes)


def _shown(*, days: float, left: float) -> Observed:
    """Return nodes that show clients a certificate of so many days, with so many left."""
    ends_ms = int(datetime.fromisoformat(NOW).timestamp() * 1000 + left * 86_400_000)
    dates = {"client_certificate_ends_ms": ends_ms}
    dates["client_certificate_begins_ms"] = ends_ms - int(days * 86_400_000)
    return _seen(nodes=joined(0, 1, 2, **dates))


WELL = _seen()
FULL_DISK = _seen(nodes=joined(0, 1, 2, writes_refused_reason="disk is full"))
OLDER_DISK = _seen(nodes=joined(0, 1, 2, older_copy="others know that it had entry 9"))
LEADERLESS = _seen(nodes=joined(0, 1, 2, leader=None))
UNREACHABLE = _seen(nodes={})
WAITING = _seen(nodes=unjoined(0), pods=pods(0, leader=None))
EMPTY = _seen(nodes=unjoined(0, 1, 2))
SPLIT = _seen(nodes={**joined(0, 1), **joined(2, leader=None, group_id="other")})
REPLACED = _seen(nodes={**joined(0, 1), "orders-2": node("new")})
RESTORED = _seen(nodes=joined(0, 1, 2, held_waiting=3))
JOINING = _seen(nodes={**joined(0, 1), "orders-2": node("id-2")})
CLONED = _seen(nodes={**unjoined(0, 1), "orders-2": node("id-1")})
CUT_OFF = _seen(
    nodes=joined(
        *(0, 1, 2),
        members=(*members(0, 1), member("id-2", "orders-2", connected=False)),
    )
)
OF_TOMORROW = _seen(nodes={**WELL.nodes, **joined(2, clock_ahead_ms=100 * 3_600_000)})
A_BIT_LATE = _seen(nodes={**WELL.nodes, **joined(2, clock_behind_ms=5_000)})
BAD_CLIENT_PAIR = _seen(nodes=joined(0, 1, 2, client_certificate_fault="tls.crt: it ended"))
NAME_TAKEN = _seen(refusals={("Service", "orders"): "taken"})
TOPIC_REFUSED = _seen(refusals={("Topic", "a"): "no"})
TOPIC_MISSING = _seen(topics={})
TOPIC_TOO_SMALL = _seen(topics={"a": TopicSeen("NORMAL", 4)})
TOPIC_KEPT = bootstrapped({"topics": [{"name": "a", "retention": {"hours": 0}}]})
TOPIC_NOT_KEPT = _seen(topics={"a": TopicSeen("NORMAL", 8)})
TOPIC_LARGER = _seen(topics={"a": TopicSeen("NORMAL", 16)})
TOPIC = bootstrapped({"topics": [{"name": "a"}]})
TLS = bootstrapped({"tls": {"enabled": True}})
EVEN = bootstrapped({"replicas": 2})
PAUSED = bootstrapped({"paused": True})
SMALL = bootstrapped({"storage": {"size": "32Mi"}})
NEW, OLD = group(), bootstrapped()

TABLE: list[tuple[str, BrokerGroup, Observed, str, Reason]] = [
    ("Available", OLD, WELL, "True", Reason.LEADER_ELECTED),
    ("Available", OLD, _seen(nodes=joined(0, 1)), "True", Reason.LEADER_ELECTED),
    ("Available", OLD, _seen(nodes=joined(1, 2)), "True", Reason.LEADER_ELECTED),
    ("Available", OLD, _seen(nodes=joined(0)), "False", Reason.NO_LEADER),
    ("Available", OLD, LEADERLESS, "False", Reason.NO_LEADER),
    ("Available", OLD, FULL_DISK, "False", Reason.WRITES_REFUSED),
    ("Available", OLD, UNREACHABLE, "Unknown", Reason.NODES_UNREACHABLE),
    ("Available", NEW, WAITING, "False", Reason.WAITING_FOR_NODES),
    ("Available", NEW, EMPTY, "False", Reason.WAITING_FOR_NODES),
    ("Available", OLD, EMPTY, "False", Reason.ALL_DISKS_EMPTY),
    ("Ready", OLD, WELL, "True", Reason.ALL_REPLICAS_READY),
    ("Ready", OLD, _seen(pods=pods(0, 1)), "False", Reason.REPLICAS_NOT_READY),
    ("Progressing", OLD, WELL, "False", Reason.COMPLETE),
    ("Progressing", NEW, Observed(), "True", Reason.CREATING),
    ("Progressing", NEW, _seen(pods=pods(0)), "True", Reason.CREATING),
    ("Progressing", NEW, EMPTY, "True", Reason.FOUNDING),
    ("Progressing", OLD, JOINING, "True", Reason.JOINING),
    ("Progressing", OLD, _seen(pods=pods(0, 1, 2, ready=False)), "True", Reason.STARTING),
    ("Progressing", TOPIC, TOPIC_MISSING, "True", Reason.TOPICS_PENDING),
    ("Progressing", TOPIC, TOPIC_TOO_SMALL, "True", Reason.TOPICS_PENDING),
    ("Progressing", TOPIC_KEPT, TOPIC_NOT_KEPT, "True", Reason.TOPICS_PENDING),
    ("SpecValid", TOPIC, TOPIC_LARGER, "False", Reason.INVALID_SPEC),
    ("Progressing", TLS, WELL, "False", Reason.BLOCKED),
    ("Progressing", OLD, SPLIT, "False", Reason.BLOCKED),
    ("Degraded", OLD, WELL, "False", Reason.AS_EXPECTED),
    ("Degraded", OLD, EMPTY, "True", Reason.ALL_DISKS_EMPTY),
    ("Degraded", OLD, REPLACED, "True", Reason.MEMBER_REPLACED_BY_EMPTY_DISK),
    ("Degraded", OLD, CUT_OFF, "False", Reason.STARTING),
    ("Degraded", OLD, LEADERLESS, "False", Reason.STARTING),
    ("Degraded", OLD, UNREACHABLE, "Unknown", Reason.NODES_UNREACHABLE),
    ("Degraded", OLD, NAME_TAKEN, "True", Reason.APPLY_REFUSED),
    ("Degraded", OLD, TOPIC_REFUSED, "True", Reason.TOPIC_REFUSED),
    ("Degraded", NEW, CLONED, "True", Reason.DUPLICATE_NODE_ID),
    ("Degraded", OLD, OF_TOMORROW, "True", Reason.CLOCK_APART),
    ("Degraded", OLD, A_BIT_LATE, "False", Reason.AS_EXPECTED),
    ("Degraded", OLD, BAD_CLIENT_PAIR, "True", Reason.CLIENT_CERTIFICATE_REFUSED),
    ("Degraded", OLD, _shown(days=10, left=1.9), "True", Reason.CLIENT_CERTIFICATE_EXPIRING),
    ("Degraded", OLD, _shown(days=10, left=2.1), "False", Reason.AS_EXPECTED),
    ("Degraded", OLD, _shown(days=90, left=13.9), "True", Reason.CLIENT_CERTIFICATE_EXPIRING),
    ("Degraded", OLD, _shown(days=90, left=14.1), "False", Reason.AS_EXPECTED),
    ("GroupIDConsistent", OLD, WELL, "True", Reason.ONE_GROUP_ID),
    ("GroupIDConsistent", OLD, SPLIT, "False", Reason.GROUP_ID_MISMATCH),
    ("GroupIDConsistent", NEW, EMPTY, "Unknown", Reason.NOT_FOUNDED),
    ("GroupIDConsistent", OLD, UNREACHABLE, "Unknown", Reason.NODES_UNREACHABLE),
    ("StorageHealthy", OLD, WELL, "True", Reason.VOLUMES_BOUND),
    ("StorageHealthy", OLD, _seen(volumes={}), "Unknown", Reason.VOLUMES_PENDING),
    ("StorageHealthy", OLD, FULL_DISK, "False", Reason.WRITES_REFUSED),
    ("StorageHealthy", OLD, OLDER_DISK, "False", Reason.OLDER_COPY),
    ("StorageHealthy", SMALL, WELL, "False", Reason.VOLUMES_TOO_SMALL),
    ("Paused", PAUSED, WELL, "True", Reason.PAUSED_BY_USER),
    ("Paused", OLD, WELL, "False", Reason.NOT_PAUSED),
    ("SpecValid", OLD, WELL, "True", Reason.ACCEPTED),
    ("SpecValid", TLS, WELL, "False", Reason.NOT_IMPLEMENTED_YET),
    ("SpecValid", EVEN, WELL, "False", Reason.INVALID_SPEC),
]


@pytest.mark.parametrize(("kind", "of", "observed", "said", "reason"), TABLE)
def test_each_situation_has_its_reason(
    kind: str, of: BrokerGroup, observed: Observed, said: str, reason: Reason
) -> None:
    """A condition's status and reason, for what is seen; the catalogue has both."""
    assert _condition(of, observed, kind)[:2] == (said, str(reason))
    assert is_documented(f"{kind}={said}", reason)


BEHIND = _seen(
    nodes=joined(0, 1, 2, members=(*members(0, 1), member("id-2", "orders-2", lag=1001)))
)
ONE_LEFT = _seen(nodes=joined(0, leader=None), pods=pods(0))
FORCING = BrokerOperation.parse(
    {
        "metadata": {"namespace": "shop", "name": "force", "uid": "1", "creationTimestamp": NOW},
        "spec": {"group": "orders", "kind": "ForceNewGroup", "forceNewGroup": {"groupId": "x"}},
        "status": {"phase": RUNNING},
    }
)
FORCED = _seen(
    nodes=joined(0, members=members(0)),
    pods={**pods(0), "orders-1": Pod(name="orders-1", trouble="Unschedulable")},
    operations=(FORCING,),
)
TWO_EMPTY = _seen(
    nodes={
        **joined(0, leader=None),
        "orders-1": node("new-1", told_group_id=GROUP_ID),
        "orders-2": node("new-2", told_group_id=GROUP_ID),
    }
)
CARRIED = _seen(nodes=joined(0, leader=None), pods=pods(0), children={})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"clock_ahead_ms": 100 * 3_600_000}, "4 days ahead of"),
        ({"clock_behind_ms": 7_200_000}, "2 hours behind"),
        ({"clock_behind_ms": 130_000}, "2 minutes behind"),
        ({"clock_ahead_ms": 10_000}, "10 s ahead of"),
    ],
)
def test_whose_clock_is_apart_is_told_by_how_much(said: dict[str, int], words: str) -> None:
    """In a unit that does not make it news each second."""
    apart = _seen(nodes={**WELL.nodes, **joined(2, **said)})

    _, _, message = _condition(OLD, apart, "Degraded")

    assert message == f"orders-2: its clock is {words} the group's date"


@pytest.mark.parametrize(
    ("of", "observed", "reason", "words"),
    [
        (OLD, CUT_OFF, Reason.MEMBER_NOT_CONNECTED, "2 of 3 voters in sync, writes stop if one"),
        (OLD, BEHIND, Reason.MEMBER_BEHIND, "not in sync: orders-2"),
        (OLD, FORCED, Reason.TOO_FEW_VOTERS, "1 of 1 voters in sync, writes stop if one more is"),
        (
            OLD,
            FORCED,
            Reason.TOO_FEW_VOTERS,
            "3 voters are asked for; not voting: orders-1 (Unschedulable)",
        ),
        (OLD, LEADERLESS, Reason.MAJORITY_LOST, "0 of 3 voters in sync, 2 are needed"),
        (OLD, ONE_LEFT, Reason.MAJORITY_LOST, "orders-1 (no pod), orders-2 (no pod)"),
        (OLD, TWO_EMPTY, Reason.MAJORITY_LOST, "2 are needed, so writes stopped"),
        (OLD, TWO_EMPTY, Reason.MAJORITY_LOST, "ForceNewGroup"),
        (NEW, CARRIED, Reason.MAJORITY_LOST, f"orders-0 carries group {GROUP_ID}; no answer from"),
    ],
)
def test_voters_out_of_sync_are_told_once_they_have_had_time_to_start(
    of: BrokerGroup, observed: Observed, reason: Reason, words: str
) -> None:
    """Not in each start or restart; the sentence says what one more loss would do."""
    facts = facts_of(of, observed)
    assert _row(facts, "Degraded")["reason"] != reason

    found = _row(replace(facts, overdue=True), "Degraded")

    assert (found["status"], found["reason"]) == ("True", reason)
    assert words in found["message"]
    assert is_documented("Degraded=True", reason)


def test_degraded_stays_true_while_one_loss_becomes_another() -> None:
    """It does not turn to False, as it once did, in the moment that the majority is lost."""
    before = {"type": "Degraded", "status": "True", "reason": "", "lastTransitionTime": NOW}

    found = _row(facts_of(bootstrapped(conditions=[before]), ONE_LEFT), "Degraded")

    assert (found["status"], found["reason"]) == ("True", Reason.MAJORITY_LOST)


def test_what_is_not_known_is_neither_worse_nor_better() -> None:
    """Nodes that cannot be asked for a while are no Event; a loss that was told stays one."""
    assert _turn(bootstrapped(), WELL, UNREACHABLE) == []
    assert _turn(bootstrapped(), UNREACHABLE, WELL) == []
    before = _status(bootstrapped(), REPLACED)
    hidden = _status(bootstrapped(**before), UNREACHABLE)
    again = _status(bootstrapped(**hidden), WELL)

    found = next(row for row in hidden["conditions"] if row["type"] == "Degraded")
    assert (found["status"], found["reason"]) == ("True", Reason.NODES_UNREACHABLE)
    assert [event.reason for event in events(hidden, again)] == [EventReason.RECOVERED]


def test_what_is_not_ready_for_ten_minutes_is_degraded() -> None:
    """A pod that cannot start is not Progressing without end."""
    stuck = _seen(pods=pods(0, 1, 2, ready=False, trouble="ErrImagePull"), nodes={})
    for since, reason in (("06:50:00", Reason.DEADLINE_EXCEEDED), ("07:08:00", Reason.FOUNDING)):
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": f"2031-05-06T{since}Z"}
        found = _row(facts_of(group(conditions=[ready]), stuck), "Progressing")

        assert found["reason"] == reason
        assert "orders-1 (ErrImagePull)" in found["message"]
        degraded = _row(facts_of(group(conditions=[ready]), stuck), "Degraded")["status"]
        assert degraded == str(reason == Reason.DEADLINE_EXCEEDED)


def test_a_lone_carrier_of_a_groups_id_is_named() -> None:
    """A group that was deleted and made again, with two of its disks lost."""
    said = _condition(NEW, CARRIED, "GroupIDConsistent")

    assert said == ("Unknown", Reason.NOT_FOUNDED, f"orders-0 carries group {GROUP_ID}")


def test_both_group_ids_are_named() -> None:
    """The sentence must tell which volume is the odd one."""
    _, _, message = _condition(bootstrapped(), SPLIT, "GroupIDConsistent")

    assert GROUP_ID in message
    assert "orders-2 carries other" in message


def test_a_pods_trouble_is_told() -> None:
    """In Kubernetes' own words."""
    broken = {**pods(0, 1), "orders-2": Pod(name="orders-2", trouble="ErrImagePull: no such image")}

    _, _, message = _condition(bootstrapped(), _seen(pods=broken), "Ready")

    assert message == "not ready: orders-2 (ErrImagePull: no such image)"


def test_the_status_tells_who_leads_and_what_everyone_is() -> None:
    """Members come by name; how far they are is a metric of theirs."""
    said = _status(bootstrapped(), WELL)

    assert (said["leader"], said["term"]) == ("orders-0", 1)
    assert (said["replicas"], said["readyReplicas"]) == (3, 3)
    assert [m["name"] for m in said["members"]] == ["orders-0", "orders-1", "orders-2"]
    assert said["members"][1] == {
        "name": "orders-1",
        "id": "id-1",
        "role": "follower",
        "featureLevel": 3,
        "joining": False,
        "storage": {"usedPercent": 30, "capacityBytes": 10 << 30},
    }


def test_a_members_level_is_its_own_word_or_else_what_was_heard_of_it() -> None:
    """Of one that does not answer, what the leader heard; of one unheard, what was recorded."""
    heard = tuple(replace(member, feature_level=2) for member in members(0, 1))
    unheard = members(0, 1, 2)[2]
    nodes = joined(0, members=(*heard, unheard))
    recorded = replace(
        bootstrapped(),
        status={
            **bootstrapped().status,
            "members": [{"name": f"orders-{n}", "featureLevel": 1} for n in range(3)],
        },
    )

    said = _status(recorded, _seen(nodes=nodes))

    assert [member["featureLevel"] for member in said["members"]] == [3, 2, 1]


def test_a_node_that_is_too_old_is_told_with_its_last_words() -> None:
    """As an Event, too: someone has to upgrade it."""
    last_words = "dledger node: entry 7 is of a newer version"
    broken = {**pods(0, 1), "orders-2": Pod(name="orders-2", too_old=last_words)}
    before = _status(bootstrapped(), WELL)

    after = _status(bootstrapped(), _seen(pods=broken))

    assert _condition(bootstrapped(), _seen(pods=broken), "Degraded") == (
        "True",
        Reason.MEMBER_TOO_OLD,
        f"orders-2: {last_words}",
    )
    assert Event(EventReason.DEGRADED, f"orders-2: {last_words}", warning=True) in events(
        before, after
    )


def test_the_selector_finds_the_pods() -> None:
    """The scale subresource hands it to autoscalers."""
    assert _status(group(), Observed())["selector"] == (
        "app.kubernetes.io/component=node,app.kubernetes.io/name=dledger,dledger.io/group=orders"
    )


def test_a_leader_that_only_its_followers_name_still_leads() -> None:
    """The operator may be cut off from it, the group not."""
    assert _status(bootstrapped(), _seen(nodes=joined(1, 2)))["leader"] == "orders-0"


def test_what_is_not_seen_now_stays_as_it_was_recorded() -> None:
    """The operator's blindness is no change of the group."""
    before = _status(bootstrapped(), WELL)

    after = _status(bootstrapped(**before), _seen(nodes={}))

    assert after["leader"] == "orders-0"
    assert [m["id"] for m in after["members"]] == ["id-0", "id-1", "id-2"]


def test_a_candidates_term_is_not_the_groups() -> None:
    """Only a term that has a leader counts."""
    nodes = joined(0, 1, 2, leader=None, term=9, role="candidate")

    assert _status(bootstrapped(), _seen(nodes=nodes))["term"] == 1


FAILOVER = FailoverRecord(
    from_id="id-0",
    to_id="id-1",
    term=2,
    cause="ConnectionLost",
    detected_ms=3,
    elected_ms=40,
    first_ack_ms=5,
    at_ms=1_900_000_000_123,
)


def test_the_last_failover_is_told_by_pod_names() -> None:
    """As the node measured it."""
    nodes = joined(0, 1, 2, leader=1, term=2, last_failover=FAILOVER)

    assert _status(bootstrapped(), _seen(nodes=nodes))["lastFailover"] == {
        "from": "orders-0",
        "to": "orders-1",
        "term": 2,
        "cause": "ConnectionLost",
        "detectedMs": 3,
        "electedMs": 40,
        "firstAckMs": 5,
        "at": "2030-03-17T17:46:40Z",
    }


@pytest.mark.parametrize("cause", ["Transfer", "Bootstrap"])
def test_a_planned_change_of_leader_is_no_failover(cause: str) -> None:
    """On call, one wants to see the last loss, not the hand-over behind it."""
    lost = _status(bootstrapped(), _seen(nodes=joined(0, 1, 2, term=2, last_failover=FAILOVER)))
    planned = replace(FAILOVER, cause=cause, term=3)

    after = _status(
        bootstrapped(**lost), _seen(nodes=joined(0, 1, 2, term=3, last_failover=planned))
    )

    assert after["lastFailover"] == lost["lastFailover"]
    assert "lastFailover" not in _status(
        bootstrapped(), _seen(nodes=joined(0, last_failover=planned))
    )


def test_a_condition_keeps_its_time_until_its_status_turns() -> None:
    """The time is when the status turned, not when it was looked at."""
    before = _status(bootstrapped(), WELL)

    after = status(facts_of(bootstrapped(**before), _seen(nodes={})), now="2031-05-06T08:00:00Z")

    times = {row["type"]: row["lastTransitionTime"] for row in after["conditions"]}
    assert times["SpecValid"] == NOW
    assert times["Available"] == "2031-05-06T08:00:00Z"


def test_an_unchanged_status_is_never_written() -> None:
    """Nor when server-side apply keeps lists in another order."""
    before = _status(bootstrapped(), WELL)
    turned = {
        **before,
        "conditions": before["conditions"][::-1],
        "members": before["members"][::-1],
    }

    after = _status(bootstrapped(**turned), WELL)

    assert not worth_writing(turned, after, since_write_s=1e9)


def test_how_full_the_volumes_are_is_written_rarely() -> None:
    """A busy group fills them all the time."""
    before = _status(bootstrapped(), WELL)
    fuller = joined(0, 1, 2, storage_used_bytes=5 << 30)
    after = _status(bootstrapped(**before), _seen(nodes=fuller))

    assert after["members"][0]["storage"]["usedPercent"] == 50
    assert not worth_writing(before, after, since_write_s=VOLATILE_S - 1)
    assert worth_writing(before, after, since_write_s=VOLATILE_S)


def test_a_busy_group_writes_nothing() -> None:
    """Its commit index moves thousands of times a second, and is a metric of its nodes."""
    busy = members(0, 1, 2)
    rows = (busy[0], *(replace(row, match_index=90, lag=9) for row in busy[1:]))
    before = _status(bootstrapped(), WELL)
    after = _status(
        bootstrapped(**before),
        _seen(nodes=joined(0, 1, 2, commit_index=99, last_index=99, members=rows)),
    )

    assert not worth_writing(before, after, since_write_s=float("inf"))


def test_a_new_leader_is_written_at_once() -> None:
    """Whatever was written a moment ago."""
    before = _status(bootstrapped(), WELL)
    after = _status(bootstrapped(**before), _seen(nodes=joined(0, 1, 2, leader=1, term=2)))

    assert worth_writing(before, after, since_write_s=0)


def _turn(of: BrokerGroup, one: Observed, two: Observed, spec: Any = None) -> list[EventReason]:
    before = _status(of, one)
    changed = bootstrapped(spec, **before) if of.bootstrapped else group(spec, **before)
    return [event.reason for event in events(before, _status(changed, two))]


def test_a_change_of_leader_is_an_event_with_its_time() -> None:
    """Once; the first leader of a group is none."""
    before = _status(bootstrapped(), WELL)
    nodes = joined(0, 1, 2, leader=1, term=2, last_failover=FAILOVER)
    after = _status(bootstrapped(**before), _seen(nodes=nodes))

    (event,) = events(before, after)

    assert event.reason is EventReason.LEADER_CHANGED
    assert event.message == (
        "orders-1 leads in term 2 after orders-0 (ConnectionLost, 48 ms without a leader)"
    )
    assert list(events(after, after)) == []


def test_a_new_leader_without_a_loss_is_told_by_its_term_alone() -> None:
    """It was handed over, or who lost the one before did not say."""
    before = _status(bootstrapped(), WELL)
    after = _status(bootstrapped(**before), _seen(nodes=joined(0, 1, 2, leader=1, term=2)))

    assert [event.message for event in events(before, after)] == ["orders-1 leads in term 2"]


def test_losing_sight_of_the_same_leader_is_no_event() -> None:
    """It leads in the same term as before."""
    gone = _seen(nodes=joined(0, 1, 2, leader=None))

    assert _turn(bootstrapped(), gone, WELL) == []


def test_the_first_status_of_a_healthy_group_is_no_event() -> None:
    """An operator that starts finds things as they are."""
    assert list(events({}, _status(group(), EMPTY))) == []


@pytest.mark.parametrize(
    ("one", "two", "spec", "expected"),
    [
        (WELL, REPLACED, {}, [EventReason.DEGRADED]),
        (REPLACED, WELL, {}, [EventReason.RECOVERED]),
        (WELL, SPLIT, {}, [EventReason.GROUP_ID_MISMATCH]),
        (WELL, RESTORED, {}, [EventReason.RESTORED_MESSAGES_WAIT]),
        (REPLACED, RESTORED, {}, [EventReason.RESTORED_MESSAGES_WAIT]),
        (RESTORED, WELL, {}, [EventReason.RECOVERED]),
        (
            WELL,
            WELL,
            {"tls": {"enabled": True}},
            [EventReason.SPEC_REFUSED],
        ),
    ],
)
def test_a_turn_for_the_worse_or_better_is_an_event(
    one: Observed, two: Observed, spec: dict[str, Any], expected: list[EventReason]
) -> None:
    """Each turn once, by its own reason."""
    assert _turn(bootstrapped(), one, two, spec) == expected


def test_a_spec_that_becomes_valid_again_is_an_event() -> None:
    """The user hears that the correction was taken."""
    observed = WELL
    before = _status(bootstrapped({"tls": {"enabled": True}}), observed)

    found = list(events(before, _status(bootstrapped(**before), observed)))

    assert [event.reason for event in found] == [EventReason.SPEC_ACCEPTED]


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        (("a", "a", "b"), Reason.ONE_HOST_CARRIES_MAJORITY),
        (("a", "b", "c"), Reason.ALL_REPLICAS_READY),
        (("", "", ""), Reason.ALL_REPLICAS_READY),
    ],
)
def test_a_machine_that_carries_a_majority_is_named(
    hosts: tuple[str, str, str], reason: Reason
) -> None:
    """Found: O14. The group is ready all the same."""
    placed = {
        name: replace(pod, host=host)
        for (name, pod), host in zip(pods(0, 1, 2).items(), hosts, strict=True)
    }

    found = _condition(bootstrapped(), _seen(pods=placed), "Ready")

    assert found[:2] == ("True", reason)
    if reason is Reason.ONE_HOST_CARRIES_MAJORITY:
        assert "machine a carries orders-0, orders-1: writes stop if it is lost" in found[2]


def test_a_pod_that_is_refused_is_told_everywhere_it_is_missed() -> None:
    """Found: O2."""
    why = 'serviceaccount "ghost" not found'
    seen = _seen(pods=pods(0, 1), nodes=joined(0, 1), uncreated={"orders-2": why})

    for kind in ("Ready", "Progressing", "Degraded"):
        assert why in _condition(bootstrapped(), seen, kind)[2]
    assert _condition(bootstrapped(), seen, "Degraded")[:2] == ("True", Reason.POD_REFUSED)


def test_a_claim_that_is_someone_elses_is_not_pending() -> None:
    """Found: O11. It is bound, and holds what somebody else wrote."""
    seen = _seen(foreign={"data-orders-0": "a PersistentVolumeClaim that nobody knows"})

    found = _condition(bootstrapped(), seen, "StorageHealthy")

    assert found[:2] == ("False", Reason.FOREIGN_VOLUME)
    assert "data-orders-0 is a PersistentVolumeClaim" in found[2]


def test_what_topics_still_lack_is_told_in_one_sentence() -> None:
    """Missing ones, and how many of their queues the others have."""
    of = bootstrapped({"topics": [{"name": "b"}, {"name": "c"}, {"name": "a", "queues": 16}]})
    seen = {"a": TopicSeen("NORMAL", 8), "c": TopicSeen("NORMAL", 8)}

    rows = conditions(facts_of(of, converged(of, topics=seen)), now=NOW)

    (row,) = (row for row in rows if row["type"] == "Progressing")
    assert row["message"] == "to be created: b; to be given more queues: a (8 of 16)"
