"""The page that shows how to drive the core runs, and names each duty of the caller."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dledger.raft.ready import Ready

PAGE = Path(__file__).parents[2] / "docs/internals/driving-raft.md"
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """From the first election to a node that comes back; its own assertions are the test."""
    text = PAGE.read_text("utf-8")
    lines = ["\n"] * (text.count("\n") + 1)
    for block in CODE.finditer(text):  # at the place of its lines, for a traceback's sake
        first = text.count("\n", 0, block.start(1))
        for number, line in enumerate(block[1].splitlines(keepends=True)):
            lines[first + number] = line
    names = {"__name__": "driving_raft"}

    exec(compile("".join(lines), str(PAGE), "exec", dont_inherit=True), names)  # noqa: S102

    assert "is leader of term" in capsys.readouterr().out


def test_the_page_has_each_duty_of_the_caller() -> None:
    """A new one would be forgotten by whoever copies the loop."""
    duties = set(re.findall(r"^    (\d)\. ", Ready.__doc__ or "", re.MULTILINE))
    code = "".join(CODE.findall(PAGE.read_text("utf-8")))

    assert duties == set(re.findall(r"  # (\d): ", code))
