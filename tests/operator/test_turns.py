"""One rollout at a time over the installation: who has the turn, who waits, and what ends it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from dledger_operator.api import names
from dledger_operator.decisions.disruptions import Held, RestartPod
from dledger_operator.decisions.facts import Facts, facts_of
from dledger_operator.decisions.plan import next_disruption
from dledger_operator.decisions.rollout import healing, rollout
from dledger_operator.decisions.turns import (
    PASSES_ON_S,
    SETTLES_S,
    Key,
    RolloutTurns,
    Stage,
    is_begun,
    stage,
)
from dledger_operator.observed.observed import Observed
from dledger_operator.status.conditions import conditions
from tests.operator.samples import FREE, NOW, body, bootstrapped, converged
from tests.operator.test_rollout import NEW, PULL, _seen, _with, _without_node

A, B, C = (("sre-a", "pay"), ("sre-b", "shop"), ("sre-c", "web"))
ROLLING = [{"type": "Progressing", "status": "True", "reason": "RollingOut"}]


class Turns(RolloutTurns):
    """The turns of an operator that has looked at all groups, on a clock of the test's own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.woken: list[Key] = []
        super().__init__(lambda: self.now_s, self.woken.append)
        self.now_s = SETTLES_S

    def at(self, key: Key, found: Stage, *, has_begun: bool = False) -> str:
        """Ask, as a round of the group does."""
        return self.ask(key, found, has_begun=has_begun)


def test_one_group_has_the_turn_until_it_is_whole() -> None:
    """The others wait for it by name, and the next in line is woken then."""
    turns = Turns()

    assert turns.at(A, Stage.READY) == ""
    assert turns.at(B, Stage.READY) == "waits for sre-a/pay: one group is rolled out at a time"
    for found in (Stage.UNDER_WAY, Stage.READY, Stage.WAITS, Stage.UNDER_WAY):
        turns.at(A, found, has_begun=True)
        assert turns.at(B, Stage.READY)
        assert turns.at(C, Stage.READY)
    turns.at(A, Stage.NONE)

    assert turns.woken == [B]
    assert turns.tell(B) == ""
    assert turns.tell(C) == "waits for sre-b/shop: one group is rolled out at a time"


def test_what_waits_for_something_of_its_own_takes_no_turn() -> None:
    """A group that cannot go on holds up nobody who can."""
    turns = Turns()

    turns.at(A, Stage.WAITS)

    assert turns.at(B, Stage.READY) == ""


def test_the_first_that_halts_halts_all() -> None:
    """Until it is put right, let alone (paused, or taking no turns), or deleted."""
    turns = Turns()
    turns.at(A, Stage.READY)
    turns.at(B, Stage.READY)
    turns.at(A, Stage.HALTED, has_begun=True)
    turns.now_s += 10 * PASSES_ON_S

    assert turns.tell(B) == "waits for sre-a/pay, whose rollout is halted"
    turns.at(A, Stage.READY, has_begun=True)
    assert turns.tell(B) == "waits for sre-a/pay: one group is rolled out at a time"
    turns.at(A, Stage.HALTED, has_begun=True)
    turns.forget(A)
    assert (turns.tell(B), turns.woken) == ("", [B])


def test_a_group_that_gets_no_further_goes_to_the_end_of_the_line() -> None:
    """A voter whose machine is lost for days is nothing that others have to wait for."""
    turns = Turns()
    turns.at(A, Stage.READY)
    turns.at(B, Stage.READY)
    turns.at(C, Stage.READY)
    turns.at(A, Stage.WAITS, has_begun=True)
    turns.now_s += PASSES_ON_S - 1
    assert turns.tell(B)
    turns.now_s += 1

    assert turns.tell(B) == ""
    turns.at(A, Stage.READY, has_begun=True)
    turns.at(B, Stage.NONE)
    assert turns.woken == [B, C], "it has begun, and had its turn"
    turns.at(C, Stage.NONE)
    assert turns.woken == [B, C, A]


@pytest.mark.parametrize("tries", [(Stage.READY,), (Stage.READY, Stage.WAITS)])
def test_a_step_that_is_refused_each_time_is_no_step(tries: tuple[Stage, ...]) -> None:
    """Whoever refuses to have its pod deleted, or to lead, held up the rollouts of all for ever."""
    turns = Turns()
    turns.at(A, Stage.READY, has_begun=True)
    for _ in range(int(PASSES_ON_S)):
        for found in tries:
            turns.at(A, found, has_begun=True)
        assert turns.at(B, Stage.READY)
        turns.now_s += 1

    turns.at(A, tries[0], has_begun=True)

    assert turns.at(B, Stage.READY) == ""


def test_groups_that_get_no_further_have_the_turn_one_after_the_other() -> None:
    """One that has begun would have it again and again, and one that could go on by now never."""
    turns = Turns()
    had: list[Key] = []
    for _ in range(5 * int(PASSES_ON_S)):
        for key in (A, B, C):
            if not turns.at(key, Stage.READY, has_begun=key == A) and had[-1:] != [key]:
                had.append(key)
        turns.now_s += 1

    assert had == [A, B, C, A, B]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_groups_say_one_has_the_turn_and_each_gets_it(seed: int) -> None:
    """In any order, over hours; a group that could go on waits for what ends, but for a halt."""
    rng, turns, stages = random.Random(seed), Turns(), dict.fromkeys((A, B, C), Stage.NONE)
    for _ in range(200):
        turns.now_s += rng.choice([1, 1, 10, 300])
        key = rng.choice([A, B, C])
        if rng.random() < 0.1:
            turns.forget(key)
            stages[key] = Stage.NONE
            continue
        stages[key] = rng.choice([*Stage])
        turns.at(key, stages[key], has_begun=rng.random() < 0.5)

        going = [one for one in stages if stages[one] is Stage.READY and not turns.tell(one)]
        assert len(going) <= (Stage.HALTED not in stages.values())

    stages = {key: rng.choice([Stage.READY, Stage.WAITS, Stage.UNDER_WAY]) for key in stages}
    stages[A] = Stage.READY
    begun = {key: rng.random() < 0.5 for key in stages}
    for _ in range(4 * int(PASSES_ON_S) // 5):
        turns.now_s += 5
        said = [turns.at(key, stages[key], has_begun=begun[key]) for key in stages]
        if said[0] == "":
            return
    raise AssertionError(stages)


def test_a_group_whose_rounds_fail_keeps_the_turn_no_longer() -> None:
    """Nobody hears of it: it says nothing for as long."""
    turns = Turns()
    turns.at(A, Stage.READY)
    turns.at(B, Stage.READY)
    turns.now_s += PASSES_ON_S

    assert turns.tell(B) == ""


def test_a_new_operator_goes_on_with_the_group_that_has_begun() -> None:
    """Whoever comes first: another waits until all have been looked at."""
    turns = Turns()
    turns.now_s = 0.0

    assert turns.at(B, Stage.READY) == "waits until all groups have been looked at"
    assert turns.at(A, Stage.READY, has_begun=True) == ""
    assert turns.at(B, Stage.READY) == "waits for sre-a/pay: one group is rolled out at a time"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("RollingOut", "waits for sre-a/pay: one group is rolled out at a time"),
        ("RolloutHalted", "waits for sre-a/pay, whose rollout is halted"),
        ("WaitingForTurn", ""),
        ("Complete", ""),
        ("", ""),
    ],
)
def test_what_is_recorded_counts_until_a_group_is_looked_at(reason: str, said: str) -> None:
    """So a halt outlives the operator, and what it says of the one that had the turn."""
    turns = Turns()
    turns.remember(A, reason)

    assert turns.at(B, Stage.READY) == said
    turns.at(A, Stage.NONE)
    assert turns.tell(B) == ""


def _facts(observed: Observed, *, turn: str = "", **recorded: Any) -> Facts:
    return replace(facts_of(bootstrapped({"image": "dledger:2"}, **recorded), observed), turn=turn)


def test_a_stage_is_what_is_seen_of_a_group() -> None:
    """Whatever its turn is, which is decided by it."""
    whole, old = converged(NEW), _seen()
    stuck = _with(_without_node(_seen((0, 1)), 2), 2, stopped=True, trouble=PULL)

    assert stage(_facts(whole), NOW) is Stage.NONE
    assert stage(_facts(old), NOW) is Stage.READY
    assert stage(_facts(_with(old, 1, terminating=True)), NOW) is Stage.UNDER_WAY
    assert stage(_facts(_with(whole, 2, ready=False), conditions=ROLLING), NOW) is Stage.UNDER_WAY
    assert stage(_facts(_without_node(old, 1)), NOW) is Stage.READY, "that one goes first"
    assert stage(_facts(replace(old, refusals={("Member", "orders-2"): "no"})), NOW) is Stage.WAITS
    assert stage(_facts(stuck), NOW) is Stage.HALTED
    assert [is_begun(_facts(each)) for each in (whole, old, stuck)] == [False, False, True]


def test_a_group_that_is_paused_or_excepted_has_no_turn_and_needs_none() -> None:
    """So it holds up nobody, and nobody it."""
    paused = facts_of(bootstrapped({"image": "dledger:2", "paused": True}), _seen())
    manifest = body({"image": "dledger:2"}, groupId="x", term=1)
    manifest["metadata"]["annotations"] = {names.TURN_ANNOTATION: "none"}
    excepted = replace(paused.group, spec=NEW.spec, takes_turns=FREE.group(manifest).takes_turns)

    assert stage(paused, NOW) is Stage.NONE
    assert stage(facts_of(excepted, _seen()), NOW) is Stage.NONE


def test_only_the_next_step_of_a_rollout_waits() -> None:
    """The condition says for whom; a pod that does not run is healed at once."""
    turn = "waits for sre-b/shop: one group is rolled out at a time"
    waiting = _facts(_seen(), turn=turn)
    broken = _with(_without_node(_seen(), 1), 1, stopped=True, trouble=PULL)

    assert rollout(waiting) == Held("orders-2", turn) == next_disruption(waiting)
    row = next(one for one in conditions(waiting, now=NOW) if one["type"] == "Progressing")
    assert (row["status"], row["reason"]) == ("True", "WaitingForTurn")
    assert row["message"] == f"0 of 3 pods run the new template; {turn}"
    healed = healing(_facts(broken, turn=turn))
    assert isinstance(healed, RestartPod)
    assert healed.pod == "orders-1"
