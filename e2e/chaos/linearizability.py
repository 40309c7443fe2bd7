"""The search: is there an order of a register's operations that explains every answer?

Wing and Gong's search with Lowe's memory of configurations, as Porcupine does it: try each
operation that may come next, go back when an answer cannot be explained, and never visit the same
(operations done, value) twice. The general problem is NP-complete, so there is a limit of steps,
and UNKNOWN when it is reached. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from e2e.chaos.history import Kind, Operation, Outcome
from e2e.chaos.register_checker import INITIAL

MAX_STEPS: Final = 1_000_000


class Agreement(Enum):
    """What the search found."""

    LINEARIZABLE = "linearizable"
    VIOLATION = "violation"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one register; *text* says how far an order was found, *steps* the cost."""

    key: str
    verdict: Agreement
    steps: int
    text: str = ""


def check_keys(operations: Iterable[Operation], *, max_steps: int = MAX_STEPS) -> list[Judgement]:
    """Judge each register by itself: a history is linearizable if each of its objects is."""
    keys: dict[str, list[Operation]] = {}
    for operation in operations:
        keys.setdefault(operation.key, []).append(operation)
    return [_Search(key, history, max_steps).run() for key, history in sorted(keys.items())]


def apply(operation: Operation, value: int) -> int | None:
    """Return the register's value after *operation*, or None if its answer contradicts *value*."""
    if operation.outcome is Outcome.UNKNOWN:
        if operation.kind is Kind.READ or operation.value is None:
            return value
        matches = operation.kind is Kind.WRITE or operation.expected == value
        return operation.value if matches else value
    if operation.kind is Kind.READ:
        return value if operation.value == value else None
    if operation.kind is Kind.WRITE:
        return operation.value
    swapped = operation.outcome is Outcome.OK
    if (operation.expected == value) is not swapped:
        return None
    return operation.value if swapped else value


class _Node:
    """A call or a return in the list of what is still to be ordered."""

    __slots__ = ("after", "before", "number", "returning")

    def __init__(self, number: int, returning: _Node | None) -> None:
        self.number = number
        self.returning = returning
        self.before: _Node = self
        self.after: _Node | None = None

    def unlink(self) -> None:
        self.before.after = self.after
        if self.after is not None:
            self.after.before = self.before

    def relink(self) -> None:
        self.before.after = self
        if self.after is not None:
            self.after.before = self


class _Search:
    def __init__(self, key: str, history: Sequence[Operation], max_steps: int) -> None:
        self._key = key
        self._operations = [
            o for o in history if (o.kind, o.outcome) != (Kind.READ, Outcome.UNKNOWN)
        ]
        self._max_steps = max_steps
        self._head = _linked(self._operations)
        self._deepest = 0
        self._blocked: Operation | None = None

    def run(self) -> Judgement:
        """Search until an order is found, none is left, or the limit is reached."""
        visited: set[tuple[int, int]] = set()
        calls: list[tuple[_Node, int]] = []
        value, done, steps = INITIAL, 0, 0
        node = self._head.after
        while node is not None:
            steps += 1
            if steps > self._max_steps:
                return Judgement(self._key, Agreement.UNKNOWN, steps, "the limit is reached")
            if node.returning is None:  # an answer that no order so far explains: go back
                self._note(len(calls), node.number)
                if not calls:
                    return Judgement(self._key, Agreement.VIOLATION, steps, self._why())
                call, value = calls.pop()
                done &= ~(1 << call.number)
                _put_back(call)
                node = call.after
                continue
            after = apply(self._operations[node.number], value)
            configuration = (done | 1 << node.number, after) if after is not None else None
            if after is None or configuration is None or configuration in visited:
                node = node.after
                continue
            visited.add(configuration)
            calls.append((node, value))
            value, done = after, done | 1 << node.number
            _take_out(node)
            node = self._head.after
        return Judgement(self._key, Agreement.LINEARIZABLE, steps)

    def _note(self, depth: int, number: int) -> None:
        if depth >= self._deepest:
            self._deepest, self._blocked = depth, self._operations[number]

    def _why(self) -> str:
        return (
            f"an order of {self._deepest} of {len(self._operations)} operations is possible, "
            f"none that explains {self._blocked}"
        )


def _linked(operations: Sequence[Operation]) -> _Node:
    """Return the head of the list of calls and returns in real time; calls first where equal."""
    moments: list[tuple[float, int, int, _Node]] = []
    for number, operation in enumerate(operations):
        returning = _Node(number, None)
        moments.append((operation.invoked_s, 0, number, _Node(number, returning)))
        moments.append((operation.ended_s, 1, number, returning))
    head = last = _Node(-1, None)
    for *_, node in sorted(moments, key=lambda moment: moment[:3]):
        last.after, node.before = node, last
        last = node
    return head


def _take_out(call: _Node) -> None:
    call.unlink()
    assert call.returning is not None
    call.returning.unlink()


def _put_back(call: _Node) -> None:
    assert call.returning is not None
    call.returning.relink()
    call.relink()
