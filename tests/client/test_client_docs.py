"""The page about clients shows programs that run, and figures that hold."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from dledger.common.limits import (
    CONSUME_BACKOFF_S,
    DEFAULT_POLL_MS,
    FIRST_INVISIBLE_MS,
    MAX_BODY_BYTES,
)
from e2e.clients.sdks import SDKS
from tests.requests.memory_group import memory_group

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/clients.md").read_text("utf-8")
PROGRAMS = ROOT / "docs/examples/clients"
LANGUAGES = {
    "hello.py": "python",
    "java/Hello.java": "java",
    "go/main.go": "go",
    "nodejs/hello.js": "js",
    "rust/src/main.rs": "rust",
}
TYPED = {
    "python": "message_types.py",
    "java": "java/MessageTypes.java",
    "go": "go/messagetypes/main.go",
    "js": "nodejs/message_types.js",
    "rust": "rust/src/bin/message_types.rs",
}
"""The programs for each type of messages, by what their blocks on the page are called."""
SECTIONS = ("FIFO topics", "PRIORITY topics", "Messages with a delivery time", "Transactions")


@pytest.mark.parametrize("program", LANGUAGES)
def test_page_shows_each_program_as_it_is(program: str) -> None:
    """Word for word."""
    text = (PROGRAMS / program).read_text("utf-8")
    assert f"```{LANGUAGES[program]}\n{text}```" in PAGE


def test_page_shows_every_program_and_its_client() -> None:
    """None is forgotten; what each asks a registry for is the version in the table."""
    files = {str(path.relative_to(PROGRAMS)) for path in PROGRAMS.rglob("*") if path.is_file()}
    versions = re.findall(r"^\| \[.*?\]\(#\w+\) \| `(\S+)` (\S+) \|", PAGE, re.MULTILINE)

    assert files == LANGUAGES.keys() | set(TYPED.values()) | {"rust/Cargo.toml"}
    assert len(versions) == len(LANGUAGES)
    for name, version in versions:
        assert re.search(rf'{name}(?:==|:|@v?| = "){re.escape(version)}\b', PAGE), name


def _section(title: str) -> str:
    _, _, rest = PAGE.partition(f"\n### {title}\n")
    return (
        re.split(r"\n##", rest)[0]
        if rest
        else re.split(r"\n## ", PAGE.split(f"## {title}\n")[1])[0]
    )


def _shown(text: str) -> dict[str, str]:
    """Return the block of each language that a section shows."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    return {language: block for language, block in blocks if language in TYPED}


@pytest.mark.parametrize("title", [*SECTIONS, "SQL92 filters"])
def test_lines_of_each_type_are_those_of_the_programs(title: str) -> None:
    """In every language whose client has the type; whatever they are indented by there."""
    shown = _shown(_section(title))
    priority_is_lacking = {"rust"} if title.startswith("PRIORITY") else set()

    assert shown.keys() == TYPED.keys() - priority_is_lacking
    for language, block in shown.items():
        lines = (PROGRAMS / TYPED[language]).read_text("utf-8").splitlines()
        for part in block.strip("\n").split("\n\n"):
            assert _is_in(lines, part.split("\n")), part


def _is_in(lines: list[str], part: list[str]) -> bool:
    """Whether *part* is a stretch of *lines*, but for what all of it is indented by."""
    return any(
        textwrap.dedent("\n".join(lines[at : at + len(part)])).split("\n") == part
        for at in range(len(lines))
    )


def test_table_of_types_has_the_words_of_the_programs() -> None:
    """Each word is in the program of its language; what a client lacks, so says what tests it."""
    rows = re.findall(
        r"^\| (.+?) \|$", _section("A program for each type of messages"), re.MULTILINE
    )
    kinds, _, *programs = (row.split(" | ") for row in rows)

    assert kinds[1:] == ["FIFO", "DELAY", "its recall", "TRANSACTION", "PRIORITY"]
    lacking = set()
    for language, (_, *cells) in zip(TYPED, programs, strict=True):
        program = (PROGRAMS / TYPED[language]).read_text("utf-8")
        for kind, cell in zip(kinds[1:], cells, strict=True):
            words = re.findall(r"`(.+?)`", cell)
            assert all(word in program for word in words), (kind, language)
            lacking |= {(kind, language)} if cell == "**none**" else set()
    assert lacking == {
        ("its recall", "rust"),
        *(("PRIORITY", each) for each in _without_priority()),
    }


def _without_priority() -> list[str]:
    return [name for name, sdk in SDKS.items() if "program_priority" in sdk.gaps]


def test_figures_of_the_page_are_those_of_the_node() -> None:
    """They are what users plan by."""
    first = ", ".join(f"{seconds} s" for seconds in CONSUME_BACKOFF_S[:4])

    assert f"comes again after {first} and so on up to {max(CONSUME_BACKOFF_S) // 60} min" in PAGE
    assert PAGE.count(f"come again {FIRST_INVISIBLE_MS // 1000} s later") == 1
    assert PAGE.count(f"comes again after {FIRST_INVISIBLE_MS // 1000} s") == 1
    assert f"the poll that is under way, at most {DEFAULT_POLL_MS // 1000} s" in PAGE
    assert f"{MAX_BODY_BYTES >> 20} MiB less 4 KiB" in PAGE


async def test_python_program_runs(tmp_path: Path) -> None:
    """Against a group of three; the others run where their languages are."""
    async with memory_group(3) as group, asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAMS / "hello.py"),
            group.addresses[1],
            "hello",
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"HOME": str(tmp_path)},
        )
        output, _ = await process.communicate()

    assert process.returncode == 0
    assert set(output.decode().split("\n")) >= {f"hello {number}" for number in range(10)}
