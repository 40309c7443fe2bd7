"""The tables of reasons in docs/operator.md, the only place that says what each means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_DOCS: Final = (Path(__file__).parents[2] / "docs/operator.md").read_text("utf-8")


def _section(title: str) -> str:
    return _DOCS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _rows(section: str, columns: int) -> list[list[str]]:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    cells = [[name, *rest.split(" | ")] for name, rest in rows]
    assert all(len(row) == columns and all(row) for row in cells)
    return cells


REASONS: Final = [(name, shown) for name, shown, _, _ in _rows(_section("Conditions"), 4)]
"""Each reason of a condition, and the conditions that show it: ``Ready=True, Available=False``."""
SHOWN: Final = dict(REASONS)
EVENTS: Final = [name for name, _ in _rows(_section("Events"), 2)]
