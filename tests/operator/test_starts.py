"""Pods that do not start: what is read of them, told, healed, and looked for before a restart."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.reasons import Reason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.actions import Apply
from dledger_operator.decisions.disruptions import Held, RestartPod
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.losses import lost_disk
from dledger_operator.decisions.operations import ordinary
from dledger_operator.decisions.plan import plan
from dledger_operator.decisions.rollout import BROKEN, healing, rollout
from dledger_operator.decisions.starts import find_stalled, is_starting
from dledger_operator.decisions.turns import Stage, stage
from dledger_operator.observed.observed import Observed, Pod, Ref
from dledger_operator.observed.parsers import parse_pod
from dledger_operator.observed.starts import refused_pod, start_failures
from dledger_operator.resources import desired
from dledger_operator.resources.mounts import list_mounts
from dledger_operator.status.conditions import conditions
from tests.operator.samples import (
    FRESH_ID,
    PLATFORM,
    bootstrapped,
    converged,
    group,
    members,
    volumes,
)

NOW: Final = "2031-05-06T07:08:09Z"
LATE: Final = "2031-05-06T07:07:30Z"
"""Longer before NOW than a start takes."""
RECENT: Final = "2031-05-06T07:07:50Z"
TLS: Final[dict[str, Any]] = {"tls": {"enabled": True, "secretName": "pay-tsl"}}
SECRET: Final[Ref] = ("Secret", "pay-tsl")
GONE: Final = {SECRET: "does not exist"}
MAKE_IT: Final = (
    "Secret pay-tsl does not exist, and spec.tls.secretName names it: make it, or name another"
)
MOUNT: Final = 'MountVolume.SetUp failed for volume "client-tls" : secret "pay-tsl" not found'
WAITING: Final = (
    *("CrashLoopBackOff", "RunContainerError", "KillContainerError", "CreatePodSandboxError"),
    *("ConfigPodSandboxError", "KillPodSandboxError", "ResizePodInPlaceError"),
    *("ImagePullBackOff", "ImageInspectError", "ErrImagePull", "ErrImageNeverPull"),
    *("InvalidImageName", "CreateContainerConfigError", "PreCreateHookError"),
    *("CreateContainerError", "PreStartHookError", "PostStartHookError"),
    *("RegistryUnavailable", "SignatureValidationFailed", "RROUnsupported"),
    *("ImageVolumeMountFailed", "ContainerCreating", "PodInitializing"),
)
"""All that Kubernetes 1.34 says of a container that waits: each `errors.New` of one word in
pkg/kubelet (container, images, kuberuntime) and in cri-api, and the two that all begin with."""


def _status(reason: str, **more: Any) -> dict[str, Any]:
    waits = {"reason": reason, "message": f"the words of {reason}"}
    return {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": LATE},
            {"type": "Ready", "status": "False"},
        ],
        "containerStatuses": [{"state": {"waiting": waits}, **more}],
    }


def _pod(status: dict[str, Any], name: str = "orders-2") -> Pod:
    metadata = {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": LATE}
    return parse_pod({"metadata": metadata, "status": status})


def _seen(of: BrokerGroup, **changes: Any) -> Observed:
    return converged(of, **changes)


def _with(observed: Observed, *pods: Pod) -> Observed:
    """Return the same with these pods, whose nodes answer nobody."""
    names = {pod.name for pod in pods}
    rows = tuple(replace(row, connected=row.member.name not in names) for row in members(0, 1, 2))
    nodes = {k: replace(v, members=rows) for k, v in observed.nodes.items() if k not in names}
    return replace(observed, pods={**observed.pods, **{p.name: p for p in pods}}, nodes=nodes)


def _facts(of: BrokerGroup, observed: Observed) -> Facts:
    return facts_of(of, observed, now=NOW)


def _row(facts: Facts, kind: str) -> dict[str, Any]:
    return next(row for row in conditions(facts, now=NOW) if row["type"] == kind)


# --- what is read of a pod ------------------------------------------------------------------------


@pytest.mark.parametrize("reason", WAITING)
def test_every_waiting_reason_of_kubernetes_is_told_by_name(reason: str) -> None:
    """In Ready and in Degraded, of a group that runs and of one that was never founded."""
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": LATE}}
    more = {"lastState": ended} if reason == "CrashLoopBackOff" else {}
    pod = replace(_pod(_status(reason, **more)), spec_hash="")
    events = {"orders-2": f"FailedMount: {MOUNT}"} if not pod.stopped else {}
    for of in (bootstrapped(), group()):
        facts = _facts(of, replace(_with(_seen(of), pod), unstarted=events))

        ready, degraded = _row(facts, "Ready"), _row(facts, "Degraded")

        said = MOUNT if events else reason
        assert ready["status"] == "False"
        assert (degraded["status"], degraded["reason"]) == ("True", Reason.POD_CANNOT_START)
        for row in (ready, degraded):
            assert "orders-2 (" in row["message"]
            assert said in row["message"]


def test_a_pod_has_its_time_to_start_before_anything_is_told() -> None:
    """And an image that is pulled has five minutes, as long as nobody says anything."""
    fresh = replace(_pod(_status("ContainerCreating")), idle_since=RECENT)
    pulling = replace(fresh, idle_since=LATE)
    silent = replace(fresh, idle_since="2031-05-06T07:03:00Z")
    of = group()
    told = [_row(_facts(of, _with(_seen(of), pod)), "Degraded") for pod in (fresh, pulling, silent)]

    assert [row["status"] for row in told] == ["False", "False", "True"]
    assert told[2]["message"] == "orders-2 (does not run since 2031-05-06T07:03:00Z)"
    ready = _row(_facts(of, _with(_seen(of), pulling)), "Ready")
    assert ready["message"] == f"not ready: orders-2 (does not run since {LATE})"


def test_what_was_told_ends_with_its_cause() -> None:
    """A container that runs has nothing to wait for, whatever Events say that are still there."""
    of = bootstrapped()
    running = _pod({**_status("x"), "containerStatuses": [{"state": {"running": {}}}]})

    facts = _facts(of, replace(_with(_seen(of), running), unstarted={"orders-2": MOUNT}))

    assert facts.stalled == ()
    assert _row(facts, "Ready")["message"] == "not ready: orders-2"


@pytest.mark.parametrize(
    ("status", "since"),
    [
        ({}, LATE),
        ({"phase": "Running"}, ""),
        ({"phase": "Pending", "initContainerStatuses": [{"state": {"running": {}}}]}, LATE),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": RECENT}
                ]
            },
            RECENT,
        ),
        (_status("CrashLoopBackOff"), ""),
        (_status("PodInitializing"), LATE),
        (
            _status("ContainerCreating", lastState={"terminated": {"finishedAt": NOW}}),
            NOW,
        ),
        ({"containerStatuses": [{"state": {"running": {"startedAt": LATE}}}]}, ""),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, ""),
    ],
)
def test_since_when_nothing_of_a_pod_runs_is_read(status: dict[str, Any], since: str) -> None:
    """From when it was placed, or from its container's end; what runs before does not count."""
    assert _pod(status).idle_since == since


def test_words_of_a_container_that_runs_before_the_node_are_told() -> None:
    """Such as one that a webhook put there, with an image that is not to be had."""
    waits = {"reason": "ImagePullBackOff", "message": "proxy:7"}
    before = [
        {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
        {"state": {"waiting": waits}},
    ]

    pod = _pod({**_status("PodInitializing"), "initContainerStatuses": before})

    assert (pod.trouble, pod.stopped) == ("ImagePullBackOff: proxy:7", True)


@pytest.mark.parametrize(
    ("container", "ready", "loops"),
    [
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, "False", True),
        ({"state": {"running": {"startedAt": NOW}}, "lastState": {}}, "False", False),
        (
            {
                "state": {"running": {"startedAt": NOW}},
                "lastState": {"terminated": {"finishedAt": LATE}},
            },
            "False",
            True,
        ),
        (
            {
                "state": {"running": {"startedAt": NOW}},
                "lastState": {"terminated": {"finishedAt": LATE}},
            },
            "True",
            False,
        ),
        (
            {
                "state": {"running": {"startedAt": NOW}},
                "lastState": {"terminated": {"finishedAt": "2031-05-06T07:08:08Z"}},
            },
            "False",
            False,
        ),
    ],
)
def test_a_container_that_ends_again_and_again_is_known_while_it_runs(
    container: dict[str, Any], ready: str, loops: bool
) -> None:
    """The kubelet waits before it starts one that ended twice; what is told stays the same."""
    status = {"conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [container]}

    assert _pod(status).looping is loops


# --- what Events say ------------------------------------------------------------------------------


def _event(reason: str, message: str = "", at: str = NOW) -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": at}


NO_CAUSE: Final = "Unable to attach or mount volumes: unmounted volumes=[data]: timed out"
MULTI: Final = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod other'


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([_event("Scheduled"), _event("Unhealthy", "x"), _event("DNSConfigForming", "x")], ""),
        ([_event("FailedMount", MOUNT)], f"FailedMount: {MOUNT}"),
        ([_event("FailedMount", NO_CAUSE)], f"FailedMount: {NO_CAUSE}"),
        ([_event("FailedMount", NO_CAUSE), _event("FailedMount", MOUNT)], f"FailedMount: {MOUNT}"),
        (
            [_event("FailedAttachVolume", MULTI, LATE), _event("FailedMount", NO_CAUSE)],
            f"FailedAttachVolume: {MULTI}",
        ),
        ([_event("FailedAttachVolume", MULTI, LATE), _event("SuccessfulAttachVolume")], ""),
        (
            [_event("FailedAttachVolume", MULTI, LATE), _event("FailedMount", MOUNT)],
            f"FailedMount: {MOUNT}",
        ),
        ([_event("FailedMount", MOUNT, LATE), _event("Pulling")], ""),
        ([_event("Started", at=LATE), _event("FailedMount", MOUNT)], f"FailedMount: {MOUNT}"),
        (
            [_event("FailedMount", f"(combined from similar events): {MOUNT}")],
            f"FailedMount: {MOUNT}",
        ),
        (
            [_event("FailedMount", "b"), _event("FailedMount", "a")],
            "FailedMount: a; FailedMount: b",
        ),
        (
            [_event("FailedMount", "a"), _event("FailedMount", "b", "2031-05-06T07:04:00Z")],
            "FailedMount: a",
        ),
        (
            [_event("FailedMount", MOUNT, LATE), _event("FailedCreatePodSandBox", "no network")],
            "FailedCreatePodSandBox: no network",
        ),
        (
            [_event("NetworkNotReady", "cni\nconfig uninitialized")],
            "NetworkNotReady: cni config uninitialized",
        ),
        ([_event("FailedMapVolume", "x")], "FailedMapVolume: x"),
        ([_event("FailedPrepareDynamicResources", "x")], "FailedPrepareDynamicResources: x"),
        ([_event("FailedToRetrieveImagePullSecret", "x")], "FailedToRetrieveImagePullSecret: x"),
        ([{"reason": "FailedMount"}], "FailedMount: "),
        (
            [_event("FailedMount", "x", "yesterday"), _event("FailedMount", "x", "")],
            "FailedMount: x",
        ),
    ],
)
def test_events_say_what_a_pod_waits_for_now(events: list[dict[str, Any]], said: str) -> None:
    """What a later step of the start shows to be over is not told again."""
    assert start_failures(events) == said
    assert start_failures(reversed(events)) == said


def test_words_of_events_are_cut() -> None:
    """They end up in conditions."""
    assert len(start_failures([_event("FailedMount", "x" * 9999)])) == 300


QUOTA: Final = 'pods "first-backup-x" is forbidden: exceeded quota: q'


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], ""),
        ([_event("FailedCreate", f"Error creating: {QUOTA}")], QUOTA),
        (
            [
                _event("FailedCreate", f"Error creating: {QUOTA}", LATE),
                _event("SuccessfulCreate", "Created pod: x"),
            ],
            "",
        ),
        (
            [
                _event("SuccessfulCreate", "Created pod: x", LATE),
                _event("FailedCreate", f"(combined from similar events): Error creating: {QUOTA}"),
            ],
            QUOTA,
        ),
        ([_event("Suspended", "x")], ""),
    ],
)
def test_a_jobs_pod_was_refused_if_the_last_try_failed(
    events: list[dict[str, Any]], said: str
) -> None:
    """In Kubernetes' words."""
    assert refused_pod(events) == said


# --- healing --------------------------------------------------------------------------------------

NEW: Final = bootstrapped({"image": "dledger:2"})


def _older(*ordinals: int, idle_since: str = LATE) -> list[Pod]:
    made = (_pod(_status("ContainerCreating"), f"orders-{n}") for n in ordinals)
    return [replace(pod, spec_hash="before", idle_since=idle_since) for pod in made]


def test_a_pod_of_an_older_template_that_never_ran_is_broken() -> None:
    """With a leader, without one, and if no pod ever ran: no node answered from it."""
    expected = RestartPod(pod="orders-2", uid="uid-of-orders-2", reason=BROKEN, is_broken=True)
    led = _with(_seen(NEW), *_older(2))
    silent = replace(led, nodes={})
    nobody = _with(_seen(NEW), *_older(0, 1, 2))

    assert healing(_facts(NEW, led)) == expected
    assert healing(_facts(NEW, silent)) == expected
    first = healing(_facts(NEW, nobody))
    assert isinstance(first, RestartPod)
    assert (first.pod, first.is_broken) == ("orders-0", True)


def test_what_may_run_or_may_yet_start_is_not_broken() -> None:
    """By its age, its template, the leader's word, or its end."""
    answering = replace(_seen(NEW), pods={**_seen(NEW).pods, **{p.name: p for p in _older(2)}})
    for observed in (
        _with(_seen(NEW), *_older(2, idle_since=RECENT)),
        _with(_seen(NEW), replace(_older(2)[0], spec_hash="")),
        _with(_seen(NEW), replace(_older(2)[0], terminating=True)),
        answering,
    ):
        assert healing(_facts(NEW, observed)) is None


def test_a_rollout_halts_at_a_pod_that_waits_for_a_volume() -> None:
    """In the words of the Event; a pod that only starts does not halt it."""
    pods = [replace(p, spec_hash="") for p in _older(2)]
    rest = {n: replace(p, spec_hash="before") for n, p in _seen(NEW).pods.items() if n[-1] != "2"}
    observed = _with(_seen(NEW, pods=rest), *pods)
    told = replace(observed, unstarted={"orders-2": f"FailedMount: {MOUNT}"})

    assert _row(_facts(NEW, observed), "Progressing")["reason"] == Reason.ROLLING_OUT
    row = _row(_facts(NEW, told), "Progressing")
    assert row["reason"] == Reason.ROLLOUT_HALTED
    assert row["message"].endswith(f"orders-2 does not run: FailedMount: {MOUNT}")


def test_a_group_with_a_pod_that_starts_is_looked_at_until_it_is_late() -> None:
    """Only time changes what is told of it."""
    pods = {p.name: p for p in _older(2, idle_since=RECENT)}
    assert is_starting(pods, NOW)
    assert not is_starting(pods, "2031-05-06T07:13:00Z")
    assert not is_starting(_seen(NEW).pods, NOW)
    assert find_stalled(pods, NOW) == ()
    assert find_stalled(pods, "2031-05-06T07:08:20Z") == ("orders-2",)


# --- what pods mount ------------------------------------------------------------------------------


def test_what_a_pod_waits_for_is_read_from_its_template() -> None:
    """Volumes, projected ones and variables; not what is optional."""
    text = """{"spec": {
      "volumes": [
        {"name": "a", "secret": {"secretName": "s1"}},
        {"name": "b", "secret": {"secretName": "s2", "optional": true}},
        {"name": "c", "configMap": {"name": "c1"}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "p1"}},
        {"name": "e", "emptyDir": {}},
        {"name": "f", "projected": {"sources": [
          {"secret": {"name": "s3"}}, {"configMap": {"name": "c2", "optional": true}},
          {"downwardAPI": {}}]}}],
      "initContainers": [
        {"envFrom": [{"secretRef": {"name": "s4"}}, {"configMapRef": {"name": "c3"}}]}],
      "containers": [{"env": [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}},
        {"name": "B", "valueFrom":
          {"configMapKeyRef": {"name": "c4", "key": "k", "optional": true}}},
        {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "D", "value": "x"}]}]}}"""

    assert list_mounts(json.loads(text)) == (
        ("Secret", "s1"),
        ("ConfigMap", "c1"),
        ("PersistentVolumeClaim", "p1"),
        ("Secret", "s3"),
        ("Secret", "s4"),
        ("ConfigMap", "c3"),
    )


def _before(**changes: Any) -> Observed:
    """Return a group that runs without TLS, as it is seen once its spec asks for it."""
    return converged(bootstrapped(), **{"absent": GONE, **changes})


def test_nothing_is_rolled_out_while_a_secret_is_missing_and_the_condition_names_it() -> None:
    """Neither to pods nor to their StatefulSet: a pod that starts anew comes back as it was."""
    of = bootstrapped(TLS)
    facts = _facts(of, _before())

    made = plan(facts, desired(of, PLATFORM), fresh_id=FRESH_ID)

    applied = [each.manifest["kind"] for each in made if isinstance(each, Apply)]
    assert not {"StatefulSet", "ConfigMap"} & {*applied}
    found = rollout(facts)
    assert isinstance(found, Held)
    assert found.why == MAKE_IT
    progressing, degraded = _row(facts, "Progressing"), _row(facts, "Degraded")
    assert (progressing["status"], progressing["reason"]) == ("False", Reason.ROLLOUT_HALTED)
    assert progressing["message"].endswith(f"no other is restarted: {MAKE_IT}")
    assert (degraded["reason"], degraded["message"]) == (Reason.ROLLOUT_HALTED, MAKE_IT)
    assert stage(facts, NOW) is Stage.WAITS, "a typo in one group's spec halts no other group"

    there = plan(_facts(of, _before(absent={})), desired(of, PLATFORM), fresh_id=FRESH_ID)

    kinds = [each.manifest["kind"] for each in there if isinstance(each, Apply)]
    assert {"StatefulSet", "ConfigMap"} <= {*kinds}


def test_a_rollout_that_waits_for_what_the_operator_makes_is_not_halted() -> None:
    """On the way to TLS each group's Secret is made in the round that first misses it."""
    observed = _before(absent={("ConfigMap", "orders-config"): "does not exist"})
    older = {n: replace(p, spec_hash="before") for n, p in observed.pods.items()}
    facts = _facts(bootstrapped(), replace(observed, pods=older))

    row = _row(facts, "Progressing")

    assert (row["status"], row["reason"]) == ("True", Reason.ROLLING_OUT)
    said = "ConfigMap orders-config does not exist; the operator makes it again"
    assert row["message"].endswith(f"which waits: {said}")
    assert stage(facts, NOW) is Stage.WAITS, "nobody else waits for it"


def test_a_secret_that_a_healthy_group_has_lost_is_told_and_holds_every_restart() -> None:
    """The next pod that starts anew would wait for it."""
    of = bootstrapped(TLS)
    observed = converged(of, absent=GONE)
    older = replace(
        observed, pods={n: replace(p, spec_hash="before") for n, p in observed.pods.items()}
    )

    assert _row(_facts(of, observed), "Degraded")["reason"] == Reason.MOUNT_MISSING
    assert _row(_facts(of, observed), "Degraded")["message"] == MAKE_IT
    found = rollout(_facts(of, older))
    assert isinstance(found, Held)
    assert found.why == MAKE_IT
    broken = _with(older, *_older(2))
    assert healing(_facts(of, broken)) is None
    lost = replace(_with(observed, *_older(2)), lost={"data-orders-2": "gone"})
    held = lost_disk(_facts(of, lost))
    assert isinstance(held, Held)
    assert held.why == MAKE_IT


def test_what_the_operator_makes_itself_holds_restarts_and_is_no_fault_of_a_spec() -> None:
    """It is made again within moments; until then no pod could mount it."""
    of = bootstrapped()
    absent = {("ConfigMap", "orders-config"): "does not exist"}
    observed = replace(
        converged(of, absent=absent),
        pods={n: replace(p, spec_hash="before") for n, p in converged(of).pods.items()},
    )

    found = rollout(_facts(of, observed))

    assert isinstance(found, Held)
    assert found.why == "ConfigMap orders-config does not exist; the operator makes it again"
    assert _row(_facts(of, converged(of, absent=absent)), "Degraded")["status"] == "False"


def test_a_pod_without_its_claim_is_not_restarted() -> None:
    """It would come back with an empty disk, since its StatefulSet makes claims anew."""
    of = NEW
    older = {n: replace(p, spec_hash="before") for n, p in _seen(of).pods.items()}
    going = {**volumes(0, 1, 2)}
    going["data-orders-2"] = replace(going["data-orders-2"], terminating=True)
    for seen, words in (
        (volumes(0, 1), "data-orders-2 does not exist"),
        (going, "data-orders-2 is being deleted"),
    ):
        found = rollout(_facts(of, _seen(of, pods=older, volumes=seen)))

        assert isinstance(found, Held)
        assert words in found.why
        assert "ReplaceMember" in found.why
    unlabelled = _seen(of, pods=older, volumes=volumes(0, 1), foreign={"data-orders-2": "x"})
    assert isinstance(rollout(_facts(of, unlabelled)), RestartPod)


def test_an_operation_restarts_nothing_either() -> None:
    """Whoever asks for it."""
    of = bootstrapped(TLS)
    claim = {**volumes(0, 1, 2)}["data-orders-1"]
    disks = volumes(0, 1, 2) | {"data-orders-1": replace(claim, uid="u")}
    member = {"pod": "orders-1", "nodeId": "id-1", "claim": "data-orders-1", "claimUid": "u"}
    for kind, recorded in (
        ("Restart", {"pods": [{"name": "orders-2", "uid": "pod-2"}]}),
        ("ReplaceMember", {"member": {**member, "volume": "v"}}),
    ):
        running = BrokerOperation.parse(
            {
                "metadata": {"namespace": "shop", "name": "one", "uid": "one"},
                "spec": {"group": "orders", "kind": kind},
                "status": {"phase": "Running", **recorded},
            }
        )
        seen = converged(of, operations=(running,), volumes=disks)

        assert not isinstance(ordinary(_facts(of, seen)), Held), kind
        found = ordinary(_facts(of, replace(seen, absent=GONE)))
        assert isinstance(found, Held), kind
        assert found.why == MAKE_IT


def test_the_list_of_waiting_reasons_is_kubernetes_own() -> None:
    """Compared with the kubelet's sources where they are on this machine."""
    root = Path.home() / "go/pkg/mod/k8s.io"
    texts = [
        path.read_text()
        for pattern in (
            "kubernetes@v1.34*/pkg/kubelet/container/sync_result.go",
            "kubernetes@v1.34*/pkg/kubelet/images/types.go",
            "kubernetes@v1.34*/pkg/kubelet/kuberuntime/kuberuntime_container.go",
        )
        for path in root.glob(pattern)
    ]
    if not texts:
        pytest.skip("the sources of Kubernetes are not on this machine")
    found = {name for text in texts for name in re.findall(r'errors\.New\("([A-Z]\w+)"\)', text)}

    assert found <= set(WAITING)


@pytest.mark.parametrize(
    ("ready", "at", "state", "expected"),
    [
        ("True", "2031-05-06T07:00:20Z", {"running": {"startedAt": "2031-05-06T07:00:05Z"}}, True),
        ("False", "2031-05-06T07:09:00Z", {"running": {"startedAt": "2031-05-06T07:00:05Z"}}, True),
        (
            "False",
            "2031-05-06T07:00:01Z",
            {"running": {"startedAt": "2031-05-06T07:00:05Z"}},
            False,
        ),
        ("False", "2031-05-06T07:09:00Z", {"waiting": {"reason": "ContainerCreating"}}, False),
        ("False", "", {"running": {"startedAt": "2031-05-06T07:00:05Z"}}, False),
    ],
    ids=["it is", "it was", "it starts", "it waits", "nobody says"],
)
def test_whether_a_pod_has_been_ready_is_read_from_two_times(
    ready: str, at: str, state: dict[str, Any], expected: bool
) -> None:
    """When its container was started, and since when it is not ready."""
    row = {"type": "Ready", "status": ready, "lastTransitionTime": at}

    assert (
        _pod({"conditions": [row], "containerStatuses": [{"state": state}]}).was_ready is expected
    )
