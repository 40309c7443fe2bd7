"""Bugs in the one gate that all asks which costs a group some safety, and in what it is told."""

from __future__ import annotations

from functools import partial

from tests.mutants.mutant import Mutant

_GATE = "tests/operator/test_gate.py"
_SCALING = "tests/operator/test_scaling.py"
_mutant = partial(Mutant, package="operator", file="decisions/gate.py", checks=(_GATE,))

GATE_MUTANTS = (
    _mutant(
        name="changes members with one out of sync",
        old='        (name in facts.apart, "not in sync"),\n',
        new="",
        why="one more loss, and the group stops",
    ),
    _mutant(
        name="two changes of the members at once",
        old="    if learners or len(set(known)) < len(known):\n",
        new="    if False:\n",
        why="a second learner joins before the first has caught up",
    ),
    _mutant(
        name="a member leaves that the majority needs",
        old="    if 2 * len(there) > len(voters) and 2 * len(left) > len(voters) - 1:\n",
        new="    if left:\n",
        why="the change can never be committed, and nor can anything after it",
        checks=(_SCALING,),
    ),
    _mutant(
        name="a pod is restarted while another does not stand",
        old="    others = {*_voters(facts), *facts.expected} - {name}\n",
        new="    others = set[str]()\n",
        why="a rollout stops the writes",
        checks=("tests/operator/test_rollout.py",),
    ),
    _mutant(
        name="a pod that ends is taken for a sound voter",
        old='        (pod is not None and pod.terminating, "being deleted"),\n',
        new="",
        why="a restart and a change of the members overlap: four voters, one of them starting",
    ),
    _mutant(
        name="a pod that starts is taken for a sound voter",
        old='        (pod is None or not pod.ready, "not ready"),\n',
        new="",
        why="the next is restarted before the last one serves",
    ),
    _mutant(
        name="a node that does not answer is taken for a sound voter",
        old='        (name not in facts.observed.nodes, "no answer from"),\n',
        new="",
        why="what rests on its leader's word alone is done",
    ),
    _mutant(
        name="the leader hands over to one that ends",
        old="    if why := _under_way(facts) or _waited_for(facts, {to}):\n",
        new="    if why := _under_way(facts):\n",
        why="the new leader is gone in a moment, and clients wait twice",
    ),
    _mutant(
        name="the leader hands over with no majority on its feet",
        old='    return "" if 2 * stand > voters else f"',
        new='    return "" if stand else f"',
        why="the vote that follows may need the very pods that end",
    ),
    _mutant(
        name="one that ends stays while a sound member leaves",
        file="decisions/scaling.py",
        old="    name = min(facts.leaving, key=lambda one: (rows[one].voter, one in stand))\n",
        new="    name = min(facts.leaving, key=lambda one: rows[one].voter)\n",
        why="of three voters that become one, two go at the same time",
    ),
    _mutant(
        name="a pod is restarted without its Secret",
        old="        return why\n    others =",
        new="        pass\n    others =",
        why="it never comes up, and the rollout has taken a sound voter",
    ),
    _mutant(
        name="what the operator deleted itself is taken for running",
        file="controllers/member_keeper.py",
        old="replace(pod, terminating=True) if pod.uid in self._ended else pod",
        new="pod",
        why="until the watch shows it, the next act goes by a pod that ends",
        checks=("tests/operator/test_reconcile.py",),
    ),
    _mutant(
        name="the disk of a pod that only has to go is waited for",
        file="decisions/membership.py",
        old="        if (name in facts.asked or name in members)\n        and names.claim_of",
        new="        if names.claim_of",
        why="a lost disk that nobody needs keeps a group from its size, with a false word",
        checks=("tests/operator/test_losses.py",),
    ),
    _mutant(
        name="a lost disk waits for one that waits for it",
        old="    relied_on = left - {*facts.leaving} if is_costless else left\n",
        new="    relied_on = left\n",
        why="a group that shrinks since machines die is never whole again",
    ),
    _mutant(
        name="a sound disk is given up while one that is to leave is down",
        old="    is_costless = members.isdisjoint(stand) and 2 *",
        new="    is_costless = 2 *",
        why="an operation takes a second voter from a group that has lost one",
    ),
    _mutant(
        name="a group held in deletion keeps the turn",
        file="controllers/reconcile.py",
        old="        self._rollout_turns.forget((group.namespace, group.name))\n"
        "        await self._nodes.poll({})\n        self._metrics",
        new="        await self._nodes.poll({})\n        self._metrics",
        why="one that is halted halts the rollouts of all for as long as a finalizer stays",
        checks=("tests/operator/test_departure.py",),
    ),
    _mutant(
        name="a step that is refused each time is a step",
        file="decisions/turns.py",
        old="        if before is not found and (before is None or {before, found} & _STEPS):\n",
        new="        if before is not found or key == self._holder:\n",
        why="a group whose pod may not be deleted holds up all others for ever",
        checks=("tests/operator/test_turns.py",),
    ),
    _mutant(
        name="what waits for a pod holds up the restart that would mend it",
        file="decisions/plan.py",
        old="    return (_mend(facts, first) or first) if isinstance(first, Held) else first\n",
        new="    return first\n",
        why="a group that is grown and put right in one moment stands still",
    ),
    _mutant(
        name="a sound pod is restarted past what is held",
        file="decisions/plan.py",
        old="        case RestartPod(pod=pod) as restart if pod not in standing(facts):\n",
        new="        case RestartPod() as restart:\n",
        why="a rollout goes on before the group has the size that it is asked for",
    ),
)
