"""Operations against a model of a group: interrupted anywhere, each ends as asked and no other way.

In a walk, each write of the status, each act and each memory of the operator may be lost.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.common.status import MemberStatus
from dledger_operator.api import names
from dledger_operator.api.brokeroperation import FAILED, RUNNING, SUCCEEDED, BrokerOperation
from dledger_operator.api.reasons import EventReason, Reason
from dledger_operator.decisions.actions import LookAgain
from dledger_operator.decisions.disruptions import (
    AddMember,
    Disruption,
    Footing,
    ForceGroup,
    ReplaceClaim,
    ReplaceMember,
    RestartPod,
    TransferLeader,
)
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.operations import OperationObserved, in_turn, may_go, outcome
from dledger_operator.decisions.plan import plan
from dledger_operator.observed.observed import Observed, Pod, Volume
from dledger_operator.status.operation_status import operation_events, operation_status
from tests.operator.samples import FRESH_ID, GROUP_ID, NOW, bootstrapped, converged, member, node

LATER = "2031-05-06T08:08:09Z"


def _operation(kind: str, name: str = "one", **spec: Any) -> BrokerOperation:
    metadata = {"namespace": "shop", "name": name, "uid": name, "creationTimestamp": NOW}
    return BrokerOperation.parse(
        {"metadata": metadata, "spec": {"group": "orders", "kind": kind, **spec}}
    )


def _force(group_id: str = "", survivor: str = "") -> BrokerOperation:
    asked = {"groupId": group_id, "survivor": survivor}
    return _operation("ForceNewGroup", forceNewGroup=asked)


TRANSFER = _operation("TransferLeader", transferLeader={"to": "orders-1"})
RESTART = _operation("Restart", restart={"all": True})
REPLACE = _operation("ReplaceMember", replaceMember={"member": "orders-0"})


@dataclass
class Model:
    """Three pods with their claims and disks, a leader, and one operation."""

    operation: BrokerOperation
    leader: str = "orders-0"
    term: int = 1
    epoch: int = 0
    made: int = 0
    silent: set[str] = field(default_factory=set)
    behind: set[str] = field(default_factory=set)
    done: list[Disruption] = field(default_factory=list)
    considered: Disruption | None = None
    overdue: bool = False

    def __post_init__(self) -> None:
        self.names = [f"orders-{n}" for n in range(3)]
        self.pods = {name: f"pod-{name}" for name in self.names}
        self.claims = {name: f"claim-{name}" for name in self.names}
        self.disks = {name: (f"id-{name}", True) for name in self.names}
        self.members = {f"id-{name}": (name, True) for name in self.names}

    def lose_majority(self) -> None:
        """One disk is empty, one node is silent for good, and the third goes on alone."""
        self.leader, self.overdue = "", True
        self.silent.add("orders-1")
        self.empty("orders-2")

    def empty(self, name: str) -> None:
        """Give a pod an empty disk, on a claim of its own."""
        self.made += 1
        self.disks[name] = f"new-{self.made}", False
        self.claims[name] = f"claim-{self.made}"
        self.silent.discard(name)

    def facts(self) -> Facts:
        """Return what the operator sees."""
        group = bootstrapped()
        rows = tuple(self._row(one, *who) for one, who in self.members.items())
        nodes = {}
        for name, (node_id, is_joined) in self.disks.items():
            if name in self.silent:
                continue
            said: dict[str, Any] = {"told_group_id": GROUP_ID}
            if is_joined:
                said = {
                    "group_id": GROUP_ID,
                    "role": "leader" if name == self.leader else "follower",
                    "term": self.term,
                    "leader_id": self.disks[self.leader][0] if self.leader else "",
                    "members": rows,
                    "last_term": 1,
                    "last_index": 7,
                    "epoch": self.epoch,
                }
            nodes[name] = node(node_id, **said)
        observed: Observed = converged(
            group,
            nodes=nodes,
            pods={
                n: Pod(name=n, uid=uid, ip="10.0.0.1", ready=n not in self.behind)
                for n, uid in self.pods.items()
            },
            volumes={
                f"data-{n}": Volume(name=f"data-{n}", size="10Gi", uid=uid, volume=f"pv-of-{uid}")
                for n, uid in self.claims.items()
            },
            operations=(self.operation,),
        )
        return replace(facts_of(group, observed), overdue=self.overdue)

    def _row(self, node_id: str, name: str, voter: bool) -> MemberStatus:
        is_there = self.disks[name][0] == node_id and name not in self.silent | self.behind
        return member(node_id, name, voter=voter, connected=is_there, lag=0 if is_there else 9999)

    def report(self, *, lost: bool = False) -> None:
        """Write where the operation stands, unless the write is lost."""
        facts = self.facts()
        seen = OperationObserved(there=True, facts=facts)
        status = operation_status(self.operation, outcome(self.operation, seen, now=NOW), now=NOW)
        if not lost:
            self.operation = replace(self.operation, status=status)

    def act(self, *, forget: bool = False, lost: bool = False) -> None:
        """Do a round of the group: look again, or the one disruption that is due."""
        footing = Footing(oldest_answer_s=0.0, lease_s=0.0, considered=self.considered)
        planned = plan(self.facts(), (), fresh_id=FRESH_ID, footing=footing)
        kinds = Disruption.__args__
        disruptive = [one for one in planned if isinstance(one, kinds)]
        asked = [one.action for one in planned if isinstance(one, LookAgain)]
        self.considered = asked[0] if asked and not forget else None
        assert len(disruptive) <= 1
        for action in disruptive:
            self._check(action)
            if not lost:
                self._do(action)

    def pass_time(self) -> None:
        """Pods are back, and learners have caught up."""
        self.behind.clear()
        for node_id, (name, _) in self.members.items():
            if self.disks[name] == (node_id, True):
                self.members[node_id] = name, True

    def _check(self, action: Disruption) -> None:
        """Assert that a quorum of the others is in sync before a pod or a disk goes."""
        if isinstance(action, RestartPod | ReplaceClaim):
            voters = {name for name, voter in self.members.values() if voter}
            fit = {
                self.members[one][0]
                for name, (one, _) in self.disks.items()
                if one in self.members and name not in self.silent | self.behind
            }
            left = (fit & voters) - {action.pod}
            assert 2 * len(left) > len(voters), action
            assert action.pod != self.leader

    def _do(self, action: Disruption) -> None:
        self.done.append(action)
        match action:
            case TransferLeader():
                fit = [n for n in self.names if n not in self.behind and n != self.leader]
                self.leader, self.term = action.to or fit[0], self.term + 1
            case RestartPod() if self.pods[action.pod] == action.uid:
                self.made += 1
                self.pods[action.pod] = f"pod-{self.made}"
                self.behind.add(action.pod)
            case ReplaceClaim() if self.claims[action.pod] == action.uid:
                self.made += 1
                self.pods[action.pod] = f"pod-{self.made}"
                self.empty(action.pod)
            case ForceGroup():
                assert not self.leader
                self.leader, self.term, self.epoch = action.pod, self.term + (1 << 20), 1
                self.members = {action.member_id: (action.pod, True)}
            case AddMember() | ReplaceMember():
                if isinstance(action, ReplaceMember):
                    del self.members[action.old_id]
                self.members[action.member_id] = action.pod, False
                self.disks[action.pod] = action.member_id, True

    def settle(self, rounds: int = 60) -> None:
        """Go on without faults."""
        for _ in range(rounds):
            self.pass_time()
            self.report()
            self.act()


def _told(model: Model, kind: type[Any]) -> list[Any]:
    return [action for action in model.done if isinstance(action, kind)]


def _reason(operation: BrokerOperation) -> str:
    return str(operation.status["conditions"][0]["reason"])


FAULTS = st.lists(st.sampled_from(["forget", "lost act", "lost status", "wait", ""]), max_size=40)


@pytest.mark.parametrize("operation", [TRANSFER, RESTART, REPLACE, _force(GROUP_ID)])
@settings(max_examples=60, deadline=None)
@given(faults=FAULTS)
def test_an_operation_that_is_interrupted_anywhere_ends_as_asked(
    operation: BrokerOperation, faults: list[str]
) -> None:
    """What it rests on is recorded, and each step is done once, or again to no effect."""
    model = Model(operation)
    if operation.spec.kind == "ForceNewGroup":
        model.lose_majority()

    for fault in faults:
        model.report(lost=fault == "lost status")
        model.act(forget=fault == "forget", lost=fault == "lost act")
        if fault == "wait":
            model.pass_time()
    model.settle()

    assert model.operation.phase == SUCCEEDED, model.operation.status
    assert sorted(name for name, voter in model.members.values() if voter) == model.names
    before = len(model.done)
    model.settle(5)
    assert len(model.done) == before


def test_all_pods_are_restarted_once_the_leader_last() -> None:
    """After it handed over."""
    model = Model(RESTART)

    model.settle()

    assert [each.pod for each in _told(model, RestartPod)] == ["orders-2", "orders-1", "orders-0"]
    assert len(_told(model, TransferLeader)) == 1


def test_a_restart_waits_with_the_reason_while_a_voter_is_missing() -> None:
    """And goes on with the broken one if that is to be restarted."""
    model = Model(_operation("Restart", restart={"pods": ["orders-2"]}))
    model.silent.add("orders-1")
    model.behind.add("orders-1")

    for _ in range(5):
        model.report()
        model.act()

    assert model.done == []
    assert "not now: not in sync: orders-1" in model.operation.status["message"]


def test_a_replaced_leader_hands_over_before_its_claim_goes() -> None:
    """Then its disk comes back under another node id, and votes."""
    model = Model(REPLACE)

    model.settle()

    kinds = [type(each) for each in model.done]
    assert kinds == [TransferLeader, ReplaceClaim, ReplaceMember]
    assert "pv-of-claim-orders-0" in model.operation.status["message"]


def test_a_forced_group_gives_up_only_disks_that_may_be_old() -> None:
    """The empty one joins as it is."""
    model = Model(_force(GROUP_ID))
    model.lose_majority()

    model.settle()

    kinds = [type(each) for each in model.done]
    assert kinds == [ForceGroup, ReplaceClaim, AddMember, AddMember]
    assert [each.claim for each in _told(model, ReplaceClaim)] == ["data-orders-1"]


@pytest.mark.parametrize(
    ("operation", "is_lost", "reason"),
    [
        (_force(), True, Reason.AWAITING_CONFIRMATION),
        (_force("another"), True, Reason.GROUP_ID_MISMATCH),
        (_force(GROUP_ID, "orders-1"), True, Reason.NOT_ALLOWED),
        (_force(GROUP_ID), False, Reason.MAJORITY_THERE),
        (_operation("Restart", restart={"pods": ["x"]}), False, Reason.NO_SUCH_MEMBER),
        (_operation("ReplaceMember", replaceMember={"member": "x"}), False, Reason.NO_SUCH_MEMBER),
        (_operation("TransferLeader", transferLeader={"to": "x"}), False, Reason.NO_SUCH_MEMBER),
        (TRANSFER, True, Reason.OPERATION_HELD),
        (REPLACE, True, Reason.OPERATION_HELD),
        (_operation("Verify"), False, Reason.INVALID_SPEC),
    ],
)
def test_what_cannot_begin_says_why_and_does_nothing(
    operation: BrokerOperation, is_lost: bool, reason: Reason
) -> None:
    """For good, where time does not help."""
    model = Model(operation)
    if is_lost:
        model.lose_majority()

    for _ in range(4):
        model.report()
        model.act()

    assert _reason(model.operation) == reason
    assert model.done == []
    waits = {Reason.AWAITING_CONFIRMATION, Reason.OPERATION_HELD}
    assert model.operation.finished == (reason not in waits)


def test_a_leader_that_comes_back_before_the_act_ends_the_forcing() -> None:
    """A confirmed operation must not lie in wait for the next loss."""
    model = Model(_force(GROUP_ID))
    model.lose_majority()
    model.report()
    model.leader, model.silent = "orders-0", set()

    model.settle()

    assert model.done == [] or not _told(model, ForceGroup)
    assert (model.operation.phase, _reason(model.operation)) == (FAILED, "MajorityThere")


def test_a_forced_leader_that_has_not_committed_its_epoch_yet_is_no_majority_that_came_back() -> (
    None
):
    """A status comes whenever it is news, so also between the election and the first sync."""
    model = Model(_force(GROUP_ID))
    model.lose_majority()
    while not _told(model, ForceGroup):
        model.report()
        model.act()
    model.epoch = 0

    model.report()
    assert model.operation.phase == RUNNING
    model.epoch = 1
    model.settle()

    assert model.operation.phase == SUCCEEDED


def test_time_ends_what_waits_or_runs_but_not_a_confirmed_forcing() -> None:
    """An unconfirmed one says that it was not confirmed."""
    model = Model(_force())
    model.lose_majority()
    seen = OperationObserved(there=True, facts=model.facts())

    def late(operation: BrokerOperation, of: OperationObserved = seen) -> str:
        found = outcome(operation, of, now=LATER)
        status = operation_status(operation, found, now=LATER)
        return f"{status['phase']} {status['conditions'][0]['reason']}"

    assert late(_force()) == "Failed ConfirmationNeeded"
    assert late(_force(GROUP_ID)) == "Running OperationRunning"
    assert late(TRANSFER) == "Failed DeadlineExceeded"
    assert late(TRANSFER, OperationObserved()) == "Failed DeadlineExceeded"


def test_one_at_a_time_the_oldest_first_and_one_that_runs_before_all() -> None:
    """Another waits for its turn; a finished one stays as long as it says."""
    old, new = TRANSFER, replace(RESTART, name="two", created_at=LATER)
    runs = replace(new, status={"phase": "Running"})
    over = replace(old, status={"phase": "Succeeded", "finishedAt": NOW})
    seen = OperationObserved(there=True, facts=Model(old).facts(), predecessor="one")

    found = operation_status(new, outcome(new, seen, now=LATER), now=LATER)

    assert in_turn([new, old]) == [old, new]
    assert in_turn([runs, old, over]) == [runs, old]
    assert found["conditions"][0]["reason"] == Reason.WAITING_FOR_TURN
    assert not may_go(over, now=LATER)
    assert may_go(over, now="2031-05-14T07:08:09Z")
    assert not may_go(old, now="2031-05-14T07:08:09Z")


def test_each_change_of_the_phase_is_told_once() -> None:
    """Waiting is not worth an Event."""
    phases = ["Pending", "Running", "Running", "Succeeded"]
    told = []
    for was, now in itertools.pairwise(phases):
        changed = {"phase": now, "message": "m"}
        told += [each.reason for each in operation_events(RESTART, {"phase": was}, changed)]

    assert told == [EventReason.OPERATION_STARTED, EventReason.OPERATION_SUCCEEDED]
    assert names.OPERATION_KIND == RESTART.KIND


def test_what_runs_goes_on_when_a_new_operator_has_not_seen_the_group_yet() -> None:
    """Found: it began anew, saw the leader that it had made itself, and failed."""
    model = Model(_force(GROUP_ID))
    model.lose_majority()
    model.report()
    record = model.operation.status["chosen"]

    for seen in (OperationObserved(), OperationObserved(there=True)):
        found = outcome(model.operation, seen, now=NOW)
        status = operation_status(model.operation, found, now=NOW)
        assert (status["phase"], status["chosen"]) == ("Running", record)
