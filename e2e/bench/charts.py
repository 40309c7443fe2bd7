"""The plots of docs/performance.md, each from a run or from all of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from e2e.bench.cases import PEER_WINDOWS, WINDOWS
from e2e.bench.contest import INSIDE
from e2e.bench.engine import APPEND
from e2e.bench.failover import FAILOVER
from e2e.bench.plots import line_chart, strip_chart
from e2e.bench.rows import OURS, Row, Run
from e2e.bench.targets import best

_KIB: Final = 1024


def appends_plot(run: Run) -> str:
    """Draw messages a second by window, 1 KiB, a line for each system and batch size."""
    found = [
        r for r in run.rows if r.kind == APPEND and r.size_bytes == _KIB and INSIDE not in r.name
    ]
    windows = sorted({*WINDOWS, *PEER_WINDOWS})
    names = dict.fromkeys(_line_name(row) for row in found)
    rates = {(_line_name(row), row.window): row.figures["per_s"] for row in found}
    return line_chart(
        "Appends of 1 KiB",
        [str(window) for window in windows],
        {name: [rates.get((name, window)) for window in windows] for name in names},
        x_name="requests under way",
        y_name="messages a second",
    )


def _line_name(row: Row) -> str:
    return f"{row.system}, batch {row.batch}" if row.system == OURS else row.system


def failover_plot(run: Run) -> str:
    """Draw every gap, a strip for each system and fault."""
    strips = {
        f"{r.system}: {r.name}": r.samples for r in run.rows if r.kind == FAILOVER and r.samples
    }
    return strip_chart("Gap that a client saw", strips, x_name="milliseconds")


def history_plot(runs: Sequence[Run]) -> str:
    """Draw the best rates of each run."""
    return line_chart(
        "Best appends of 1 KiB, run by run",
        [run.at[:10] for run in runs],
        {
            f"batch {batch}": [best(run, OURS, batch=batch) for run in runs]
            for batch in (256, 64, 16)
        },
        x_name="run",
        y_name="messages a second",
    )
