"""The page's tables of FIFO and delayed messages beside RocketMQ. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Final

from e2e.bench.markdown import number, paragraph, table
from e2e.bench.rows import Row, Run
from e2e.bench.typed_failover import TYPED_FAILOVER
from e2e.bench.typed_sends import TYPED

_TITLE: Final = "### FIFO and delayed messages beside RocketMQ 5.5\n"
_SENDS: Final = {
    "per_s": "/s",
    "p99_ms": "p99 ms",
    "server_us": "servers us",
    "client_us": "client us",
    "early": "early",
    "late_p50_ms": "late ms, p50",
    "late_p99_ms": "p99",
    "missing": "missing",
    "others_cores": "others",
    "failures": "failed",
}
_KILLED: Final = {
    "acknowledged": "acked",
    "failures": "failed",
    "lost": "lost",
    "doubled": "doubled",
    "redelivered": "again",
    "early": "early",
    "disordered": "overtaken",
    "gap_ms": "gap ms",
    "calm_p99_ms": "late ms, p99",
    "late_max_ms": "most",
    "others_cores": "others",
}
_KINDS: Final[Mapping[str, Mapping[str, str]]] = {TYPED: _SENDS, TYPED_FAILOVER: _KILLED}
_ABOUT: Final[Mapping[str, str]] = {
    TYPED: (
        "Async sends, 256 under way, in turns. Each delayed message is due 5 s ahead, so a row "
        "has as many deliveries as sends, and its CPU has both; one in a hundred is consumed, and "
        "tells how late it was. FIFO messages are of 1,000 message groups in turn. Servers and "
        "client are CPU of a message, others are cores."
    ),
    TYPED_FAILOVER: (
        "The master is killed once, under 200 messages a second of each type and a push consumer "
        "of each; delayed ones are due 10 to 20 s ahead. *Failed* are sends; *doubled* came again "
        "as if for the first time, *again* and was said to; *overtaken* came behind a later one of "
        "its message group. Late is beyond the due time, of FIFO messages beyond the "
        "acknowledgement: p99 before the kill, the most at all. Others are cores, before it."
    ),
}


def section(run: Run, sources: Mapping[str, Run]) -> str:
    """Return the tables; "" without any.

    Args:
        run: Has the rows.
        sources: The runs that they are of, by kind, if it is another one.
    """
    found = [part for kind in _KINDS if (part := _part(run, kind, sources.get(kind, run)))]
    return "\n".join([_TITLE, *found]) if found else ""


def _part(run: Run, kind: str, source: Run) -> str:
    rows = [row for row in run.rows if row.kind == kind]
    if not rows:
        return ""
    facts = source.machine
    about = (
        f"Run of {source.at}, commit `{source.commit}`: load {facts['load_before']} before it "
        f"began{_others(rows, facts['cores'])}. {_ABOUT[kind]}"
    )
    return f"{paragraph(about)}\n{_table(rows, _KINDS[kind])}"


def _others(rows: list[Row], cores: int) -> str:
    """Return how many cores others took, where that was measured."""
    found = [row.figures["others_cores"] for row in rows if "others_cores" in row.figures]
    if not found:
        return ""
    return f", and of {cores} cores others took {number(median(found))} in the median row"


def _table(rows: list[Row], columns: Mapping[str, str]) -> str:
    """Return a table in which a row of ours stands beside theirs."""
    names = list(dict.fromkeys(row.name for row in rows))
    alike = sorted(rows, key=lambda row: names.index(row.name))
    shown = {k: v for k, v in columns.items() if any(k in row.figures for row in rows)}
    return table(
        ["row", "system", *shown.values()],
        [
            [
                row.name.removeprefix("1 KiB, "),
                row.system,
                *(number(row.figures[n]) if n in row.figures else "" for n in shown),
            ]
            for row in alike
        ],
    )
