"""The runbooks' commands can be read by a shell, and what a reader fills in is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.harness.runbook import OPERATOR_PAGE, PAGE, WORDS, blocks, fill_in, find_inline
from scripts.catalogue import load

ALERTS = [one.name for one in load().alerts]
MORE = [
    "A node's disk without its node",
    "A namespace was deleted",
    "A majority of the disks is lost",
]
"""What belongs to an alert, and is long enough to have a heading of its own."""
WITHOUT_COMMANDS = {"DledgerClockApart", "DledgerDiskFilling"}
FILLED_IN = {word: f"<{word.lower()}>" for word in WORDS}


@pytest.mark.parametrize("alert", [*ALERTS, *MORE])
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


def test_commands_within_sentences_are_found(tmp_path: Path) -> None:
    """Wherever a line ends; not what stands in a block, or is of another program."""
    page = tmp_path / "page.md"
    page.write_text(
        "## One\nDelete it: `kubectl delete\nsecret x`, or `helm ls`.\n\n"
        "```\nkubectl get `y`\n```\nAnd `kubectl get z`.\n## Two\n`kubectl get a`\n",
        "utf-8",
    )

    assert find_inline("One", page) == ["kubectl delete secret x", "kubectl get z"]
    with pytest.raises(KeyError):
        find_inline("Three", page)


@pytest.mark.parametrize(
    ("section", "count"), [("Renewing by hand", 2), ("Two operators", 0)], ids=str
)
def test_the_operators_page_has_the_commands_that_stories_run(section: str, count: int) -> None:
    """They are told apart by their place: a new one is a new step of a story."""
    assert len(find_inline(section, OPERATOR_PAGE)) == count
    if not count:
        ((uninstall, install, annotate),) = blocks(section, OPERATOR_PAGE)
        assert uninstall.startswith("helm uninstall dledger-operator -n dledger-system ")
        assert install == "helm install two charts/dledger-operator -n team --create-namespace"
        assert " -n shop dledger.io/operator=team/two-dledger-operator " in annotate


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
