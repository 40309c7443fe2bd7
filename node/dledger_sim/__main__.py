"""Command line of the simulator: ``python -m dledger_sim --seeds 200``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from dledger_sim.simulator import Options, Outcome, Simulation


def main() -> int:
    """Run seeds; returns the exit code: 0 when nothing broke."""
    arguments = _arguments()
    logging.getLogger("dledger").addHandler(logging.NullHandler())  # torn tails are expected here
    if arguments.seed is not None:
        trace = print if arguments.trace else None
        return 0 if _run(arguments.seed, Options(trace=trace)) else 1
    started_s = time.monotonic()
    outcomes: list[Outcome] = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        outcome = _run(seed, Options(), quiet=True)
        if outcome is None:
            return 1
        outcomes.append(outcome)
        if len(outcomes) % max(1, arguments.seeds // 10) == 0:
            _report(outcomes, time.monotonic() - started_s)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dledger_sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell what happens")
    return parser.parse_args()


def _run(seed: int, options: Options, *, quiet: bool = False) -> Outcome | None:
    try:
        outcome = Simulation(seed, options).run()
    except Exception:  # noqa: BLE001 - whatever broke, the seed must be told
        traceback.print_exc()
        print(f"seed {seed} failed; replay: python -m dledger_sim --seed {seed} --trace")
        return None
    if not quiet:
        print(outcome)
    return outcome


def _report(outcomes: list[Outcome], elapsed_s: float) -> None:
    print(
        f"{len(outcomes)} seeds ok in {elapsed_s:.1f} s: "
        f"{sum(o.events for o in outcomes)} events, {sum(o.terms for o in outcomes)} terms, "
        f"{sum(o.committed for o in outcomes)} committed, "
        f"{sum(o.acknowledged for o in outcomes)} acknowledged",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
