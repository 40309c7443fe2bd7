"""Each figure of the limits and settings has its reason beside it: why so many, and not twice that.

A constant has a comment on its line or above it, or a docstring below it; a numeric default of a
settings class has a comment, since its docstring says what it is and not why it is so much.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.sources import ROOT

NODE = ROOT / "node/dledger"
OF_CONSTANTS = (
    "common/defaults.py",
    "common/limits.py",
    "raft/config.py",
    "requests/config.py",
    "server/config.py",
)
"""Modules of figures and settings."""
SETTINGS = ("Config", "Bounds", "Sizes", "Limits", "Settings")
"""How classes of settings are called."""


def bare_constants(text: str) -> list[str]:
    """Return the constants of a module that say nothing of themselves."""
    lines = text.split("\n")
    body = ast.parse(text).body
    return [
        lines[node.lineno - 1]
        for node, behind in zip(body, [*body[1:], None], strict=True)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        if node.value is not None and _is_figure(node.value)
        if not _has_comment(lines, node) and not _is_text(behind)
    ]


def bare_defaults(text: str) -> list[str]:
    """Return the numeric defaults of settings classes that have no comment."""
    lines = text.split("\n")
    return [
        f"{owner.name}: {lines[node.lineno - 1].strip()}"
        for owner in ast.walk(ast.parse(text))
        if isinstance(owner, ast.ClassDef) and owner.name.endswith(SETTINGS)
        for node, behind in zip(owner.body, [*owner.body[1:], None], strict=True)
        if isinstance(node, ast.AnnAssign) and node.value is not None and _is_figure(node.value)
        if not _has_comment(lines, node) and not _is_text(behind)
    ]


def _has_comment(lines: list[str], node: ast.stmt) -> bool:
    above = lines[node.lineno - 2].lstrip() if node.lineno > 1 else ""
    return " # " in lines[(node.end_lineno or node.lineno) - 1] or above.startswith("# ")


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_figure(value: ast.expr) -> bool:
    """Whether a default is a number that somebody chose: 0, 1 and what has a name are not."""
    numbers = [
        each.value
        for each in ast.walk(value)
        if isinstance(each, ast.Constant) and isinstance(each.value, int | float)
        if not isinstance(each.value, bool)
    ]
    return bool(numbers) and numbers not in ([0], [1])


def _modules() -> Iterator[Path]:
    yield from (path for path in sorted(NODE.rglob("*.py")) if "pb" not in path.parts)


@pytest.mark.parametrize("module", OF_CONSTANTS)
def test_every_limit_has_its_reason(module: str) -> None:
    """Whoever raises it must know what else it holds."""
    assert bare_constants((NODE / module).read_text("utf-8")) == []


def test_every_default_has_its_reason() -> None:
    """In all settings classes of the node."""
    bare = {
        str(path.relative_to(NODE)): found
        for path in _modules()
        if (found := bare_defaults(path.read_text("utf-8")))
    }

    assert bare == {}


def test_a_bare_figure_is_seen() -> None:
    """With a comment, a docstring, or a name it is none."""
    constants = "A = 9\nB = 2  # why\nC = 3\n" + '"""Why."""\n# why\nD = 4\n\n\nE = 5\n'
    defaults = (
        "class OneConfig:\n    a: int = 20\n    b: int = 3  # why\n    # why\n    c: int = 1 << 9\n"
        "    d: int = 0\n    e: int = NAMED\n    f: bool = True\nclass Other:\n    g: int = 20\n"
    )

    assert bare_constants(constants) == ["A = 9", "E = 5"]
    assert bare_defaults(defaults) == ["OneConfig: a: int = 20"]
