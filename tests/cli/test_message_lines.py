"""What ``dledger message show`` says of what only some types of topics know."""

from __future__ import annotations

import argparse
import json

import pytest

from dledger.cli import message_command
from dledger.types import MovedFrom, Record, StoredRecord, Typed

_MOVED = MovedFrom(topic="orders", generation=1, queue_id=3, offset=7, stored_at_ms=1, attempts=17)
_ALL = Typed(message_group="k", deliver_at_ms=1_800_000_000_000, priority=0, moved_from=_MOVED)


def _shown(typed: Typed | None, capsys: pytest.CaptureFixture[str], *, as_json: bool) -> str:
    stored = StoredRecord(
        record=Record(body=b"a", message_id="m"), offset=0, index=1, stored_at_ms=0, typed=typed
    )
    message_command._print(argparse.Namespace(json=as_json), 0, stored)
    return capsys.readouterr().out


def test_each_field_has_a_line_where_it_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A priority of 0 is one."""
    assert _shown(_ALL, capsys, as_json=False).splitlines()[2:] == [
        "  message group k",
        "  not delivered before 2027-01-15 08:00:00 UTC",
        "  priority 0",
        "  moved here from topic orders, queue 3, offset 7, after 17 deliveries",
        "  a",
    ]
    plain = _shown(None, capsys, as_json=False)
    assert plain.splitlines()[1:] == ["  id m", "  a"]
    assert _shown(Typed(), capsys, as_json=False) == plain


def test_as_json_they_are_fields_of_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    """With where it was as an object of its own."""
    shown = json.loads(_shown(_ALL, capsys, as_json=True))

    assert (shown["message_group"], shown["priority"]) == ("k", 0)
    assert shown["moved_from"]["topic"] == "orders"
    assert "priority" not in json.loads(_shown(None, capsys, as_json=True))
