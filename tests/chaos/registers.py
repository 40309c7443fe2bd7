"""Register histories: short ways to write operations down, and one that makes random ones."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from e2e.chaos.history import NEVER, Kind, Operation, Outcome
from e2e.chaos.linearizability import apply
from e2e.chaos.register_checker import INITIAL


def read(start: float, end: float, value: int, **fields: Any) -> Operation:
    """Return a read of *value* during [start, end]."""
    return _operation(Kind.READ, start, end, value=value, **fields)


def write(start: float, end: float, value: int, **fields: Any) -> Operation:
    """Return a write of *value* during [start, end]."""
    return _operation(Kind.WRITE, start, end, value=value, **fields)


def cas(start: float, end: float, expected: int, value: int, **fields: Any) -> Operation:
    """Return a compare-and-set during [start, end]."""
    return _operation(Kind.CAS, start, end, expected=expected, value=value, **fields)


def refused(operation: Operation) -> Operation:
    """Return the same, answered with no."""
    return replace(operation, outcome=Outcome.REFUSED)


def unanswered(operation: Operation) -> Operation:
    """Return the same without an answer."""
    return replace(operation, outcome=Outcome.UNKNOWN, ended_s=NEVER)


def _operation(kind: Kind, start: float, end: float, **fields: Any) -> Operation:
    values: dict[str, Any] = {"process": "p", "key": "k", "outcome": Outcome.OK, **fields}
    return Operation(kind=kind, invoked_s=start, ended_s=end, **values)


def random_history(
    rng: random.Random, *, count: int, fresh: bool, wrong: float = 0.0, silent: float = 0.1
) -> list[Operation]:
    """Return operations of a real register that takes each at some moment between its ends.

    Args:
        rng: Draws everything.
        count: How many.
        fresh: Whether every compare-and-set has a new value and there are no writes.
        wrong: How likely an answer is altered afterwards.
        silent: How likely there is no answer.
    """
    value = INITIAL
    history = []
    for number in range(1, count + 1):
        moment = float(number)
        start, end = moment - rng.uniform(0, 2.5), moment + rng.uniform(0, 2.5)
        operation = _drawn(rng, number, value, fresh=fresh)
        operation = replace(operation, invoked_s=start, ended_s=end)
        value, operation = _taken(operation, value)
        if rng.random() < wrong:
            operation = _altered(rng, operation, number)
        elif rng.random() < silent:
            operation = unanswered(operation)
        history.append(operation)
    return history


def _drawn(rng: random.Random, number: int, value: int, *, fresh: bool) -> Operation:
    kinds = [Kind.READ, Kind.CAS] if fresh else list(Kind)
    kind = rng.choice(kinds)
    new = number if fresh else rng.randrange(3)
    if kind is Kind.CAS:
        expected = value if rng.random() < 0.7 else rng.randrange(max(number, 3))
        return cas(0, 0, expected, new)
    return read(0, 0, value) if kind is Kind.READ else write(0, 0, new)


def _taken(operation: Operation, value: int) -> tuple[int, Operation]:
    """Return the value afterwards, and the operation with the answer that the register gives."""
    after = apply(operation, value)
    if after is None:
        return value, refused(operation)
    return after, operation


def _altered(rng: random.Random, operation: Operation, number: int) -> Operation:
    if operation.kind is Kind.CAS:
        other = Outcome.OK if operation.outcome is Outcome.REFUSED else Outcome.REFUSED
        return replace(operation, outcome=other)
    return replace(operation, value=rng.randrange(number + 2))
