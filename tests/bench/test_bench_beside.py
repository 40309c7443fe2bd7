"""Two trees beside each other: what is run, what a line comes to, and what is left behind."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.bench import beside, machine, trees
from e2e.bench.beside import MEASURES, exit_code, main, table
from e2e.bench.comparison import compared
from e2e.bench.loads import Loaded
from e2e.bench.ours import Ours
from e2e.bench.trees import Tree, check, checked_out, this_tree
from e2e.harness.nodes import allocate
from e2e.harness.waiting import HarnessError

STEADY = [100.0, 101.0, 99.0]
SLOW = [50.0, 51.0, 49.0]
RATE = MEASURES[0]


def test_another_commit_is_checked_out_and_gone_afterwards(tmp_path: Path) -> None:
    """Its own code would run, with this tree's packages, since it locks the same ones."""
    with checked_out("HEAD", tmp_path) as tree:
        (directory,) = tmp_path.iterdir()
        argv = [
            str(tree.python),
            "-c",
            "import dledger, e2e; print(dledger.__file__, e2e.__file__)",
        ]
        told = subprocess.run(
            ["env", *(f"{k}={v}" for k, v in tree.environment.items()), *argv],
            capture_output=True,
            text=True,
            check=True,
        )

    assert told.stdout.split() == [
        str(directory / "node" / "dledger" / "__init__.py"),
        str(machine.ROOT / "e2e" / "__init__.py"),
    ]
    assert tree.python == Path(sys.executable)
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    """Nothing is left of the attempt."""
    with pytest.raises(HarnessError, match="no commit"), checked_out("no-such-branch", tmp_path):
        pass

    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_would_run_other_code_is_refused(tmp_path: Path) -> None:
    """Two names for one tree would agree in everything, whatever is broken."""
    other = replace(this_tree(), directory=tmp_path)

    check(this_tree())
    with pytest.raises(HarnessError, match="not its own code"):
        check(other)


def test_a_tree_with_other_packages_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made from its lock, by uv."""
    asked: list[Any] = []

    def run(_: object, *argv: Any, **how: Any) -> str:
        asked.append((argv, how))
        return ""

    monkeypatch.setattr(trees, "_run", run)
    monkeypatch.setattr(trees, "uv", lambda: "/bin/uv")
    (tmp_path / "uv.lock").write_text("another one")

    python = trees._python(tmp_path)

    ((argv, how),) = asked
    assert python == tmp_path / ".venv" / "bin" / "python"
    assert argv[:5] == ("/bin/uv", "sync", "--frozen", "--extra", "node")
    assert how == {"cwd": tmp_path}


def test_only_nodes_that_know_the_setting_are_told_their_group(tmp_path: Path) -> None:
    """An older commit's do not start with a setting that they do not know."""
    older = Tree(commit="abc", directory=tmp_path, python=Path("/other/python"))
    told = [
        "DLEDGER_GROUP_ID" in Ours(tells_group=tree.tells_group).node(spec, [spec]).environment
        for tree in (this_tree(), older)
        for spec in allocate(tmp_path)[:1]
    ]

    assert told == [True, False]


def test_nodes_and_clients_are_of_their_own_tree(tmp_path: Path) -> None:
    """The load program is this tree's, the client library it uses is not."""
    tree = Tree(commit="abc", directory=tmp_path, python=Path("/other/python"))
    system = Ours(python=tree.python, environment=tree.environment)
    specs = allocate(tmp_path)

    commands = [system.node(specs[0], specs), system.load(specs)]

    assert [command.argv[0] for command in commands] == [Path("/other/python")] * 2
    assert {command.environment["PYTHONPATH"] for command in commands} == {
        f"{tmp_path / 'node'}:{machine.ROOT}"
    }


@pytest.mark.parametrize(
    ("loaded", "value"),
    [
        (Loaded(requests=10, failures=0, seconds=2.0, latencies_us=[1000.0] * 10), 1280),
        (Loaded(requests=10, failures=1, seconds=2.0, latencies_us=[1000.0] * 10), None),
        (Loaded(requests=0, failures=0, seconds=2.0, latencies_us=[]), None),
    ],
)
def test_a_load_of_which_something_failed_has_no_figure(
    loaded: Loaded, value: float | None
) -> None:
    """Nor has one of which nothing was answered."""
    assert RATE.value(loaded) == value


@pytest.mark.parametrize(
    ("ours", "code"),
    [(STEADY, 0), (SLOW, 1), ([None, None, None], 2), ([math.nan, 1.0, 1.0], 2)],
)
def test_the_exit_code_says_broken_before_not_measured(ours: list[float | None], code: int) -> None:
    """0 only if every line was measured, and the rounds were all held."""
    kept, line = compared(STEADY, STEADY), compared(ours, STEADY)

    assert exit_code([kept, line], is_whole=True) == code
    assert exit_code([kept, line], is_whole=False) == (code or 2)
    assert exit_code([], is_whole=True) == 2


def test_the_table_has_both_medians_the_ratio_and_both_spreads() -> None:
    """And the verdict in words; of what was not measured nothing else."""
    shown = table({RATE: compared(SLOW, STEADY), MEASURES[3]: compared([], [])})

    broken, unmeasured = shown.splitlines()[1:]
    assert broken.split()[-7:] == ["16", "50/s", "100/s", "0.50", "1.04x", "1.02x", "broken"]
    assert unmeasured.split()[-3:] == ["64", "not", "measured"]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where everything goes that a command makes."""
    for name in ("BUILD", "LOGS"):
        monkeypatch.setattr(beside, name, tmp_path)
    return tmp_path


def test_what_was_taken_before_it_broke_off_is_told(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines, file and reason; the exit code says that not all was measured, or what is broken."""

    def take(trees: Any, args: Any, scratch: Path, figures: Any) -> None:
        figures[RATE.name].update(ours=STEADY, theirs=STEADY)
        raise HarnessError("a node ended")

    monkeypatch.setattr(beside, "take", take)

    code = main(["HEAD", "--rounds", "3"])

    told = capsys.readouterr()
    (file,) = build.glob("*")
    rows = json.loads(file.read_text("utf-8"))["lines"]
    assert code == 2
    assert "cut short: a node ended" in told.err
    assert [row["verdict"] for row in rows] == ["kept", *["not measured"] * (len(MEASURES) - 1)]
    assert rows[0]["rounds"] == {"ours": STEADY, "theirs": STEADY}
    assert rows[1]["ratio"] is None


def test_an_interrupt_leaves_neither_tree_nor_disks(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a round."""
    seen: list[Path] = []

    def take(trees: Any, args: Any, scratch: Path, figures: Any) -> None:
        seen.extend(build.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(beside, "take", take)

    assert main(["HEAD"]) == 130

    assert len(seen) == 2
    assert list(build.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [["--rounds", "2"], ["--seconds", "0"], ["--offered", "nan"], ["--only", "typo"], []]
)
def test_a_command_that_could_measure_nothing_is_refused(wrong: list[str]) -> None:
    """Two rounds have no median."""
    with pytest.raises(SystemExit) as ended:
        main([*(["HEAD"] if wrong else []), *wrong])

    assert ended.value.code == 2


@pytest.mark.slow
def test_two_groups_of_one_tree_take_turns_and_end(
    build: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real nodes of a checked-out tree and of this one; each begins, and nothing is left.

    Appends only, for a moment: what the figures come to is not for a test to say.
    """
    monkeypatch.setattr(beside, "_WARM_UP_S", 0.2)

    main(["HEAD", "--rounds", "3", "--seconds", "0.2", "--only", "batch 64, window"])

    rounds = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round")]
    order = [line.split()[4] for line in rounds]
    (file,) = (path for path in build.iterdir() if path.suffix == ".json")
    (row,) = json.loads(file.read_text("utf-8"))["lines"]
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert all(figure > 0 for tree in row["rounds"].values() for figure in tree)
    assert row["verdict"] != "not measured"
    assert not [
        path
        for path in build.iterdir()
        if path.name.startswith(("tree-", "beside-2")) and path.is_dir()
    ]
