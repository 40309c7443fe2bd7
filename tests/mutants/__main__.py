"""``make mutants``: plant each bug, and show which check caught it.

exit codes: 0 all were caught, 1 one survived or a check fails anyway, 2 none was planted
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import SEEDS, Verdict, copy_of, failing_test, judge

BASELINE_TIMEOUT_S = 1200


def main() -> int:
    """Judge all mutants, or those whose names contain a given text."""
    arguments = _arguments()
    mutants = [one for one in MUTANTS if arguments.only in one.name]
    if not mutants:
        print(f"no mutant's name contains {arguments.only!r}: nothing was planted")
        return 2
    checks = sorted({check for one in mutants for check in one.checks})
    started_s = time.monotonic()
    survived = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        failed = list(filter(None, pool.map(_fails_anyway, checks)))
        if failed:
            print(f"fails without any planted bug: {', '.join(failed)}")
            return 1
        passed_s = time.monotonic() - started_s
        print(
            f"{len(checks)} checks pass without a planted bug in {passed_s:.0f} s; "
            f"{len(mutants)} mutants",
            flush=True,
        )
        for verdict in pool.map(lambda one: judge(one, seeds=arguments.seeds), mutants):
            survived += not verdict.caught_by
            print(_line(verdict), flush=True)
    elapsed_s = time.monotonic() - started_s
    print(f"{len(mutants) - survived} of {len(mutants)} caught in {elapsed_s:.0f} s")
    return 1 if survived else 0


def _fails_anyway(check: str) -> str:
    with copy_of("node") as copy:
        return failing_test(copy, (check,), timeout_s=BASELINE_TIMEOUT_S)


def _line(verdict: Verdict) -> str:
    caught_by = verdict.caught_by.removeprefix("tests/") or "SURVIVED"
    return f"{verdict.mutant.name:46} {verdict.elapsed_s:5.1f} s  {caught_by}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the names of those to run")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="simulated runs, if tests pass")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
