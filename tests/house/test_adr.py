"""The list of decisions has each of them once, by its title, and leaves out no number."""

from __future__ import annotations

import re
from pathlib import Path

ADR = Path(__file__).parents[2] / "docs/adr"
LISTED = re.compile(r"^- \[(\d+)\]\((\S+)\): (.+)$", re.MULTILINE)
LEFT_OUT = re.compile(r"^- (\d+): (withdrawn|in work)$", re.MULTILINE)
INDEX = re.sub(r"\n  +", " ", (ADR / "README.md").read_text("utf-8"))
"""With each entry on one line."""


def _decisions() -> dict[int, tuple[str, str]]:
    """Return file and title of each decision, by the number in its file's name."""
    found = {}
    for path in sorted(ADR.glob("[0-9]*.md")):
        number, title = path.name[:4], path.read_text("utf-8").partition("\n")[0]
        found[int(number)] = (path.name, title.removeprefix(f"# {int(number)}. "))
        assert title.startswith(f"# {int(number)}. "), path.name
    return found


def test_each_decision_is_listed_once_by_its_title() -> None:
    """A new one gets a line under its subject, or nobody who did not write it finds it."""
    listed = [(int(number), (file, title)) for number, file, title in LISTED.findall(INDEX)]

    assert len(listed) == len(dict(listed))
    assert dict(listed) == _decisions()


def test_each_number_is_a_decision_or_is_said_to_be_none() -> None:
    """A gap would look like a file that was lost."""
    left_out = {int(number): why for number, why in LEFT_OUT.findall(INDEX)}
    numbers = sorted([*_decisions(), *left_out])

    assert (left_out[18], left_out[24]) == ("withdrawn", "withdrawn")
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_title_says_what_was_chosen() -> None:
    """A sentence, or most of one: a word or two would not say which way."""
    assert [title for _, title in _decisions().values() if len(title.split()) < 4] == []
