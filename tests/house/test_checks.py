"""Commands that check something fail where nothing was checked."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dledger_sim import __main__ as simulator
from dledger_sim.run import Outcome
from e2e.bench import restart as bench_restart
from e2e.bench.pipeline import __main__ as bench_pipeline
from e2e.bench.pipeline.lines import Line
from e2e.bench.pipeline.measuring import Figure, Unmeasured, check_whole
from e2e.demo import __main__ as demo
from e2e.demo import backup as demo_backup
from tests.mutants import __main__ as mutants
from tests.mutants import mutant
from tests.mutants.catalogue import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("codes", "arguments", "passes"),
    [
        ("0 0", "-k some", True),
        ("5 0", "-k some", True),
        ("0 5", "-k some", True),
        ("5 5", "-k typo", False),
        ("1 0", "-k some", False),
        ("0 1", "-k some", False),
        ("5 0", "", False),
    ],
)
def test_make_unit_needs_a_test_in_one_of_its_parts(
    tmp_path: Path, codes: str, arguments: str, passes: bool
) -> None:
    """Pytest ends with 5 where it had none to run; twice in a row gives the same."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n[ $2 = pytest ] || exit 0\nread code < codes\nsed -i 1d codes\nexit $code\n"
    )
    python.chmod(0o755)
    for name in ("pyproject.toml", "uv.lock", ".venv/.synced"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    command = ["make", "-f", str(ROOT / "Makefile"), "unit", f"PY={python}"]

    done = []
    for _ in range(2):
        (tmp_path / "codes").write_text(codes.replace(" ", "\n") + "\n")
        run = subprocess.run(
            [*command, f"PYTEST_ARGS={arguments}"], cwd=tmp_path, capture_output=True, check=False
        )
        done.append(run.returncode == 0)

    assert done == [passes, passes]


@pytest.fixture(scope="module")
def check_branches() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location(
        "check_branches", ROOT / "scripts" / "check_branches.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _report(**files: tuple[int, int]) -> dict[str, Any]:
    return {
        "files": {
            f"node/dledger/{package}/one.py": {
                "summary": {"covered_branches": taken, "num_branches": known}
            }
            for package, (taken, known) in files.items()
        }
    }


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (_report(raft=(95, 100), store=(95, 100)), 0),
        (_report(raft=(95, 100), store=(94, 100)), 1),
        (_report(raft=(95, 100)), 2),
        (_report(raft=(95, 100), store=(0, 0)), 2),
        (_report(), 2),
    ],
)
def test_coverage_of_a_package_that_was_not_measured_is_no_coverage(
    check_branches: ModuleType, report: dict[str, Any], code: int
) -> None:
    """A package that was renamed would leave the other one's share."""
    assert check_branches.judge(report, 95.0) == code


def _outcome(acknowledged: int) -> Outcome:
    nothing: dict[str, Any] = {field.name: 0 for field in fields(Outcome)}
    return Outcome(**nothing | {"acknowledged": acknowledged})


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [([], 2), ([_outcome(0), _outcome(0)], 2), ([_outcome(0), _outcome(3)], 0)],
)
def test_a_simulator_that_made_no_promise_has_kept_none(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Outcome], code: int
) -> None:
    """No seeds, or none in which a message was acknowledged."""
    monkeypatch.setattr(sys, "argv", ["dledger_sim", "--seeds", str(len(outcomes))])
    monkeypatch.setattr(simulator, "run_seeds", lambda *_, **__: iter(outcomes))

    assert simulator.main() == code


def test_a_simulator_without_assertions_says_that_it_checks_nothing() -> None:
    """The core's invariants are assertions, which an optimising interpreter leaves out."""
    done = subprocess.run(
        [sys.executable, "-O", "-m", "dledger_sim", "--seed", "1"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "without assertions" in done.stdout


def test_mutants_of_which_none_was_chosen_are_not_all_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is none."""
    monkeypatch.setattr(sys, "argv", ["mutants", "--only", "no such bug"])

    assert mutants.main() == 2
    assert "nothing was planted" in capsys.readouterr().out


def test_a_mutant_is_not_caught_by_a_machine_that_is_too_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A check that takes as long without the bug has told nothing of it."""
    monkeypatch.setattr(mutant, "_run", lambda *_: None)

    with pytest.raises(RuntimeError, match="without any planted bug as well"):
        mutant.judge(MUTANTS[0], seeds=0)


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ({"messages": 64, "voting_s": 1.0}, 0),
        ({"messages": 64, "voting_s": 6.0}, 1),
        ({"messages": 0, "voting_s": 0.1}, 2),
    ],
)
def test_a_restart_on_an_empty_log_shows_nothing(report: dict[str, Any], code: int) -> None:
    """It is quick, whatever a long one costs."""
    assert bench_restart.exit_code(report) == code


TRAFFIC = {
    "messages": 20, "acked": 20, "lost": 0, "duplicates": 0, "outOfOrder": 0, "gapMs": 9,
    "leaderBefore": "a", "leaderAfter": "b",
}  # fmt: skip
RESTORED = {
    "messages": 9, "expected": 9, "missing": 0, "changed": 0, "extra": 0, "logBytes": 1,
    "objectBytes": 1, "objects": 1, "driverPods": 1, "executorPods": 1, "groupIdBefore": "a",
    "groupIdAfter": "b", "backupSeconds": 1, "restoreSeconds": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "passed"),
    [
        ({}, True),
        ({"acked": 19}, False),
        ({"acked": 0, "messages": 0}, False),
        ({"lost": 1}, False),
    ],
)
def test_the_demo_shows_nothing_by_a_client_that_ended_early(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, int], passed: bool
) -> None:
    """All messages were acknowledged, and there were some."""
    assert _shown(monkeypatch, demo, TRAFFIC | changed) is passed


@pytest.mark.parametrize(
    ("changed", "passed"), [({}, True), ({"expected": 0}, False), ({"messages": 0}, False)]
)
def test_a_backup_that_was_compared_with_nothing_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, int], passed: bool
) -> None:
    """Notes that were not taken cannot differ."""
    assert _shown(monkeypatch, demo_backup, RESTORED | changed) is passed


def _shown(monkeypatch: pytest.MonkeyPatch, module: ModuleType, result: dict[str, Any]) -> bool:
    said: list[bool] = []
    monkeypatch.setattr(module, "conclude", lambda *_, passed, **__: said.append(passed))
    module.report(result, SimpleNamespace())
    return said[0]


@pytest.mark.parametrize(("done", "whole"), [(9, 10), (0, 0)])
def test_a_line_that_left_a_part_of_the_log_out_has_no_figure(done: int, whole: int) -> None:
    """It would be the better, the more it skips; of an empty log there is none either."""
    with pytest.raises(Unmeasured, match=f"went through {done} of {whole}"):
        check_whole("parse", done, whole)
    check_whole("parse", 10, 10)


def test_a_bench_whose_line_has_no_figure_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured, and it says so; the other lines are measured all the same."""

    def measure(_: object) -> Figure:
        raise Unmeasured("the log is empty")

    broken = Line(name="broken", what="", measure=measure, least=1)
    whole = replace(broken, name="whole", measure=lambda _: Figure(rounds=(1.0, 3.0, 2.0)))
    told = [bench_pipeline.measured(each, SimpleNamespace()) for each in (broken, whole)]  # type: ignore[arg-type]

    assert [each.figure and each.figure.median for each in told] == [None, 2.0]
    assert [bench_pipeline.exit_code(told[at:]) for at in (0, 1)] == [2, 0]
