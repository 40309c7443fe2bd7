"""Tables and figures as a page shows them. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def paragraph(text: str) -> str:
    """Return a paragraph, or an item of a list, in lines of at most 120 characters."""
    behind = "  " if text.startswith("- ") else ""
    lines = textwrap.wrap(text, 120, subsequent_indent=behind, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Return a figure with three digits that mean something, or all of a large one."""
    if math.isnan(value):
        return "not measured"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def with_unit(value: float | None, unit: str) -> str:
    """Return a figure with its unit; "" for none, and for what is no number."""
    if value is None or math.isnan(value):
        return ""
    return f"{number(value)}{'' if unit in ('', '/s') else ' '}{unit}"
