"""Rollouts against a model of a group whose pods, operator, Lease and spec change at any time.

Templates are numbers; pods of some never come up. A step takes two seconds, so an answer of an
earlier step is stale, and a fresh one is true. The model asserts on each restart and transfer; when
faults stop and the template is a good one, the group comes to rest with every pod made from it.

Bugs that were planted in `decisions/rollout.py`, `disruptions.py` and `plan.py`, each of which it
finds: no check of the answers' age; none of the Lease; no gate; a gate that does not see pods that
are not ready; the leader first; no transfer; a transfer to a pod of the old template; no healing; a
pod that runs taken for broken; a template that was not applied yet.

More runs: ``PLANNER_RUNS=20000 pytest tests/operator/test_rollout_machine.py``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dledger.common.status import NodeStatus
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.decisions.actions import Action, LabelRole, LookAgain
from dledger_operator.decisions.disruptions import Disruption, Footing, RestartPod, TransferLeader
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.observed import Observed, Pod
from dledger_operator.resources.wish import wish
from dledger_operator.status.conditions import conditions
from tests.operator.samples import FRESH_ID, GROUP_ID, NOW, bootstrapped, converged, member, node

STEP_S = 2.0
MOST = 5
BAD = (3, 4)
"""Templates whose pods never come up."""


@dataclass
class Model:
    """A pod: which template it is made from, which of that name, and whether its node runs."""

    template: int
    made: int = 0
    runs: bool = True

    @property
    def is_bad(self) -> bool:
        """Whether it can never come up."""
        return self.template in BAD


@cache
def _group(replicas: int, template: int, paused: bool = False) -> BrokerGroup:
    return bootstrapped({"replicas": replicas, "image": f"dledger:{template}", "paused": paused})


@cache
def _seen(replicas: int, template: int) -> Observed:
    return converged(_group(replicas, template))


@cache
def _hash(template: int) -> str:
    return wish(_group(1, template))


class Roller(RuleBasedStateMachine):
    """A group, its faults, its user, and the operator's rounds."""

    @initialize(replicas=st.sampled_from([3, 3, 5, 1]))
    def found(self, replicas: int) -> None:
        """Begin with a group that is as it should be."""
        self.names = [f"orders-{n}" for n in range(replicas)]
        self.pods = {name: Model(template=0) for name in self.names}
        self.cut_off: set[str] = set()
        self.silent: set[str] = set()
        self.going: set[str] = set()
        self.wanted = self.applied = 0
        self.leader, self.term = "", 0
        self.paused, self.lease_s = False, 0.0
        self.considered: Disruption | None = None
        self.roles = dict.fromkeys(self.names, "")
        self.answers: dict[str, list[NodeStatus | None]] = {name: [] for name in self.names}
        self._pass()

    # What happens to the group.

    @rule(template=st.sampled_from([0, 1, 2, 1, 2, *BAD]), is_applied=st.booleans())
    def ask_for(self, template: int, is_applied: bool) -> None:
        """A user changes the spec, or takes it back; it may not be applied at once."""
        self.wanted = template
        if is_applied:
            self.applied = template

    @rule()
    def apply(self) -> None:
        """The StatefulSet gets the new template."""
        self.applied = self.wanted

    @rule(at=st.integers(0, MOST - 1))
    def kill(self, at: int) -> None:
        """A pod dies, and is made anew from what the StatefulSet has."""
        self._remake(self._name(at))
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def cut_off_or_connect(self, at: int) -> None:
        """A node falls behind, or catches up."""
        self.cut_off ^= {self._name(at)}
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def silence_or_hear(self, at: int) -> None:
        """The operator alone does not reach a node."""
        self.silent ^= {self._name(at)}
        self._pass()

    @rule(at=st.integers(0, MOST - 1))
    def terminate_or_not(self, at: int) -> None:
        """A pod is being deleted, by somebody else."""
        self.going ^= {self._name(at)}
        self._pass()

    @rule()
    def come_up(self) -> None:
        """Time passes: pods that can run do."""
        self._come_up()
        self._pass()

    @rule()
    def elect_another(self) -> None:
        """The leader goes away, or follows its clients."""
        others = [name for name in self._in_sync() if name != self.leader]
        if self.leader and others:
            self.leader, self.term = others[-1], self.term + 1
        self._pass()

    @rule()
    def pause_or_go_on(self) -> None:
        """A user sets spec.paused."""
        self.paused = not self.paused

    @rule(age_s=st.sampled_from([0.0, 0.0, 9.9, 10.0, 60.0]))
    def age_lease(self, age_s: float) -> None:
        """The API server does not answer, or does again."""
        self.lease_s = age_s

    @rule()
    def mend(self) -> None:
        """All that runs is reached, and nothing is being deleted."""
        self._mend()
        self._pass()

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

    @rule(comes_up=st.booleans())
    def fresh_rounds(self, comes_up: bool) -> None:
        """Two rounds of a second each, after which what was restarted may be up again."""
        for _ in range(2):
            self._round([0] * MOST)
        if comes_up:
            self._come_up()
            self._pass()

    @rule(template=st.sampled_from([1, 2, *BAD]), others=st.integers(0, 2**MOST - 1))
    def roll_out(self, template: int, others: int) -> None:
        """A well group gets a new template, which some pods have already."""
        self._mend()
        self.wanted = self.applied = template
        for at, name in enumerate(self.names):
            self.pods[name] = Model(template=1 if others & 1 << at else 2)
        self._pass()
        self.fresh_rounds(comes_up=True)

    def teardown(self) -> None:
        """Without faults, a good template reaches every pod; a bad one costs one pod at most."""
        if not hasattr(self, "names"):
            return
        self._mend()
        self.applied = self.wanted
        self._come_up()
        self._pass()
        for _ in range(8 * len(self.names)):
            self._round([0] * MOST)
            self._come_up()
            self._pass()
        assert not isinstance(self._last(self._plan([0] * MOST)[1]), Disruption | LookAgain)
        if self.wanted not in BAD:
            assert {pod.template for pod in self.pods.values()} == {self.wanted}
            assert len(self._in_sync()) == len(self.names)
            assert self._plan([0] * MOST)[1] == ()

    # The model.

    def _name(self, at: int) -> str:
        return self.names[at % len(self.names)]

    def _mend(self) -> None:
        self.cut_off, self.silent, self.going = set(), set(), set()
        self.paused, self.lease_s = False, 0.0

    def _remake(self, name: str) -> None:
        made = self.pods[name].made + 1
        self.pods[name] = Model(template=self.applied, made=made, runs=False)
        self.going.discard(name)

    def _come_up(self) -> None:
        for pod in self.pods.values():
            pod.runs = not pod.is_bad

    def _in_sync(self) -> list[str]:
        return [n for n in self.names if self.pods[n].runs and n not in self.cut_off]

    def _has_majority(self) -> bool:
        return 2 * len(self._in_sync()) > len(self.names)

    def _pass(self) -> None:
        """Let the group settle, two seconds pass, and each node's answer be remembered."""
        if not self._has_majority():
            self.leader = ""
        elif self.leader not in self._in_sync():
            self.leader, self.term = self._in_sync()[0], self.term + 1
        for name in self.names:
            answers = self.pods[name].runs and name not in self.silent
            self.answers[name].append(self._answer(name) if answers else None)

    def _answer(self, name: str) -> NodeStatus:
        follows = self.leader and name not in self.cut_off
        in_sync = self._in_sync()
        rows = [
            member(f"id-{n}", n, connected=n in in_sync, lag=0 if n in in_sync else 5000)
            for n in self.names
        ]
        return node(
            f"id-{name}",
            name=name,
            group_id=GROUP_ID,
            term=self.term,
            role="leader" if name == self.leader else "follower",
            leader_id=f"id-{self.leader}" if follows else "",
            ready=True,
            members=tuple(rows),
        )

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
        pods = {name: self._pod(name, pod) for name, pod in self.pods.items()}
        seen = _seen(len(self.names), self.applied)
        observed = replace(seen, pods=pods, nodes=found)
        group = _group(len(self.names), self.wanted, self.paused)
        return facts_of(group, observed), oldest_s if found else float("inf")

    def _pod(self, name: str, pod: Model) -> Pod:
        return Pod(
            name=name,
            uid=f"{name}/{pod.made}",
            ip="10.0.0.1",
            ready=pod.runs,
            role=self.roles[name],
            spec_hash=_hash(pod.template),
            terminating=name in self.going,
            stopped=pod.is_bad,
            trouble="ImagePullBackOff" if pod.is_bad else "",
        )

    def _plan(self, ages: list[int]) -> tuple[float, tuple[Action, ...]]:
        facts, oldest_s = self._observe(ages)
        assert conditions(facts, now=NOW)
        footing = Footing(
            oldest_answer_s=oldest_s, lease_s=self.lease_s, considered=self.considered
        )
        return oldest_s, plan(facts, (), fresh_id=FRESH_ID, footing=footing)

    def _last(self, actions: tuple[Action, ...]) -> Action | None:
        return actions[-1] if actions else None

    def _round(self, ages: list[int], *, cut_at: int = 9, fails: str = "") -> None:
        oldest_s, actions = self._plan(ages)
        self.considered = None
        assert not any(isinstance(one, Disruption | LookAgain) for one in actions[:-1])
        for action in actions[:cut_at]:
            assert action.why
            match action:
                case LabelRole(pod, role):
                    self.roles[pod] = role
                case LookAgain(wanted):
                    self.considered = wanted
                case RestartPod():
                    self._may_act(action)
                    self._may_restart(action, oldest_s)
                    if fails != "before":
                        self._remake(action.pod)
                        self._pass()
                case TransferLeader():
                    self._may_act(action)
                    self._may_transfer(action, oldest_s)
                    if fails != "before":
                        others = (each for each in self._in_sync() if each != self.leader)
                        self.leader, self.term = next(others), self.term + 1
                        self._pass()
                case _:
                    # The record of the accepted spec, which the model does not keep.
                    assert type(action).__name__ in ("Create", "Forget")

    def _may_act(self, action: Disruption) -> None:
        assert not self.paused
        assert self.lease_s < 10, "another operator may lead"
        assert self.applied == self.wanted, "it would come back as it was"

    def _may_restart(self, action: RestartPod, oldest_s: float) -> None:
        """Assert what holds before each restart."""
        pod = self.pods[action.pod]
        assert action.uid == f"{action.pod}/{pod.made}", "another pod"
        assert pod.template != self.wanted, "for nothing"
        assert action.pod not in self.going
        if action.is_broken:
            assert not pod.runs, "it runs"
            return
        assert oldest_s < STEP_S, "on stale answers"
        others = set(self.names) - {action.pod}
        assert others <= set(self._in_sync()), "not all others are in sync"
        assert not others & self.going, "a second pod down"
        if others:
            assert 2 * len(others) > len(self.names), "below a quorum"
            assert action.pod != self.leader, "the leader without a transfer"

    def _may_transfer(self, action: TransferLeader, oldest_s: float) -> None:
        assert oldest_s < STEP_S, "on stale answers"
        assert (action.leader, action.term) == (self.leader, self.term)
        assert (action.to, action.to_id) == ("", ""), "the leader knows best who has caught up"
        others = [name for name in self.names if name != self.leader]
        assert {self.pods[name].template for name in others} == {self.wanted}, "not the last"


def _settings() -> Any:
    runs = int(os.environ.get("PLANNER_RUNS", "500"))
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=runs, stateful_step_count=30, suppress_health_check=slow)


TestRoller = Roller.TestCase
TestRoller.settings = _settings()
