"""Wrap the prose of the documents at 120 characters: ``python scripts/wrap_docs.py [--check]``.

Only paragraphs and list items with a longer line are touched, so that a diff stays small. Code
blocks, tables, headings and what is generated (between comments) stay as they are; a table whose
row is longer is to be split or made a list by hand.

exit codes: 0 nothing is too long (any more), 1 with --check: something would change
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
WIDTH: Final = 120
_ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+\.) +")
_FIXED: Final = re.compile(r"\s*(?:\||#|<!--|>|$)")
_GLUE: Final = "\N{NO-BREAK SPACE}"


def documents(root: Path = ROOT) -> list[Path]:
    """Return README, CONTRIBUTING, CHANGELOG and every page under docs."""
    pages = [root / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "README")]
    return [*pages, *sorted((root / "docs").rglob("*.md"))]


def wrapped(text: str, *, refill: bool = False) -> str:
    """Return a page with its prose wrapped; all of it with *refill*, not only what is too long."""
    lines: list[str] = []
    for block, is_prose in _blocks(text.split("\n")):
        is_short = all(len(line) <= WIDTH for line in block)
        keeps = not is_prose or (is_short and (not refill or len(block) == 1))
        lines += block if keeps else _wrap(block)
    return "\n".join(lines)


def too_long(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each longer line, but for one word that fills it alone."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > WIDTH and " " in line.strip():
            yield number, line


def _blocks(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield paragraphs and list items, which are prose; what is not comes as single lines."""
    block: list[str] = []
    in_code = False
    for line in lines:
        is_fence = line.lstrip().startswith("```")
        is_fixed = is_fence or in_code or _FIXED.match(line) is not None
        if block and (is_fixed or _ITEM.match(line)):
            yield block, True
            block = []
        if is_fixed:
            yield [line], False
            in_code ^= is_fence
            continue
        block.append(line)
    if block:
        yield block, True


def _wrap(block: list[str]) -> list[str]:
    first = block[0]
    marker = _ITEM.match(first)
    indent = " " * (len(marker[0]) if marker else len(first) - len(first.lstrip()))
    text = " ".join([first.rstrip(), *(line.strip() for line in block[1:])])
    lead = first[: len(indent)]
    glued = _glued(text[len(lead) :])
    lines = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=lead,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


def _glued(text: str) -> str:
    """Keep code in one line, and what would begin a list or heading off the start of one."""
    text = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", _GLUE), text)
    return re.sub(r" (?=(?:[-+*#>|]|\d+\.)(?: |$))", _GLUE, text)


def main() -> int:
    """Wrap, or say what would be; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    check = parser.parse_args().check
    changed = 0
    for page in documents():
        text = page.read_text("utf-8")
        if (better := wrapped(text)) != text:
            changed += 1
            print(page.relative_to(ROOT))
            if not check:
                page.write_text(better, "utf-8")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
