"""The planner against a model of a group whose disks, nodes, operator and Lease fail at any time.

A step takes two seconds, so an answer of an earlier step is stale, and a fresh one is true. The
model asserts on each change of the members; when faults stop, a group with a majority converges.

Bugs that were planted in `decisions/gate.py`, `membership.py` and `plan.py`, each of which it
finds: no check of the answers' age; no check of the Lease; two actions in one round; a gate that
does not ask for the others to be in sync; one that does not see learners; the disk of another pod;
acting while paused.

More runs: ``PLANNER_RUNS=20000 pytest tests/operator/test_planner_machine.py``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dledger.common.status import MemberStatus, NodeStatus
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.actions import Action, LabelRole, LookAgain
from dledger_operator.decisions.disruptions import Disruption, Footing, ReplaceMember
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.observed import Observed, Pod
from tests.operator.samples import FRESH_ID, GROUP_ID, bootstrapped, converged, member, node

STEP_S = 2.0
MOST = 5


@dataclass
class Disk:
    """What a pod's volume has: a node id, and whether that node is in the group."""

    node_id: str
    is_joined: bool = True


@cache
def _group(replicas: int, paused: bool) -> BrokerGroup:
    return bootstrapped({"replicas": replicas, "paused": paused})


@cache
def _seen(replicas: int) -> Observed:
    return converged(_group(replicas, False))


class Planner(RuleBasedStateMachine):
    """A group, its faults, and the operator's rounds."""

    @initialize(replicas=st.sampled_from([5, 3, 5, 1]))
    def found(self, replicas: int) -> None:
        """Begin with a group that is as it should be."""
        self.names = [f"orders-{n}" for n in range(replicas)]
        self.disks = {name: Disk(f"id-{name}") for name in self.names}
        self.members = {f"id-{name}": (name, True) for name in self.names}
        self.up = set(self.names)
        self.silent: set[str] = set()
        self.going: set[str] = set()
        self.roles = dict.fromkeys(self.names, "")
        self.leader, self.term, self.made = "", 0, 0
        self.paused, self.lease_s = False, 0.0
        self.considered: Disruption | None = None
        self.answers: dict[str, list[NodeStatus | None]] = {name: [] for name in self.names}
        self._pass()

    # What happens to the group.

    @rule(at=st.integers(0, MOST - 1))
    def lose_disk(self, at: int) -> None:
        """A claim and its pod are deleted."""
        self.made += 1
        self.disks[self._name(at)] = Disk(f"new-{self.made}", is_joined=False)
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def cut_off_or_connect(self, at: int) -> None:
        """A node falls behind, or catches up."""
        self.up ^= {self._name(at)}
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def silence_or_hear(self, at: int) -> None:
        """The operator alone does not reach a node."""
        self.silent ^= {self._name(at)}
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def terminate_or_not(self, at: int) -> None:
        """A pod is being deleted."""
        self.going ^= {self._name(at)}
        self._pass()

    @rule()
    def catch_up(self) -> None:
        """Learners that the leader reaches become voters."""
        self._promote()
        self._pass()

    @rule()
    def elect_another(self) -> None:
        """The leader goes away."""
        others = [name for name in self._in_sync() if name != self.leader]
        if self.leader and others:
            self.leader, self.term = others[0], self.term + 1
        self._pass()

    @rule()
    def pause_or_go_on(self) -> None:
        """A user sets spec.paused."""
        self.paused = not self.paused
        self._pass()

    @rule()
    def mend(self) -> None:
        """All nodes are there; disks stay as they are."""
        self.up, self.silent, self.going, self.paused = set(self.names), set(), set(), False
        self._pass()

    @rule(
        lost=st.lists(st.integers(0, MOST - 1), min_size=1, max_size=2),
        at=st.integers(0, MOST - 1),
        fault=st.sampled_from(["cut off", "learner", "lease", "paused", "going", "silent", ""]),
        age=st.sampled_from([0, 0, 1]),
    )
    def lose_disks_of_a_well_group(self, lost: list[int], at: int, fault: str, age: int) -> None:
        """With one fault beside it, and rounds of which the last rests on answers of an age."""
        self.mend()
        self._promote()
        for each in lost:
            self.lose_disk(each)
        if fault == "learner":
            self.fresh_rounds()
            self.lose_disk(at)
        name = {self._name(at)}
        self.up -= name if fault == "cut off" else set()
        self.silent |= name if fault == "silent" else set()
        self.going |= name if fault == "going" else set()
        self.paused = fault == "paused"
        self.lease_s = 10.0 if fault == "lease" else 0.0
        self._pass()
        for _ in range(age):
            self._pass()
        self._round([0] * MOST)
        self._round([age] * MOST)

    @rule(age_s=st.sampled_from([0.0, 9.9, 10.0, 60.0]))
    def age_lease(self, age_s: float) -> None:
        """The API server does not answer, or does again."""
        self.lease_s = age_s

    @rule()
    def restart_operator(self) -> None:
        """Its memory is gone."""
        self.considered = None

    # What the operator does.

    @rule(
        ages=st.lists(st.integers(0, 3), min_size=MOST, max_size=MOST),
        cut_at=st.integers(0, 8),
        fails=st.sampled_from(["", "", "before", "after"]),
    )
    def stale_round(self, ages: list[int], cut_at: int, fails: str) -> None:
        """A round on answers of any age, interrupted after any action, whose calls may fail."""
        self._round(ages, cut_at=cut_at, fails=fails)

    @rule()
    def fresh_rounds(self) -> None:
        """Two rounds of a second each in which all goes well."""
        for _ in range(2):
            self._round([0] * MOST)

    @rule()
    @precondition(lambda self: self._is_healthy())
    def a_healthy_group_needs_nothing(self) -> None:
        """Roles apart, which follow the leader."""
        self._round([0] * MOST)
        assert self._plan([0] * MOST)[1] == ()

    def teardown(self) -> None:
        """Without faults, a group with a majority comes to rest, and one without is left alone."""
        if not hasattr(self, "names"):
            return
        self.up, self.silent, self.going = set(self.names), set(), set()
        self.paused, self.lease_s = False, 0.0
        self._pass()
        was_alive, before = self._has_majority(), dict(self.members)
        for _ in range(4 * len(self.names)):
            self._round([0] * MOST)
            self._promote()
            self._pass()
        if was_alive:
            assert self._is_healthy(), (self.members, self.disks)
            assert self._plan([0] * MOST)[1] == ()
        else:
            assert self.members == before

    # The model.

    def _name(self, at: int) -> str:
        return self.names[at % len(self.names)]

    def _carries(self, node_id: str, name: str) -> bool:
        """Whether a pod's disk is this member's."""
        return self.disks[name].node_id == node_id and self.disks[name].is_joined

    def _voters(self) -> list[str]:
        return [name for name, voter in self.members.values() if voter]

    def _in_sync(self) -> list[str]:
        rows = self.members.items()
        return [n for i, (n, votes) in rows if votes and n in self.up and self._carries(i, n)]

    def _has_majority(self) -> bool:
        return 2 * len(self._in_sync()) > len(self._voters())

    def _is_healthy(self) -> bool:
        whole = sorted(self._in_sync()) == self.names and len(self.members) == len(self.names)
        return whole and not (self.silent or self.going or self.paused)

    def _promote(self) -> None:
        if not self._has_majority():
            return
        for node_id, (name, _) in list(self.members.items()):
            if name in self.up and self._carries(node_id, name):
                self.members[node_id] = name, True

    def _pass(self) -> None:
        """Let the group settle, two seconds pass, and each node's answer be remembered."""
        for name, disk in self.disks.items():
            disk.is_joined |= disk.node_id in self.members and name in self.up
        if not self._has_majority():
            self.leader = ""
        elif self.leader not in self._in_sync():
            self.leader, self.term = self._in_sync()[0], self.term + 1
        for name in self.names:
            self.answers[name].append(None if name in self.silent else self._answer(name))

    def _answer(self, name: str) -> NodeStatus:
        disk = self.disks[name]
        if not disk.is_joined:
            return node(disk.node_id, name=name, told_group_id=GROUP_ID)
        leads = name == self.leader
        return node(
            disk.node_id,
            name=name,
            group_id=GROUP_ID,
            term=self.term,
            role="leader" if leads else "follower",
            leader_id=self.disks[self.leader].node_id if self.leader and name in self.up else "",
            ready=True,
            members=tuple(self._row(*each) for each in self.members.items()),
        )

    def _row(self, node_id: str, who: tuple[str, bool]) -> MemberStatus:
        name, voter = who
        there = name in self.up and self._carries(node_id, name)
        return member(node_id, name, voter=voter, connected=there, lag=0 if there else 5000)

    # The operator.

    def _observe(self, ages: list[int]) -> tuple[Facts, float]:
        found: dict[str, NodeStatus] = {}
        oldest_s = 0.0
        for at, name in enumerate(self.names):
            age = min(ages[at], len(self.answers[name]) - 1)
            answer = self.answers[name][-1 - age]
            if answer is not None:
                found[name] = answer
                oldest_s = max(oldest_s, age * STEP_S)
        pods = {
            name: Pod(
                name=name, ip="10.0.0.1", ready=True, role=role, terminating=name in self.going
            )
            for name, role in self.roles.items()
        }
        group = _group(len(self.names), self.paused)
        observed = replace(_seen(len(self.names)), pods=pods, nodes=found)
        return facts_of(group, observed), oldest_s

    def _plan(self, ages: list[int]) -> tuple[float, tuple[Action, ...]]:
        facts, oldest_s = self._observe(ages)
        footing = Footing(
            oldest_answer_s=oldest_s, lease_s=self.lease_s, considered=self.considered
        )
        return oldest_s, plan(facts, (), fresh_id=FRESH_ID, footing=footing)

    def _round(self, ages: list[int], *, cut_at: int = 9, fails: str = "") -> None:
        oldest_s, actions = self._plan(ages)
        considered, self.considered = self.considered, None
        assert not any(isinstance(one, Disruption | LookAgain) for one in actions[:-1])
        for action in actions[:cut_at]:
            assert action.why
            match action:
                case LabelRole(pod, role):
                    self.roles[pod] = role
                case LookAgain(wanted):
                    self.considered = wanted
                case ReplaceMember():
                    assert action == considered, "seen once"
                    self._may_replace(action, oldest_s)
                    if fails != "before":
                        self._replace(action)
                case unexpected:
                    raise AssertionError(unexpected)

    def _may_replace(self, action: ReplaceMember, oldest_s: float) -> None:
        """Assert what holds before each change of the members."""
        assert not self.paused
        assert action.pod not in self.going, "its pod goes away"
        assert oldest_s < STEP_S, "on stale answers"
        assert self.lease_s < 10, "another operator may lead"
        assert action.leader == self.leader
        assert self.disks[action.pod] == Disk(action.member_id, is_joined=False), "the wrong disk"
        assert self.members[action.old_id][0] == action.pod, "the wrong member"
        rows = self.members.items()
        learning = [n for i, (n, votes) in rows if not votes and self._carries(i, n)]
        assert not learning, "two changes at once"
        left = [n for i, (n, votes) in rows if votes and i != action.old_id]
        assert 2 * len(self._in_sync()) > len(self._voters()), "no majority before"
        assert 2 * len(self._in_sync()) > len(left), "no majority after"
        empty = {name for name, disk in self.disks.items() if not disk.is_joined}
        assert set(left) - empty <= set(self._in_sync()), "no margin for the change"

    def _replace(self, action: ReplaceMember) -> None:
        del self.members[action.old_id]
        self.members[action.member_id] = action.pod, False
        self._pass()


def _settings() -> Any:
    runs = int(os.environ.get("PLANNER_RUNS", "1000"))
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=runs, stateful_step_count=30, suppress_health_check=slow)


TestPlanner = Planner.TestCase
TestPlanner.settings = _settings()
