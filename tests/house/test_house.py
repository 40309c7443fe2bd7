"""The house checks itself: generated code, Makefile and README hold together."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.house.sources import ROOT, functions


@pytest.mark.parametrize("script", ["generate_proto.py", "generate_rocketmq_stubs.py"])
def test_what_is_generated_is_what_would_be_generated_now(script: str) -> None:
    """`make proto` was run after the last change of the wire contract, and of the locked SDK."""
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


def test_every_make_target_is_made_in_one_way() -> None:
    """Of two recipes make takes the later one and says so in a warning that nobody reads."""
    makefile = (ROOT / "Makefile").read_text("utf-8")

    made = re.findall(r"^([a-z][a-z0-9-]*):[^=\n]*## ", makefile, re.MULTILINE)

    assert [target for target in {*made} if made.count(target) > 1] == []


def test_make_test_runs_what_runs_alone_wherever_it_is() -> None:
    """The Makefile names the folders, since to look into all of them takes half a minute."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    folders = re.search(r"^ALONE_IN := (.*)$", makefile, re.MULTILINE)
    assert folders is not None
    mark = "mark." + "alone"

    marked = [path for path in (ROOT / "tests").rglob("*.py") if mark in path.read_text("utf-8")]

    assert marked
    assert {str(path.parent.relative_to(ROOT)) for path in marked} <= set(folders[1].split())


def test_the_links_of_the_documents_lead_somewhere() -> None:
    """A reader who clicks finds a file."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]

    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text("utf-8"))
        if not (document.parent / target).exists()
    ]

    assert broken == []


def test_every_promise_names_tests_that_exist() -> None:
    """A promise without a test is a wish: each of the twelve leads to real ones."""
    rows = _promises()

    wrong = []
    for promise, row in rows:
        named = re.findall(r"`((?:tests|e2e)/[\w/]+\.py)(?:::(\w+))?`", row)
        wrong += [
            f"{promise}: {path}::{test}"
            for path, test in named
            if not (ROOT / path).exists() or test not in {"", *functions(ROOT / path)}
        ]
        wrong += [] if named else [f"{promise}: no test"]

    assert [promise for promise, _ in rows] == [f"P{number}" for number in range(1, 13)]
    assert wrong == []


def test_every_promise_is_tested_by_make_test() -> None:
    """Whose only tests take over 20 s would be broken in CI without a word."""
    rows = _promises()

    left_out = []
    for promise, row in rows:
        named = re.findall(r"`((?:tests|e2e)/[\w/]+\.py)(?:::(\w+))?`", row)
        short = [name for path, test in named for name in _short_tests(path) if test in {"", name}]
        left_out += [] if short else [promise]

    assert left_out == []


def _promises() -> list[tuple[str, str]]:
    """Return number and text of each promise."""
    page = (ROOT / "docs/promises.md").read_text("utf-8")
    return re.findall(r"^- \*\*(P\d+)\*\*(.*?)(?=^- |\Z)", page, re.MULTILINE | re.DOTALL)


def _short_tests(path: str) -> set[str]:
    """Return the tests of a file that are not marked `long` as a whole."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and "pytest.mark.long" not in map(ast.unparse, node.decorator_list)
    }
