"""The page's tables beside Kafka and NATS JetStream. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from e2e.bench.markdown import number, paragraph, table
from e2e.bench.peer_lines import COST, PEER_APPEND, PEER_FAILOVER, PEER_READ
from e2e.bench.rows import Run

_APPENDS: Final = {
    "per_s": "messages/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    COST: "CPU s of 100k, 3 nodes",
    "client_100k_s": "client",
    "others_cores": "others, cores",
    "failures": "failed",
}
_READS: Final = {name: _APPENDS[name] for name in ("per_s", COST, "client_100k_s", "others_cores")}
_LOST_LEADERS: Final = {
    "trials": "trials",
    "p50_ms": "p50 ms",
    "max_ms": "max ms",
    "unrecovered": "not recovered",
}


def section(run: Run, source: Run) -> str:
    """Return the tables; "" without any.

    Args:
        run: Has the rows.
        source: The run that they are of, for what the machine was like.
    """
    if not any(row.kind == PEER_APPEND for row in run.rows):
        return ""
    facts = source.machine
    about = paragraph(
        f"Run of {source.at}, commit `{source.commit}`: {facts['cpu']}, {facts['cores']} cores, "
        f"load {facts['load_before']} before it began, {facts.get('stolen_percent', 0.0):g} % of "
        "the cores stolen by the hypervisor. CPU is in seconds for 100,000 messages; beside it "
        "stands what other work of the machine took of the cores meanwhile. A batch of Kafka's is "
        "what its producer makes of so many records."
    )
    parts = (
        "### Beside Kafka and NATS JetStream\n",
        about,
        _table(run, PEER_APPEND, _APPENDS),
        _spread(run),
        _table(run, PEER_READ, _READS),
        _table(run, PEER_FAILOVER, _LOST_LEADERS),
    )
    return "\n".join(part for part in parts if part)


def _table(run: Run, kind: str, columns: Mapping[str, str]) -> str:
    """Return a table of a kind's rows: what can be compared stands together."""
    found = [row for row in run.rows if row.kind == kind]
    if not found:
        return ""
    alike = sorted(found, key=lambda row: (row.batch, row.window))
    shown = {k: v for k, v in columns.items() if any(k in row.figures for row in found)}
    return table(
        ["row", "system", *shown.values()],
        [
            [
                row.name,
                row.system,
                *(number(row.figures[n]) if n in row.figures else "" for n in shown),
            ]
            for row in alike
        ],
    )


def _spread(run: Run) -> str:
    """Return between which rates the rounds of a row were, at worst."""
    samples = [row.samples for row in run.rows if row.kind == PEER_APPEND]
    spreads = sorted(max(each) / min(each) for each in samples if _is_spread(each))
    if not spreads:
        return ""
    rounds, middle = max(map(len, samples)), spreads[len(spreads) // 2]
    return paragraph(
        f"Medians of {rounds} rounds; between rounds a rate changed {middle:.1f}x at the median, "
        f"{spreads[-1]:.1f}x at most."
    )


def _is_spread(samples: Sequence[float]) -> bool:
    return len(samples) > 1 and min(samples) > 0
