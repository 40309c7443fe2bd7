"""Bugs in what the operator decides about a group's members, and on what footing it acts."""

from __future__ import annotations

from functools import partial

from tests.mutants.mutant import Mutant

_MACHINE = "tests/operator/test_planner_machine.py"
_mutant = partial(Mutant, package="operator", checks=(_MACHINE,))

OPERATOR_MUTANTS = (
    _mutant(
        name="acts on stale answers",
        file="decisions/disruptions.py",
        old="self.oldest_answer_s < FRESH_S and",
        new="",
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
        old="return fresh and action == self.considered",
        new="return fresh",
        why="one wrong answer of a node is enough",
    ),
    _mutant(
        name="changes members of a paused group",
        file="decisions/membership.py",
        old='        (facts.group.spec.paused, "the group is paused"),\n',
        new="",
        why="nobody can stop it",
    ),
    _mutant(
        name="changes members with one out of sync",
        file="decisions/membership.py",
        old='    return f"not in sync: {\', \'.join(apart)}" if apart else ""\n',
        new='    return ""\n',
        why="one more loss, and the group stops",
    ),
    _mutant(
        name="two changes of the members at once",
        file="decisions/membership.py",
        old="    if learners or len(set(known)) < len(known):\n",
        new="    if False:\n",
        why="a second learner joins before the first has caught up",
    ),
    _mutant(
        name="members change without a leader that a majority follows",
        file="decisions/membership.py",
        old="            leader is None or leader[0] != facts.leader,\n",
        new="            leader is None,\n",
        why="a deposed leader is asked",
    ),
    _mutant(
        name="a majority of disks need not be left",
        file="decisions/membership.py",
        old="    if 2 * len(left) > len(voters):\n",
        new="    if left:\n",
        why="a group is changed that cannot commit the change",
    ),
)
