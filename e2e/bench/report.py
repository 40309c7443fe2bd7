"""``make bench-report``: docs/performance.md and its plots, from the history of results.

The text between the two markers of the page is written from the newest run of the bench, of the
soak and of the overload; failover, catch-up, and Kafka and NATS JetStream may have had a run of
their own. The plot of the history is of all runs; the rest of the page is written by hand.
``--check`` says whether page and plots are those of the results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from e2e.bench import machine, overload, soak
from e2e.bench.bare_calls import BARE_CALLS
from e2e.bench.beside_rocketmq import about as about_java_sdk
from e2e.bench.catch_up import CATCH_UP
from e2e.bench.charts import appends_plot, failover_plot, history_plot
from e2e.bench.engine import APPEND, LATENCY, READ
from e2e.bench.etcd import Etcd
from e2e.bench.failover import FAILOVER
from e2e.bench.java import NAME as JAVA
from e2e.bench.java_sdk import JAVA_SDK
from e2e.bench.left_out import section as left_out
from e2e.bench.machine import DISK, MACHINE, SYNC
from e2e.bench.markdown import number, paragraph, table, with_unit
from e2e.bench.peer_lines import PEER_APPEND, PEER_KINDS
from e2e.bench.peer_report import section as peer_section
from e2e.bench.results import RESULTS
from e2e.bench.rows import Row, Run, history
from e2e.bench.sdk import SDK
from e2e.bench.sidecar import SIDECAR
from e2e.bench.targets import TARGETS, Target, best, figure
from e2e.bench.typed_failover import TYPED_FAILOVER
from e2e.bench.typed_report import section as typed_section
from e2e.bench.typed_sends import TYPED
from e2e.harness.checks import Bound, Verdict

PAGE: Final = machine.ROOT / "docs" / "performance.md"
PLOTS: Final = machine.ROOT / "docs" / "performance"
BEGIN: Final = "<!-- figures: written by make bench-report -->"
END: Final = "<!-- end of figures -->"
_NOT_RUN: Final = "No run is kept yet.\n"
_QUIET_LOAD: Final = 0.5
_STOLEN_PERCENT: Final = 2.0
_BY_ITSELF: Final = (
    FAILOVER,
    CATCH_UP,
    SIDECAR,
    JAVA_SDK,
    TYPED,
    TYPED_FAILOVER,
    *PEER_KINDS,
)
_SECONDS: Final = "seconds"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write page and plots, or check them; return the exit code."""
    parser = argparse.ArgumentParser(prog="make bench-report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    args = parser.parse_args(arguments)
    outdated = stale()
    for path, text in outdated.items():
        print(path.relative_to(machine.ROOT))
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return int(args.check and bool(outdated))


def stale() -> dict[Path, str]:
    """Return the files that are not those of the results, with what they should hold."""
    wanted = files(history(RESULTS))
    return {
        path: text
        for path, text in wanted.items()
        if not path.exists() or path.read_text("utf-8") != text
    }


def files(runs: Sequence[Run]) -> dict[Path, str]:
    """Return what page and plots should hold.

    Args:
        runs: The newest is the last one; without any there are no plots, and the page says so.
    """
    page = PAGE.read_text("utf-8")
    benches = [run for run in runs if has(run, APPEND)]
    if not benches:
        return {PAGE: replaced(page, _NOT_RUN + under_stress(runs) + left_out(None, runs))}
    newest = benches[-1]
    stress = under_stress(runs) + left_out(completed(newest, runs)[0], runs)
    return {
        PAGE: replaced(page, figures_text(newest, runs) + stress),
        PLOTS / "appends.svg": appends_plot(newest),
        PLOTS / "failover.svg": failover_plot(completed(newest, runs)[0]),
        PLOTS / "history.svg": history_plot(benches),
    }


def has(run: Run, kind: str) -> bool:
    """Whether a run measured anything of this kind."""
    return any(row.kind == kind for row in run.rows)


def completed(run: Run, runs: Sequence[Run]) -> tuple[Run, Mapping[str, Run]]:
    """Return *run* with the rows of `_BY_ITSELF` that it lacks, and the newest runs that had them.

    Those take long with many trials, and are beside nothing else of their run.
    """
    sources = {
        kind: next(each for each in reversed(runs) if has(each, kind))
        for kind in _BY_ITSELF
        if not has(run, kind) and any(has(each, kind) for each in runs)
    }
    lent = [row for kind, source in sources.items() for row in source.rows if row.kind == kind]
    return replace(run, rows=[*run.rows, *lent]), sources


def replaced(page: str, text: str) -> str:
    """Return *page* with *text* between its markers. Raises ValueError if they are not there."""
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"no {BEGIN} with {END} behind it")
    return f"{head}{BEGIN}\n\n{text}\n{END}{tail}"


def figures_text(run: Run, runs: Sequence[Run] = ()) -> str:
    """Return the page's part about one run; what it lacks of `_BY_ITSELF` is from *runs*."""
    run, sources = completed(run, runs)
    parts = [
        _about(run),
        "### What is asked, and what this run shows\n",
        _goals(run),
        "### Appends\n",
        "![messages a second by window](performance/appends.svg)\n",
        _appends(run.rows),
        "### Latency of an open loop\n",
        _rows(run, (LATENCY,), {"per_s": "messages/s", **_LATENCIES}),
        "### Reads, and the RocketMQ Python SDK\n",
        _rows(run, (READ, SDK), {"per_s": "messages/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}),
        "### RocketMQ's Java SDK beside RocketMQ 5.5\n",
        about_java_sdk(sources.get(JAVA_SDK, run)),
        _by_java_sdk(run.rows),
        typed_section(run, sources),
        peer_section(run, sources.get(PEER_APPEND, run)),
        "### A lost leader\n",
        _source(sources, FAILOVER),
        "![gaps by fault](performance/failover.svg)\n",
        _rows(run, (FAILOVER,), _FAILOVER),
        "### A follower comes back\n",
        _source(sources, CATCH_UP),
        _rows(run, (CATCH_UP,), _CATCH_UP),
        "### What the nodes took\n",
        _usage(run.rows),
        "### The machine\n",
        _rows(run, (DISK,), {"each_mb_s": "MB/s each", "total_mb_s": "MB/s together"}),
        _rows(run, (SYNC,), _LATENCIES) if has(run, SYNC) else "",
        _rows(run, (BARE_CALLS,), _BARE_CALLS) if has(run, BARE_CALLS) else "",
        "### History\n",
        "![best rate by run](performance/history.svg)\n",
    ]
    return "\n".join(part for part in parts if part)


def _source(sources: Mapping[str, Run], kind: str) -> str:
    return f"{_when(sources[kind])}\n" if kind in sources else ""


def _when(run: Run) -> str:
    return f"Run of {run.at}, commit `{run.commit}`."


def under_stress(runs: Sequence[Run]) -> str:
    """Return the page's parts about the newest soak and the newest overload."""
    text = ""
    for kind, title, verdict in _STRESSES:
        found = [run for run in runs if has(run, kind)]
        text += f"\n### {title}\n\n" + (_stress(found[-1], kind, verdict) if found else _NOT_RUN)
    return text


def _stress(run: Run, kind: str, verdict: Callable[[Mapping[str, float]], Sequence[Bound]]) -> str:
    rows = [row for row in run.rows if row.kind == kind]
    lines = [(row.name, line) for row in rows for line in verdict(row.figures)]
    return f"{_when(run)}\n\n" + table(
        ["row", "line", "at most", "this run", "kept"],
        [
            [name, line.what, f"{line.most:g}", _measured(line), line.verdict.value]
            for name, line in lines
        ],
    )


def _measured(line: Bound) -> str:
    if line.value is None or line.verdict is Verdict.UNMEASURED:
        return Verdict.UNMEASURED.value
    return number(line.value)


_STRESSES: Final = (
    (soak.SOAK, "A long run with a fault each minute", soak.verdict),
    (overload.OVERLOAD, "Too much of everything", overload.verdict),
)
_BARE_CALLS: Final = {
    "per_s": "calls/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "server_us": "CPU us, server",
    "client_us": "CPU us, client",
}
_THERE: Final = (
    ("a bare gRPC server takes {} us of a core for a call", 200),
    ("Java DLedger's client appends {} messages a second at its best window", 17_800),
    ("etcd's puts {}", 8_600),
)
_JAVA_SDK: Final = {
    "per_s": "messages/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "server_us": "CPU us, servers",
    "client_us": "CPU us, client",
    "others_cores": "cores of others",
    "failures": "failed",
}
_LATENCIES: Final = {"p50_ms": "p50 ms", "p99_ms": "p99 ms", "p999_ms": "p99.9 ms"}
_FAILOVER: Final = {
    "trials": "trials",
    "p50_ms": "p50 ms",
    "p90_ms": "p90 ms",
    "max_ms": "max ms",
    "moved": "moved",
    "unrecovered": "not recovered",
    "detected_ms": "detected ms",
    "elected_ms": "elected ms",
    "first_ack_ms": "first ack ms",
}
_CATCH_UP: Final = {
    "mb_s": "MB/s",
    "behind_mb": "MB behind",
    "start_s": "start s",
    "catch_up_s": "catch-up s",
    "calm_p99_ms": "p99 before ms",
    "start_p99_ms": "p99 at its start ms",
    "busy_p99_ms": "p99 meanwhile ms",
}


def _about(run: Run) -> str:
    facts = run.machine
    text = (
        f"Run of {run.at}, commit `{run.commit}`: {facts['cpu']}, {facts['cores']} cores, "
        f"{facts['memory_gib']} GiB, Linux {facts['kernel']}, Python {facts['python']}, "
        f"load {facts['load_before']} before it began."
    )
    text = paragraph(text)
    stolen_percent = facts.get("stolen_percent", 0.0)
    if stolen_percent >= _STOLEN_PERCENT:
        text += (
            f"\n**The hypervisor gave {stolen_percent:g} % of the cores to others meanwhile.** "
            "Everything is smaller and slower than on cores of one's own.\n"
        )
    text += _pace(run)
    if facts["load_before"] > _QUIET_LOAD * facts["cores"]:
        text += (
            "\n**The machine did other work meanwhile.** Everything is smaller and slower than on "
            "a quiet one; only ratios within this run mean something.\n"
        )
    return text


def _pace(run: Run) -> str:
    """Return how fast this machine is beside the one whose figures the lines were set by."""
    measured = (
        figure(run, BARE_CALLS, "", "server_us", system=MACHINE),
        best(run, JAVA),
        best(run, Etcd.name),
    )
    known = [
        f"{what.format(number(value))} ({number(there)} there)"
        for value, (what, there) in zip(measured, _THERE, strict=True)
        if value is not None
    ]
    beside = f"Beside the machine that the lines were set on: {', '.join(known)}."
    return f"\n{paragraph(beside)}" if known else ""


def _goals(run: Run) -> str:
    return table(
        ["line", "at least", "aim", "this run", "kept"],
        [
            [
                target.line,
                _bound(target, target.asked(run)),
                "" if target.aim is None else _bound(target, target.aim),
                with_unit(target.value(run), target.unit),
                target.verdict(run),
            ]
            for target in TARGETS
        ],
    )


def _bound(target: Target, value: float) -> str:
    return ("at most " if target.is_most else "") + with_unit(value, target.unit)


def _appends(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row.kind == APPEND]
    columns = {"per_s": "messages/s", **_LATENCIES, "failures": "failed"}
    return _table_of(found, columns) + _range_note(found)


def _by_java_sdk(rows: Sequence[Row]) -> str:
    """Return the rows without what the words before them say of all."""
    found = [
        replace(row, name=row.name.removeprefix("1 KiB, "), notes=())
        for row in rows
        if row.kind == JAVA_SDK
    ]
    return _table_of(found, _JAVA_SDK) + _range_note(found)


def _range_note(rows: Sequence[Row]) -> str:
    rounds = max((len(row.samples) for row in rows), default=0)
    spread = [
        max(row.samples) / min(row.samples) for row in rows if row.samples and min(row.samples)
    ]
    if rounds < 2 or not spread:
        return ""
    return (
        f"\nMedians of {rounds} rounds; between rounds a rate changed {max(spread):.1f}x at most.\n"
    )


def _rows(run: Run, kinds: Sequence[str], columns: Mapping[str, str]) -> str:
    return _table_of([row for row in run.rows if row.kind in kinds], columns)


def _table_of(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Return a table of the figures that any row has; notes stand in a last column."""
    if not rows:
        return "Not measured in this run.\n"
    shown = {k: v for k, v in columns.items() if any(k in row.figures for row in rows)}
    with_notes = any(row.notes for row in rows)
    return table(
        ["system", "row", *shown.values(), *(["note"] if with_notes else [])],
        [
            [
                row.system,
                row.name,
                *(number(row.figures[name]) if name in row.figures else "" for name in shown),
                *(["; ".join(row.notes)] if with_notes else []),
            ]
            for row in rows
        ],
    )


def _usage(rows: Sequence[Row]) -> str:
    """Return the processor time and the memory behind each rate."""
    measured = [
        row
        for row in rows
        if _SECONDS in row.figures
        and row.figures["per_s"]
        and row.kind not in (JAVA_SDK, TYPED, *PEER_KINDS)
    ]
    if not measured:
        return "Not measured in this run.\n"
    return table(
        ["system", "row", "cores, 3 nodes", "cores, client", "CPU us a message", "largest node MB"],
        [[row.system, row.name, *_usage_of(row.figures)] for row in measured],
    )


def _usage_of(figures: Mapping[str, float]) -> list[str]:
    seconds = figures[_SECONDS]
    nodes_s = sum(value for name, value in figures.items() if _is_node(name, "_cpu_s"))
    client_s = figures.get("client_cpu_s", 0.0)
    memory = [value for name, value in figures.items() if _is_node(name, "_rss_mb")]
    each_us = (nodes_s + client_s) * 1e6 / (figures["per_s"] * seconds)
    shown = (nodes_s / seconds, client_s / seconds, each_us, max(memory, default=0.0))
    return [number(value) for value in shown]


def _is_node(name: str, ending: str) -> bool:
    return name.startswith("node") and name.endswith(ending)


if __name__ == "__main__":
    sys.exit(main())
