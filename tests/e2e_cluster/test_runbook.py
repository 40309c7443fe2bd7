"""The runbooks' commands can be read by a shell, and what a reader fills in is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.harness.runbook import PAGE, WORDS, blocks, fill_in
from scripts.catalogue import load

ALERTS = [one.name for one in load().alerts]
WITHOUT_COMMANDS = {"DledgerClockApart", "DledgerDiskFilling"}
FILLED_IN = {word: f"<{word.lower()}>" for word in WORDS}


@pytest.mark.parametrize("alert", ALERTS)
def test_each_runbook_has_commands_that_a_shell_can_read(alert: str) -> None:
    """At night nobody mends a quote; each is complete, and says for whom it is."""
    found = [command for block in blocks(alert) for command in block]

    assert bool(found) == (alert not in WITHOUT_COMMANDS)
    for command in found:
        text = re.sub(r"<<-?'?END'?\n.*", "", fill_in(command, FILLED_IN), flags=re.DOTALL)
        left = {*re.findall(r"\b[A-Z][A-Z_]{1,}\b(?!:)", text)} - {
            "OOM",
            "NAME",
            "HOLDER",
            "RENEWED",
        }
        assert left == set(), command


def test_subsections_are_sections_of_their_own() -> None:
    """What is only for a lost majority is not what to do about every group without a leader."""
    of_the_alert = blocks("DledgerNoLeader")
    of_a_majority = blocks("A majority of the disks is lost")

    assert not any("ForceNewGroup" in command for block in of_the_alert for command in block)
    assert any("ForceNewGroup" in command for block in of_a_majority for command in block)


def test_a_command_is_one_until_the_shell_finds_it_complete(tmp_path: Path) -> None:
    """Here-documents, quotes over lines and backslashes."""
    page = tmp_path / "page.md"
    one = "a NS |\n  b\nc <<'END'\n# NS\nEND\nd \\\n  -e 'f\ng'\n"
    indented = "".join(f"   {line}" for line in ["```\n", *one.splitlines(True), "```\n"])
    page.write_text(f"## One\ntext\n\n{indented}## Two\n```\nh\n```\n", "utf-8")

    assert blocks("One", page) == [["a NS |\n  b", "c <<'END'\n# NS\nEND", "d \\\n  -e 'f\ng'"]]
    assert blocks("Two", page) == [["h"]]
    with pytest.raises(KeyError):
        blocks("Three", page)


def test_only_the_readers_words_are_filled_in() -> None:
    """Not what merely holds one."""
    told = fill_in("-n NS get DNS GROUP-0 data-GROUP-1 OPERATOR_NS", {**FILLED_IN, "NS": "shop"})

    assert told == "-n shop get DNS <group>-0 data-<group>-1 <operator_ns>"
    assert PAGE.is_file()
