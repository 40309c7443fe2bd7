"""No check of the bench that cannot fail: what nobody measured is neither kept nor a pass."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.bench import __main__ as bench
from e2e.bench import machine, overload, results, soak
from e2e.bench.faults import KILL, STOP, TERM
from e2e.bench.overload import under_pressure
from e2e.bench.rows import Row
from e2e.bench.sampler import Life, Sampler
from e2e.bench.soak import SoakNotes, counts, memory
from e2e.harness.checks import Bound, Verdict, exit_code, judged, keeps
from e2e.harness.waiting import HarnessError

KEPT, BROKEN, UNMEASURED = Verdict.KEPT, Verdict.BROKEN, Verdict.UNMEASURED
SOAKED = {
    "unexplained": 0.0,
    "lost": 0.0,
    "duplicates": 0.0,
    "out_of_order": 0.0,
    "failures": 0.0,
    "behind_percent": 0.0,
    "died": 0.0,
    "growth_percent": 1.0,
    "peak_mb": 200.0,
}
OVERLOADED = {"untyped": 0.0, "died": 0.0, "peak_mb": 200.0, "p99_ms": 1000.0, "back_s": 1.0}


@pytest.mark.parametrize(
    ("value", "verdict", "text"),
    [
        (5.0, KEPT, "ok  most: 5.0 (at most 5)"),
        (5.1, BROKEN, "NO  most: 5.1 (at most 5)"),
        (None, UNMEASURED, "??  most: not measured (at most 5)"),
        (float("nan"), UNMEASURED, "??  most: not measured (at most 5)"),
    ],
)
def test_a_line_that_was_not_measured_is_neither_kept_nor_broken(
    value: float | None, verdict: Verdict, text: str
) -> None:
    """It has a verdict of its own, and says so in words."""
    line = Bound(what="most", value=value, most=5)

    assert (line.verdict, str(line)) == (verdict, text)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([KEPT, KEPT], 0),
        ([KEPT, UNMEASURED], 2),
        ([UNMEASURED, BROKEN, KEPT], 1),
        ([], 2),
    ],
)
def test_the_exit_code_is_0_only_if_something_was_judged_and_all_of_it_is_kept(
    verdicts: list[Verdict], code: int
) -> None:
    """What is broken goes first; an empty list of checks has checked nothing."""
    assert exit_code(verdicts) == code


@pytest.mark.parametrize("missing", SOAKED)
def test_a_soak_without_one_of_its_figures_has_not_passed(missing: str) -> None:
    """Every line of it can be missed: no figure is kept by not being there."""
    figures = {name: value for name, value in SOAKED.items() if name != missing}

    verdicts = [line.verdict for line in soak.verdict(figures)]

    assert verdicts.count(UNMEASURED) == 1
    assert exit_code([line.verdict for line in soak.verdict(SOAKED)]) == 0


@pytest.mark.parametrize("missing", OVERLOADED)
def test_an_overload_without_one_of_its_figures_has_not_passed(missing: str) -> None:
    """So it is with writers of whom nothing was accepted: they have no p99."""
    figures = {name: value for name, value in OVERLOADED.items() if name != missing}

    verdicts = [line.verdict for line in overload.verdict(figures)]

    assert verdicts.count(UNMEASURED) == 1
    assert exit_code([line.verdict for line in overload.verdict(OVERLOADED)]) == 0


def _audit(*, sent: int = 0, acked: int = 0, messages: int = 0, lost: int = 0) -> dict[str, int]:
    told = {"sent": sent, "acked": acked, "messages": messages, "lost": lost}
    return told | {"duplicates": 0, "out_of_order": 0}


def _end(*audits: dict[str, int]) -> dict[str, Any]:
    return {"audits": dict(enumerate(audits)), "failures": {}}


def test_a_topic_of_which_nothing_was_acknowledged_or_read_proves_no_audit() -> None:
    """Nothing lost of nothing; one that nobody sent to is left out."""
    good = _audit(sent=9, acked=9, messages=18, lost=1)

    assert counts(_end(good, _audit())) == {
        "sent": 9,
        "acked": 9,
        "messages": 18,
        "failures": 0,
        "lost": 1,
        "duplicates": 0,
        "out_of_order": 0,
    }
    assert "lost" not in counts(_end(good, _audit(sent=9)))
    assert "duplicates" not in counts(_end(good, _audit(sent=9, acked=9, lost=9)))
    assert counts(_end(_audit(), _audit())) == {}


def test_a_soak_that_nobody_looked_at_has_neither_memory_nor_load_nor_elections() -> None:
    """Not a peak of 0 MB, and not 0 % of no looks."""
    short = Life(node="n0", rss_mb=[(0.0, 70.0), (60.0, 90.0)])

    assert memory([]) == {"lives": 0}
    assert memory([short]) == {"lives": 0, "peak_mb": 90}
    assert SoakNotes(per_s=10).behind() == {}


def test_a_node_that_ends_otherwise_than_it_was_told_is_noticed() -> None:
    """A crash under SIGTERM, one that had to be killed, a death while it was only stopped."""
    assert (KILL.amiss(-signal.SIGKILL), TERM.amiss(0), STOP.amiss(None)) == ("", "", "")
    assert TERM.amiss(1) == "ended with 1"
    assert TERM.amiss(-signal.SIGKILL) == "ended with -9"
    assert TERM.amiss(None) == "did not end"
    assert STOP.amiss(4) == "ended with 4"


class _Blind:
    """A group whose nodes cannot be asked."""

    specs = ("n0",)


def test_a_watcher_that_died_fails_the_run() -> None:
    """Elections that nobody saw are not elections that were not there."""
    sampler = Sampler(_Blind())  # type: ignore[arg-type]

    sampler.start()
    sampler._thread.join()

    with pytest.raises(HarnessError, match="the group was not watched to the end"):
        sampler.check()


def test_an_overload_that_did_not_come_about_is_not_judged() -> None:
    """10,000 connections that were all turned away press nobody."""
    busy = {"pressed": 7, "untyped": {}, "latencies_us": [1000]}
    lives = [Life(node="n0", rss_mb=[(0.0, 70.0)])]

    assert under_pressure({**busy, "pressed": 0}, lives, 0.0) == {}
    assert under_pressure(busy, lives, 1.0) == {
        "untyped": 0,
        "p50_ms": 1,
        "p99_ms": 1,
        "p999_ms": 1,
        "max_ms": 1,
        "peak_mb": 70,
        "back_s": 1,
    }
    assert "p99_ms" not in under_pressure({**busy, "latencies_us": []}, lives, 1.0)
    assert "peak_mb" not in under_pressure(busy, [], 1.0)


def test_a_run_is_kept_only_if_it_passed_but_for_what_is_left_out_on_purpose() -> None:
    """What was not measured is not left out on purpose."""
    bounds = {"a": ("growth", 5.0), "b": ("lost", 0.0)}

    def kept(**figures: float) -> bool:
        return keeps(judged(figures, bounds), allowed={"growth"})

    assert kept(a=1, b=0)
    assert kept(a=8, b=0)
    assert not kept(a=1, b=1)
    assert not kept(b=0)
    assert not keeps([], allowed={"growth"})


ROW = Row(kind="soak", system="dledger", name="70% load", figures=SOAKED)


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return where the history and where other runs go."""
    kept, build = tmp_path / "results", tmp_path / "build"
    build.mkdir()
    monkeypatch.setattr(results, "RESULTS", kept)
    for module in (results, soak, overload, bench):
        monkeypatch.setattr(module, "BUILD", build)
        monkeypatch.setattr(module.machine, "ROOT", tmp_path)
    monkeypatch.setattr(machine, "commit", lambda: "0123abcd")
    return kept, build


@pytest.mark.parametrize(
    ("changed", "code", "is_kept"),
    [
        ({}, 0, True),
        ({"growth_percent": 8.0}, 1, True),
        ({"behind_percent": 80.0}, 1, False),
        ({"lost": 1.0}, 1, False),
        ({"growth_percent": float("nan")}, 2, False),
    ],
)
def test_record_of_a_soak_keeps_no_run_that_did_not_pass(
    homes: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    changed: dict[str, float],
    code: int,
    is_kept: bool,
) -> None:
    """An overload, a loss, a figure that is missing: the file stays below build, and that is said.

    What is left out on purpose is shown as missed, and does not keep a run from the history.
    """
    kept, build = homes
    row = replace(ROW, figures=SOAKED | changed)
    monkeypatch.setattr(soak, "soak", lambda *_: row)

    assert soak.main(["--record"]) == code

    assert (len(list(kept.glob("*.json"))), len(list(build.glob("*.json")))) == (
        (1, 0) if is_kept else (0, 1)
    )
    assert ("not recorded" in capsys.readouterr().out) is not is_kept


@pytest.mark.parametrize(("untyped", "is_kept"), [(0.0, True), (9.0, False), (None, False)])
def test_record_of_an_overload_keeps_no_run_that_did_not_pass(
    homes: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    untyped: float | None,
    is_kept: bool,
) -> None:
    """An error without a name is none of those that are left out on purpose; no row is no run."""
    kept, build = homes
    figures = OVERLOADED | {"untyped": untyped or 0.0}
    row = Row(kind="overload", system="dledger", name="10x the rate", figures=figures)
    monkeypatch.setattr(
        overload, "overload_rows", lambda *_: iter([] if untyped is None else [row])
    )

    assert overload.main(["--record"]) == {0.0: 0, 9.0: 1, None: 2}[untyped]

    assert bool(list(kept.glob("*.json"))) is is_kept
    assert bool(list(build.glob("*.json"))) is not is_kept


def test_a_bench_that_measured_nothing_says_so(
    homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sections without rows, or no rounds: no file in the history, and not exit code 0."""

    def none(args: argparse.Namespace, scratch: Path) -> Iterator[Row]:
        yield from ()

    monkeypatch.setattr(bench, "measure", none)

    assert bench.main(["--record"]) == 2

    assert "nothing was measured" in capsys.readouterr().err
    assert not homes[0].exists()
