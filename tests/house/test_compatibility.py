"""docs/rocketmq-compatibility.md has a row for each method and type of the protocol, and no other.

What is "refused" there is what a node refuses: its methods have no handler, its types are not
served.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dledger.broker.topics import SERVED
from dledger.rocketmq import messaging
from dledger.rpc.rocketmq_stubs import definition, service

_PAGE: Final = Path(__file__).parents[2] / "docs" / "rocketmq-compatibility.md"
_VERDICTS: Final = {"works", "differs", "refused"}
_PROTOCOL: Final = service.DESCRIPTOR.services_by_name["MessagingService"]


def test_each_method_has_a_row_that_is_true() -> None:
    """Refused are those that a node has no handler for."""
    rows = _rows("Methods")

    assert set(rows) == {f"`{each.name}`" for each in _PROTOCOL.methods}
    assert {name.strip("`") for name, row in rows.items() if row[0] == "refused"} == set(
        messaging.REFUSED
    )


def test_each_type_has_a_row_that_is_true() -> None:
    """Refused are those that no topic can have."""
    rows = _rows("Types of topics and messages")
    known = {*definition.MessageType.keys()} - {"MESSAGE_TYPE_UNSPECIFIED"}

    assert set(rows) == known
    assert {name for name, row in rows.items() if row[0] != "refused"} == set(SERVED)


def test_each_row_says_one_of_three_words() -> None:
    """A row that differs or is refused says how, or what it answers."""
    for line in _PAGE.read_text("utf-8").splitlines():
        if not line.startswith("| ") or re.match(r"\| (method|type|field|option|thing|---)", line):
            continue
        cells = _cells(line)
        assert len(cells) == 3, line
        assert cells[1] in _VERDICTS, line
        assert cells[1] != "differs" or cells[2], line


def _rows(heading: str) -> dict[str, list[str]]:
    section = _PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [_cells(line) for line in section.splitlines() if line.startswith("| ")][2:]
    return {cells[0]: cells[1:] for cells in lines}


def _cells(line: str) -> list[str]:
    return [each.strip().replace("\\|", "|") for each in re.split(r"(?<!\\)\|", line)[1:-1]]
