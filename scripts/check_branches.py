"""Say which share of the branches of raft/ and store/ the tests took; fail below the limit.

Reads the report of ``coverage json``: ``python scripts/check_branches.py REPORT LIMIT_PERCENT``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    """Return the exit code: 1 below the limit."""
    report, limit_percent = Path(sys.argv[1]), float(sys.argv[2])
    totals = json.loads(report.read_text("utf-8"))["totals"]
    taken, branches = totals["covered_branches"], totals["num_branches"]
    percent = 100 * taken / branches
    print(f"{taken} of {branches} branches taken: {percent:.1f} %, at least {limit_percent:g} %")
    return 0 if percent >= limit_percent else 1


if __name__ == "__main__":
    sys.exit(main())
