"""All that costs a group some safety, against a model with the facts of a kubelet.

A pod that is deleted ends after its drain, and its node answers meanwhile and is in sync; a new one
starts late, and is ready later than its node is in sync; one that is evicted is there for a moment,
and does not run; some answer nobody but the group. A user changes template and size, and asks for
operations; disks are lost; what Kubernetes shows may be a step of two seconds old.

At each act the model asks whether the voters that it relies on stand, and nobody else's word:
`decisions/gate.py` is what it holds to that. Without faults the group comes to rest as asked.

More runs: ``PLANNER_RUNS=20000 pytest tests/operator/test_gate_machine.py -k seldom``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dledger.common.status import NodeStatus
from dledger_operator.api import names
from dledger_operator.api.brokeroperation import BrokerOperation
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.decisions.actions import Action, LabelRole, LookAgain
from dledger_operator.decisions.disruptions import (
    AddMember,
    Disruption,
    Footing,
    RemoveMember,
    ReplaceClaim,
    ReplaceMember,
    RestartPod,
    RetirePods,
    TransferLeader,
)
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.operations import OperationObserved, outcome
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.observed import Observed, Pod, Volume, ref_of
from dledger_operator.resources import desired
from dledger_operator.resources.wish import wish
from dledger_operator.status.conditions import conditions
from dledger_operator.status.operation_status import operation_status
from tests.operator.answering import Answering
from tests.operator.samples import FRESH_ID, NOW, PLATFORM, bootstrapped

STEP_S: Final = 2.0
MOST: Final = 5
BAD: Final = 3
"""A template whose pods never come up."""
PENDING, STARTING, READY, EVICTED = "pending", "starting", "ready", "evicted"
SET: Final = ("StatefulSet", "orders")
OPERATIONS: Final[tuple[dict[str, Any], ...]] = (
    {"kind": "Restart", "restart": {"all": True}},
    *({"kind": "TransferLeader", "transferLeader": {"to": f"orders-{n}"}} for n in range(2)),
    *({"kind": "ReplaceMember", "replaceMember": {"member": f"orders-{n}"}} for n in range(2)),
)


@dataclass(frozen=True)
class Body:
    """A pod: which one of its name, and how far the kubelet is with it.

    *wait* steps are left of its phase, and *going* of its drain; 0 if it is not being deleted.
    """

    uid: str
    template: int
    phase: str = PENDING
    wait: int = 0
    going: int = 0

    @property
    def runs(self) -> bool:
        """Whether its node does, also while it drains."""
        return self.phase in (STARTING, READY)


@dataclass(frozen=True)
class Claim:
    """A pod's claim, the node id on its disk, whether that is in the group, and its mark."""

    uid: str
    node_id: str
    is_joined: bool = False
    mark: str = ""


@cache
def _group(replicas: int, template: int, paused: bool, reason: str) -> BrokerGroup:
    told = [{"type": "Progressing", "status": "True", "reason": reason}]
    spec = {"replicas": replicas, "image": f"dledger:{template}", "paused": paused}
    return bootstrapped(spec, conditions=told)


@cache
def _built(pods: int, template: int) -> Manifest:
    group = replace(_group(1, template, False, ""), kept_pods=pods)
    return next(one for one in desired(group, PLATFORM) if ref_of(one) == SET)


@cache
def _hash(template: int) -> str:
    return wish(_group(1, template, False, ""))


@cache
def _operation(at: int) -> BrokerOperation:
    metadata = {"namespace": "shop", "name": "one", "uid": "one", "creationTimestamp": NOW}
    spec = {"group": "orders", **OPERATIONS[at]}
    return BrokerOperation.parse({"metadata": metadata, "spec": spec})


def _ordinal(name: str) -> int:
    return names.ordinal("orders", name)


class Cared(Answering, RuleBasedStateMachine):
    """A group, its kubelets, its faults, its user, and the operator's rounds."""

    @initialize(
        replicas=st.sampled_from([3, 3, 5, 1]),
        drain=st.integers(1, 3),
        start=st.integers(0, 2),
        late=st.integers(0, 3),
    )
    def found(self, replicas: int, drain: int, start: int, late: int) -> None:
        """Begin with a group that is as it should be."""
        self.drain, self.start, self.late = drain, start, late
        self.spec = self.built = replicas
        self.wanted = self.applied = self.made = 0
        self.pods: dict[str, Body] = {}
        self.claims: dict[str, Claim] = {}
        self.members: dict[str, tuple[str, bool]] = {}
        self.removed: set[str] = set()
        self.lost: set[str] = set()
        self.cut_off: set[str] = set()
        self.silent: set[str] = set()
        self.roles: dict[str, str] = {}
        self.leader, self.term = "", 0
        self.paused, self.reason = False, "Complete"
        self.operation: BrokerOperation | None = None
        self.considered: Disruption | None = None
        self.ended: set[str] = set()
        self.deleted: set[str] = set()
        self.history: list[dict[str, Body]] = []
        self.answers: list[dict[str, NodeStatus]] = []
        self.listed_at = 0
        self._make_pods()
        for name, claim in self.claims.items():
            self.pods[name] = replace(self.pods[name], phase=READY)
            self.claims[name] = replace(claim, is_joined=True)
            self.members[claim.node_id] = name, True
        self._pass()

    # What happens to the group.

    @rule(at=st.integers(0, MOST - 1))
    def drain_pod(self, at: int) -> None:
        """Somebody has a pod deleted, as the drain of a machine does; its node still answers."""
        self._end(self._name(at))
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def evict(self, at: int) -> None:
        """A kubelet ends a pod, which is there for a moment and does not run."""
        name = self._name(at)
        self.pods[name] = replace(self.pods[name], phase=EVICTED)
        self._pass()

    @rule(at=st.integers(0, MOST - 1), what=st.sampled_from(["cut_off", "silent", "silent"]))
    def fault_or_no_more(self, at: int, what: str) -> None:
        """A node falls behind, or only the operator does not reach it."""
        faults: set[str] = getattr(self, what)
        faults ^= {self._name(at)}
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def lose_disk(self, at: int) -> None:
        """A machine is gone for good with its disk; or only the claim is deleted with its pod."""
        name = self._name(at)
        if at % 2:
            self.claims[name] = self._new_claim()
            self.pods[name] = Body(self._new("pod"), self.applied)
        else:
            self.lost.add(self.claims[name].uid)
            self.pods[name] = Body(self._new("pod"), self.applied)
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def elect_another(self, at: int) -> None:
        """The leader goes away."""
        others = [name for name in self._in_sync() if name != self.leader]
        if self.leader and others:
            self.leader, self.term = others[at % len(others)], self.term + 1
        self._pass()

    @rule(steps=st.integers(1, 4))
    def let_time_pass(self, steps: int) -> None:
        """Pods end and start, and learners catch up."""
        for _ in range(steps):
            self._promote()
            self._pass()

    @rule()
    def mend(self) -> None:
        """All nodes are reached; pods take the time they take."""
        self._mend()
        self._pass()

    # What its user does.

    @rule(template=st.sampled_from([0, 1, 2, BAD]))
    def ask_for_template(self, template: int) -> None:
        """A user changes the spec."""
        self.wanted = self.applied = template
        self._pass()

    @rule(replicas=st.sampled_from([1, 3, 5]))
    def ask_for_size(self, replicas: int) -> None:
        """A user scales the group."""
        self.spec = replicas
        self.built = max(self.built, replicas)
        self._pass()

    @rule(at=st.integers(0, len(OPERATIONS) - 1))
    def ask_for_operation(self, at: int) -> None:
        """A user has something done."""
        self.operation = self.operation or _operation(at)

    @rule()
    def pause_or_go_on(self) -> None:
        """A user sets spec.paused."""
        self.paused = not self.paused

    # What the operator does.

    @rule()
    def restart_operator(self) -> None:
        """Its memory is gone; it lists everything anew."""
        self.considered = None
        self.ended.clear()
        self.listed_at = len(self.history) - 1

    @rule(
        ages=st.lists(st.integers(0, 3), min_size=MOST, max_size=MOST),
        fails=st.sampled_from(["", "", "before"]),
    )
    def stale_round(self, ages: list[int], fails: str) -> None:
        """A round on answers of any age, whose calls may fail."""
        self._round(ages, 1, fails=fails)

    @rule(seen=st.integers(0, 1), rounds=st.integers(2, 6), passes=st.booleans())
    def fresh_rounds(self, seen: int, rounds: int, passes: bool) -> None:
        """Rounds of a second each on true answers; pods may be seen as they were a step ago."""
        for at in range(rounds):
            self._round([0] * MOST, seen)
            if passes and at % 2:
                self._promote()
                self._pass()

    @rule(
        template=st.sampled_from([1, 2]),
        replicas=st.sampled_from([1, 3, 5]),
        rounds=st.integers(2, 16),
        at=st.integers(0, MOST - 1),
        fault=st.sampled_from(["", "", "drain", "evict", "silent"]),
    )
    def change_all_at_once(
        self, template: int, replicas: int, rounds: int, at: int, fault: str
    ) -> None:
        """A well group gets another template and another size in one moment, and one fault."""
        self._mend()
        self.wanted = self.applied = template
        self.spec, self.built = replicas, max(self.built, replicas)
        if fault == "silent":
            self.silent.add(self._name(at))
        elif fault:
            name = self._name(at)
            self._end(name) if fault == "drain" else self.evict(at)
        self._pass()
        self.fresh_rounds(0, rounds, True)

    def teardown(self) -> None:
        """Without faults, a group with a majority comes to rest as asked; else it is let alone."""
        if not hasattr(self, "members"):
            return
        self._mend()
        if self.wanted == BAD:
            self.wanted = self.applied = 1
        for _ in range(16):
            self._pass()
        before = dict(self.members)
        self._come_to_rest()
        if self.operation is not None:  # what it waits for may never come: its deadline ends it
            self.operation = None
            self._come_to_rest()
        if not self._has_majority():
            assert self.members == before
            return
        wanted = [f"orders-{n}" for n in range(self.spec)]
        members = sorted(name for name, _ in self.members.values())
        assert members == wanted == sorted(self.pods), self._said()
        assert sorted(self._in_sync()) == wanted
        assert {pod.template for pod in self.pods.values()} == {self.wanted}
        planned = self._plan([0] * MOST, 0)[1]
        assert not any(isinstance(one, Disruption | LookAgain) for one in planned)

    def _said(self) -> object:
        facts, _ = self._observe([0] * MOST, 0)
        told = {row["type"]: row["message"] for row in conditions(facts, now=NOW)}
        return told["Progressing"], told["Degraded"], self.operation

    def _come_to_rest(self) -> None:
        still = 0
        for _ in range(300):
            before = self._all()
            self._round([0] * MOST, 0)
            self._promote()
            self._pass()
            still = still + 1 if self._all() == before else 0
            if still == 3:
                return

    def _all(self) -> tuple[object, ...]:
        group = dict(self.members), set(self.removed), self.leader, self.term
        return group, dict(self.pods), dict(self.claims), self.considered, self.operation

    # The model: kubelets and the StatefulSet.

    def _name(self, at: int) -> str:
        return sorted(self.pods)[at % len(self.pods)]

    def _new_claim(self) -> Claim:
        return Claim(self._new("claim"), self._new("node"))

    def _mend(self) -> None:
        self.cut_off, self.silent, self.paused = set(), set(), False

    def _end(self, name: str) -> None:
        """Delete a pod: it drains, if its node runs."""
        pod = self.pods[name]
        if not pod.going:
            self.pods[name] = replace(pod, going=self.drain if pod.runs else 1)

    def _make_pods(self) -> None:
        for name in list(self.pods):
            if _ordinal(name) >= self.built:
                self._end(name)
        for ordinal in range(self.built):
            name = f"orders-{ordinal}"
            if name not in self.pods:
                self.pods[name] = Body(self._new("pod"), self.applied, wait=self.start)
            self.claims.setdefault(name, self._new_claim())

    def _turn_kubelets(self) -> None:
        for name, pod in list(self.pods.items()):
            if pod.going:
                self.pods[name] = replace(pod, going=pod.going - 1)
                if pod.going == 1:
                    del self.pods[name]
            elif pod.phase == EVICTED:
                self.pods[name] = replace(pod, going=1)
            elif pod.template == BAD or self.claims[name].uid in self.lost:
                continue
            elif pod.wait:
                self.pods[name] = replace(pod, wait=pod.wait - 1)
            elif pod.phase == PENDING:
                self.pods[name] = replace(pod, phase=STARTING, wait=self.late)
            else:
                self.pods[name] = replace(pod, phase=READY)
        self._make_pods()

    # The model: the group.

    def _runs(self, name: str) -> bool:
        pod = self.pods.get(name)
        return pod is not None and pod.runs and self.claims[name].node_id not in self.removed

    def _in_sync(self) -> list[str]:
        rows = self.members.items()
        return [n for i, (n, v) in rows if v and n not in self.cut_off and self._carries(i, n)]

    def _pass(self) -> None:
        """Let two seconds pass, the group settle, and what is seen be remembered."""
        self._turn_kubelets()
        for name in self.pods:
            claim = self.claims[name]
            joins = claim.node_id in self.members and self._runs(name) and name not in self.cut_off
            self.claims[name] = replace(claim, is_joined=claim.is_joined or joins)
        self._settle()

    def _settle(self) -> None:
        if not self._has_majority():
            self.leader = ""
        elif self.leader not in self._in_sync():
            self.leader, self.term = self._in_sync()[0], self.term + 1
        heard = (name for name in self.pods if self._runs(name) and name not in self.silent)
        self.answers.append({name: self._answer(name) for name in heard})
        self.history.append(dict(self.pods))

    # The operator.

    def _seen(self, age: int) -> dict[str, Body]:
        """Return the pods as its watch shows them, and as it knows them by what it did itself."""
        at = max(self.listed_at, len(self.history) - 1 - age)
        shown = self.history[at].items()
        return {
            name: replace(pod, going=pod.going or 1) if pod.uid in self.ended else pod
            for name, pod in shown
        }

    def _observe(self, ages: list[int], age: int) -> tuple[Facts, float]:
        seen = self._seen(age)
        found: dict[str, NodeStatus] = {}
        oldest_s = 0.0
        for name in seen:
            answered = min(ages[_ordinal(name)], len(self.answers) - 1)
            if (answer := self.answers[-1 - answered].get(name)) is not None:
                found[name] = answer
                oldest_s = max(oldest_s, answered * STEP_S)
        observed = Observed(
            children={SET: _built(self.built, self.applied)},
            pods={name: self._pod(name, pod) for name, pod in seen.items()},
            volumes={
                f"data-{name}": Volume(
                    name=f"data-{name}", size="10Gi", uid=one.uid, removed=one.mark
                )
                for name, one in self.claims.items()
            },
            lost={f"data-{n}": "gone" for n, one in self.claims.items() if one.uid in self.lost},
            nodes=found,
            operations=(self.operation,) if self.operation else (),
        )
        group = _group(self.spec, self.wanted, self.paused, self.reason)
        return facts_of(group, observed), oldest_s if found else float("inf")

    def _pod(self, name: str, pod: Body) -> Pod:
        is_stuck = pod.template == BAD and pod.phase == PENDING
        return Pod(
            name=name,
            uid=pod.uid,
            ip="10.0.0.1",
            ready=pod.phase == READY,
            role=self.roles.get(name, ""),
            spec_hash=_hash(pod.template),
            terminating=pod.going > 0,
            stopped=is_stuck,
            trouble="ImagePullBackOff" if is_stuck else "",
        )

    def _plan(self, ages: list[int], age: int) -> tuple[float, tuple[Action, ...]]:
        facts, oldest_s = self._observe(ages, age)
        told = {row["type"]: row["reason"] for row in conditions(facts, now=NOW)}
        self.reason = str(told["Progressing"])
        self._tell_operation(facts)
        footing = Footing(oldest_answer_s=oldest_s, lease_s=0.0, considered=self.considered)
        return oldest_s, plan(facts, (), fresh_id=FRESH_ID, footing=footing)

    def _tell_operation(self, facts: Facts) -> None:
        """Record how far the operation is, which the next round acts on; drop one that is over."""
        if self.operation is not None:
            seen = OperationObserved(there=True, facts=facts)
            found = outcome(self.operation, seen, now=NOW)
            status = operation_status(self.operation, found, now=NOW)
            told = replace(self.operation, status=status)
            self.operation = None if told.finished else told

    def _round(self, ages: list[int], age: int, *, fails: str = "") -> None:
        oldest_s, actions = self._plan(ages, age)
        considered, self.considered = self.considered, None
        assert not any(isinstance(one, Disruption | LookAgain) for one in actions[:-1])
        for action in actions:
            match action:
                case LabelRole(pod, role):
                    self.roles[pod] = role
                case LookAgain(wanted):
                    self.considered = wanted
                case _ if isinstance(action, Disruption):
                    is_alone = isinstance(action, RestartPod) and action.is_broken
                    assert is_alone or oldest_s < STEP_S, "on stale answers"
                    assert action == considered
                    assert not self.paused
                    if fails != "before":
                        self._disrupt(action, self._seen(age))
                case _:
                    # The record of the accepted spec, which the model does not keep.
                    assert type(action).__name__ in ("Create", "Forget")

    # What each act relies on.

    def _stand(self, seen: dict[str, Body]) -> set[str]:
        """Return the voters that are well by what can be known."""
        return {
            name
            for name in self._in_sync()
            if name not in self.silent
            and (pod := seen.get(name)) is not None
            and pod.phase == READY
            and not pod.going
            and pod.uid not in self.deleted
        }

    def _disrupt(self, action: Disruption, seen: dict[str, Body]) -> None:
        stand = self._stand(seen)
        match action:
            case RestartPod():
                self._restart(action, seen, stand)
            case AddMember():
                self._change(action.leader, set(self._voters()) - stand)
                claim = self.claims[action.pod]
                assert (claim.node_id, claim.is_joined) == (action.member_id, False)
                self.members[action.member_id] = action.pod, False
            case ReplaceMember():
                self._change(action.leader, self._relied_on(action.pod, stand) - stand)
                del self.members[action.old_id]
                self.removed.add(action.old_id)
                self.members[action.member_id] = action.pod, False
            case RemoveMember():
                self._remove(action, stand)
            case RetirePods():
                assert all(_ordinal(name) < action.pods for name, _ in self.members.values())
                self.built = action.pods
                self._make_pods()
            case ReplaceClaim():
                self._give_up(action, stand)
            case TransferLeader():
                self._transfer(action, stand)
            case unexpected:
                raise AssertionError(unexpected)
        self._settle()

    def _sound(self, *, votes: bool) -> set[str]:
        """Return the voters, or the learners, whose disks are there."""
        rows = self.members.items()
        mine = {n for i, (n, v) in rows if v == votes and self.claims[n].node_id == i}
        return {name for name in mine if self.claims[name].uid not in self.lost}

    def _change(self, leader: str, not_standing: set[str]) -> None:
        assert leader == self.leader
        assert not not_standing, "the members change with a voter on its way"
        self._none_learns()

    def _none_learns(self, *, but: str = "") -> None:
        learning = {one for one in self._sound(votes=False) if _ordinal(one) < self.spec}
        assert not learning - {but}, "two at once"

    def _restart(self, action: RestartPod, seen: dict[str, Body], stand: set[str]) -> None:
        pod = self.pods.get(action.pod)
        if action.is_broken:
            assert not seen[action.pod].runs
        else:
            voters = set(self._voters())
            assert voters - {action.pod} <= stand, "a restart with a voter on its way"
            self._none_learns(but=action.pod)
            if action.pod in voters and len(voters) > 1:
                assert 2 * len(voters - {action.pod}) > len(voters), "below a quorum"
                assert action.pod != self.leader, "the leader without a transfer"
        if pod is not None and pod.uid == action.uid:
            self._delete(action.pod)

    def _delete(self, name: str) -> None:
        uid = self.pods[name].uid
        self.ended.add(uid)
        self.deleted.add(uid)
        self._end(name)

    def _remove(self, action: RemoveMember, stand: set[str]) -> None:
        name, votes = self.members[action.member_id]
        assert (name, action.leader) == (action.pod, self.leader)
        assert name != self.leader, "the leader without a transfer"
        if votes:
            staying = {one for one in self._voters() if _ordinal(one) < self.spec}
            self._change(action.leader, staying - stand)
            voters = self._voters()
            assert 2 * len(stand) > len(voters), "no majority before"
            assert 2 * len(stand - {name}) > len(voters) - 1, "no majority after"
        if action.claim and self.claims[name].uid == action.claim_uid:
            self.claims[name] = replace(self.claims[name], mark=action.member_id)
        del self.members[action.member_id]
        self.removed.add(action.member_id)

    def _relied_on(self, name: str, stand: set[str]) -> set[str]:
        """Return who has to stand where a member gets an empty disk.

        One that is to leave need not, where the member is down in any case, and a majority stands.
        """
        left = self._sound(votes=True) - {name}
        is_costless = name not in stand and 2 * len(left & stand) > len(self._voters())
        return {one for one in left if not is_costless or _ordinal(one) < self.spec}

    def _give_up(self, action: ReplaceClaim, stand: set[str]) -> None:
        if self.claims[action.pod].uid != action.uid:
            return
        if action.pod in {name for name, _ in self.members.values()}:
            left = self._sound(votes=True) - {action.pod}
            relied_on = self._relied_on(action.pod, stand)
            assert relied_on <= stand, "a disk is given up with a voter on its way"
            assert 2 * len(left) > len(self._voters()), "no majority left"
            self._none_learns(but=action.pod)
        self.claims[action.pod] = self._new_claim()
        if action.pod in self.pods:
            self._delete(action.pod)

    def _transfer(self, action: TransferLeader, stand: set[str]) -> None:
        assert (action.leader, action.term) == (self.leader, self.term)
        assert 2 * len(stand) > len(self._voters()), "no majority stands"
        others = sorted(stand - {self.leader})
        taker = action.to or others[0]
        assert taker in others, "to one that is on its way"
        self.leader, self.term = taker, self.term + 1


def _settings(runs: int, phases: tuple[Phase, ...] = tuple(Phase)) -> Any:
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(
        max_examples=runs, stateful_step_count=30, suppress_health_check=slow, phases=phases
    )


class TestCared(Cared.TestCase):  # type: ignore[misc, valid-type]
    """Tells a failing run as it is: to make it short takes minutes, which the other one has."""

    settings = _settings(150, (Phase.reuse, Phase.generate))


@pytest.mark.long
class TestCaredSeldom(Cared.TestCase):  # type: ignore[misc, valid-type]
    """The same, many times over."""

    settings = _settings(int(os.environ.get("PLANNER_RUNS", "2000")))
