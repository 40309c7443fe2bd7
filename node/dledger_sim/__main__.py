"""Command line of the simulator: ``python -m dledger_sim --seeds 300 --jobs 2``.

A failing run prints the command that replays it. ``--shrink`` turns its faults off one by one
first, and prints the command for what is left. ``--keep-going`` runs the other seeds as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from dledger_sim.options import FAULTS
from dledger_sim.run import Outcome, Run
from dledger_sim.seeds import Failure, options_of, run_seeds, shrunk, silence, try_seed


def main() -> int:
    """Run seeds; returns the exit code: 0 when nothing broke."""
    arguments = _arguments()
    off = tuple(filter(None, arguments.off.split(",")))
    if arguments.seed is not None:
        return _one(arguments, off)
    started_s = time.monotonic()
    outcomes: list[Outcome] = []
    failures = 0
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for result in run_seeds(seeds, jobs=arguments.jobs, twice=arguments.twice):
        if isinstance(result, Failure):
            _tell(result, shrinks=arguments.shrink)
            if not arguments.keep_going:
                return 1
            failures += 1
            continue
        outcomes.append(result)
        if len(outcomes) % max(1, arguments.seeds // 10) == 0:
            _report(outcomes, time.monotonic() - started_s)
    return min(failures, 1)


def _one(arguments: argparse.Namespace, off: tuple[str, ...]) -> int:
    if arguments.trace:
        silence()
        options = options_of(arguments.seed, off)
        print(f"{options}")
        print(Run(arguments.seed, options, tell=print).run())
        return 0
    result = try_seed(arguments.seed, off)
    if isinstance(result, Failure):
        _tell(result, shrinks=arguments.shrink)
        return 1
    print(result)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dledger_sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--twice", action="store_true", help="run each twice, and compare")
    parser.add_argument("--keep-going", action="store_true", help="do not end with a failure")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--off", default="", help=f"faults to turn off: {','.join(FAULTS)}")
    parser.add_argument("--shrink", action="store_true", help="find which faults a failure needs")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell what happens")
    return parser.parse_args()


def _tell(failure: Failure, *, shrinks: bool) -> None:
    if shrinks:
        failure = shrunk(failure)
    print(failure.text, end="")
    print(f"seed {failure.seed} failed; replay: {failure.replay}", flush=True)


def _report(outcomes: list[Outcome], elapsed_s: float) -> None:
    print(
        f"{len(outcomes)} seeds ok in {elapsed_s:.1f} s: "
        f"{sum(o.steps for o in outcomes)} events, {sum(o.terms for o in outcomes)} terms, "
        f"{sum(o.committed for o in outcomes)} entries committed, "
        f"{sum(o.acknowledged for o in outcomes)} messages acknowledged",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
