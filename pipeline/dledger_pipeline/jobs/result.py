"""What a job tells at the end and on the way: results as JSON, progress as lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Result: TypeAlias = dict[str, object]
"""JSON object: what the command line prints with ``--json``, and the operator keeps as status."""

Progress: TypeAlias = Callable[[str], None]
"""Told one line at a time, for people."""

COMPLETED = "Completed"


def mib(size_bytes: int) -> str:
    """Return a size for people."""
    return f"{size_bytes / (1 << 20):.1f} MiB"
