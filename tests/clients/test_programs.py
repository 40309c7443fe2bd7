"""What the programs of docs/clients.md print is judged as its readers would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from e2e.clients import programs

_IN_TURN = [f"{account} {number}" for number in range(5) for account in ("ada", "bob")]
_ACCOUNTS = [f"{account} {number}" for account in ("bob", "ada") for number in range(5)]


@pytest.mark.parametrize(
    ("about", "lines", "right"),
    [
        ("fifo", _IN_TURN, True),
        ("fifo", _ACCOUNTS, True),
        ("fifo", [_IN_TURN[2], *_IN_TURN[:2], *_IN_TURN[3:]], False),
        ("fifo", _IN_TURN[:-1], False),
        ("fifo", [*_IN_TURN, "ada 4"], False),
        ("delay", ["reminder, 0 ms after its time"], True),
        ("delay", ["reminder, -1 ms after its time"], False),
        ("delay", ["recalled, 3 ms after its time"], False),
        ("delay", ["reminder, 3 ms after its time", "recalled, 9 ms after its time"], False),
        ("transaction", ["paid", "paid, and left open"], True),
        ("transaction", ["paid, and left open", "paid"], False),
        ("transaction", ["paid", "declined"], False),
        ("priority", ["priority 3", "priority 2", "priority 1"], True),
        ("priority", ["priority 1", "priority 2", "priority 3"], False),
        ("sql", ["price 15", "price 12"], True),
        ("sql", ["price 5", "price 25"], False),
        ("dead", ["unreadable"], True),
        ("dead", [], False),
        ("hello", [f"hello {number}" for number in reversed(range(10))], True),
        ("hello", ["hello 1"], False),
    ],
)
def test_a_program_is_right_if_its_lines_are(
    about: str, lines: Sequence[str], *, right: bool
) -> None:
    """What is out of order, early, recalled, rolled back or unasked for is wrong."""
    assert programs.is_right(about, lines) is right
