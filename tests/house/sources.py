"""What the house tests read: documents, and the functions of the sources, by `ast` alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("node/dledger", "operator", "pipeline", "node", ".")
"""Where a document's path may begin: `raft/core.py` is the node's, the others say their package."""
REFERENCE = re.compile(r"`([\w./-]+\.py): ([\w.]+)`")
"""How documents name a function: `raft/core.py: Raft.step`."""


def documents(root: Path = ROOT) -> list[Path]:
    """Return README, CONTRIBUTING, CHANGELOG and every page under docs."""
    tops = [root / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    return [path for path in (*tops, *sorted((root / "docs").rglob("*.md"))) if path.exists()]


def prose(document: Path) -> str:
    """Return a page without its code blocks, with what was wrapped inside code put together."""
    text = re.sub(
        r"^ *```.*?^ *```", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`]+`", lambda code: re.sub(r"\s+", " ", code[0]), text)


def find(path: str, root: Path = ROOT) -> Path | None:
    """Return the file that a document means by *path*."""
    found = (root / package / path for package in PACKAGES)
    return next((file for file in found if file.is_file()), None)


@cache
def functions(file: Path) -> dict[str, ast.stmt]:
    """Return the functions and classes of a file by their dotted names."""
    return dict(_named(ast.parse(file.read_text("utf-8")), ""))


def _named(parent: ast.AST, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from _named(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not prefix:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((each.id, node) for each in targets if isinstance(each, ast.Name))


def identifiers(node: ast.AST) -> set[str]:
    """Return every name and attribute that is used inside."""
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Name | ast.Attribute)
    }


def missing(path: str, name: str, root: Path = ROOT) -> str:
    """Say what is wrong with a reference; "" where it is good."""
    file = find(path, root)
    if file is None:
        return f"{path} is no file"
    if name in functions(file):
        return ""
    last = name.rpartition(".")[2]
    near = [each for each in functions(file) if each.rpartition(".")[2] == last]
    return f"{path} has no {name}" + (f"; it has {', '.join(near)}" if near else "")
