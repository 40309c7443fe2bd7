"""Bugs in what the operator decides about a group's members, and on what footing it acts."""

from __future__ import annotations

from functools import partial

from tests.mutants.mutant import Mutant

_MACHINE = "tests/operator/test_planner_machine.py"
_RESTARTS = "tests/operator/test_rollout.py"
_ROLLOUT = "tests/operator/test_rollout_machine.py"
_SCALING = "tests/operator/test_scaling.py"
_mutant = partial(Mutant, package="operator", checks=(_MACHINE,))

OPERATOR_MUTANTS = (
    _mutant(
        name="a store on port 80 may be the metadata",
        file="resources/job_egress.py",
        old="    if port == _HTTP:\n",
        new="    if port < 0:\n",
        why="a Job may ask the cloud what its machine may",
        checks=("tests/operator/test_job_egress.py",),
    ),
    _mutant(
        name="acts on stale answers",
        file="decisions/disruptions.py",
        old="fresh = rests_on_none or self.oldest_answer_s < FRESH_S",
        new="fresh = True",
        why="a member is replaced by what was true a minute ago",
    ),
    _mutant(
        name="acts on a Lease that another may hold",
        file="decisions/disruptions.py",
        old=" and self.lease_s < RENEWED_S",
        new="",
        why="two operators change one group",
    ),
    _mutant(
        name="acts at first sight",
        file="decisions/disruptions.py",
        old=" and action == self.considered",
        new="",
        why="one wrong answer of a node is enough",
    ),
    _mutant(
        name="a leader leaves before it hands over",
        file="decisions/scaling.py",
        old="    if name == leader[0]:\n",
        new="    if False:\n",
        why="writes stop for an election for no reason",
        checks=(_SCALING,),
    ),
    _mutant(
        name="pods go before their members have left",
        file="decisions/scaling.py",
        old="max(group.spec.replicas, 1 + highest(group, members)), pods_asked",
        new="group.spec.replicas, pods_asked",
        why="voters are lost at once: from five to one, the majority",
        checks=(_SCALING,),
    ),
    _mutant(
        name="a member joins while another learns",
        file="decisions/scaling.py",
        old="        if pod in known:\n            return None\n",
        new="        if pod in known:\n            continue\n",
        why="two changes at once, unless another rule sees it",
        checks=(_SCALING,),
    ),
    _mutant(
        name="a removed disk is not marked",
        file="decisions/scaling.py",
        old='        claim=claim.name if claim else "",\n',
        new='        claim="",\n',
        why="the group can never grow again: the disk refuses to start",
        checks=(_SCALING,),
    ),
    _mutant(
        name="acts on a paused group",
        file="decisions/plan.py",
        old="    if group.spec.paused:\n        return ()\n",
        new="",
        why="nobody can stop it",
    ),
    _mutant(
        name="half of the voters are a majority",
        file="decisions/facts.py",
        old="if 2 * newest.count(leader_id) > (",
        new="if 2 * newest.count(leader_id) >= (",
        why="a leader that cannot commit is asked to change the members",
        checks=("tests/operator/test_plan.py", "tests/operator/test_status.py"),
    ),
    _mutant(
        name="learners count in a majority",
        file="decisions/facts.py",
        old=" and (not voters or node.node_id in voters)",
        new="",
        why="two of five are taken for a majority of three",
        checks=("tests/operator/test_plan.py", "tests/operator/test_status.py"),
    ),
    _mutant(
        name="a voter far behind is in sync",
        file="decisions/facts.py",
        old="(row.connected and row.lag <= CAUGHT_UP_ENTRIES)",
        new="row.connected",
        why="a change goes on one disk's word",
        checks=("tests/operator/test_plan.py",),
    ),
    _mutant(
        name="a pod that goes away becomes a member",
        file="decisions/membership.py",
        old="or pod is None or pod.terminating",
        new="or pod is None",
        why="the disk that is let in is lost with its pod",
    ),
    _mutant(
        name="a disk of another group becomes a member",
        file="decisions/membership.py",
        old="    if node.told_group_id != facts.group.group_id:\n",
        new="    if False:\n",
        why="it refuses to join, and the group has lost a voter for it",
        checks=("tests/operator/test_plan.py",),
    ),
    _mutant(
        name="a restored disk becomes a member",
        file="decisions/membership.py",
        old="    if node.recovered_to:\n",
        new="    if False:\n",
        why="what a backup had is thrown away",
        checks=("tests/operator/test_plan.py",),
    ),
    _mutant(
        name="a leader is restarted before it handed over",
        file="decisions/restarts.py",
        old="if name == facts.leader and facts.voters > 1:",
        new="if False:",
        why="clients wait for an election, in each rollout",
        checks=(_ROLLOUT,),
    ),
    _mutant(
        name="a pod that runs is taken for a broken one",
        file="decisions/rollout.py",
        old="return pod.stopped and not (pod.ready or pod.terminating or answers)",
        new="return not pod.terminating",
        why="all pods of an older template are restarted at once",
        checks=(_ROLLOUT,),
    ),
    _mutant(
        name="the disk of a node that answers is given up",
        file="decisions/membership.py",
        old="        and name not in facts.in_sync\n        and name not in observed.nodes\n",
        new="",
        why="a healthy member loses its disk by a word of Kubernetes",
        checks=("tests/operator/test_losses.py",),
    ),
    _mutant(
        name="topics of others are deleted",
        file="decisions/topics.py",
        old="    left = before - asked if",
        new="    left = there - asked if",
        why="what was made by hand is gone with its messages",
        checks=("tests/operator/test_plan.py",),
    ),
    _mutant(
        name="topics are deleted under Retain",
        file="decisions/topics.py",
        old=" if group.spec.topic_deletion == DELETE else frozenset()",
        new="",
        why="a line taken off a manifest costs the messages",
        checks=("tests/operator/test_plan.py",),
    ),
    _mutant(
        name="empty disks hide a lost majority",
        file="status/degraded.py",
        old="_majority_lost(facts) or _replaced(facts)",
        new="_replaced(facts) or _majority_lost(facts)",
        why="nobody is told that writes stopped",
        checks=("tests/operator/test_status.py",),
    ),
)
