"""What the documents call by name is there: files, settings, functions, tests.

A name in backticks that looks like one of code must be defined or used in the sources, a file must
be in the repository. Names of others are listed below; words in prose are not looked at.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
)
NAMES_OF_OTHERS = {
    "GRPC_POLL_STRATEGY",
    "NODE_EXTRA_CA_CERTS",
    "NODE_TLS_REJECT_UNAUTHORIZED",
    "O_DIRECT",
    "REFUSED_STREAM",
    "RWF_DONTCACHE",
    "SO_REUSEPORT",
    "SSL_CERT_FILE",
    "ServerSideDiff",
    "advisoryPartitionSizeInBytes",
    "delta_scan",
    "epoch_ms",
    "from_avro",
    "from_protobuf",
    "from_unixtime",
    "generateName",
    "maxSurge",
    "preStop",
    "remove_orphan_files",
    "rewrite_data_files",
    "sslEnabled",
    "timestamp_millis",
}
"""Of gRPC, HTTP/2, Linux, Argo CD, Kubernetes and the clients of other languages."""
_NOT_OURS = {".git", ".venv", "build", "dist", "results", "__pycache__", "node_modules"} | {
    f".{tool}_cache" for tool in ("mypy", "pytest", "ruff", "import_linter")
}
_NO_SOURCES = (".md", ".svg", ".png", ".lock", ".pyc")
_FILE = re.compile(r"[\w./{},-]*\.(?:py|txt|yaml|sh|toml|json|proto|tpl)")
_NAME = re.compile(r"[A-Za-z_]\w*")


@cache
def _files() -> tuple[str, ...]:
    """Return the paths of the repository, without what is made in it."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [each for each in folders if each not in _NOT_OURS]
        found += [str((Path(folder) / name).relative_to(ROOT)) for name in names]
    return tuple(found)


@cache
def _known() -> frozenset[str]:
    """Return every name of the sources: defined, used, or a word of a short string."""
    known: set[str] = set()
    for name in _files():
        path = ROOT / name
        known |= set(_NAME.findall(name))
        if name == "tests/house/test_documents.py" or name.endswith(_NO_SOURCES):
            continue
        if name.endswith(".py"):
            known |= set(_names_of(ast.parse(path.read_text("utf-8"))))
        else:
            known |= set(_NAME.findall(path.read_text("utf-8", "replace")))
    return frozenset(known)


def _names_of(tree: ast.AST) -> Iterator[str]:
    """Yield what a program names; comments and docstrings may speak of what is gone."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.arg(arg=name) | ast.Name(id=name):
                yield name
            case ast.Attribute(attr=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name):
                yield from _NAME.findall(name)
            case ast.Constant(value=str(text)) if "\n" not in text:
                yield from _NAME.findall(text)
            case _:
                pass


def _quoted(document: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", prose)


def _alternatives(path: str) -> list[str]:
    """Return ``a/{b,c}.py`` as two paths."""
    braces = re.search(r"\{(.*?)\}", path)
    if braces is None:
        return [path]
    before, after = path[: braces.start()], path[braces.end() :]
    return [f"{before}{each}{after}" for each in braces[1].split(",")]


def _is_there(path: str) -> bool:
    """Tell whether a file is in the repository, or is one that our programs write by that name."""
    if any(name == path or name.endswith(f"/{path}") for name in _files()):
        return True
    stem = re.sub("^node-N$", "{name}", Path(path).name.partition(".")[0])
    return not path.endswith(".py") and stem in _written()


@cache
def _written() -> frozenset[str]:
    """Return the stems of the file names in the strings of our programs, as ``founding``."""
    texts = [
        (ROOT / name).read_text("utf-8")
        for name in _files()
        if name.endswith(".py") and not name.startswith("tests/house/")
    ]
    return frozenset(re.findall(r"[\"/]([\w{}-]+)\.[\w.]*(?:json|toml|txt)\"", "\n".join(texts)))


def _looks_like_code(name: str) -> bool:
    return "_" in name.strip("_") or re.search(r"[a-z][A-Z]", name) is not None


def _is_known(name: str) -> bool:
    """Tell whether a name is one of the sources."""
    return (
        name in _known()
        or name in NAMES_OF_OTHERS
        or name.startswith("dledger_spool_")
        or (name.endswith("_") and any(each.startswith(name) for each in _known()))
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    """Or its reader looks for what is gone."""
    gone = []
    for quoted in _quoted(document):
        if _FILE.fullmatch(quoted):
            gone += [path for path in _alternatives(quoted) if not _is_there(path)]
            continue
        names = [name for name in _NAME.findall(quoted) if _looks_like_code(name)]
        gone += [name for name in names if not _is_known(name)]

    assert gone == []


def test_what_is_gone_is_seen() -> None:
    """A check that knows every name would pass."""
    assert not _is_known("take_the_" + "moon_down")
    assert not _is_there("node/dledger/" + "moon.py")
    assert not _is_there("moon" + ".json")
    assert _is_known("read_index")
    assert _is_there("raft/core.py")
