"""Bugs in forcing a group from one survivor: what is lost, who is left out, who finds that out."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_FORCE = "tests/raft/test_force.py"
_GROUP = "tests/replica/test_force_group.py"
_EPOCHS = "tests/server/test_epochs.py"
_SCENARIO = "tests/raft/test_scenarios.py"

FORCE_MUTANTS = (
    Mutant(
        name="who was left out is heard until the entry is committed",
        file="raft/membership.py",
        old="            return removal_index > commit_index and not self.is_fenced(node_id)\n",
        new="            return removal_index > commit_index\n",
        why="after a restart of the survivor the old pair has its acknowledged entries replaced",
        checks=(_FORCE, _SCENARIO),
    ),
    Mutant(
        name="an epoch is told before it is committed",
        file="raft/membership.py",
        old="(one.epoch, at) for at, one in self._stack if at <= commit_index]\n",
        new="(one.epoch, at) for at, one in self._stack]\n",
        why="others end themselves for an act that a crash takes back",
        checks=(_FORCE, _EPOCHS),
    ),
    Mutant(
        name="a fresh disk that catches up counts as left out",
        file="raft/membership.py",
        old="        return bool(named) and max(named) < epoch\n",
        new="        return max(named, default=0) < epoch\n",
        why="a new member ends itself for good at its first handshake",
        checks=(_FORCE, _EPOCHS),
    ),
    Mutant(
        name="a change forgets the epoch",
        file="raft/membership.py",
        old="        epoch=current.epoch,\n",
        new="",
        why="once the group has grown, those that were left out are told nothing",
        checks=(_FORCE,),
    ),
    Mutant(
        name="a group is forced while a leader is heard",
        file="raft/force.py",
        old="    if core.leader is not None or core.silent_ticks < _silent_ticks(core):\n",
        new="    if core.leader == core.id:\n",
        why="a living group is torn apart, and what its majority acknowledged is lost",
        checks=(_FORCE,),
    ),
    Mutant(
        name="a majority that answers is no hindrance",
        file="replica/force_group.py",
        old="    if core.memberships.electorate.is_quorum(there):\n",
        new="    if not there:\n",
        why="the same, where it only has no leader at the moment",
        checks=(_GROUP,),
    ),
    Mutant(
        name="it is answered before it is durable",
        file="replica/force_group.py",
        old="    while core.commit_index < index or not",
        new="    while core.last_index < index and not",
        why="the operator goes on by a state that a crash takes back",
        checks=(_GROUP,),
    ),
)
