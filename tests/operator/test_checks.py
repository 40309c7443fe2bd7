"""SpecValid: every field is acted on or answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dledger.broker.topics import SERVED
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup, Spec
from dledger_operator.decisions.checks import ACTED_ON, leaves, problems, verdict
from dledger_operator.observed.observed import CompactionSeen, Observed, TopicSeen
from tests.operator.backup_samples import ON_CLAIM, STORE
from tests.operator.samples import GROUP_ID, body, bootstrapped, converged, group, volumes

TIME = "2031-05-06T07:08:09Z"
NOT_YET: list[tuple[str, dict[str, Any]]] = [
    ("spec.storage.deletionPolicy", {"storage": {"deletionPolicy": "Delete"}}),
    ("spec.storage.autoGrow.enabled", {"storage": {"autoGrow": {"enabled": True}}}),
    ("spec.tls.enabled", {"tls": {"enabled": True}}),
    ("spec.tls.issuerRef.name", {"tls": {"issuerRef": {"name": "ca"}}}),
    ("spec.auth.enabled", {"auth": {"enabled": True}}),
    ("spec.expose.type", {"expose": {"type": "NodePort"}}),
    ("spec.monitoring.canary.intervalSeconds", {"monitoring": {"canary": {"intervalSeconds": 5}}}),
    ("spec.backup.store.url", {"backup": {"store": {"url": "gs://backups"}}}),
    ("spec.backup.verifySchedule", {"backup": {"verifySchedule": "0 3 * * *"}}),
    ("spec.planApproval", {"planApproval": "Manual"}),
    ("spec.fromTheFuture", {"fromTheFuture": 1}),
]


@pytest.mark.parametrize(("field", "spec"), NOT_YET)
def test_a_field_that_nothing_acts_on_is_named(field: str, spec: dict[str, Any]) -> None:
    """The answer is NotImplementedYet, with the field's path."""
    found = problems(group(spec), Observed())

    assert [problem.reason for problem in found] == [Reason.NOT_IMPLEMENTED_YET]
    assert field in found[0].message


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"monitoring": {"canary": {"enabled": False}}},
        {"topics": [{"name": "a", "queues": 4}]},
        {"topics": [{"name": "a", "compaction": {"enabled": True, "minLagHours": 2}}]},
        {"compaction": {"schedule": "0 3 * * *"}},
        {"backup": {"retention": {"keepDays": 7, "keepLast": 2}, "baseEveryHours": 6}},
        {"backup": {"retention": {"keepDays": 30}}, "spark": {"executors": {"cores": 1}}},
        {"backup": {"store": STORE, "schedule": "0 3 * * *"}},
        {"backup": {"store": {"url": "s3://bucket/path"}}},
        {"backup": {"store": ON_CLAIM}, "bootstrap": {"recovery": {"store": ON_CLAIM}}},
        {"backup": {"store": {**ON_CLAIM, "secretName": "key", "claimName": "data-orders-x"}}},
        {"spark": {"image": "mine:1", "executors": {"max": 9, "memory": "1Gi"}}},
        {"spark": {"localThreshold": "0"}},
        {"bootstrap": {"recovery": {"store": STORE, "groupId": "g", "target": {"index": 7}}}},
        {"bootstrap": {"recovery": {"store": STORE, "target": {"time": "2031-05-06T07:08:09Z"}}}},
        {"bootstrap": {"recovery": {"store": {}, "groupId": "", "target": {"index": None}}}},
    ],
)
def test_what_is_acted_on_and_what_is_at_its_default_is_valid(spec: dict[str, Any]) -> None:
    """The API server fills in defaults; they ask for nothing."""
    found = problems(group(spec), Observed())

    assert found == ()
    assert verdict(found).reason is Reason.ACCEPTED


def test_a_group_that_exists_goes_on_with_volumes_that_a_new_one_may_not_have() -> None:
    """An operator that is upgraded does not stop reconciling it (P8); a condition says so."""
    small = {"storage": {"size": "32Mi"}}

    assert problems(bootstrapped(small), Observed()) == ()
    assert [each.reason for each in problems(group(small), Observed())] == [Reason.INVALID_SPEC]


def test_every_leaf_is_acted_on_or_compared() -> None:
    """A path in ACTED_ON that is no field would hide one that is."""
    assert {path for path, _ in leaves(Spec())} >= ACTED_ON


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": 2}, "must be odd"),
        ({"replicas": 11}, "from 1 to 9"),
        ({"podLabels": {"dledger.io/role": "leader"}}, "spec.podLabels[dledger.io/role]: keys of"),
        ({"podAnnotations": {"dledger.io/a": ""}}, "spec.podAnnotations[dledger.io/a]: keys of"),
        ({"storage": {"size": "ten"}}, "is not a quantity"),
        ({"storage": {"size": "0"}}, "above zero"),
        ({"storage": {"size": "63Mi"}}, "spec.storage.size=63Mi is less than 64Mi"),
        ({"backup": {"schedule": "0 3 * * *"}}, "needs spec.backup.store.url"),
        (
            {"backup": {"store": STORE, "schedule": "often"}},
            "spec.backup.schedule: 'often' has 1 fields",
        ),
        ({"backup": {"baseEveryHours": 0}}, "spec.backup.baseEveryHours must be at least 1"),
        ({"backup": {"retention": {"keepDays": 0}}}, "keepDays must be at least 1"),
        ({"backup": {"retention": {"keepLast": -1}}}, "keepLast at least 0"),
        ({"backup": {"store": {"url": "bucket/path"}}}, "must be a URL such as s3://bucket/path"),
        ({"backup": {"store": {"url": "s3://"}}}, "must be a URL such as s3://bucket/path"),
        ({"backup": {"store": {"secretName": "s3"}}}, "spec.backup.store.url is required"),
        ({"backup": {"store": {"claimName": "c"}}}, "spec.backup.store.url is required"),
        (
            {"backup": {"store": {"url": "file:///backups"}}},
            "file:///backups needs spec.backup.store.claimName",
        ),
        (
            {"backup": {"store": {**STORE, "claimName": "c"}}},
            "spec.backup.store.claimName is for file:// alone",
        ),
        (
            {"backup": {"store": {**ON_CLAIM, "endpoint": "https://s3.example"}}},
            "spec.backup.store.endpoint is for s3:// alone",
        ),
        (
            {"backup": {"store": {**ON_CLAIM, "url": "file:///opt/dledger"}}},
            "must be below /backups, /mnt, /srv or /var/backups",
        ),
        (
            {"bootstrap": {"recovery": {"store": {**ON_CLAIM, "claimName": "data-orders-2"}}}},
            "data-orders-2 is the volume of a node",
        ),
        (
            {"backup": {"store": {**ON_CLAIM, "claimName": "A/b"}}},
            "must be the name of a PersistentVolumeClaim",
        ),
        ({"spark": {"executors": {"memory": "1Ki"}}}, "executors.memory must be at least 1Gi"),
        ({"spark": {"executors": {"memory": "much"}}}, "spec.spark.executors.memory"),
        ({"spark": {"executors": {"max": 0}}}, "must be at least 1"),
        ({"spark": {"localThreshold": "-1"}}, "spec.spark.localThreshold must be at least 0"),
        ({"bootstrap": {"recovery": {"groupId": "g"}}}, "needs spec.bootstrap.recovery.store.url"),
        (
            {"bootstrap": {"recovery": {"store": {"secretName": "s3"}}}},
            "spec.bootstrap.recovery.store.url is required",
        ),
        (
            {"bootstrap": {"recovery": {"store": STORE, "target": {"index": 1, "time": TIME}}}},
            "index or time, not both",
        ),
        ({"bootstrap": {"recovery": {"store": STORE, "target": {"index": -1}}}}, "above 0"),
        (
            {"bootstrap": {"recovery": {"store": STORE, "target": {"time": "noon"}}}},
            "must be a time such as",
        ),
        (
            {"bootstrap": {"recovery": {"store": STORE, "target": {"time": TIME[:-1]}}}},
            "must be a time such as",
        ),
    ],
)
def test_the_crds_rules_hold_again_here(spec: dict[str, Any], words: str) -> None:
    """An older CRD may have let such a spec through."""
    said = verdict(problems(group(spec), Observed()))

    assert said.reason is Reason.INVALID_SPEC
    assert words in said.message


def test_a_name_that_no_service_can_have_is_refused() -> None:
    """The Services are named after the group."""
    bad = replace(group(), name="1-orders")

    assert "metadata.name" in verdict(problems(bad, Observed())).message


@pytest.mark.parametrize("replicas", [1, 3, 5, 7, 9])
def test_a_founded_group_may_have_any_odd_size(replicas: int) -> None:
    """Up to what the CRD allows."""
    observed = converged(bootstrapped())

    assert problems(bootstrapped({"replicas": replicas}), observed) == ()


def test_a_group_does_not_shrink_before_it_is_founded() -> None:
    """Its first node may be about to found it with all that were asked for."""
    observed = converged(group(groupId=GROUP_ID), nodes={})

    said = verdict(problems(group({"replicas": 1}, groupId=GROUP_ID), observed))

    assert said.reason is Reason.INVALID_SPEC
    assert "set it back to 3 until it is" in said.message
    assert problems(group({"replicas": 5}, groupId=GROUP_ID), observed) == ()


def test_volumes_may_grow_and_not_shrink() -> None:
    """Compared with what they have, so that what is said to set back can be set back."""
    observed = converged(bootstrapped())

    said = verdict(problems(bootstrapped({"storage": {"size": "5Gi"}}), observed))

    assert said.reason is Reason.INVALID_SPEC
    assert "set it back to 10Gi, which StatefulSet orders has" in said.message
    assert problems(bootstrapped({"storage": {"size": "20Gi"}}), observed) == ()


def test_claims_that_an_earlier_group_left_cannot_shrink() -> None:
    """The CRD cannot know of them: the object is new, the volumes are not."""
    observed = Observed(volumes=volumes(0, 1, 2, size="20Gi"))

    said = verdict(problems(group(), observed))

    assert said.reason is Reason.INVALID_SPEC
    assert "set it back to 20Gi, which volume claim data-orders-0 has" in said.message


def test_what_a_group_is_founded_on_is_not_changed_but_created_again() -> None:
    """Bootstrap is immutable, so that no other advice could be followed."""
    recovery = {"bootstrap": {"recovery": {"store": {"url": "gs://backups"}}}}

    said = verdict(problems(group(recovery), Observed()))

    assert said.message.endswith(
        "only s3:// and file:// are reached from pods so far; bootstrap is immutable: delete the "
        "BrokerGroup and create it again"
    )


def test_claims_that_an_earlier_group_left_keep_their_class() -> None:
    """The class of a claim cannot change."""
    observed = Observed(volumes=volumes(0))

    said = verdict(problems(group({"storage": {"storageClassName": "fast"}}), observed))

    assert said.message == (
        "spec.storage.storageClassName=fast: volume claim data-orders-0 has standard, and a volume "
        "cannot change its class; delete the BrokerGroup, which leaves its volumes, and create it "
        "again with standard"
    )


def test_a_wrong_type_is_invalid_and_named() -> None:
    """The CRD would not have let it through; an older one might."""
    unreadable = BrokerGroup.parse(body({"storage": {"autoGrow": {"enabled": "yes"}}}))

    said = verdict(problems(unreadable, Observed()))

    assert said.reason is Reason.INVALID_SPEC
    assert said.message.startswith("spec.storage.autoGrow.enabled: cannot be 'yes'")


def test_a_statefulset_that_was_scaled_by_hand_is_no_wish_to_scale() -> None:
    """The members are what counts, as recorded if none answers."""
    of = bootstrapped(members=[{"name": f"orders-{n}"} for n in range(3)])
    observed = converged(of, nodes={})
    observed.children["StatefulSet", "orders"]["spec"]["replicas"] = 1

    assert problems(of, observed) == ()


def test_an_operator_without_an_image_for_spark_says_so_only_where_one_is_needed() -> None:
    """A group without backups needs none."""
    with_store = BrokerGroup.parse(body({"backup": {"store": STORE}}))
    with_recovery = BrokerGroup.parse(body({"bootstrap": {"recovery": {"store": STORE}}}))

    for of in (with_store, with_recovery):
        assert "--spark-image" in verdict(problems(of, Observed())).message
    assert problems(BrokerGroup.parse(body()), Observed()) == ()


def test_a_topic_is_compared_with_what_there_is() -> None:
    """Not with an earlier wish, which can always be taken back."""
    of = bootstrapped({"topics": [{"name": "a", "queues": 4, "type": "NORMAL"}, {"name": "b"}]})

    def sentences(queues: int, kind: str = "NORMAL") -> list[str]:
        seen = {"a": TopicSeen(kind, queues)}
        found = problems(of, converged(of, topics=seen))
        assert {problem.reason for problem in found} <= {Reason.INVALID_SPEC}
        return [problem.message for problem in found]

    assert sentences(4) == sentences(2) == []
    (few,), (other,) = sentences(8), sentences(4, "FIFO")
    assert few.startswith("spec.topics[a].queues=4: the topic has 8 queues")
    assert few.endswith("; set it back to 8")
    assert other.startswith("spec.topics[a].type=NORMAL: the topic is FIFO")
    assert other.endswith("; set it back to FIFO")
    assert problems(of, converged(of, topics=None)) == ()


def test_a_fifo_topic_is_made_and_stays_as_it_was_made() -> None:
    """Its message groups lie in so many queues; and a key cannot choose the queue as well."""
    asked = {"name": "a", "queues": 4, "type": "FIFO"}
    of = bootstrapped({"topics": [asked]})

    def sentences(queues: int) -> list[str]:
        seen = {"a": TopicSeen("FIFO", queues)}
        return [each.message for each in problems(of, converged(of, topics=seen))]

    assert sentences(4) == []
    (more,), (fewer,) = sentences(2), sentences(8)
    assert more.startswith("spec.topics[a].queues=4: the topic is FIFO, and the queue of a message")
    assert fewer.startswith("spec.topics[a].queues=4: the topic has 8 queues")
    both = bootstrapped({"topics": [asked | {"compaction": {"enabled": True}}]})
    (refused,) = problems(both, converged(both, topics=None))
    assert "a FIFO topic is not compacted" in refused.message


@pytest.mark.parametrize("kind", sorted(SERVED - {"NORMAL"}))
def test_a_topic_of_each_served_type_is_made_and_keeps_its_type(kind: str) -> None:
    """Nodes serve the same ones; its type is chosen once, and none but NORMAL is compacted."""
    asked = {"name": "a", "queues": 4, "type": kind}
    of = bootstrapped({"topics": [asked]})

    assert problems(of, converged(of, topics={})) == ()
    assert problems(of, converged(of, topics={"a": TopicSeen(kind, 4)})) == ()
    (other,) = problems(of, converged(of, topics={"a": TopicSeen("NORMAL", 4)}))
    assert other.reason == Reason.INVALID_SPEC
    assert other.message.startswith(f"spec.topics[a].type={kind}: the topic is NORMAL")
    both = bootstrapped({"topics": [asked | {"compaction": {"enabled": True}}]})
    (refused,) = problems(both, converged(both, topics=None))
    assert f"a {kind} topic is not compacted" in refused.message


@pytest.mark.parametrize(
    ("hours", "is_refused"), [(1, True), (71, True), (72, False), (876_000, False), (0, False)]
)
def test_no_topic_is_kept_for_less_than_the_group_keeps_all(hours: int, is_refused: bool) -> None:
    """The log is one: its messages would only be hidden. Zero is for ever."""
    of = bootstrapped({"topics": [{"name": "a", "retention": {"hours": hours}}]})

    found = problems(of, converged(of))

    assert [problem.reason for problem in found] == [Reason.INVALID_SPEC] * is_refused
    for problem in found:
        assert problem.message.startswith(f"spec.topics[a].retention.hours={hours}: the group")


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"tls": {"enabled": True}}, Reason.NOT_IMPLEMENTED_YET, "spec.tls.secretName"),
        ({"tls": {"secretName": "web"}}, Reason.INVALID_SPEC, "needs spec.tls.enabled"),
        (
            {"tls": {"enabled": True, "secretName": "orders-ca"}},
            Reason.INVALID_SPEC,
            "is a Secret of the operator's own",
        ),
        ({"peerTls": {"caSecretName": "A/b"}}, Reason.INVALID_SPEC, "the name of a Secret"),
        (
            {"peerTls": {"caSecretName": "orders-peer-tls"}},
            Reason.INVALID_SPEC,
            "is a Secret of the operator's own",
        ),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(
    spec: dict[str, Any], reason: Reason, words: str
) -> None:
    """With what to set instead."""
    found = problems(replace(group(spec), has_peer_tls=True), Observed())

    assert [problem.reason for problem in found] == [reason]
    assert words in found[0].message


def test_an_authority_is_no_use_to_nodes_without_certificates() -> None:
    """An operator that gives none says so; one that does takes it."""
    of = group({"peerTls": {"caSecretName": "corporate"}})

    assert "--peer-tls" in problems(of, Observed())[0].message
    assert not problems(replace(of, has_peer_tls=True), Observed())


HOUR_MS = 3_600_000
AS_ASKED = CompactionSeen(HOUR_MS, 24 * HOUR_MS)


@pytest.mark.parametrize(
    ("topic", "seen", "said"),
    [
        ({"compaction": {"enabled": True}}, TopicSeen("NORMAL", 8, 0, AS_ASKED), ""),
        ({"compaction": {"enabled": True}}, TopicSeen("NORMAL", 8), "made without compaction"),
        ({}, TopicSeen("NORMAL", 8, 0, AS_ASKED), "made compacted with minLagHours 1"),
        (
            {"compaction": {"enabled": True, "tombstoneHours": 2}},
            TopicSeen("NORMAL", 8, 0, AS_ASKED),
            "not compacted with minLagHours 1 and tombstoneHours 2",
        ),
        (
            {"compaction": {"enabled": True}, "queues": 16},
            TopicSeen("NORMAL", 8, 0, AS_ASKED),
            "the queue of a key goes by their number, 8",
        ),
        ({"compaction": {"enabled": True}, "retention": {"hours": 0}}, None, "for ever; leave"),
        ({"compaction": {"minLagHours": 9000}}, None, "minLagHours must be from 0 to 8760"),
    ],
)
def test_how_a_topic_is_compacted_is_chosen_when_it_is_made(
    topic: dict[str, Any], seen: TopicSeen | None, said: str
) -> None:
    """One that exists is left as it is, and the sentence names it and the way out."""
    of = bootstrapped({"topics": [{"name": "a", **topic}]})
    found = problems(of, converged(of, topics={"a": seen} if seen else {}))

    assert [problem.reason for problem in found] == [Reason.INVALID_SPEC] * bool(said)
    assert all(said in one.message and "spec.topics[a]" in one.message for one in found)
