"""The commands of docs/runbooks.md, and of other pages, followed as they stand.

A story that ends an alert runs what the page says, with the words in capitals filled in. So a
command with a wrong flag, label or path fails a test before it fails somebody at night.
"""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/runbooks.md"
OPERATOR_PAGE: Final = ROOT / "docs/operator.md"
WORDS: Final = frozenset(
    {
        *("NS", "GROUP", "POD", "MACHINE", "ID", "OPERATOR_NS"),
        *("SIZE", "HOURS", "VOLUME", "CLASS", "INDEX", "DIR"),
        *("CONSUMERGROUP", "HOUR", "SLOT"),
    }
)
"""What a reader fills in."""
_PATIENCE_S: Final = 660.0
"""Longer than any command of the page waits."""
_BLOCK: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def blocks(section: str, page: Path = PAGE) -> list[list[str]]:
    """Return the commands of each block below a heading, subsections left out.

    Raises:
        KeyError: The page has no such heading.
    """
    found_blocks = _BLOCK.findall(_part(section, page))
    return [[*_commands(textwrap.dedent(text))] for kind, text in found_blocks if not kind]


def find_inline(section: str, page: Path = PAGE) -> list[str]:
    """Return the commands of kubectl that stand within the sentences of a section.

    Raises:
        KeyError: The page has no such heading.
    """
    sentences = " ".join(_BLOCK.sub("", _part(section, page)).split())
    return re.findall(r"`(kubectl [^`]+)`", sentences)


def _part(section: str, page: Path) -> str:
    """Return what stands below a heading, subsections left out. Raises KeyError."""
    text = page.read_text("utf-8")
    below = rf"^#+ {re.escape(section)}\n(.*?)(?=^#|\Z)"
    found = re.search(below, _hidden(text), re.DOTALL | re.MULTILINE)
    if found is None:
        raise KeyError(section)
    return text[found.start(1) : found.end(1)]


def _hidden(text: str) -> str:
    """Return a page of the same length in which no line of a block looks like a heading."""
    return _BLOCK.sub(lambda block: block[0].replace("#", "_"), text)


def _commands(block: str) -> Iterator[str]:
    """Yield the commands of a block; one goes on until the shell finds it complete."""
    command = ""
    for line in block.splitlines(keepends=True):
        command += line
        if _is_complete(command):
            yield command.strip()
            command = ""
    if command:
        raise ValueError(f"the shell cannot read: {command}")


def _is_complete(command: str) -> bool:
    checked = subprocess.run(
        ["bash", "-n"], input=command, capture_output=True, text=True, check=False
    )
    return (checked.returncode, checked.stderr) == (0, "") and not command.endswith("\\\n")


def fill_in(command: str, words: Mapping[str, str]) -> str:
    """Return a command with the reader's words filled in. Raises KeyError for one without."""
    pattern = r"\b(" + "|".join(sorted(WORDS, key=len, reverse=True)) + r")\b"
    return re.sub(pattern, lambda word: words[word[0]], command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Somebody at a shell who has this page, a kubeconfig and nothing else.

    Attributes:
        kubectl: The program.
        kubeconfig: The cluster.
        words: What is filled in, but for what is read from output.
    """

    kubectl: Path
    kubeconfig: Path
    words: Mapping[str, str]

    def follow(self, commands: Sequence[str], *, may_fail: bool = False, **words: str) -> str:
        """Run commands in one shell, which ends at the first that fails; return what they print.

        Raises:
            AssertionError: One failed, which it may not.
        """
        script = "\n".join(fill_in(each, {**self.words, **words}) for each in commands)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env={
                **os.environ,
                "KUBECONFIG": str(self.kubeconfig),
                "PATH": f"{self.kubectl.parent}:{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
        assert may_fail or done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout
