"""Functions are called by verbs: none is newly called by a participle alone.

``answered`` may return what to answer, say whether it was answered, or be told that it is; a reader
has to open it. The names that there are stand in participles.txt, with how many functions have
each. The list may only get shorter: ``pytest tests/house/test_function_names.py --rewrite`` takes
out what is gone.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("participles.txt")
SOURCES = ("node", "operator", "pipeline", "e2e")
IRREGULAR = frozenset(
    [
        "begun",
        "bound",
        "broken",
        "built",
        "chosen",
        "done",
        "drawn",
        "driven",
        "found",
        "given",
        "gone",
        "grown",
        "heard",
        "held",
        "kept",
        "known",
        "laid",
        "led",
        "left",
        "lost",
        "made",
        "met",
        "seen",
        "sent",
        "shown",
        "taken",
        "told",
        "written",
    ]
)
"""Those in use that do not end in -ed, and their like."""
VERBS = frozenset({"feed", "need", "proceed", "seed", "shed", "speed"})
"""Verbs that look like one."""


def is_participle(name: str) -> bool:
    """Whether a function's name is one word, and that a participle."""
    word = name.strip("_")
    if "_" in word or word in VERBS:
        return False
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 3)


def called_so() -> Counter[str]:
    """Return how many functions of the sources have each such name, with its underscores."""
    found: Counter[str] = Counter()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "pb" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[node.name] += is_participle(node.name)
    return +found


def _listed() -> Counter[str]:
    rows = (line.split() for line in LIST.read_text("utf-8").splitlines())
    return Counter({name: int(count) for name, count in rows})


def test_no_function_is_newly_called_by_a_participle(request: pytest.FixtureRequest) -> None:
    """Call it by the verb of what it does; a callback is on_..., a predicate is_... or has_..."""
    listed, found = _listed(), called_so()
    if request.config.getoption("--rewrite"):
        kept = listed & found
        LIST.write_text("".join(f"{name} {kept[name]}\n" for name in sorted(kept)), "utf-8")
        listed = kept

    assert dict(found - listed) == {}, "call them by what they do"
    assert dict(listed - found) == {}, "gone: --rewrite takes them off the list"


def test_the_rule_sees_what_it_is_about() -> None:
    """Names of several words say more, and are left alone."""
    assert all(map(is_participle, ("answered", "_settled", "kept", "_told")))
    assert not any(map(is_participle, ("answer", "on_answered", "is_settled", "feed", "red", "_")))
