"""The page about clients shows programs that run, and figures that hold."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from dledger.common.limits import (
    CONSUME_BACKOFF_S,
    DEFAULT_POLL_MS,
    FIRST_INVISIBLE_MS,
    MAX_BODY_BYTES,
)
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


@pytest.mark.parametrize("program", LANGUAGES)
def test_page_shows_each_program_as_it_is(program: str) -> None:
    """Word for word."""
    text = (PROGRAMS / program).read_text("utf-8")
    assert f"```{LANGUAGES[program]}\n{text}```" in PAGE


def test_page_shows_every_program_and_its_client() -> None:
    """None is forgotten; what each asks a registry for is the version in the table."""
    files = {str(path.relative_to(PROGRAMS)) for path in PROGRAMS.rglob("*") if path.is_file()}
    versions = re.findall(r"^\| \[.*?\]\(#\w+\) \| `(\S+)` (\S+) \|", PAGE, re.MULTILINE)

    assert files == LANGUAGES.keys() | {"rust/Cargo.toml"}
    assert len(versions) == len(LANGUAGES)
    for name, version in versions:
        assert re.search(rf'{name}(?:==|:|@v?| = "){re.escape(version)}\b', PAGE), name


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
