"""The walks of docs/architecture.md, and every `file: function` of a document, hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.sources import (
    REFERENCE,
    ROOT,
    documents,
    find,
    functions,
    identifiers,
    missing,
    prose,
)

WALKS = ("One message in", "One message out", "One failover")
MOST_STEPS = 15
BY_ITSELF = {
    "dledger_operator/controllers/reconcile.py: Reconciler.reconcile",
    "rocketmq/sending.py: Sender.begin",
}
"""Steps that nothing before them names: the operator looks by the clock and by its watch, and the
pipeline of requests calls what a row of `rocketmq/messaging.py` hands to it."""


def steps(page: str, title: str) -> list[tuple[str, str]]:
    """Return file and function of each step of a walk, in order."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    items = re.findall(r"^\d+\. (.*)$", section, re.MULTILINE)
    return [REFERENCE.match(item).groups() for item in items]  # type: ignore[union-attr, misc]


def unconnected(walk: list[tuple[str, str]], root: Path = ROOT) -> list[str]:
    """Return the steps that nothing before them names: neither their function nor their class.

    "Before" is the functions of the earlier steps, and the files that they are in, since callbacks
    and threads lie between some.
    """
    found: list[str] = []
    known: set[str] = set()
    for path, name in walk:
        file = find(path, root)
        assert file is not None, path
        owner, _, last = name.rpartition(".")
        if known and not {last, owner} & known:
            found.append(f"{path}: {name}")
        known |= identifiers(ast.parse(file.read_text("utf-8")))
    return found


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_function_that_a_document_names_is_there(document: Path) -> None:
    """A reader who looks for it finds it, in that file, by that name."""
    wrong = [missing(path, name) for path, name in REFERENCE.findall(prose(document))]

    assert [each for each in wrong if each] == []


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_is_short_and_each_step_leads_to_the_next(title: str) -> None:
    """At most fifteen steps, each named by what comes before it."""
    walk = steps(prose(ROOT / "docs/architecture.md"), title)

    assert 5 < len(walk) <= MOST_STEPS
    assert set(unconnected(walk)) <= BY_ITSELF


def test_the_checks_can_fail(tmp_path: Path) -> None:
    """A function that was renamed, a file that went, and a step that nothing leads to."""
    package = tmp_path / "node/dledger"
    package.mkdir(parents=True)
    (package / "one.py").write_text("class A:\n    def go(self): self.b.follow()\n")
    (package / "two.py").write_text(
        "class B:\n    def follow(self): ...\n    def apart(self): ...\n"
    )

    assert missing("one.py", "A.go", tmp_path) == ""
    assert missing("one.py", "Z.go", tmp_path) == "one.py has no Z.go; it has A.go"
    assert missing("three.py", "A.go", tmp_path) == "three.py is no file"
    assert unconnected([("one.py", "A.go"), ("two.py", "B.follow")], tmp_path) == []
    assert unconnected([("one.py", "A.go"), ("two.py", "B.apart")], tmp_path) == ["two.py: B.apart"]


def test_functions_of_a_file_are_known_by_their_class() -> None:
    """Constants count as well."""
    file = find("raft/core.py")
    assert file is not None

    assert {"Raft", "Raft.step"} <= functions(file).keys()
