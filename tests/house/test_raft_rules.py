"""Each rule of docs/internals/raft.md has its section of the paper where the code applies it."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from tests.house.sources import REFERENCE, ROOT, find, functions

PAGE = ROOT / "docs/internals/raft.md"
_RULE = re.compile(
    r"^- \*\*(?P<rule>.+?)\*\*\. Source: (?P<source>.+?)\. (?:Applied in: (?P<where>.+?)\. )?"
    r"Held by: ",
    re.MULTILINE,
)
_CITED = re.compile(r"\b(Raft|thesis) ((?:figure )?\d[\d.]*\d|\d+)((?:,? (?:and )?\d[\d.]*)*)")


def sections(text: str) -> set[str]:
    """Return the sections that a text cites: ``Raft 5.2, 9.3`` is two."""
    return {
        f"{book} {number}"
        for book, first, more in _CITED.findall(text)
        for number in [first, *re.findall(r"\d+(?:\.\d+)*", more)]
    }


def said_in(file: Path, name: str) -> str:
    """Return the comments and docstrings of a function or class."""
    node = functions(file)[name]
    lines = file.read_text("utf-8").split("\n")[node.lineno - 1 : node.end_lineno]
    comments = [line.partition("# ")[2] for line in lines if "# " in line]
    texts = [
        each.value.value
        for each in ast.walk(ast.parse(textwrap.dedent("\n".join(lines))))
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    ]
    return " ".join([*comments, *map(str, texts)])


def rules(page: str) -> list[re.Match[str]]:
    """Return the rules of the page."""
    return list(_RULE.finditer(page.replace("\n  ", " ")))


def uncited(page: str, root: Path = ROOT) -> list[str]:
    """Return the rules whose sections do not stand where they are applied."""
    wrong = []
    for rule in rules(page):
        asked = sections(rule["source"])
        places = REFERENCE.findall(rule["where"] or "")
        files = [(find(path, root), name) for path, name in places]
        cited = {each for file, name in files if file for each in sections(said_in(file, name))}
        if asked - cited:
            wrong.append(f"{rule['rule']}: {', '.join(sorted(asked - cited))}")
    return wrong


def test_every_rule_of_raft_is_cited_where_it_is_applied() -> None:
    """In a comment or docstring of that very function."""
    page = PAGE.read_text("utf-8")

    assert len([rule for rule in rules(page) if sections(rule["source"])]) >= 20
    assert uncited(page) == []


def test_every_rule_is_read() -> None:
    """None is passed over for its form."""
    page = PAGE.read_text("utf-8").replace("\n  ", " ")

    assert len(rules(page)) == len(re.findall(r"^- .*Source: ", page, re.MULTILINE))


def test_a_missing_citation_is_seen(tmp_path: Path) -> None:
    """Another function's, or another section, does not count."""
    package = tmp_path / "node/dledger"
    package.mkdir(parents=True)
    (package / "one.py").write_text(
        'def f():\n    """Vote (Raft 5.2)."""\n\ndef g():\n    return 1  # Raft 5.3, 5.4.1\n'
    )

    def page(source: str, name: str) -> str:
        return f"- **A**. Source: {source}. Applied in:\n  `one.py: {name}`. Held by: `x`.\n"

    assert uncited(page("Raft 5.2", "f"), tmp_path) == []
    assert uncited(page("Raft 5.3, 5.4.1", "g"), tmp_path) == []
    assert uncited(page("Raft 5.2", "g"), tmp_path) == ["A: Raft 5.2"]
    assert uncited(page("thesis 5.2", "f"), tmp_path) == ["A: thesis 5.2"]
    assert uncited("- **A**. Source: Raft 8. Held by: `x`.\n", tmp_path) == ["A: Raft 8"]
