"""Systems measured in turns: each is loaded while the others are frozen, round after round."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench.cases import Case, engine_cases, interleaved, peer_cases
from e2e.bench.engine import APPEND, READ, append_row, latency_rows, measured, read_rows
from e2e.bench.etcd import Etcd
from e2e.bench.java import JavaDLedger
from e2e.bench.loads import Load
from e2e.bench.ours import Ours
from e2e.bench.peer_lines import PEER_READ
from e2e.bench.process_group import ProcessGroup, System
from e2e.bench.rows import Row
from e2e.bench.sdk import sdk_rows
from e2e.harness.nodes import NodeSpec, allocate

READS: Final = (READ, PEER_READ)
INSIDE: Final = "inside the leader"
_WARM_UP_CASE: Final = Case(batch=1, window=64)
_INSIDE_CASES: Final = (Case(batch=256, window=16), Case(batch=256, window=64))
_SETTLE_S: Final = 2.0

Measurements = Callable[[ProcessGroup], Iterator[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How a contest is held.

    Attributes:
        full: Whether all cases are measured, or a telling few.
        seconds: Length of a row.
        rounds: How often each row is measured.
        warm_up_s: Instead of each system's own; None leaves it.
        most_disk_bytes: A group that wrote more begins anew, so that a long run does not fill the
            disk.
    """

    full: bool
    seconds: float
    rounds: int
    warm_up_s: float | None = None
    most_disk_bytes: int = 12 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A system and its rows.

    Attributes:
        make: Makes the system.
        measure: Yields a turn's rows.
        place: Gives the group's processes their directories, below one, and their ports.
    """

    make: Callable[[], System]
    measure: Measurements
    place: Callable[[Path], Sequence[NodeSpec]] = allocate


def contestants(turns: Turns, logs: Path) -> Mapping[str, Contestant]:
    """Return who may take part, by the name the command line knows."""

    def ours(group: ProcessGroup) -> Iterator[Row]:
        for case in engine_cases(full=turns.full):
            yield append_row(group, case, turns.seconds)
        yield from latency_rows(group, turns.seconds)
        yield from read_rows(group, turns.seconds)

    def sdk(group: ProcessGroup) -> Iterator[Row]:
        yield from sdk_rows(group, turns.seconds, logs / "sdk.log")

    def peer(group: ProcessGroup) -> Iterator[Row]:
        for case in peer_cases(full=turns.full):
            yield append_row(group, case, turns.seconds)

    def inside(group: ProcessGroup) -> Iterator[Row]:
        for case in _INSIDE_CASES:
            yield inside_row(group, case, turns.seconds)

    def java(group: ProcessGroup) -> Iterator[Row]:
        yield from peer(group)
        yield from inside(group)

    return {
        "ours": Contestant(make=Ours, measure=ours),
        "sdk": Contestant(make=Ours, measure=sdk),
        "java": Contestant(make=JavaDLedger, measure=java),
        "java-push": Contestant(make=lambda: JavaDLedger(batch_push=True), measure=inside),
        "etcd": Contestant(make=Etcd, measure=peer),
    }


def inside_row(group: ProcessGroup, case: Case, seconds: float) -> Row:
    """Measure batches that are made inside the leader, with no client between: its very best."""
    load = Load(group.nodes[group.wait_whole()])
    load.run(case, _SETTLE_S)
    return measured(group, load, case, seconds, kind=APPEND, name=f"{case.name}, {INSIDE}")


def contest(
    chosen: Mapping[str, Contestant], turns: Turns, scratch: Path, logs: Path
) -> Iterator[Row]:
    """Yield the rows of all rounds as they are measured; groups end with the last one.

    Args:
        chosen: Who takes part.
        turns: How.
        scratch: Where the nodes' disks are.
        logs: Where what they print goes.
    """
    with contextlib.ExitStack() as stack:
        groups: dict[str, ProcessGroup] = {}
        for name, contestant in chosen.items():
            specs = contestant.place(scratch / name)
            groups[name] = ProcessGroup(contestant.make(), specs, logs / name)
            stack.callback(groups[name].discard)
            _start(groups[name], turns)
            freeze(groups[name])
        for _, name in interleaved(list(chosen), turns.rounds):
            yield from _turn(groups[name], chosen[name].measure, turns)


def _start(group: ProcessGroup, turns: Turns) -> None:
    """Start the group and load it before anything counts: by its client, and inside if it can."""
    group.start()
    leader = group.wait_whole()
    seconds = group.system.warm_up_s if turns.warm_up_s is None else turns.warm_up_s
    group.load.run(_WARM_UP_CASE, seconds, node=leader)
    if group.nodes[leader].answers:
        Load(group.nodes[leader]).run(_INSIDE_CASES[0], seconds)


def _turn(group: ProcessGroup, measure: Measurements, turns: Turns) -> Iterator[Row]:
    """Let the group go, yield its rows, freeze it again; begin anew where it wrote too much.

    Never behind a row that reads: the next may read the same, and that wrote nothing.
    """
    group.resume()
    group.load.run(_WARM_UP_CASE, _SETTLE_S, node=group.wait_whole())
    for row in measure(group):
        yield row
        if row.kind not in READS and group.disk_bytes() > turns.most_disk_bytes:
            group.discard()
            _start(group, turns)
    freeze(group)


def freeze(group: ProcessGroup) -> None:
    """Pause a group, and let the disk have what it left in the page cache.

    The next one's syncs would else wait behind the gigabytes of one that does not sync.
    """
    group.pause()
    os.sync()
