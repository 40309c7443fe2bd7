"""Scaling against a model of a group whose spec, disks, nodes, operator and Lease change anytime.

A step takes two seconds, so an answer of an earlier step is stale, and a fresh one is true; what
Kubernetes shows may be a step old, too. Pods, claims and what a disk remembers are modelled: a
removed node never runs again. The model asserts on each change; when faults stop, a group with a
majority comes to rest with the members, pods and Services that its spec asks for.

Bugs that were planted in `decisions/scaling.py`, `extent.py` and `gate.py`, each of which it finds:
the leader leaves without a transfer; a transfer to one that leaves; pods go before their members;
the StatefulSet shrinks by an apply; claims are not marked; a marked claim is kept; members come or
go with a voter out of sync; one leaves while another learns.

More runs: ``PLANNER_RUNS=20000 pytest tests/operator/test_scaling_machine.py``.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dledger.common.status import NodeStatus
from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.decisions.actions import (
    Action,
    Apply,
    Create,
    Forget,
    LabelRole,
    LookAgain,
    Repair,
)
from dledger_operator.decisions.disruptions import (
    AddMember,
    Disruption,
    Footing,
    RemoveMember,
    ReplaceClaim,
    ReplaceMember,
    RetirePods,
    TransferLeader,
)
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.observed import Observed, Pod, Ref, Volume, ref_of
from dledger_operator.resources import desired
from dledger_operator.resources.statefulset import pods_asked
from dledger_operator.status.conditions import conditions
from tests.operator.answering import Answering
from tests.operator.samples import (
    FRESH_ID,
    NOW,
    PLATFORM,
    bootstrapped,
)

STEP_S = 2.0
MOST = 5
SET = ("StatefulSet", "orders")


@dataclass(frozen=True)
class Claim:
    """A pod's claim: its uid, the node id on its disk, and whether that is in the group."""

    uid: str
    node_id: str
    is_joined: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Seen:
    """What Kubernetes had at one time."""

    spec: int
    paused: bool
    children: dict[Ref, Manifest]
    pods: dict[str, str]
    going: frozenset[str]
    claims: dict[str, Claim]


@cache
def _group(replicas: int, paused: bool, is_growing: bool) -> BrokerGroup:
    reason = "ScalingOut" if is_growing else "Complete"
    told = [{"type": "Progressing", "status": "True", "reason": reason}]
    return bootstrapped({"replicas": replicas, "paused": paused}, conditions=told)


@cache
def _manifests(pods: int) -> tuple[Manifest, ...]:
    made = desired(replace(_group(1, False, False), kept_pods=pods), PLATFORM)
    return tuple(one for one in made if ref_of(one) == SET or "-client" in one["metadata"]["name"])


def _ordinal(name: str) -> int:
    return names.ordinal("orders", name)


class Scaler(Answering, RuleBasedStateMachine):
    """A group, its faults, its user, and the operator's rounds."""

    @initialize(replicas=st.sampled_from([3, 5, 1]))
    def found(self, replicas: int) -> None:
        """Begin with a group that is as it should be."""
        self.spec, self.paused, self.lease_s = replicas, False, 0.0
        self.children = {ref_of(one): one for one in _manifests(replicas)}
        self.made = 0
        self.pods: dict[str, str] = {}
        self.claims: dict[str, Claim] = {}
        self.members: dict[str, tuple[str, bool]] = {}
        self.removed: set[str] = set()
        self.cut_off: set[str] = set()
        self.silent: set[str] = set()
        self.going: set[str] = set()
        self.roles: dict[str, str] = {}
        self.leader, self.term = "", 0
        self.is_growing = False
        self.considered: Disruption | None = None
        self.answers: list[dict[str, NodeStatus]] = []
        self.history: list[Seen] = []
        self._run_set()
        for name, claim in self.claims.items():
            self.members[claim.node_id] = name, True
            self.claims[name] = replace(claim, is_joined=True)
        self._pass()

    # What happens to the group.

    @rule(replicas=st.sampled_from([1, 3, 5]))
    def ask_for(self, replicas: int) -> None:
        """A user scales it, at any time."""
        self.spec = replicas
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def lose_disk(self, at: int) -> None:
        """A claim and its pod are deleted."""
        self._empty(self._name(at))
        self._pass()

    @rule(
        at=st.integers(0, MOST - 1), what=st.sampled_from(["cut_off", "silent", "going", "silent"])
    )
    def fault_or_no_more(self, at: int, what: str) -> None:
        """A node falls behind, only the operator does not reach it, or its pod is deleted."""
        faults: set[str] = getattr(self, what)
        faults ^= {self._name(at)}
        self._pass()

    @rule()
    def catch_up(self) -> None:
        """Learners that the leader reaches become voters."""
        self._promote()
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def elect_another(self, at: int) -> None:
        """The leader goes away."""
        others = [name for name in self._in_sync() if name != self.leader]
        if self.leader and others:
            self.leader, self.term = others[at % len(others)], self.term + 1
        self._pass()

    @rule()
    def pause_or_go_on(self) -> None:
        """A user sets spec.paused."""
        self.paused = not self.paused
        self._pass()

    @rule(age_s=st.sampled_from([0.0, 0.0, 9.9, 10.0, 60.0]))
    def age_lease(self, age_s: float) -> None:
        """The API server does not answer, or does again."""
        self.lease_s = age_s

    @rule()
    def mend(self) -> None:
        """All nodes are there; disks stay as they are."""
        self._mend()
        self._pass()

    @rule()
    def restart_operator(self) -> None:
        """Its memory is gone."""
        self.considered = None

    @rule(replicas=st.sampled_from([1, 3, 5]), steps=st.integers(1, 12), lead=st.booleans())
    def scale_for_a_while(self, replicas: int, steps: int, lead: bool) -> None:
        """A well group is on its way to another size; the highest voter may lead it."""
        self._mend()
        self.spec = replicas
        if lead and self._has_majority():
            self.leader, self.term = self._in_sync()[-1], self.term + 1
        self._pass()
        for _ in range(steps):
            self._round([0] * MOST)
            self._promote()
            self._pass()

    @rule(at=st.integers(0, MOST - 1), fault=st.sampled_from(["disk", "cut off", "silent"]))
    def break_one_while_scaled(self, at: int, fault: str) -> None:
        """One fault, then rounds on fresh answers."""
        name = self._name(at)
        if fault == "disk":
            self._empty(name)
        self.cut_off |= {name} if fault == "cut off" else set()
        self.silent |= {name} if fault == "silent" else set()
        self._pass()
        self.fresh_rounds()

    # What the operator does.

    @rule(
        ages=st.lists(st.integers(0, 3), min_size=MOST, max_size=MOST),
        seen=st.sampled_from([0, 0, 1]),
        cut_at=st.integers(0, 8),
        fails=st.sampled_from(["", "", "before", "after"]),
    )
    def stale_round(self, ages: list[int], seen: int, cut_at: int, fails: str) -> None:
        """A round on answers of any age, interrupted after any action, whose calls may fail."""
        self._round(ages, seen=seen, cut_at=cut_at, fails=fails)

    @rule()
    def fresh_rounds(self) -> None:
        """Four rounds of a second each in which all goes well."""
        for _ in range(4):
            self._round([0] * MOST)

    def teardown(self) -> None:
        """Without faults, a group with a majority gets its size, and one without is left alone."""
        if not hasattr(self, "members"):
            return
        self._mend()
        self._pass()
        was_alive, before = self._has_majority(), dict(self.members)
        self._come_to_rest()
        if not was_alive:
            assert self.members == before
            return
        wanted = [f"orders-{n}" for n in range(self.spec)]
        assert sorted(name for name, _ in self.members.values()) == wanted
        assert sorted(self._in_sync()) == wanted == sorted(self.pods)
        assert {ref for ref in self.children if ref[0] != "ControllerRevision"} == {
            ref_of(one) for one in _manifests(self.spec)
        }
        assert self._plan([0] * MOST)[2] == ()

    def _come_to_rest(self) -> None:
        """Do fresh rounds until they change nothing: no clock of the model turns in them."""
        still = 0
        for _ in range(60):
            before = self._all()
            self._round([0] * MOST)
            self._promote()
            self._pass()
            still = still + 1 if self._all() == before else 0
            if still == 3:
                return

    def _all(self) -> tuple[object, ...]:
        """Return all that the next fresh round depends on."""
        group = (dict(self.members), set(self.removed), self.leader, self.term)
        cluster = (dict(self.children), dict(self.pods), dict(self.claims))
        return group, cluster, self.considered, self.is_growing

    # The model.

    def _name(self, at: int) -> str:
        return sorted(self.pods)[at % len(self.pods)]

    def _mend(self) -> None:
        self.cut_off, self.silent, self.going = set(), set(), set()
        self.paused, self.lease_s = False, 0.0

    def _run_set(self) -> None:
        """Make and delete pods as the StatefulSet says; claims are kept."""
        count = self.children[SET]["spec"]["replicas"]
        kept = {name: uid for name, uid in self.pods.items() if _ordinal(name) < count}
        for ordinal in range(count):
            name = f"orders-{ordinal}"
            kept.setdefault(name, self._new("pod"))
            self.claims.setdefault(name, Claim(self._new("claim"), self._new("node")))
        self.pods = kept

    def _empty(self, name: str) -> None:
        """Give a pod another claim, with an empty disk."""
        self.claims[name] = Claim(self._new("claim"), self._new("node"))
        self.pods[name] = self._new("pod")
        self.going.discard(name)

    def _runs(self, name: str) -> bool:
        return name in self.pods and self.claims[name].node_id not in self.removed

    def _in_sync(self) -> list[str]:
        rows = self.members.items()
        found = (n for i, (n, v) in rows if v and n not in self.cut_off and self._carries(i, n))
        return sorted(found)

    def _pass(self) -> None:
        """Let the group settle, two seconds pass, and what is seen be remembered."""
        self._run_set()
        for name in self.pods:
            claim = self.claims[name]
            joins = claim.node_id in self.members and name not in self.cut_off
            self.claims[name] = replace(claim, is_joined=claim.is_joined or joins)
        if not self._has_majority():
            self.leader = ""
        elif self.leader not in self._in_sync():
            self.leader, self.term = self._in_sync()[0], self.term + 1
        heard = (name for name in self.pods if self._runs(name) and name not in self.silent)
        self.answers.append({name: self._answer(name) for name in heard})
        self.history.append(
            Seen(
                spec=self.spec,
                paused=self.paused,
                children=dict(self.children),
                pods=dict(self.pods),
                going=frozenset(self.going),
                claims=dict(self.claims),
            )
        )

    # The operator.

    def _observe(self, ages: list[int], seen_age: int) -> tuple[Facts, float]:
        seen = self.history[-1 - min(seen_age, len(self.history) - 1)]
        found: dict[str, NodeStatus] = {}
        oldest_s = 0.0
        for name in seen.pods:
            age = min(ages[_ordinal(name)], len(self.answers) - 1)
            answer = self.answers[-1 - age].get(name)
            if answer is not None:
                found[name] = answer
                oldest_s = max(oldest_s, age * STEP_S)
        observed = Observed(
            children=seen.children,
            pods={
                name: Pod(
                    name=name,
                    uid=uid,
                    ip="10.0.0.1",
                    ready=True,
                    role=self.roles.get(name, ""),
                    terminating=name in seen.going,
                )
                for name, uid in seen.pods.items()
            },
            volumes={
                f"data-{name}": Volume(
                    name=f"data-{name}", size="10Gi", uid=one.uid, removed=one.mark
                )
                for name, one in seen.claims.items()
            },
            nodes=found,
        )
        facts = facts_of(_group(seen.spec, seen.paused, self.is_growing), observed)
        return facts, oldest_s if found else float("inf")

    def _plan(self, ages: list[int], seen: int = 0) -> tuple[Facts, float, tuple[Action, ...]]:
        facts, oldest_s = self._observe(ages, seen)
        told = {row["type"]: row for row in conditions(facts, now=NOW)}
        self.is_growing = told["Progressing"]["reason"] == "ScalingOut"
        footing = Footing(
            oldest_answer_s=oldest_s, lease_s=self.lease_s, considered=self.considered
        )
        wanted = _manifests(facts.group.pods)
        return facts, oldest_s, plan(facts, wanted, fresh_id=FRESH_ID, footing=footing)

    def _round(self, ages: list[int], *, seen: int = 0, cut_at: int = 99, fails: str = "") -> None:
        facts, oldest_s, actions = self._plan(ages, seen)
        considered, self.considered = self.considered, None
        assert not any(isinstance(one, Disruption | LookAgain) for one in actions[:-1])
        for action in actions[:cut_at]:
            assert action.why
            if isinstance(action, Disruption):
                assert action == considered, "seen once"
                assert oldest_s < STEP_S, "on stale answers"
                assert self.lease_s < 10, "another operator may lead"
                if fails == "before":
                    continue
            self._do(facts, action)

    def _do(self, facts: Facts, action: Action) -> None:
        match action:
            case LabelRole(pod, role):
                self.roles[pod] = role
            case LookAgain(wanted):
                self.considered = wanted
            case Apply(manifest) | Create(manifest):
                self._write(manifest, facts)
            case Repair():
                self._write(action.manifest, facts)
            case Forget(name, _, kind):
                self._forget(kind, name)
            case _ if isinstance(action, Disruption):
                self._disrupt(facts, action)
            case unexpected:
                raise AssertionError(unexpected)

    def _disrupt(self, facts: Facts, action: Disruption) -> None:
        match action:
            case AddMember():
                self._add(action)
            case RemoveMember():
                self._remove(action, facts)
            case ReplaceMember():
                self._replace(action)
            case RetirePods():
                self._retire(action)
            case ReplaceClaim():
                self._give_up(action)
            case TransferLeader():
                self._transfer(action)
            case unexpected:
                raise AssertionError(unexpected)

    def _write(self, manifest: Manifest, facts: Facts) -> None:
        if ref_of(manifest) == SET:
            if facts.observed.children[SET] != self.children[SET]:
                return  # it is for the version that was seen
            assert pods_asked(manifest) >= pods_asked(self.children[SET]), "shrinks at once"
            self._all_below(manifest["spec"]["replicas"])
        metadata = {**manifest["metadata"], "uid": "of " + manifest["metadata"]["name"]}
        self.children[ref_of(manifest)] = {**manifest, "metadata": metadata}
        self._pass()

    def _all_below(self, count: int) -> None:
        beyond = [name for name, _ in self.members.values() if _ordinal(name) >= count]
        assert not beyond, "the pod of a member goes"

    def _forget(self, kind: str, name: str) -> None:
        if kind == "Service":
            gone = int(name.removeprefix("orders-").removesuffix("-client"))
            self._all_below(gone)
        self.children.pop((kind, name), None)

    def _may_change(self, leader: str, *, leaving: str = "") -> None:
        """Assert what holds before each change of the members."""
        self._may_ask(leader)
        learning = {
            n
            for i, (n, votes) in self.members.items()
            if not votes and self._carries(i, n) and _ordinal(n) < self._least_spec()
        }
        assert not learning - {leaving}, "two changes at once"

    def _may_ask(self, leader: str) -> None:
        """Assert what holds before a leader is asked for any change."""
        assert leader == self.leader
        assert self._has_majority(), "no majority before"

    def _least_spec(self) -> int:
        """Return the least that the operator may believe to be asked for."""
        return min(seen.spec for seen in self.history[-3:])

    def _add(self, action: AddMember) -> None:
        self._may_change(action.leader)
        claim = self.claims[action.pod]
        assert (claim.node_id, claim.is_joined) == (action.member_id, False), "the wrong disk"
        assert action.member_id not in self.removed
        assert action.pod not in self.going, "its pod goes away"
        assert action.pod not in {name for name, _ in self.members.values()}
        assert sorted(self._voters()) == self._in_sync(), "not all voters are in sync"
        self.members[action.member_id] = action.pod, False
        self._pass()

    def _remove(self, action: RemoveMember, facts: Facts) -> None:
        claim = self.claims.get(action.pod)
        if action.claim:
            assert claim is not None
            if claim.uid != action.claim_uid:
                return  # another claim by now
            claim = self.claims[action.pod] = replace(claim, mark=action.member_id)
        name, votes = self.members[action.member_id]
        if votes:
            self._may_change(action.leader, leaving=name)
        else:
            self._may_ask(action.leader)  # it has no say: it may go while another one learns
        assert name == action.pod
        assert name != self.leader, "the leader without a transfer"
        assert _ordinal(name) >= facts.group.spec.replicas, "it is asked for"
        if claim is not None and claim.node_id == action.member_id:
            assert claim.mark == action.member_id, "not marked before"
        if votes:
            left = [one for one in self._voters() if one != name]
            there = [one for one in self._in_sync() if one != name]
            assert 2 * len(there) > len(left), "no majority after"
            stays = {one for one in left if _ordinal(one) < facts.group.spec.replicas}
            assert stays <= set(there), "no margin for the change"
        del self.members[action.member_id]
        self.removed.add(action.member_id)
        self._pass()

    def _replace(self, action: ReplaceMember) -> None:
        self._may_change(action.leader, leaving=action.pod)
        claim = self.claims[action.pod]
        assert (claim.node_id, claim.is_joined) == (action.member_id, False), "the wrong disk"
        assert self.members[action.old_id][0] == action.pod, "the wrong member"
        left = [n for i, (n, votes) in self.members.items() if votes and i != action.old_id]
        assert 2 * len(self._in_sync()) > len(left), "no majority after"
        del self.members[action.old_id]
        self.removed.add(action.old_id)
        self.members[action.member_id] = action.pod, False
        self._pass()

    def _retire(self, action: RetirePods) -> None:
        self._all_below(action.pods)
        kept = copy.deepcopy(self.children[SET])
        kept["spec"]["replicas"] = action.pods
        kept["metadata"]["annotations"][names.PODS_ANNOTATION] = str(action.pods)
        self.children[SET] = kept
        self._pass()

    def _give_up(self, action: ReplaceClaim) -> None:
        claim = self.claims[action.pod]
        if claim.uid != action.uid:
            return
        assert action.pod not in {name for name, _ in self.members.values()}, "a member's disk"
        assert claim.node_id in self.removed or not claim.is_joined, "a disk with messages"
        if action.pod in self.pods:
            self._empty(action.pod)
        else:
            del self.claims[action.pod]
        self._pass()

    def _transfer(self, action: TransferLeader) -> None:
        assert (action.leader, action.term) == (self.leader, self.term)
        assert action.to in self._in_sync()
        assert self.members[action.to_id] == (action.to, True)
        self.leader, self.term = action.to, self.term + 1
        self._pass()


def _settings() -> Any:
    runs = int(os.environ.get("PLANNER_RUNS", "500"))
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=runs, stateful_step_count=30, suppress_health_check=slow)


TestScaler = Scaler.TestCase
TestScaler.settings = _settings()
