"""Where the model of discarding a damaged end begins, and what the exploration finds there.

What bounds each world is beside it: how many terms there are, and where `Model.bounded` is set also
one candidate and one question a term, appends of whole logs, and mending from the first on.

``python -m tests.raft.discard_worlds`` (``make model``) explores each world whole by the rules
that are shipped, which must lose nothing; and those in which the rules before lost something until
that is found. Then it replays random walks of all of them on shipped cores. See docs/adr/0014.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from random import Random
from typing import Final

from tests.raft.discard_exploration import World, explore
from tests.raft.discard_model import (
    FINAL,
    FIRST,
    JOINT,
    OLD,
    Log,
    Model,
    Node,
    Reign,
    Rules,
    State,
    entry,
)
from tests.raft.discard_replay import walk

WALKS: Final = 2000
WALK_STEPS: Final = 25


def _node(log: Log, term: int, *, lost: tuple[int, ...] = (), voted: bool = True) -> Node:
    damaged = sum(1 << position for position in lost)
    return Node(term=term, voted=voted, disk=log, length=len(log), lost=damaged)


def _log(*terms: int) -> Log:
    return tuple(entry(term) for term in terms)


def _reigns(last: int, *reigns: Reign) -> tuple[Reign | None, ...]:
    """Return those of the first terms; nobody has led the later ones."""
    return (None, *reigns, *[None] * (last - len(reigns)))


def _two_ends() -> World:
    """Seed 6260: two nodes have an entry each that nobody else has, and both are damaged."""
    one, other = _log(1), _log(2)
    nodes = (_node(one, 1, lost=(1,)), _node(other, 2, lost=(1,)), _node((), 2))
    reigns = _reigns(4, Reign(0, one, 1, (1, 0, 0)), Reign(1, other, 1, (0, 1, 0)))
    model = Model(terms=4, voters={FIRST: (0b111, 0)}, applied=(0,) * 3)
    return World(name="two ends of three", model=model, start=State(nodes, reigns))


def _bare_majority() -> World:
    """Two of three have a committed entry, one of them damaged; the third an end that is dead.

    Snapshots are about that end with the entry.
    """
    safe, dead = _log(2), _log(1)
    nodes = (_node(safe, 2, lost=(1,)), _node(dead, 2, lost=(1,)), _node(safe, 2))
    reigns = _reigns(4, Reign(1, dead, 1, (0, 1, 0)), Reign(2, safe, 1, (1, 0, 1)))
    model = Model(terms=4, voters={FIRST: (0b111, 0)}, applied=(0,) * 3, snapshot_at=1)
    return World(name="committed by two of three", model=model, start=State(nodes, reigns))


def _joint() -> World:
    """Three become four: the joint membership is committed, the entry behind it is not.

    Both nodes that have that are damaged there; the new one has the membership only.
    """
    log = (entry(1, JOINT), entry(1))
    nodes = (_node(log, 1, lost=(2,)), _node((), 1), _node(log, 1, lost=(2,)), _node(log[:1], 1))
    reigns = _reigns(3, Reign(2, log, 1, (2, 0, 2, 1)))
    voters = {FIRST: (0b111, 0), JOINT: (0b1111, 0b111), FINAL: (0b1111, 0)}
    model = Model(terms=3, voters=voters, applied=(0,) * 4, bounded=True)
    return World(name="a change from three to four", model=model, start=State(nodes, reigns))


def _outdated() -> World:
    """A change to five is done and in the node's snapshot, but its records rotted with the entry.

    The entry is committed by three of the five, two of them damaged.
    """
    change = (entry(1, JOINT), entry(1, FINAL))
    log = (*change, entry(1))
    nodes = (
        _node(log, 1, lost=(1, 2, 3)),
        _node(change, 1),
        _node(change, 1),
        _node(log, 1, lost=(3,)),
        _node(log, 1),
    )
    reigns = _reigns(3, Reign(4, log, 3, (3, 0, 0, 3, 3)))
    voters = {FIRST: (0b00111, 0), JOINT: (0b11111, 0b00111), FINAL: (0b11111, 0)}
    model = Model(terms=3, voters=voters, applied=(2, 0, 0, 0, 0), bounded=True)
    return World(
        name="a damaged change from three to five",
        model=model,
        start=State(nodes, reigns),
        alike=(1, 2),
        loses=True,
    )


def _leftover() -> World:
    """Behind the damaged entry of an old leader is the beginning of a change that only it has.

    Another has the two entries before that, commits them later, and sends a snapshot of them.
    """
    shared = _log(1, 1)
    log = (*shared, entry(1, JOINT))
    nodes = (_node(log, 1, lost=(1,)), *[_node((), 1)] * 3, _node(shared, 1))
    reigns = _reigns(2, Reign(0, log, 1, (3, 0, 0, 0, 2)))
    voters = {FIRST: (0b11111, 0), JOINT: (0b111111, 0b11111), FINAL: (0b111111, 0)}
    model = Model(terms=2, voters=voters, applied=(0,) * 5, snapshot_at=2, bounded=True)
    return World(
        name="a dead change in a tail of five",
        model=model,
        start=State(nodes, reigns),
        alike=(1, 2, 3),
        loses=True,
    )


WORLDS: Final = (_two_ends(), _bare_majority(), _joint(), _outdated(), _leftover())


def small(world: World) -> World:
    """Return a world that is explored in seconds: bounded, and of fewer terms."""
    terms = max(2, world.model.terms - 1)
    model = replace(world.model, terms=terms, bounded=True)
    start = world.start._replace(reigns=world.start.reigns[: terms + 1])
    return replace(world, model=model, start=start)


def main() -> int:
    """Explore and replay; returns the exit code: 0 when all is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=WALKS, help="random walks to replay")
    arguments = parser.parse_args()
    good = [_found_before(world) for world in WORLDS if world.loses]
    good += [_nothing_now(world) for world in WORLDS]
    good.append(_walks(arguments.walks))
    return 0 if all(good) else 1


def _found_before(world: World) -> bool:
    began_s = time.process_time()
    found = explore(world, rules=OLD)
    steps = ", ".join(" ".join(map(str, label)) for label in found.path)
    print(
        f"{world.name}, the rules before: {found.states:,} states, "
        f"{time.process_time() - began_s:.0f} CPU s: {found.fault or 'nothing is lost'}: {steps}",
        flush=True,
    )
    return bool(found.fault)


def _nothing_now(world: World) -> bool:
    began_s = time.process_time()
    found = explore(world, rules=Rules())
    print(
        f"{world.name}: {found.states:,} states, {found.steps:,} steps, "
        f"{time.process_time() - began_s:.0f} CPU s: {found.fault or 'nothing is lost'}",
        flush=True,
    )
    return not found.fault


def _walks(count: int) -> bool:
    began_s, steps = time.process_time(), 0
    for number in range(count):
        world = WORLDS[number % len(WORLDS)]
        model = replace(world.model, bounded=False)
        steps += walk(model, world.start, Random(number), steps=WALK_STEPS)
    spent_s = time.process_time() - began_s
    print(f"{count:,} walks, {steps:,} steps, equal on the core, {spent_s:.0f} CPU s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
