"""(group, observed) -> actions: each situation of founding and adoption, also interrupted ones."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Json, Topic
from dledger_operator.decisions.actions import (
    Action,
    Apply,
    Bootstrap,
    Create,
    Forget,
    LabelRole,
    LookAgain,
    RecordGroupId,
    Repair,
)
from dledger_operator.decisions.disruptions import DeleteTopic, Held
from dledger_operator.decisions.drift import Drift, includes
from dledger_operator.decisions.facts import facts_of
from dledger_operator.decisions.membership import replacement
from dledger_operator.decisions.plan import plan
from dledger_operator.decisions.topics import CreateTopic, GrowTopic, RetainTopic, recorded_topics
from dledger_operator.observed.observed import Observed, TopicSeen, ref_of
from dledger_operator.resources import desired
from dledger_operator.resources.accepted import accepted_revision, accepted_spec
from dledger_operator.status.conditions import conditions
from dledger_operator.status.status import status
from tests.operator.samples import (
    FRESH_ID,
    GROUP_ID,
    NOW,
    PLATFORM,
    bootstrapped,
    converged,
    group,
    joined,
    member,
    node,
    pods,
    unjoined,
    volumes,
)


def _plan(of: BrokerGroup, observed: Observed) -> tuple[Action, ...]:
    return plan(facts_of(of, observed), desired(of, PLATFORM), fresh_id=FRESH_ID)


def _kinds(actions: tuple[Action, ...]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_a_converged_group_needs_nothing() -> None:
    """No action means no write."""
    assert _plan(bootstrapped(), converged(bootstrapped())) == ()


def test_a_new_group_gets_its_children_in_order() -> None:
    """The StatefulSet comes last, when everything that its pods need is there."""
    actions = _plan(group(groupId=GROUP_ID), Observed())

    assert _kinds(actions) == ["Apply"] * len(names.children("orders", 3))
    last = actions[-1]
    assert isinstance(last, Apply)
    assert last.manifest["kind"] == "StatefulSet"


@pytest.mark.found
def test_an_id_is_recorded_before_there_are_nodes() -> None:
    """They are told it, and join no other group (found: S8e)."""
    of = group()

    first = _plan(of, Observed())

    kinds = {action.manifest["kind"] for action in first if isinstance(action, Apply)}
    assert kinds.isdisjoint({"ConfigMap", "StatefulSet"})
    assert first[-1] == RecordGroupId(FRESH_ID, adopted=False)
    told = [
        action.manifest["data"]["group-id"]
        for action in _plan(group(groupId=FRESH_ID), Observed())
        if isinstance(action, Apply) and action.manifest["kind"] == "ConfigMap"
    ]
    assert told == [FRESH_ID]


def test_nodes_whose_groups_status_was_lost_are_founded_with_the_id_they_were_told() -> None:
    """Another one they would refuse."""
    observed = converged(
        group(groupId=GROUP_ID), nodes=unjoined(0, 1, 2), pods=pods(0, 1, 2, leader=None)
    )

    assert _plan(group(), observed) == (RecordGroupId(GROUP_ID, adopted=False),)


def test_kept_volumes_are_adopted_under_a_new_object() -> None:
    """It had recorded an id of its own before it could know what they carry."""
    of = group(groupId=FRESH_ID)
    observed = converged(of)

    actions = _plan(of, observed)

    assert RecordGroupId(GROUP_ID, adopted=True) in actions
    assert status(facts_of(of, observed), now="2031-05-06T07:08:09Z")["term"] == 0


def test_an_adopted_id_is_no_reason_to_restart_a_pod() -> None:
    """It is for empty disks only."""
    before, after = (
        next(m for m in desired(of, PLATFORM) if m["kind"] == "StatefulSet")
        for of in (group(groupId=FRESH_ID), group(groupId=GROUP_ID))
    )

    assert before["spec"]["template"] == after["spec"]["template"]


def test_only_a_child_that_differs_is_repaired() -> None:
    """A hand edit is put right."""
    observed = converged(bootstrapped())
    edited = {ref: dict(child) for ref, child in observed.children.items()}
    edited["Service", "orders"] |= {"spec": {"type": "NodePort"}}

    actions = _plan(bootstrapped(), replace(observed, children=edited))

    assert _kinds(actions) == ["Repair"]


def test_a_change_of_ours_is_applied_but_what_others_added_goes_first() -> None:
    """To apply is to leave alone what others own."""
    observed, changed = converged(bootstrapped()), bootstrapped({"image": "dledger:2"})
    children = {ref: copy.deepcopy(child) for ref, child in observed.children.items()}
    assert _kinds(_plan(changed, observed)) == ["Create", "Apply"]

    added = children["StatefulSet", "orders"]
    added["spec"]["template"]["spec"]["hostNetwork"] = True
    fields: Json = {"f:spec": {"f:template": {"f:spec": {"f:hostNetwork": {}}}}}
    added["metadata"]["managedFields"] = [{"manager": "hand", "fieldsV1": fields}]

    record, repair, applied = _plan(changed, replace(observed, children=children))

    assert isinstance(repair, Repair)
    assert repair.drifts == (Drift("spec.template.spec.hostNetwork", "hand"),)
    assert repair.patch is not None
    assert repair.patch["spec"]["template"]["spec"]["hostNetwork"] is None
    assert isinstance(applied, Apply)
    assert isinstance(record, Create)


def test_a_refused_spec_leaves_the_last_accepted_one_in_care() -> None:
    """A deleted Service comes back as the group was built, whatever else is asked for meanwhile."""
    kept, asked = bootstrapped({"image": "dledger:2"}), bootstrapped({"replicas": 2})
    observed = converged(kept)
    children = {ref: one for ref, one in observed.children.items() if ref != ("Service", "orders")}
    facts = facts_of(asked, replace(observed, children=children), accepted=kept)

    assert facts.problems
    actions = plan(facts, desired(facts.group, PLATFORM), fresh_id=FRESH_ID)

    assert [ref_of(one.manifest) for one in actions if isinstance(one, Repair)] == [
        ("Service", "orders")
    ]
    assert len(actions) == 1  # the record stays what it is


def test_a_refused_spec_still_pauses() -> None:
    """Whoever pauses a group means it, even with a mistake beside it."""
    facts = facts_of(
        bootstrapped({"replicas": 2, "paused": True}), Observed(), accepted=bootstrapped()
    )

    assert plan(facts, desired(facts.group, PLATFORM), fresh_id=FRESH_ID) == ()


def test_only_the_newest_accepted_spec_is_kept() -> None:
    """It is recorded before anything follows from it, and then the older record goes."""
    before, now = bootstrapped(), bootstrapped({"image": "dledger:2"})
    old = accepted_revision(before, image="dledger:test") | {
        "metadata": {"name": "old", "uid": "uid-2"}
    }
    observed = converged(now)
    children = {**observed.children, ("ControllerRevision", "old"): old}

    assert _plan(now, replace(observed, children=children)) == (Forget("old", "uid-2"),)
    assert accepted_spec(children.values()) in (before.raw_spec, now.raw_spec)


def test_a_deleted_child_of_a_running_group_is_made_again_and_told() -> None:
    """While it is founded they are merely not there yet."""
    observed = converged(bootstrapped())
    children = {ref: one for ref, one in observed.children.items() if ref[0] != "NetworkPolicy"}

    actions = _plan(bootstrapped(), replace(observed, children=children))

    assert _kinds(actions) == ["Repair", "Repair"]


def test_founding_waits_for_every_replica() -> None:
    """Two empty disks say nothing about the third."""
    observed = converged(group(), nodes=unjoined(0, 1), pods=pods(0, 1, 2, leader=None))

    assert _plan(group(), observed) == ()


def test_the_id_is_recorded_before_anything_is_founded() -> None:
    """So that an interruption finds the same id again."""
    observed = converged(group(), nodes=unjoined(0, 1, 2), pods=pods(0, 1, 2, leader=None))

    assert _plan(group(), observed) == (RecordGroupId(FRESH_ID, adopted=False),)


def test_a_recorded_id_and_empty_disks_are_founded_on_the_first_replica() -> None:
    """Every member is named with its id and the address that outlives its pod."""
    of = group(groupId=GROUP_ID)
    observed = converged(of, nodes=unjoined(0, 1, 2), pods=pods(0, 1, 2, leader=None))

    actions = _plan(of, observed)

    assert actions == (
        Bootstrap(
            pod="orders-0",
            group_id=GROUP_ID,
            members=tuple(
                (f"id-{n}", f"orders-{n}", f"orders-{n}.orders-nodes.shop.svc:20911")
                for n in range(3)
            ),
        ),
    )


def test_an_interrupted_founding_is_left_to_the_leader() -> None:
    """The first node has the id, the others do not yet: it brings them in by itself."""
    of = group(groupId=GROUP_ID)
    nodes = {**joined(0, leader=None, members=()), **unjoined(1, 2)}
    observed = converged(of, nodes=nodes, pods=pods(0, 1, 2, leader=None))

    assert _plan(of, observed) == (LabelRole("orders-0", "follower"),)


def test_a_founded_group_whose_disks_are_all_empty_is_never_founded_again() -> None:
    """A leader was seen once: founding again would hide the loss."""
    observed = converged(bootstrapped(), nodes=unjoined(0, 1, 2), pods=pods(0, 1, 2, leader=None))

    assert _plan(bootstrapped(), observed) == ()


def test_volumes_that_agree_are_adopted() -> None:
    """The status was lost with the deleted object; the id comes from the disks."""
    observed = converged(group())

    assert _plan(group(), observed) == (RecordGroupId(GROUP_ID, adopted=True),)


def test_a_majority_that_agrees_is_adopted_while_a_node_is_down() -> None:
    """Recording an id destroys nothing, and the group is useful without the third."""
    observed = converged(group(), nodes=joined(0, 1), pods=pods(0, 1))

    assert RecordGroupId(GROUP_ID, adopted=True) in _plan(group(), observed)


def test_one_volume_of_three_is_not_enough_to_adopt() -> None:
    """The two that do not answer may carry another id."""
    observed = converged(group(), nodes=joined(2, leader=None), pods=pods(2, leader=None))

    assert _kinds(_plan(group(), observed)) == ["LabelRole"]


def test_one_carried_id_and_empty_disks_are_adopted_not_founded() -> None:
    """BootstrapState was interrupted and the status lost: the disk's id is the group's."""
    nodes = {**joined(0, leader=None, members=()), **unjoined(1, 2)}
    observed = converged(group(), nodes=nodes, pods=pods(0, 1, 2, leader=None))

    assert RecordGroupId(GROUP_ID, adopted=True) in _plan(group(), observed)
    assert "Bootstrap" not in _kinds(_plan(group(), observed))


@pytest.mark.parametrize("of", [group(), group(groupId=GROUP_ID), bootstrapped()])
def test_volumes_that_disagree_are_left_alone(of: BrokerGroup) -> None:
    """Neither adopted nor founded, whatever is recorded."""
    nodes = {**joined(0, 1), **joined(2, leader=None, group_id="another")}
    observed = converged(of, nodes=nodes)

    assert _plan(of, observed) == ()


def test_volumes_with_another_id_than_the_recorded_one_are_left_alone() -> None:
    """They agree with each other, not with the status."""
    of = bootstrapped(groupId="recorded")

    assert _plan(of, converged(of)) == ()


def test_copied_disks_are_left_alone() -> None:
    """Two replicas with one node id would count as two votes."""
    of = group(groupId=GROUP_ID)
    nodes = {**unjoined(0, 1), "orders-2": node("id-1")}
    observed = converged(of, nodes=nodes, pods=pods(0, 1, 2, leader=None))

    assert _plan(of, observed) == ()


def test_a_new_leader_is_labelled_before_the_old_one() -> None:
    """The leader's Service is never empty longer than it must be."""
    observed = converged(bootstrapped(), nodes=joined(0, 1, 2, leader=2))

    assert _plan(bootstrapped(), observed) == (
        LabelRole("orders-2", "leader"),
        LabelRole("orders-0", "follower"),
    )


def test_a_dead_leaders_label_goes_when_another_leads() -> None:
    """Its pod may linger on a lost machine."""
    observed = converged(bootstrapped(), nodes=joined(1, 2, leader=1))

    assert _plan(bootstrapped(), observed) == (
        LabelRole("orders-1", "leader"),
        LabelRole("orders-0", ""),
    )


def test_labels_stay_while_nobody_leads() -> None:
    """An election is under way: nothing better is known."""
    observed = converged(bootstrapped(), nodes={})

    assert _plan(bootstrapped(), observed) == ()


def test_topics_of_the_spec_are_created_once_there_is_a_leader() -> None:
    """Those that exist are not touched."""
    missing = {"name": "b", "queues": 4, "type": "PRIORITY"}
    of = bootstrapped({"topics": [{"name": "a"}, missing]})

    assert _plan(of, converged(of, topics={"a": TopicSeen("NORMAL", 8)})) == (
        CreateTopic(Topic(name="b", queues=4, type="PRIORITY")),
    )
    assert _plan(of, converged(of, topics={}, nodes=joined(0, 1, 2, leader=None))) != ()
    assert _plan(of, converged(of, topics=None)) == ()


def test_a_topic_with_too_few_queues_is_grown_by_what_the_nodes_say_now() -> None:
    """One that has more is left alone: SpecValid says so."""
    of = bootstrapped({"topics": [{"name": "a", "queues": 16}, {"name": "b"}]})

    def planned(a: int) -> tuple[Action, ...]:
        seen = {"a": TopicSeen("NORMAL", a), "b": TopicSeen("NORMAL", 8)}
        return _plan(of, converged(of, topics=seen))

    assert planned(8) == (GrowTopic("a", 16),)
    assert planned(16) == planned(32) == ()


@pytest.mark.parametrize(
    ("asked", "seen", "planned"),
    [
        (2160, None, (RetainTopic("a", 2160),)),
        (2160, 0, (RetainTopic("a", 2160),)),
        (0, 2160, (RetainTopic("a", 0),)),
        (0, 0, ()),
        (None, 2160, ()),
        (None, None, ()),
    ],
)
def test_a_topic_gets_the_retention_that_the_spec_says(
    asked: int | None, seen: int | None, planned: tuple[Action, ...]
) -> None:
    """A spec that says nothing of it changes nothing: what was kept would go."""
    retention = {} if asked is None else {"retention": {"hours": asked}}
    of = bootstrapped({"topics": [{"name": "a", **retention}]})

    assert _plan(of, converged(of, topics={"a": TopicSeen("NORMAL", 8, seen)})) == planned


@pytest.mark.parametrize(
    ("deletion", "recorded", "there", "why"),
    [
        ("Delete", ["a", "b", "c"], "abc", "b"),
        ("Delete", ["a", "c"], "abc", "c"),
        ("Delete", ["a"], "abc", ""),
        ("Delete", ["a", "b"], "a", ""),
        ("Retain", ["a", "b", "c"], "abc", ""),
    ],
)
def test_a_topic_that_is_taken_off_the_spec_is_deleted_if_that_was_the_specs(
    deletion: str, recorded: list[str], there: str, why: str
) -> None:
    """One at a time, by two rounds; what others made, and what was let go before, stays."""
    of = bootstrapped({"topics": [{"name": "a"}], "topicDeletion": deletion}, topics=recorded)
    observed = converged(of, topics={name: TopicSeen("NORMAL", 8) for name in there})

    expected = (LookAgain(DeleteTopic(why)),) if why else ()
    assert _plan(of, observed) == expected
    told = {row["type"]: row["message"] for row in conditions(facts_of(of, observed), now=NOW)}
    assert ("to be deleted: " in told["Progressing"]) == bool(why)


def test_a_deletion_waits_for_a_leader_and_for_what_keeps_the_group() -> None:
    """And one that was refused lately is not asked for at once."""
    of = bootstrapped({"topicDeletion": "Delete"}, topics=["a"])
    seen = {"a": TopicSeen("NORMAL", 8)}

    refused = converged(of, topics=seen, refusals={("Topic", "a"): "no"})
    leaderless = converged(of, topics=seen, nodes=joined(0, 1, 2, leader=None))
    for observed in (refused, leaderless):
        asked = [one.action for one in _plan(of, observed) if isinstance(one, LookAgain)]
        assert DeleteTopic("a") not in asked


def test_topics_are_recorded_while_they_are_the_specs_and_exist() -> None:
    """What was not seen is not forgotten; what was let go under Retain is."""
    spec = {"topics": [{"name": "a"}, {"name": "new"}], "topicDeletion": "Delete"}
    of = bootstrapped(spec, topics=["a", "b", "gone"])
    seen = {name: TopicSeen("NORMAL", 8) for name in ("a", "b", "others")}

    assert recorded_topics(of, seen) == ("a", "b")
    assert recorded_topics(of, None) == ("a", "b", "gone")
    kept = bootstrapped({**spec, "topicDeletion": "Retain"}, topics=["a", "b", "gone"])
    assert recorded_topics(kept, seen) == ("a",)


@pytest.mark.parametrize("topics", [{}, {"a": TopicSeen("NORMAL", 4)}])
def test_a_refused_topic_is_not_asked_for_again_at_once(topics: dict[str, TopicSeen]) -> None:
    """The refusal stands until the shell forgets it."""
    of = bootstrapped({"topics": [{"name": "a"}]})
    observed = converged(of, topics=topics, refusals={("Topic", "a"): "no"})

    assert _plan(of, observed) == ()


@pytest.mark.parametrize(
    "observed",
    [
        Observed(),
        Observed(nodes=unjoined(0, 1, 2)),
        converged(bootstrapped(), nodes=joined(0, 1, 2, leader=1)),
    ],
)
def test_a_paused_group_is_never_touched(observed: Observed) -> None:
    """Not even labels."""
    assert _plan(group({"paused": True}), observed) == ()


INVALID: list[dict[str, Any]] = [
    {"tls": {"enabled": True}},
    {"replicas": 11},
    {"storage": {"size": "5Gi"}},
    {"replicas": 2},
]


@pytest.mark.parametrize("spec", INVALID)
def test_an_invalid_spec_leaves_a_running_group_as_it_is(spec: dict[str, Any]) -> None:
    """Only the labels go on following the leader."""
    observed = converged(bootstrapped(), nodes=joined(0, 1, 2, leader=1))

    assert _kinds(_plan(bootstrapped(spec), observed)) == ["LabelRole", "LabelRole"]


def test_an_invalid_spec_creates_nothing() -> None:
    """No partial action."""
    assert _plan(group({"tls": {"enabled": True}}), Observed()) == ()


def test_reapplying_over_kept_volumes_builds_and_adopts() -> None:
    """Delete and re-apply: first the children again, then the id from the disks."""
    kept, of = Observed(volumes=volumes(0, 1, 2)), group(groupId=FRESH_ID)

    assert _kinds(_plan(of, kept)) == ["Apply"] * len(names.children("orders", 3))


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"cpu": "1"}, {"cpu": "1000m"}, True),
        ({"size": "10Gi"}, {"size": "11Gi"}, False),
        ({}, {"a": ""}, True),
        ({}, {"a": {}}, False),
        (None, {"a": 1}, False),
        ("x", ["x"], False),
    ],
)
def test_a_child_is_right_when_it_includes_what_is_wanted(
    present: object, wanted: object, expected: bool
) -> None:
    """The API server adds defaults and rewrites quantities; nothing else may differ."""
    assert includes(present, wanted) is expected


@pytest.mark.parametrize(
    ("held", "nodes", "changes"),
    [
        ("no majority", {"orders-1": "empty", "orders-2": "empty"}, {}),
        ("not in sync: orders-1", {"orders-2": "empty"}, {"lag": 5000}),
        ("started for group other", {"orders-2": "foreign"}, {}),
        ("restored from a backup", {"orders-2": "restored"}, {}),
    ],
    ids=["two-of-three", "no-margin", "another-group", "restored"],
)
def test_why_a_member_is_not_replaced_now(
    held: str, nodes: dict[str, str], changes: dict[str, Any]
) -> None:
    """It is left alone, and the message says what to see to."""
    said = {
        "empty": node("new", told_group_id=GROUP_ID),
        "foreign": node("new", told_group_id="other"),
        "restored": node("new", told_group_id=GROUP_ID, recovered_to=7),
    }
    seen = joined(0, 1, 2)
    rows = list(seen["orders-0"].members)
    rows[1] = replace(rows[1], **changes)
    rows[2] = replace(rows[2], connected=False)
    seen["orders-0"] = replace(seen["orders-0"], members=tuple(rows))
    seen |= {name: replace(said[what], node_id=f"new-{name}") for name, what in nodes.items()}
    of, observed = bootstrapped(), converged(bootstrapped(), nodes=seen)

    found = replacement(facts_of(of, observed))

    assert isinstance(found, Held)
    assert held in found.why
    assert not [one for one in _plan(of, observed) if isinstance(one, LookAgain)]


def test_a_majority_of_the_voters_is_enough_whatever_the_learners_do() -> None:
    """Two of three voters follow; two learners, whose disks are lost, are no reason to wait."""
    seen = joined(0, 1, 2)
    rows = (
        *seen["orders-0"].members,
        member("id-3", "orders-3", voter=False, connected=False),
        member("id-4", "orders-4", voter=False, connected=False),
    )
    nodes = {name: replace(one, members=rows) for name, one in seen.items()}
    nodes["orders-2"] = node("new", told_group_id=GROUP_ID)

    facts = facts_of(bootstrapped(), converged(bootstrapped(), nodes=nodes))

    assert facts.leader == "orders-0"
    assert facts.voters == 3


@pytest.mark.parametrize("following", [{0, 1}, {0}])
def test_half_of_the_voters_are_no_majority(following: set[int]) -> None:
    """Nor do learners make up for the other half."""
    rows = tuple(
        member(f"id-{n}", f"orders-{n}", voter=n < 4, connected=True, lag=0) for n in range(6)
    )
    nodes = {
        f"orders-{n}": node(
            f"id-{n}",
            group_id=GROUP_ID,
            term=3,
            role="leader" if n == 0 else "follower",
            leader_id="id-0" if n > 3 or n in following else "",
            members=rows,
        )
        for n in range(6)
    }

    assert facts_of(bootstrapped(), converged(bootstrapped(), nodes=nodes)).leader == ""
