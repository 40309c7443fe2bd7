"""docs/internals/time.md lists every place that reads a clock, and what it does that stays done."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import ROOT, functions

PAGE = ROOT / "docs/internals/time.md"
PACKAGES = ("node/dledger", "operator/dledger_operator", "pipeline/dledger_pipeline")
_CLOCKS = {"log_clock.py", "lived_time.py", "active_time.py"}
"""What the four times are made of; who uses them is listed."""
_READS = {
    "unix_ms": "wall",
    "date_ms": "date",
    "now_ms": "log",
    "log_ms": "log",
    "lived_ms": "lived",
    "lived_at": "lived",
    "active_ms": "active",
    "filters_ms": "active",
    "ActiveTime": "active",
}
_ROW = re.compile(r"^\| `([\w/]+\.py): ([\w.]+)` \| (\w+) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def _kind(node: ast.AST) -> str:
    """Return which time a node of the tree reads; empty if none."""
    if isinstance(node, ast.Name):
        return "active" if node.id == "ActiveTime" else "lived" if node.id == "lived_at" else ""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return ""
    base = node.value.attr if isinstance(node.value, ast.Attribute) else None
    base = node.value.id if isinstance(node.value, ast.Name) else base
    if (base, node.attr) in {("time", "time"), ("time", "time_ns"), ("datetime", "now")}:
        return "wall"
    if node.attr == "unix_ms" and base in {"report", "self"}:
        return ""  # the number in a member's report, not a clock
    return _READS.get(node.attr, "")


def readers(text: str) -> Iterator[tuple[str, str]]:
    """Yield (function or class, kind of time) for each read in a module."""
    yield from _within(ast.parse(text), "")


def _within(parent: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(parent):
        inner = name
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{name}.{node.name}" if name else node.name
        if kind := _kind(node):
            yield inner, kind
        yield from _within(node, inner)


def _found() -> set[tuple[str, str, str]]:
    found = set()
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if "pb" in file.parts or file.name in _CLOCKS:
                continue
            path = str(file.relative_to(ROOT / package))
            shown = path if package == "node/dledger" else f"{Path(package).name}/{path}"
            found |= {(shown, where, kind) for where, kind in readers(file.read_text("utf-8"))}
    return found


def test_each_use_of_time_is_listed() -> None:
    """Who reads a clock says in the table what for, and what of it cannot be undone."""
    rows = _ROW.findall(PAGE.read_text("utf-8"))
    listed = {(path, name, kind) for path, name, kind, _, _ in rows}

    assert listed - _found() == set(), "listed, and not there"
    assert _found() - listed == set(), "not listed"


def test_what_cannot_be_undone_goes_by_lived_or_active_time() -> None:
    """Never by a wall clock, nor by the log's time, which leaps; the exceptions are named."""
    for path, name, kind, what, undone in _ROW.findall(PAGE.read_text("utf-8")):
        assert undone in {"yes", "nothing is done"} or undone.startswith("no: "), (path, name)
        if undone.startswith("no: ") and kind in {"wall", "log"}:
            assert "exception" in undone, (path, name, what)


def test_a_reader_is_seen_however_it_reads() -> None:
    """By a call, by a reference, in a class's body."""
    text = (
        "class A:\n"
        "    now: object = time.time\n"
        "    def f(self):\n"
        "        return self._clock.unix_ms() + x.log_clock.now_ms()\n"
        "def g(): return datetime.datetime.now(UTC), monotonic()\n"
    )

    assert set(readers(text)) == {("A", "wall"), ("A.f", "wall"), ("A.f", "log"), ("g", "wall")}
    assert "Maintenance" in functions(ROOT / "node/dledger/replica/maintenance.py")
