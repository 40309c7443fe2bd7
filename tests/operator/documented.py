"""The lists of reasons in docs/operator.md, the only place that says what each means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_DOCS: Final = (Path(__file__).parents[2] / "docs/operator.md").read_text("utf-8")


def _section(title: str) -> str:
    return _DOCS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


REASONS: Final = re.findall(r"^- `(\w+)` \(([^)]+)\): ", _section("Conditions"), re.MULTILINE)
"""Each reason of a condition, and the conditions that show it: ``Ready=True, Available=False``."""
SHOWN: Final = dict(REASONS)
EVENTS: Final = re.findall(r"^\| `(\w+)` \| .+ \|$", _section("Events"), re.MULTILINE)
