"""Commands of the documents run as they stand: targets, subcommands, flags and files are there.

Looked at are the code blocks of every page that have no language, or `bash` or `console`, and what
stands in backticks and begins with one of our programs. Nothing is run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from dledger.cli import main as node_cli
from dledger_operator import options as operator_options
from dledger_pipeline.cli import main as pipeline_cli
from tests.house.sources import ROOT, documents, prose

PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "dledger": node_cli._parser,
    "dledger-operator": lambda: operator_options._parser({}),
    "dledger-pipeline": pipeline_cli._parser,
}
GIVEN = {"orders.yaml"}
"""Files that a page tells its reader to write, from a block of its own."""
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_PROMPT = re.compile(r"^(?:\$ |sudo |\w+=\S* )+")
_OURS = ("make", "python", "pytest", *PARSERS)
_PLACEHOLDER = re.compile(r"[A-Z]{3,}|…|\.\.\.|<|\[")


def commands(document: Path) -> Iterator[str]:
    """Yield the commands of a page's blocks, then those in backticks."""
    text = document.read_text("utf-8")
    for language, block in _BLOCK.findall(text):
        if language in {"", "bash", "console"}:
            lines = block.replace("\\\n", " ").split("\n")
            yield from (part for line in lines for part in _parts(line) if _program(part))
    for quoted in re.findall(r"`([^`]+)`", prose(document)):
        if _program(quoted) in _OURS:
            yield quoted


def _parts(line: str) -> list[str]:
    without_comment = re.split(r"\s#\s", line)[0]
    return [part.strip() for part in re.split(r"&&|\s\|\s", without_comment)]


def _program(command: str) -> str:
    """Return what a line calls; "" where it is none of what is looked at."""
    words = _PROMPT.sub("", command.strip()).split()
    name = words[0].removeprefix(".venv/bin/") if words else ""
    known = {*_OURS, "kubectl", "helm", "docker", "pip"}
    return name if name in known and len(words) > 1 else ""


def problems(command: str, root: Path = ROOT) -> list[str]:
    """Return what a command names that is not there."""
    program = _program(command)
    try:
        words = shlex.split(_PROMPT.sub("", command.strip()))[1:]
    except ValueError:
        return []
    if program in PARSERS:
        return _bad_arguments(PARSERS[program](), words)
    if program == "make":
        return _bad_targets(words, root)
    return [f"{path} is no file" for path in _paths(program, words) if not _exists(path, root)]


def _bad_arguments(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Walk down the subcommands; each flag must be one of a parser on the way."""
    flags: set[str] = set(parser._option_string_actions)
    wrong = []
    for word in words:
        children = next(
            (each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None
        )
        if word.startswith("-"):
            flag = word.partition("=")[0]
            wrong += [] if flag in flags or _PLACEHOLDER.search(word) else [f"no flag {flag}"]
        elif children is not None and not _PLACEHOLDER.search(word):
            names = word.split("|")
            wrong += [f"no command {name}" for name in names if name not in children.choices]
            if len(names) > 1 or names[0] not in children.choices:
                return wrong
            parser = children.choices[names[0]]
            flags |= set(parser._option_string_actions)
    return wrong


def _bad_targets(words: list[str], root: Path) -> list[str]:
    makefile = (root / "Makefile").read_text("utf-8")
    wrong = []
    for word in words:
        name, is_setting, _ = word.lstrip("[").partition("=")
        if is_setting:
            known = f"$({name})" in makefile or name == "PYTHON"
            wrong += [] if known else [f"make knows no {name}="]
        elif re.fullmatch(r"[a-z][\w-]*", word):
            wrong += [] if word in targets(makefile) else [f"no target {word}"]
        elif not word.startswith(("-", "[", "…")):
            break
    return wrong


def targets(makefile: str) -> set[str]:
    """Return every target that has a rule."""
    return set(re.findall(r"^([a-z][\w-]*)(?: [\w -]+)?:(?!=)", makefile, re.MULTILINE))


def phony(makefile: str) -> set[str]:
    """Return the targets of all `.PHONY` lines."""
    lines = re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    return {target for line in lines for target in line.split()}


def _paths(program: str, words: list[str]) -> Iterator[str]:
    """Yield the files that a command reads from the checkout."""
    for before, word in zip(["", *words], words, strict=False):
        if _PLACEHOLDER.search(word.replace("Dockerfile", "")):
            continue
        if program == "python" and before == "-m":
            yield word.replace(".", "/")
        elif (
            (program == "kubectl" and before in {"-f", "--filename"} and word != "-")
            or (program == "docker" and before in {"-f", "--file"})
            or (program in {"python", "pytest"} and re.match(r"[\w/.-]+\.py", word))
            or (program == "helm" and word.startswith("charts/"))
        ):
            yield word.partition("::")[0]


def _exists(path: str, root: Path) -> bool:
    tops = [root, root / "node", root / "operator", root / "pipeline"]
    names = [path, f"{path}.py"]
    outside = path.partition("/")[0] in {"pytest", "pip", "venv"} or path.startswith("http")
    return path in GIVEN or outside or any((top / name).exists() for top in tops for name in names)


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_says_to_type_is_there(document: Path) -> None:
    """Or its first reader types it and finds out."""
    wrong = {command: found for command in commands(document) if (found := problems(command))}

    assert wrong == {}


@cache
def _block_commands() -> tuple[str, ...]:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    blocks = [block for page in pages for _, block in _BLOCK.findall(page.read_text("utf-8"))]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").split("\n")]
    parts = [part for line in lines for part in _parts(line) if _program(part) in PARSERS]
    return tuple(part for part in parts if not _PLACEHOLDER.search(part) and ": " not in part)


def test_our_own_commands_in_blocks_are_taken_whole() -> None:
    """By the very parsers, with each argument that they need."""
    refused = []
    for command in _block_commands():
        words = shlex.split(_PROMPT.sub("", command))[1:]
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                PARSERS[_program(command)]().parse_args(words)
            except SystemExit:
                refused.append((command, said.getvalue()))

    assert _block_commands()
    assert refused == []


def test_every_extra_that_a_page_installs_is_one() -> None:
    """`pip install 'PATH[client]'`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {
        extra
        for page in documents()
        for extra in re.findall(r"(?:PATH|dledger)\[(\w+)\]", page.read_text("utf-8"))
    }

    assert named
    assert named <= set(project["optional-dependencies"])


def test_every_phony_target_has_a_rule_and_a_line_in_help() -> None:
    """All `.PHONY` lines are read, not the first alone."""
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert len(re.findall(r"^\.PHONY:", makefile, re.MULTILINE)) > 1
    assert phony(makefile) <= targets(makefile)
    helped = set(re.findall(r"^([a-z][\w-]*):.*## ", makefile, re.MULTILINE))
    assert phony(makefile) - helped == set()
    assert helped - phony(makefile) == set()


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    """A target, a setting, a command, a flag, a file that are not there, in block and backticks."""
    (tmp_path / "Makefile").write_text(".PHONY: a\na: ## x\n\techo $(B)\n.PHONY: c\n")
    page = tmp_path / "page.md"
    page.write_text(
        "```\nmake z && dledger status --nope\n$ kubectl apply -f no.yaml  # x\n```\n`make y`"
    )

    assert list(commands(page)) == [
        "make z",
        "dledger status --nope",
        "$ kubectl apply -f no.yaml",
        "make y",
    ]
    assert phony((tmp_path / "Makefile").read_text()) == {"a", "c"}
    assert targets((tmp_path / "Makefile").read_text()) == {"a"}
    assert problems("make a B=1", tmp_path) == []
    assert problems("make z D=1", tmp_path) == ["no target z", "make knows no D="]
    assert problems("dledger status --nope") == ["no flag --nope"]
    assert problems("dledger topic create|make x") == ["no command make"]
    assert problems("dledger-pipeline backup --nope") == ["no flag --nope"]
    assert problems("kubectl apply -f no.yaml", tmp_path) == ["no.yaml is no file"]
    assert problems(".venv/bin/python -m e2e.nothing") == ["e2e/nothing is no file"]
