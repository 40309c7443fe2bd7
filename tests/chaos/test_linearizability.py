"""The search finds histories that no order explains, explains the others, and knows its limit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from e2e.chaos.history import NEVER, Operation, Outcome
from e2e.chaos.linearizability import Agreement, apply, check_keys
from e2e.chaos.register_checker import INITIAL
from tests.chaos.registers import cas, random_history, read, refused, unanswered, write


def verdict(*operations: Operation, max_steps: int = 100_000) -> Agreement:
    """Return the verdict on one register."""
    (judgement,) = check_keys(operations, max_steps=max_steps)
    return judgement.verdict


def test_operations_one_after_the_other_are_explained_by_their_order() -> None:
    """The simplest history."""
    operations = (write(0, 1, 1), read(2, 3, 1), cas(4, 5, 1, 2), read(6, 7, 2))

    assert verdict(*operations) is Agreement.LINEARIZABLE


def test_overlapping_operations_may_take_effect_in_any_order() -> None:
    """Two writes and two reads that only one order explains."""
    operations = (write(0, 9, 1), write(0, 9, 2), read(1, 2, 2), read(3, 4, 1))

    assert verdict(*operations) is Agreement.LINEARIZABLE


def test_a_stale_read_is_a_violation() -> None:
    """The write had been answered before."""
    assert verdict(write(0, 1, 1), read(2, 3, 0)) is Agreement.VIOLATION


def test_a_lost_write_is_a_violation() -> None:
    """Seen once, never again, and nobody wrote the old value back."""
    assert verdict(write(0, 9, 1), read(1, 2, 1), read(3, 4, 0)) is Agreement.VIOLATION


def test_a_value_that_nobody_wrote_is_a_violation() -> None:
    """No order makes it."""
    assert verdict(write(0, 1, 1), read(2, 3, 2)) is Agreement.VIOLATION


def test_a_value_from_the_future_is_a_violation() -> None:
    """It was read before its write began."""
    assert verdict(read(0, 1, 1), write(2, 3, 1)) is Agreement.VIOLATION


def test_two_compare_and_sets_from_one_value_are_a_violation() -> None:
    """A lost update."""
    assert verdict(cas(0, 9, 0, 1), cas(0, 9, 0, 2)) is Agreement.VIOLATION


def test_a_wrong_refusal_is_a_violation() -> None:
    """The register held what was expected, and nobody else was there."""
    assert verdict(write(0, 1, 1), refused(cas(2, 3, 1, 2))) is Agreement.VIOLATION


def test_an_effect_of_a_refused_compare_and_set_is_a_violation() -> None:
    """Refused means: nothing happened."""
    assert verdict(refused(cas(0, 1, 5, 2)), read(2, 3, 2)) is Agreement.VIOLATION


def test_two_readers_that_disagree_about_the_order_are_a_violation() -> None:
    """Each pair of answers has an order; all together have none."""
    operations = (
        write(0, 9, 1), write(0, 9, 2),
        read(1, 2, 1), read(3, 4, 2), read(5, 6, 1),
    )  # fmt: skip

    assert verdict(*operations) is Agreement.VIOLATION


def test_an_unanswered_write_may_take_effect_late_or_never() -> None:
    """It is under way for ever."""
    maybe = unanswered(write(0, 1, 1))

    assert verdict(maybe, read(2, 3, 0), read(4, 5, 1)) is Agreement.LINEARIZABLE
    assert verdict(maybe, read(2, 3, 0)) is Agreement.LINEARIZABLE
    assert verdict(maybe, read(2, 3, 1), read(4, 5, 0)) is Agreement.VIOLATION


def test_the_limit_gives_unknown_and_not_a_guess() -> None:
    """A history that is too expensive is neither good nor bad."""
    operations = [write(0, 9, value) for value in range(1, 12)]

    assert verdict(*operations, read(10, 11, 99), max_steps=100) is Agreement.UNKNOWN


def test_the_text_names_the_answer_that_no_order_explains() -> None:
    """Who reads a failed run begins there."""
    (judgement,) = check_keys([write(0, 1, 1), read(2, 3, 1), read(4, 5, 8, process="p9")])

    assert judgement.verdict is Agreement.VIOLATION
    assert "2 of 3" in judgement.text
    assert "p9" in judgement.text


def test_each_register_is_judged_by_itself() -> None:
    """Linearizability is local."""
    judgements = check_keys(
        [write(0, 1, 1, key="x"), read(2, 3, 0, key="y"), read(2, 3, 0, key="x")]
    )

    assert [(j.key, j.verdict) for j in judgements] == [
        ("x", Agreement.VIOLATION),
        ("y", Agreement.LINEARIZABLE),
    ]


def test_the_search_agrees_with_trying_every_order() -> None:
    """On short random histories, half of them with altered answers."""
    verdicts = []
    for seed in range(200):
        wrong = 0.2 if seed % 2 else 0.0
        history = random_history(random.Random(seed), count=6, fresh=False, wrong=wrong)
        expected = Agreement.LINEARIZABLE if any_order(history) else Agreement.VIOLATION

        verdicts.append(verdict(*history))

        assert verdicts[-1] is expected, f"seed {seed}"
    assert verdicts.count(Agreement.VIOLATION) > 20


def any_order(history: Sequence[Operation]) -> bool:
    """Whether some order, with or without each unanswered operation, explains every answer."""
    certain = [o for o in history if o.outcome is not Outcome.UNKNOWN]
    maybe = [o for o in history if o.outcome is Outcome.UNKNOWN]
    return any(
        in_real_time(order) and explains(order)
        for count in range(len(maybe) + 1)
        for chosen in itertools.combinations(maybe, count)
        for order in itertools.permutations([*certain, *chosen])
    )


def in_real_time(order: Sequence[Operation]) -> bool:
    """Whether nothing stands before what ended before it began."""
    return all(
        later.ended_s >= earlier.invoked_s
        for earlier, later in itertools.combinations(order, 2)
        if later.ended_s < NEVER
    )


def explains(order: Sequence[Operation]) -> bool:
    """Whether a register gives these answers in this order."""
    value = INITIAL
    for operation in order:
        after = apply(operation, value)
        if after is None:
            return False
        value = after
    return True


def test_a_long_history_with_few_at_a_time_is_cheap() -> None:
    """Two thousand operations of a real register need a few steps each."""
    history = random_history(random.Random(1), count=2000, fresh=False, silent=0.0)

    (judgement,) = check_keys(history)

    assert judgement.verdict is Agreement.LINEARIZABLE
    assert judgement.steps < 100_000
