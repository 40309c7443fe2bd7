"""Documents name tests by their whole name, link to what is there, and have no long line."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from scripts.wrap_docs import WIDTH, too_long, wrapped
from tests.house.sources import ROOT, documents, prose

_CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_IDS = [str(path.relative_to(ROOT)) for path in documents()]


@cache
def _all_tests() -> dict[str, frozenset[str]]:
    """Return the test functions of each file."""
    return {
        str(path.relative_to(ROOT)): frozenset(
            node.name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        for top in ("tests", "e2e")
        for path in (ROOT / top).rglob("test_*.py")
    }


def unknown_tests(text: str, known: dict[str, frozenset[str]]) -> list[str]:
    """Return the tests that a page names and that are not there, by their whole name."""
    names = frozenset().union(*known.values()) | {Path(path).stem for path in known}
    wrong = []
    for quoted in re.findall(r"`([^`]+)`", text):
        path, is_full, test = quoted.partition("::")
        if is_full and path.startswith(("tests/", "e2e/")):
            there = test in known.get(path, ()) or (not known.get(path) and Path(path).exists())
            wrong += [] if there else [quoted]
        elif re.fullmatch(r"test_\w+", quoted):
            wrong += [] if quoted in names else [quoted]
        elif re.fullmatch(r"(?:[\w/]+/)?test_\w+\.py", quoted):
            wrong += [] if any(f"/{each}".endswith(f"/{quoted}") for each in known) else [quoted]
    return wrong


@pytest.mark.parametrize("document", documents(), ids=_IDS)
def test_a_test_that_a_page_names_exists_by_its_whole_name(document: Path) -> None:
    """The beginning of a name would go on to be found when the test is gone."""
    examples = {"tests/x.py::test_y"}

    assert set(unknown_tests(prose(document), _all_tests())) - examples == set()


def anchors(text: str) -> set[str]:
    """Return what a page's headings are linked by, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).strip().lower() for each in headings)
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in plain}


def broken_links(document: Path, text: str) -> list[str]:
    """Return the links of a page that lead to no file of ours, or to no heading of it."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", text)):
        file, _, heading = link.partition("#")
        there = document.parent / file if file else document
        if re.match(r"\w+:", link):
            continue
        if not there.exists() or (heading and heading not in anchors(there.read_text("utf-8"))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("document", documents(), ids=_IDS)
def test_a_link_leads_to_a_page_and_to_a_heading_of_it(document: Path) -> None:
    """At night nobody looks for where a runbook has gone."""
    assert broken_links(document, document.read_text("utf-8")) == []


def test_a_broken_link_is_seen() -> None:
    """By its file and by its heading; others' pages are not looked at."""
    text = "# A `b`: c\n[x](#a-b-c) [x](#d) [x](none.md) [x](https://x.org/#d)\n```\n[x](#e)\n```\n"

    assert anchors(text) == {"a-b-c"}
    assert broken_links(ROOT / "README.md", text.replace("#a-b-c", "#contributing")) == [
        "#d",
        "none.md",
    ]


@pytest.mark.parametrize("document", documents(), ids=_IDS)
def test_no_line_is_too_long(document: Path) -> None:
    """`python scripts/wrap_docs.py` wraps prose; a long row of a table is to be split by hand."""
    text = document.read_text("utf-8")

    assert wrapped(text) == text
    assert list(too_long(text)) == []


def test_what_is_gone_is_seen() -> None:
    """A test that is named by its beginning, or in another file; a line of 121 characters."""
    known = {"tests/a/test_one.py": frozenset({"test_it_holds"})}

    good = "`tests/a/test_one.py::test_it_holds`, `test_one.py`, `test_it_holds`, `a/test_one.py`"
    assert unknown_tests(good, known) == []
    for bad in ("tests/a/test_one.py::test_it", "test_it", "test_two.py", "tests/b/test_one.py"):
        assert unknown_tests(f"`{bad}`", known) == [bad]
    assert list(too_long("a " * (WIDTH // 2) + "b")) == [(1, "a " * (WIDTH // 2) + "b")]


def test_wrapping_changes_no_word_and_is_done_once() -> None:
    """Code, tables and headings stay; items keep their indent, and no word begins a new one."""
    page = "\n".join(
        [
            "# " + "heading " * 20,
            "- " + "some `code that stays` and - a dash " * 9,
            "| " + "row " * 40 + "|",
            "```",
            "command " * 20,
            "```",
            "text " * 40,
        ]
    )

    once = wrapped(page)

    assert wrapped(once) == once
    assert once.split() == page.split()
    assert {"command " * 20, "| " + "row " * 40 + "|"} <= {*once.split("\n")}
    assert all(line.startswith("  ") for line in once.split("\n")[2:4])
    assert not any(line.lstrip().startswith("- a dash") for line in once.split("\n"))
    assert once.count("`code that stays`") == 9


def test_what_is_written_anew_is_filled_anew() -> None:
    """Lines that are short, too, as they are where a list is put together."""
    page = "- one\n  two\n- " + "three " * 30 + "\n\n```\nkept\nso\n```\nfour\nfive"

    filled = wrapped(page, refill=True)

    assert filled.startswith("- one two\n- three three")
    assert filled.endswith("\n\n```\nkept\nso\n```\nfour five")
    assert wrapped(page).endswith("four\nfive")
