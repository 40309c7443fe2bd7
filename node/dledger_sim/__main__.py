"""Command line of the simulator: ``python -m dledger_sim --seeds 300 --jobs 2``.

A failing run prints the command that replays it. ``--shrink`` turns its faults off one by one
first, and prints the command for what is left. ``--keep-going`` runs the other seeds as well.
``--edge`` runs the producers that we ship over the real streams, instead of the group alone.
``--world NAME`` runs all seeds in one kind of world, such as ``clocks``; see `worlds`.
``python -m dledger_sim paths`` counts what a message costs in calls, without any fault.
Every few seconds a line says how far it is; the last one says what all of them did.

exit codes: 0 nothing broke, 1 a seed failed, 2 nothing was checked, or wrong usage
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from dledger_sim import paths
from dledger_sim.options import FAULTS
from dledger_sim.seeds import (
    Failure,
    Outcome,
    ended_by_force,
    run_of,
    run_seeds,
    shrunk,
    silence,
    try_seed,
)
from dledger_sim.worlds import WORLDS

_REPORT_EVERY_S = 10.0
_NOTHING_CHECKED = 2


def main() -> int:
    """Run seeds; returns the exit code: 0 when something was checked and nothing broke."""
    if sys.argv[1:2] == ["paths"]:
        return paths.main(sys.argv[2:])
    arguments = _arguments()
    if not __debug__:
        print("nothing can be checked: this interpreter runs without assertions (python -O)")
        return _NOTHING_CHECKED
    if arguments.seed is not None:
        return _one(arguments, tuple(filter(None, arguments.off.split(","))))
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    tally = _Tally(arguments.seeds)
    edge, twice, world = arguments.edge, arguments.twice, arguments.world
    for result in run_seeds(seeds, jobs=arguments.jobs, twice=twice, edge=edge, world=world):
        if isinstance(result, Failure):
            _tell(result, shrinks=arguments.shrink)
        tally.add(result)
        if tally.failed and not arguments.keep_going:
            break
        tally.report_if_due()
    print(tally.total(), flush=True)
    return tally.exit_code()


class _Tally:
    """What a run of many seeds came to."""

    def __init__(self, seeds: int) -> None:
        self.failed: list[int] = []
        self._seeds = seeds
        self._ok = self._acknowledged = 0
        self._counts: Counter[str] = Counter()
        self._began_s = self._reported_s = time.monotonic()

    def add(self, result: Outcome | Failure) -> None:
        if isinstance(result, Failure):
            self.failed.append(result.seed)
            return
        self._ok += 1
        self._acknowledged += result.acknowledged
        self._counts.update(result.counts())

    def report_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            print(self._progress(now_s - self._began_s), flush=True)

    def _progress(self, elapsed_s: float) -> str:
        done = self._ok + len(self.failed)
        left_min = elapsed_s / done * (self._seeds - done) / 60
        return (
            f"{self._done()} of {self._seeds:,}, {done / elapsed_s:.1f} a second, "
            f"about {left_min:.0f} min left"
        )

    def total(self) -> str:
        which = f" (failed: {', '.join(map(str, self.failed))})" if self.failed else ""
        counts = ", ".join(f"{count:,} {what}" for what, count in self._counts.items())
        return f"{self._done()} in {time.monotonic() - self._began_s:.0f} s{which}: {counts}"

    def exit_code(self) -> int:
        """Return 1 if a seed failed; 2 if no promise was made in all of them: none was kept."""
        if self.failed:
            return 1
        if self._acknowledged:
            return 0
        print("no message was acknowledged in any run: nothing was checked")
        return _NOTHING_CHECKED

    def _done(self) -> str:
        return f"{self._ok:,} seeds ok, {len(self.failed):,} failed"


def _one(arguments: argparse.Namespace, off: tuple[str, ...]) -> int:
    if arguments.trace:
        silence()
        run = run_of(arguments.seed, off, edge=arguments.edge, world=arguments.world, tell=print)
        print(run.options)
        with ended_by_force():
            print(run.run())
        return 0
    result = try_seed(arguments.seed, off, arguments.edge, arguments.world)
    if isinstance(result, Failure):
        _tell(result, shrinks=arguments.shrink)
        return 1
    print(result)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dledger_sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--edge", action="store_true", help="run producers at the group's edge")
    parser.add_argument("--world", default="", choices=("", *WORLDS), help="all seeds in this one")
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


if __name__ == "__main__":
    sys.exit(main())
