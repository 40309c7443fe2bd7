"""The report: what is asked, what the newest run shows, and the page that says so."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from e2e.bench import report
from e2e.bench.bare_calls import BARE_CALLS
from e2e.bench.contest import INSIDE
from e2e.bench.failover import FAILOVER
from e2e.bench.left_out import section as left_out
from e2e.bench.machine import MACHINE
from e2e.bench.markdown import number
from e2e.bench.plots import line_chart, nice_top, strip_chart
from e2e.bench.rows import OURS, Row, Run
from e2e.bench.targets import TARGETS, Target, best, disk_bound

FACTS = {
    "cpu": "a processor",
    "cores": 2,
    "memory_gib": 4,
    "kernel": "6.1",
    "python": "3.11",
    "load_before": 0.1,
}


def _append(system: str, per_s: float, *, batch: int = 1, window: int = 1, more: str = "") -> Row:
    return Row(
        kind="append",
        system=system,
        name=f"1 KiB, batch {batch}, window {window}{more}",
        size_bytes=1024,
        batch=batch,
        window=window,
        figures={"per_s": per_s, "p99_ms": 1.5, "seconds": 2.0, "node0_cpu_s": 1.0},
        samples=(per_s, per_s * 1.2),
    )


def _run(*rows: Row, load: float = 0.1) -> Run:
    machine = {**FACTS, "load_before": load}
    return Run(at="2026-01-02T03:04:05Z", commit="abc", machine=machine, rows=rows)


def _goal(beginning: str) -> Target:
    (found,) = [target for target in TARGETS if target.line.startswith(beginning)]
    return found


def test_the_best_window_of_each_is_compared() -> None:
    """Ours at any batch size, Java DLedger's and etcd's through their own clients."""
    run = _run(
        _append(OURS, 60_000, batch=256, window=4),
        _append(OURS, 20_000, batch=16),
        _append("java-dledger", 15_000, window=256),
        _append("java-dledger", 10_000, window=64),
        _append("java-dledger", 50_000, batch=256, more=f", {INSIDE}"),
    )

    assert _goal("beside Java DLedger through").value(run) == 4
    assert _goal("beside Java DLedger through").verdict(run) == "aim"
    assert _goal("beside Java DLedger's very best").value(run) == 1.2
    assert _goal("beside Java DLedger's very best").verdict(run) == "yes"
    assert _goal("beside etcd").verdict(run) == "not measured"


def test_what_failed_or_is_no_number_is_not_called_kept() -> None:
    """The p99 of what was answered says nothing of what was not."""
    row = Row(kind="latency", system=OURS, name="at 50%", figures={"p99_ms": 1.0, "failures": 0.0})
    failed = replace(row, figures={"p99_ms": 1.0, "failures": 3.0})
    nonsense = replace(row, figures={"p99_ms": float("nan")})

    verdicts = [_goal("p99 at half load").verdict(_run(one)) for one in (row, failed, nonsense)]

    assert verdicts == ["aim", "not measured", "not measured"]
    assert "p99 at half load" in report.figures_text(_run(nonsense))


def test_the_page_says_what_is_left_out_on_purpose() -> None:
    """By how much it is missed here, and why; without a run, that nobody has measured it."""
    course = {"busy_p99_ms": 30.0, "calm_p99_ms": 10.0}
    catch_up = Row(kind="catch-up", system=OURS, name="leader at 50% load", figures=course)
    grown = Row(kind="soak", system=OURS, name="70% load", figures={"growth_percent": 8.0})
    text = left_out(_run(catch_up), [_run(grown)])

    assert "| the leader's p99 meanwhile, times the p99 before, at 50% load | 2 x | 3 x |" in text
    assert "before, at 17,500 a second | 2 x | not measured |" in text
    assert "| growth of memory, worst process, percent | 5 | 8 |" in text
    assert "50% load | 2 x | not measured |" in left_out(None, [])


def test_batch_push_counts_for_javas_very_best_only() -> None:
    """A setting that is off by default is not what its client gets."""
    run = _run(
        _append("java-dledger", 10, window=64),
        _append("java-dledger (batch push)", 44, batch=256, more=f", {INSIDE}"),
    )

    assert best(run, "java-dledger") == 10
    assert best(run, "java-dledger", inside=True) == 44


def test_failover_may_have_a_run_of_its_own() -> None:
    """The page says which one; a run that measured it itself needs no other."""
    own = Row(kind=FAILOVER, system=OURS, name="SIGKILL", figures={"p50_ms": 77.0, "max_ms": 88.0})
    other = Row(kind=FAILOVER, system=OURS, name="SIGKILL", figures={"p50_ms": 55.0})
    trials = replace(_run(own), commit="trials")
    appends = _run(_append(OURS, 1234))

    lent = report.figures_text(appends, [trials, appends])

    assert "commit `trials`" in lent
    assert "| SIGKILL of the leader, gap, p50 | at most 600 ms | at most 250 ms | 77 ms |" in lent
    itself = report.figures_text(_run(_append(OURS, 1234), other), [trials])
    assert "commit `trials`" not in itself
    assert "| 55 ms |" in itself


def test_a_slower_disk_lowers_what_is_asked() -> None:
    """90 % of what three writers at once get, in messages of 1 KiB."""
    disk = Row(
        kind="disk",
        system="machine",
        name="three",
        size_bytes=256 << 10,
        window=3,
        figures={"each_mb_s": 10.24},
    )
    run = _run(_append(OURS, 9_500, batch=256), disk)

    assert disk_bound(run, 256 << 10) == pytest.approx(9_000)
    assert _goal("native appends, 1 KiB, batch 256").verdict(run) == "yes"
    assert _goal("native appends, 1 KiB, batch 256").verdict(_run(run.rows[0])) == "no"


def test_the_page_says_how_fast_the_machine_is_beside_the_one_of_the_lines() -> None:
    """By what gRPC and the peers do on both; nothing where none of it was measured."""
    bare = Row(kind=BARE_CALLS, system=MACHINE, name="bare", figures={"server_us": 400.0})
    known = _run(bare, _append("java-dledger", 8_900, window=1024))

    text = report.figures_text(known)

    assert "takes 400 us of a core for a call (200 there)" in text
    assert "appends 8,900 messages a second at its best window (17,800 there)" in text
    assert "etcd's puts" not in text
    assert "the lines were set on" not in report.figures_text(_run(_append(OURS, 1)))


def test_both_faults_of_a_goal_must_have_been_measured() -> None:
    """SIGSTOP alone says nothing of a cut link."""
    rows = [
        Row(kind="failover", system=OURS, name=name, figures={"max_ms": ms})
        for name, ms in (("SIGSTOP", 700.0), ("cut link", 1600.0))
    ]

    assert _goal("SIGSTOP or cut link").verdict(_run(rows[0])) == "not measured"
    assert _goal("SIGSTOP or cut link").verdict(_run(*rows)) == "no"


def test_the_page_has_every_goal_and_every_row() -> None:
    """Nothing that was measured is left out, whether it pleases or not."""
    failover = Row(
        kind="failover", system="etcd", name="stalled disk", notes=("needs root",), samples=()
    )
    text = report.figures_text(_run(_append(OURS, 1234), failover))

    assert all(target.line in text for target in TARGETS)
    assert "| dledger | 1 KiB, batch 1, window 1 | 1,234 |" in text
    assert "needs root" in text
    assert "1.2x at most" in text


def test_a_busy_machine_is_told_of_first() -> None:
    """Figures of such a run are not those of the broker."""
    assert "did other work" not in report.figures_text(_run())
    assert "did other work" in report.figures_text(_run(load=1.5))


def test_a_report_says_what_the_hypervisor_took() -> None:
    """Old runs do not know; a little is nothing to speak of."""
    one = _run()
    robbed = replace(one, machine={**one.machine, "stolen_percent": 17.5})
    hardly = replace(one, machine={**one.machine, "stolen_percent": 0.3})

    assert "gave 17.5 % of the cores to others" in report.figures_text(robbed)
    assert "to others" not in report.figures_text(hardly) + report.figures_text(one)


def test_without_a_run_the_page_says_so() -> None:
    """An empty history is no error, and no reason to show figures from elsewhere."""
    (text,) = report.files([]).values()

    assert "No run is kept yet." in text


def test_a_run_brings_its_plots() -> None:
    """The page shows them, so they are written with it."""
    texts = report.files([_run(_append(OURS, 1234))])

    assert {path.name for path in texts} == {
        "performance.md",
        "appends.svg",
        "failover.svg",
        "history.svg",
    }


def test_only_what_is_between_the_markers_is_written() -> None:
    """The rest of the page is written by hand."""
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nbehind\n"

    assert report.replaced(page, "new") == f"before\n{report.BEGIN}\n\nnew\n{report.END}\nbehind\n"
    with pytest.raises(ValueError, match="make bench-report"):
        report.replaced("nothing", "new")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"),
        (100, "100"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (2.0, "2"),
        (30.0, "30"),
        (0, "0"),
    ],
)
def test_figures_have_the_digits_that_mean_something(value: float, text: str) -> None:
    """A rate of 12,345.678 a second would claim what no bench can know."""
    assert number(value) == text


def test_charts_are_well_formed_and_show_every_value() -> None:
    """Names are escaped; what was not measured leaves a gap."""
    lines = line_chart(
        "a < b", ["1", "2"], {"x & y": [1.0, None], "z": [2.0, 3.0]}, x_name="x", y_name="y"
    )
    strips = strip_chart("gaps", {"one": [1.0, 1000.0], "two": []}, x_name="ms")

    for chart, dots in ((lines, 3 + 2), (strips, 2)):
        assert chart.count("<circle") == dots
        assert ElementTree.fromstring(chart).tag.endswith("svg")  # noqa: S314 - our own


def test_a_scale_ends_at_a_round_number() -> None:
    """1, 2 or 5 times a power of ten."""
    assert [nice_top(v) for v in (1, 1.1, 3, 7, 42_000)] == [1, 2, 5, 10, 50_000]


def test_the_page_and_its_plots_are_those_of_the_results() -> None:
    """`make bench-report` was run after the last result, and nobody wrote between the markers."""
    assert list(report.stale()) == []


def test_the_newest_soak_and_overload_are_judged_beside_the_newest_bench() -> None:
    """Each is a run of its own; what was not measured is not called kept."""
    soak = Row(
        kind="soak",
        system=OURS,
        name="70% load",
        size_bytes=1024,
        batch=64,
        figures={"unexplained": 1.0, "lost": 0.0, "peak_mb": 250.0},
    )
    older = replace(soak, figures={"unexplained": 7.0})

    text = report.under_stress([_run(older), _run(soak), _run(_append(OURS, 1))])

    assert "| 70% load | elections without a cause | 0 | 1 | no |" in text
    assert "| 70% load | most memory of a node, MB | 300 | 250 | yes |" in text
    assert (
        "| 70% load | growth of memory, worst process, percent | 5 | not measured | not measured |"
        in text
    )
    assert text.endswith("### Too much of everything\n\nNo run is kept yet.\n")
