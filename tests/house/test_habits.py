"""What runs before a commit, a push and a merge is what the Makefile runs, under its names."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def _target(name: str) -> tuple[str, list[str]]:
    """Return what a target needs, and its commands without the directory of the programs."""
    found = re.search(rf"^{name}:(.*?)(?:##.*)?\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
    assert found is not None, name
    commands = re.sub(r"\$\(VENV\)/bin/|\t", "", found[2])
    return found[1].strip(), commands.splitlines()


def test_hooks_call_the_makefile() -> None:
    """A command of their own would drift from what CI refuses."""
    (repository,) = _read(ROOT / ".pre-commit-config.yaml")["repos"]

    assert repository["repo"] == "local"  # nothing is fetched, and versions are those of uv.lock
    assert {hook["entry"]: hook["stages"] for hook in repository["hooks"]} == {
        "make lint": ["pre-commit"],
        "make check": ["pre-push"],
    }


def test_check_is_lint_and_types() -> None:
    """Types take minutes without a cache, so they are not asked for at each commit."""
    assert _target("lint")[1] == ["ruff check .", "ruff format --check .", "lint-imports"]
    assert _target("check") == ("lint", ["mypy"])


def test_a_workflow_runs_check() -> None:
    """Beside the tests, which would pass with a wrong type."""
    runs = [
        step.get("run", "")
        for path in WORKFLOWS
        for job in _read(path)["jobs"].values()
        for step in job["steps"]
    ]

    assert runs.count("make check") == 1


def test_actions_are_pinned_by_hash() -> None:
    """A tag can be moved to other code."""
    used = [
        each for path in WORKFLOWS for each in re.findall(r"uses: (.*)", path.read_text("utf-8"))
    ]

    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\S+", each)] == []


def test_editors_know_the_lengths_of_lines() -> None:
    """As ruff and the wrapping of documents have them."""
    told = configparser.ConfigParser()
    told.read_string("[top]\n" + (ROOT / ".editorconfig").read_text("utf-8"))
    ruff = re.search(
        r"^line-length = (\d+)", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )

    assert ruff is not None
    assert told["*.py"]["max_line_length"] == ruff[1]
    assert told["*.md"]["max_line_length"] == "120"


def test_papers_outside_of_the_repository_are_not_named() -> None:
    """Whoever has only the repository would look for them in vain."""
    ours = [ROOT / name for name in ("pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md")]
    ours += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "node").rglob("*.py")]
    papers = re.compile(r"\b(?:design|style)\.md\b")

    assert [str(path) for path in ours if papers.search(path.read_text("utf-8"))] == []
