"""The exploration of `discard_model`: every state that may follow a beginning, nearest first.

States that differ only by which of some nodes is which are one. Used by `discard_worlds`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from tests.raft.discard_model import (
    Label,
    Model,
    Node,
    Reign,
    Rules,
    State,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A beginning, and what there is to be explored from there.

    Attributes:
        name: What it is about.
        model: The steps, with the rules that are shipped.
        start: The beginning.
        alike: Nodes that begin alike and count alike: states that differ by them are one.
        loses: Whether the rules before lose something here.
    """

    name: str
    model: Model
    start: State
    alike: tuple[int, ...] = ()
    loses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What came of it: how many states, and the steps to a fault, if there is one."""

    states: int
    steps: int
    fault: str = ""
    path: tuple[Label, ...] = ()


def explore(world: World, *, rules: Rules, most: int = 1 << 24) -> Explored:
    """Visit every state, nearest first, until one is faulty.

    Raises:
        RuntimeError: There are more than *most*.
    """
    model = replace(world.model, rules=rules)
    same = _Symmetry(world.alike, len(world.start.nodes))
    start = same.canonical(world.start)
    came_from: dict[State, tuple[State, Label] | None] = {start: None}
    waiting = deque([start])
    steps = 0
    while waiting:
        state = waiting.popleft()
        for label, found in model.steps(state):
            steps += 1
            after = same.canonical(model.normal(found))
            if after in came_from:
                continue
            came_from[after] = (state, label)
            fault = model.fault(after)
            if fault:
                path = _path(came_from, after)
                return Explored(states=len(came_from), steps=steps, fault=fault, path=path)
            waiting.append(after)
        if len(came_from) > most:
            raise RuntimeError(f"{world.name}: more than {most} states")
    return Explored(states=len(came_from), steps=steps)


def _path(came_from: Mapping[State, tuple[State, Label] | None], state: State) -> tuple[Label, ...]:
    path: list[Label] = []
    before = came_from[state]
    while before is not None:
        path.append(before[1])
        before = came_from[before[0]]
    return tuple(reversed(path))


class _Symmetry:
    """Takes states for one that differ only by which of some nodes is which."""

    def __init__(self, alike: Sequence[int], count: int) -> None:
        self._alike = alike
        self._orders = []
        for order in permutations(alike):
            place = list(range(count))
            for old, new in zip(alike, order, strict=True):
                place[old] = new
            if place != list(range(count)):
                self._orders.append(tuple(place))
        self._bits = [
            [
                sum(1 << place[at] for at in range(count) if mask >> at & 1)
                for mask in range(1 << count)
            ]
            for place in self._orders
        ]

    def canonical(self, state: State) -> State:
        """Return the least of the states that are one."""
        if not self._orders:
            return state
        kinds = [_kind(state.nodes[at]) for at in self._alike]
        if all(one < other for one, other in pairwise(kinds)):
            return state
        found = [state] if kinds == sorted(kinds) else []
        for place, bits in zip(self._orders, self._bits, strict=True):
            moved = dict(zip((place[at] for at in self._alike), kinds, strict=True))
            if all(moved[one] <= moved[other] for one, other in pairwise(self._alike)):
                found.append(_renamed(state, place, bits))
        return min(found, key=_key) if len(found) > 1 else found[0]


def _kind(node: Node) -> tuple[object, ...]:
    """What of a node does not depend on which of the others is which."""
    asks, role = len(node.question), min(node.role, 1)
    return (node.disk, node.term, node.voted, node.length, node.lost, node.base, asks, role)


def _key(state: State) -> tuple[object, ...]:
    return (state.nodes, tuple(reign or () for reign in state.reigns))


def _renamed(state: State, place: Sequence[int], bits: Sequence[int]) -> State:
    nodes = list(state.nodes)
    for at, node in enumerate(state.nodes):
        role = node.role if node.role <= 0 else bits[node.role]
        question = node.question
        if question:
            question = (*question[:2], bits[question[2]])
        nodes[place[at]] = node._replace(role=role, question=question)
    reigns = [None if reign is None else _renamed_reign(reign, place) for reign in state.reigns]
    return State(tuple(nodes), tuple(reigns), state.begun)


def _renamed_reign(reign: Reign, place: Sequence[int]) -> Reign:
    acks = list(reign.acks)
    for at, acked in enumerate(reign.acks):
        acks[place[at]] = acked
    return reign._replace(leader=place[reign.leader], acks=tuple(acks))
