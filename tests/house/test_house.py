"""The house checks itself: generated code, Makefile and README hold together."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_code_is_that_of_the_proto() -> None:
    """`make proto` was run after the last change of the wire contract."""
    checked = subprocess.run(
        [sys.executable, str(ROOT / "scripts/generate_proto.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


def test_every_make_target_has_a_line_in_help() -> None:
    """`make help` lists all that can be made."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None

    undocumented = [
        target
        for target in phony.group(1).split()
        if not re.search(rf"^{target}:.*## ", makefile, re.MULTILINE)
    ]

    assert undocumented == []


def test_the_links_of_the_documents_lead_somewhere() -> None:
    """A reader who clicks finds a file."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]

    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text("utf-8"))
        if not (document.parent / target).exists()
    ]

    assert broken == []
