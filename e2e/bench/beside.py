"""Runs this tree beside another commit's, in turns, and says which lines it has broken.

    make bench BESIDE=HEAD~3
    make bench BESIDE=main BENCH_ARGS="--rounds 7 --seconds 3"
    make bench BESIDE=main BENCH_ARGS="--only SDK"

A group of three of each tree, on one machine and one disk. In each round one of them is loaded
while the other one is frozen, then the other way round, and the next round begins with the other
one: what changes on the machine falls on both. The program that loads them is this tree's for both,
with the client library of the tree whose nodes it loads: so the price of a change in a client is
seen, too. Nodes and clients of one tree never meet the other's, but for the calls by which the
bench founds a group and asks who leads.

A line is broken if its ratio (the median of the rounds' ratios, 1 if both are as good) is below
0.85, so are the ratios of nearly all rounds, and that is a larger step than either tree's own
spread. Of five rounds one may be lost to the machine. On a shared machine nothing finer can be
seen; measure a broken line again, by itself (--only), at another time.

exit codes: 0 no line is broken, 1 one is, 2 something could not be measured, or wrong usage
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.bench import machine
from e2e.bench.cases import Case, interleaved
from e2e.bench.comparison import LEAST_ROUNDS, Change, Comparison, compared
from e2e.bench.contest import freeze
from e2e.bench.failover import trial
from e2e.bench.faults import KILL
from e2e.bench.loads import Loaded
from e2e.bench.markdown import with_unit
from e2e.bench.ours import Ours
from e2e.bench.process_group import ProcessGroup
from e2e.bench.results import BUILD, LOGS
from e2e.bench.sdk import ASYNC, sdk_client
from e2e.bench.trees import Tree, checked_out, this_tree
from e2e.harness import checks
from e2e.harness.nodes import allocate
from e2e.harness.waiting import HarnessError

_OURS: Final = "ours"
_THEIRS: Final = "theirs"
_SETTLE_S: Final = 0.5
_WARM_UP_CASE: Final = Case(batch=64, window=16)
_WARM_UP_S: Final = 3.0
_KILLS: Final = 3
"""Of leaders in one turn: each takes some four seconds until the group is whole again."""
_MOST_DISK_BYTES: Final = 3 << 30
"""A group that wrote more begins anew, so that both fit on a small disk."""
_INTERRUPTED: Final = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """How long everything takes, and how much is offered.

    Attributes:
        seconds: Length of one figure.
        offered_per_s: Messages a second of the open loop.
        logs: Where what the clients print goes.
    """

    seconds: float
    offered_per_s: float
    logs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLine:
    """One line.

    Attributes:
        name: In words.
        batch: Messages of a request.
        figure: Which of the load's figures counts.
        unit: Its unit.
        less_is_better: As of a latency.
        load: Loads the group for some seconds.
    """

    name: str
    batch: int
    figure: str = "per_s"
    unit: str = "/s"
    less_is_better: bool = False
    load: Callable[[ProcessGroup, LoadPlan], Loaded]

    def value(self, loaded: Loaded) -> float | None:
        """Return the figure; None if a request failed, or none was answered.

        The rate or the latency of what did not fail is no figure of the whole.
        """
        if loaded.failures or not loaded.requests:
            return None
        return loaded.figures(self.batch).get(self.figure)


def _appends(batch: int, window: int) -> ComparedLine:
    case = Case(batch=batch, window=window)

    def load(group: ProcessGroup, plan: LoadPlan) -> Loaded:
        leader = group.wait_whole()
        group.load.run(case, _SETTLE_S, node=leader)
        return group.load.run(case, plan.seconds, node=leader)

    return ComparedLine(name=f"appends, {case.name}", batch=batch, load=load)


def _steady(group: ProcessGroup, plan: LoadPlan) -> Loaded:
    case, leader = _WARM_UP_CASE, group.wait_whole()
    rate = plan.offered_per_s / case.batch
    group.load.run(case, _SETTLE_S, node=leader, rate=rate)
    return group.load.run(case, plan.seconds, node=leader, rate=rate)


def _reads(group: ProcessGroup, plan: LoadPlan) -> Loaded:
    """Read what the appends before have written, from a follower."""
    case = Case(batch=256, window=4)
    follower = (group.wait_whole() + 1) % len(group.specs)
    return group.load.run(case, plan.seconds, mode="read", node=follower)


def _sends(group: ProcessGroup, plan: LoadPlan) -> Loaded:
    group.wait_whole()
    case = Case(batch=1, window=ASYNC.window)
    with sdk_client([spec.endpoint for spec in group.specs], plan.logs / "sdk.log") as client:
        client.run(case, _SETTLE_S, mode=ASYNC.mode)
        return client.run(case, plan.seconds, mode=ASYNC.mode)


def _failovers(group: ProcessGroup, _: LoadPlan) -> Loaded:
    """Kill the leader again and again; what is measured is how long a client had no answer."""
    began_s = time.monotonic()
    outcomes = [trial(group, KILL, random.Random(seed)) for seed in range(_KILLS)]
    recovered = [outcome for outcome in outcomes if outcome.has_moved and outcome.gap.is_over]
    return Loaded(
        requests=len(recovered),
        failures=len(outcomes) - len(recovered),
        seconds=time.monotonic() - began_s,
        latencies_us=[outcome.gap.seconds * 1e6 for outcome in recovered],
    )


MEASURES: Final = (
    _appends(256, 16),
    _appends(64, 16),
    _appends(16, 64),
    ComparedLine(
        name="p99 at a fixed load, batch 64",
        batch=_WARM_UP_CASE.batch,
        figure="p99_ms",
        unit="ms",
        less_is_better=True,
        load=_steady,
    ),
    ComparedLine(name="reads, batch 256, 4 readers, a follower", batch=256, load=_reads),
    ComparedLine(name=f"SDK, {ASYNC.name}", batch=1, load=_sends),
    ComparedLine(
        name="gap of a killed leader, median",
        batch=1,
        figure="p50_ms",
        unit="ms",
        less_is_better=True,
        load=_failovers,
    ),
)

_CHECKED: Final = {
    Change.BROKEN: checks.Verdict.BROKEN,
    Change.UNMEASURED: checks.Verdict.UNMEASURED,
}
"""What a line counts as; any other one is kept."""

Figures = Mapping[str, Mapping[str, list[float | None]]]
"""By line, by tree: one for each round."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit code."""
    args = parser().parse_args(arguments)
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    at, facts = time.gmtime(), machine.facts()
    figures: Figures = {
        measure.name: {tree: [None] * args.rounds for tree in (_OURS, _THEIRS)}
        for measure in args.only
    }
    commits: dict[str, str] = {}
    problem = ""
    try:
        with contextlib.ExitStack() as stack:
            trees = {
                _OURS: this_tree(),
                _THEIRS: stack.enter_context(checked_out(args.commit, BUILD)),
            }
            commits |= {name: tree.commit for name, tree in trees.items()}
            print(f"{facts}\nours {commits[_OURS]}, theirs {commits[_THEIRS]}", flush=True)
            scratch = stack.enter_context(
                tempfile.TemporaryDirectory(dir=args.data or BUILD, prefix="beside-")
            )
            take(trees, args, Path(scratch), figures)
    except HarnessError as error:
        problem = str(error)
    except KeyboardInterrupt:
        print("bench: interrupted; groups and checkouts were removed", file=sys.stderr)
        return _INTERRUPTED
    lines = {
        measure: compared(
            figures[measure.name][_OURS],
            figures[measure.name][_THEIRS],
            less_is_better=measure.less_is_better,
        )
        for measure in args.only
    }
    print("\n" + table(lines))
    path = _write(at, facts, commits, reported(lines, figures))
    print(f"\nas JSON: {path}")
    if problem:
        print(f"bench: cut short: {problem}", file=sys.stderr)
    return exit_code(lines.values(), is_whole=not problem)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        prog="make bench BESIDE=COMMIT",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("commit", help="the other tree, as git takes it")
    made.add_argument(
        "--rounds", type=_rounds, default=5, help=f"at least {LEAST_ROUNDS} (default 5)"
    )
    made.add_argument(
        "--seconds", type=_positive, default=2, help="of each figure in each round (default 2)"
    )
    made.add_argument(
        "--offered",
        type=_positive,
        default=10_000,
        help="messages a second under which the p99 is taken (default 10000)",
    )
    made.add_argument(
        "--only",
        type=_some,
        default=MEASURES,
        metavar="TEXT",
        help="lines whose names contain it; reads need the appends of batch 256 before them",
    )
    made.add_argument("--data", type=Path, help="where the nodes' disks are (default: build/bench)")
    return made


def _some(text: str) -> tuple[ComparedLine, ...]:
    if chosen := tuple(measure for measure in MEASURES if text in measure.name):
        return chosen
    names = "; ".join(measure.name for measure in MEASURES)
    raise argparse.ArgumentTypeError(f"no line contains {text!r}; there are: {names}")


def _rounds(text: str) -> int:
    if (rounds := int(text)) < LEAST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{rounds} have no median; take {LEAST_ROUNDS} or more")
    return rounds


def _positive(text: str) -> float:
    if not (number := float(text)) > 0 or math.isinf(number):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def take(
    trees: Mapping[str, Tree], args: argparse.Namespace, scratch: Path, figures: Figures
) -> None:
    """Take all figures, round after round; those taken so far are there if it breaks off.

    Raises:
        HarnessError: A group or a program does not do its part any more.
    """
    with contextlib.ExitStack() as stack:
        groups: dict[str, ProcessGroup] = {}
        for name, tree in trees.items():
            system = Ours(
                python=tree.python, environment=tree.environment, tells_group=tree.tells_group
            )
            logs = LOGS / f"beside-{name}"
            groups[name] = ProcessGroup(system, allocate(scratch / name), logs)
            stack.callback(groups[name].discard)
            print(f"starting {name} ({tree.commit}); logs: {logs}", flush=True)
            _start(groups[name])
            freeze(groups[name])
        for number, name in interleaved(list(trees), args.rounds):
            logs = LOGS / f"beside-{name}"
            plan = LoadPlan(seconds=args.seconds, offered_per_s=args.offered, logs=logs)
            for measure, loaded in _turn(groups[name], plan, args.only):
                value = measure.value(loaded)
                figures[measure.name][name][number] = value
                told = f"{loaded.failures} of {loaded.failures + loaded.requests} requests failed"
                if value is not None:
                    told = with_unit(value, measure.unit)
                round_of = f"round {number + 1} of {args.rounds}"
                print(f"{round_of}  {name:6}  {measure.name:40} {told}", flush=True)


def _start(group: ProcessGroup) -> None:
    group.start()
    group.load.run(_WARM_UP_CASE, _WARM_UP_S, node=group.wait_whole())


def _turn(
    group: ProcessGroup, plan: LoadPlan, measures: Sequence[ComparedLine]
) -> Iterator[tuple[ComparedLine, Loaded]]:
    """Let the group go, take every figure, freeze it again; begin anew where it wrote too much."""
    group.resume()
    for measure in measures:
        yield measure, measure.load(group, plan)
    group.wait_whole()
    if group.disk_bytes() > _MOST_DISK_BYTES:
        group.discard()
        _start(group)
    freeze(group)


def exit_code(lines: Collection[Comparison], *, is_whole: bool) -> int:
    """Return 0 if no line is broken, 1 if one is, else 2 if one is not known, or a round missing.

    Args:
        lines: All of them.
        is_whole: Whether all rounds were held.
    """
    verdicts = [_CHECKED.get(line.verdict, checks.Verdict.KEPT) for line in lines]
    return checks.exit_code(verdicts if is_whole else [*verdicts, checks.Verdict.UNMEASURED])


def table(lines: Mapping[ComparedLine, Comparison]) -> str:
    """Return every line with both medians, their ratio, and both trees' own spreads."""
    rows: list[Sequence[str]] = [("", "ours", "theirs", "ratio", "spread, ours", "theirs", "")]
    for measure, line in lines.items():
        figures = (with_unit(line.ours, measure.unit), with_unit(line.theirs, measure.unit))
        factors = (line.ratio, line.our_spread, line.their_spread)
        ratio, *spreads = ("" if math.isnan(factor) else f"{factor:.2f}" for factor in factors)
        own = [f"{spread}x" if spread else "" for spread in spreads]
        rows.append((measure.name, *figures, ratio, *own, line.verdict.value))
    return checks.columns(rows, right=range(1, len(rows[0]) - 1))


def _write(
    at: time.struct_time, facts: Mapping[str, Any], commits: Mapping[str, str], report: object
) -> Path:
    """Write everything as JSON below build, where no history is kept of it."""
    name = f"beside-{time.strftime('%Y-%m-%dT%H%M%S', at)}.json"
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", at)
    document = {"at": begun, **commits, "machine": facts, "lines": report}
    (BUILD / name).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return BUILD / name


def reported(lines: Mapping[ComparedLine, Comparison], figures: Figures) -> list[dict[str, Any]]:
    """Return the lines as they stand in the file, with every round's figure."""
    return [
        {
            "name": measure.name,
            "unit": measure.unit,
            "lessIsBetter": measure.less_is_better,
            "ours": _known(line.ours),
            "theirs": _known(line.theirs),
            "ratio": _known(line.ratio),
            "ourSpread": _known(line.our_spread),
            "theirSpread": _known(line.their_spread),
            "rounds": figures[measure.name],
            "verdict": line.verdict.value,
        }
        for measure, line in lines.items()
    ]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


if __name__ == "__main__":
    sys.exit(main())
