"""Say which share of the branches of raft/ and store/ the tests took; fail below the limit.

Reads the report of ``coverage json``: ``python scripts/check_branches.py REPORT LIMIT_PERCENT``.

exit codes: 0 as many as asked, 1 fewer, 2 a package is not in the report: nothing was measured
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = ("node/dledger/raft/", "node/dledger/store/")


def main() -> int:
    """Return the exit code."""
    report, limit_percent = Path(sys.argv[1]), float(sys.argv[2])
    return judge(json.loads(report.read_text("utf-8")), limit_percent)


def judge(report: Mapping[str, Any], limit_percent: float) -> int:
    """Print each package's share and that of all; return the exit code."""
    totals = {package: branches(report, package) for package in PACKAGES}
    for package, (taken, known) in totals.items():
        print(f"{package}: {taken} of {known} branches taken")
    if missing := [package for package, (_, known) in totals.items() if not known]:
        print(f"not measured: {', '.join(missing)}")
        return 2
    taken, known = (sum(column) for column in zip(*totals.values(), strict=True))
    percent = 100 * taken / known
    print(f"{taken} of {known} branches taken: {percent:.1f} %, at least {limit_percent:g} %")
    return 0 if percent >= limit_percent else 1


def branches(report: Mapping[str, Any], package: str) -> tuple[int, int]:
    """Return how many branches of a package's files were taken, and how many there are."""
    found = [file["summary"] for path, file in report["files"].items() if path.startswith(package)]
    taken = sum(summary["covered_branches"] for summary in found)
    return taken, sum(summary["num_branches"] for summary in found)


if __name__ == "__main__":
    sys.exit(main())
