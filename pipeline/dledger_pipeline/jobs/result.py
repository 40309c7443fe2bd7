"""What jobs report at the end, as JSON; `progress` has what they tell on the way."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeAlias

Result: TypeAlias = dict[str, object]
"""JSON object: what the command line prints with ``--json``, and the operator keeps as status."""

COMPLETED = "Completed"


def result_of(found: Any) -> Result:
    """Return a dataclass as a result, with fields spelled as in the status of a BrokerBackup."""
    fields = {_camel(name): value for name, value in asdict(found).items()}
    return {"phase": COMPLETED, **fields}


def _camel(name: str) -> str:
    if name == "record_bytes":
        return "bytes"
    head, *rest = name.split("_")
    return head + "".join(map(str.capitalize, rest))


def size(size_bytes: int) -> str:
    """Return a size for people, in KiB or MiB."""
    kib = size_bytes / 1024
    return f"{kib:.1f} KiB" if kib < 1024 else f"{kib / 1024:.1f} MiB"


def count(number: int, noun: str) -> str:
    """Return a number of things for people: ``1 range``, ``2 ranges``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
