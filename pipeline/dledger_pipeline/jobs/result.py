"""What jobs report at the end, as JSON; `progress` has what they tell on the way."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final, TypeAlias

Result: TypeAlias = dict[str, object]
"""JSON object: what the command line prints with ``--json``; the operator gets it `in_brief`."""

COMPLETED = "Completed"
MOST_BYTES: Final = 4096
"""Of what a container leaves when it ends (Kubernetes: Container v1, terminationMessagePath)."""


def result_of(found: Any) -> Result:
    """Return a dataclass as a result, with fields spelled as in the status of a BrokerBackup."""
    fields = {_camel(name): value for name, value in asdict(found).items()}
    return {"phase": COMPLETED, **fields}


def in_brief(result: Result) -> Result:
    """Return a result in at most `MOST_BYTES` of JSON: of what it tells by topic, only names.

    As many as there is room for; a result that tells by topic has their number, too.
    """
    topics = result.get("topics")
    if not isinstance(topics, dict):
        return result
    names = list[str]()
    room = MOST_BYTES - len(json.dumps({**result, "topics": names}))
    for name in topics:
        room -= len(json.dumps([name]))  # the brackets are as long as what separates names
        if room < 0:
            break
        names.append(name)
    return {**result, "topics": names}


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
