"""The programs of docs/clients.md as users start them: what each prints is what it should.

They lie in docs/examples/clients; what they are built with is what the driver of their language is,
pinned by the same digests. Each case makes a topic of the type that its program is about.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from dledger.client.admin_client import AdminClient
from e2e.bench.java import digest_of
from e2e.clients.builds import SOURCES, folder_of
from e2e.clients.cases import Case
from e2e.clients.stage import CaseFailed, Stage
from e2e.cluster.golang import go
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.shell import run
from e2e.harness.world import ROOT

PROGRAMS: Final = ROOT / "docs" / "examples" / "clients"
_BUILD_S: Final = 1800.0
_RUN_S: Final = 240.0
_HELLO: Final = "hello"
_TYPES: Final = "message_types"
_building = threading.Lock()


class Command(NamedTuple):
    """How a program is started, and what it is given beside this process' environment."""

    argv: Sequence[str]
    environment: Mapping[str, str]


def ensure(layout: Layout, language: str, program: str) -> Command:
    """Build a program of a language whose driver is built, unless it is cached.

    Raises:
        ClusterError: The build failed.
    """
    with _building:
        return _COMMANDS[language](layout, program)


def _python(_: Layout, program: str) -> Command:
    return Command((sys.executable, str(PROGRAMS / f"{program}.py")), {})


def _node(layout: Layout, program: str) -> Command:
    modules = folder_of(layout, "node") / "node_modules"
    return Command(
        ("node", str(PROGRAMS / "nodejs" / f"{program}.js")), {"NODE_PATH": str(modules)}
    )


def _java(layout: Layout, program: str) -> Command:
    """Return the command that the page names, which compiles the file each time."""
    jars = folder_of(layout, "java") / "lib" / "*"
    source = PROGRAMS / "java" / f"{program.title().replace('_', '')}.java"
    return Command(("java", "-Xmx256m", "-cp", str(jars), str(source)), {})


def _build(
    layout: Layout, language: str, program: str, build: Callable[[Path, Layout], None]
) -> Command:
    digests = digest_of(PROGRAMS / language), digest_of(SOURCES / language)
    built = layout.cache / f"programs-{language}-{'-'.join(digests)}"
    if not built.exists():
        partial_ = built.with_suffix(".partial")
        shutil.rmtree(partial_, ignore_errors=True)
        shutil.copytree(PROGRAMS / language, partial_)
        build(partial_, layout)
        partial_.rename(built)
    return Command((str(built / program),), {})


def _build_go(folder: Path, layout: Layout) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy2(SOURCES / "go" / name, folder)
    environment = {"CGO_ENABLED": "0", "GOWORK": "off"}
    for program, package in ((_HELLO, "."), (_TYPES, "./messagetypes")):
        command = ("build", "-trimpath", "-buildvcs=false", "-o", program, package)
        log = layout.cache / "build-programs-go.log"
        run(go(layout), *command, cwd=folder, env=environment, log=log, timeout_s=_BUILD_S)


def _build_rust(folder: Path, layout: Layout) -> None:
    shutil.copy2(SOURCES / "rust" / "Cargo.lock", folder)
    target = layout.cache / "client-rust-target"  # the driver's: what they need is compiled
    run(
        "cargo", "build", "--config", "profile.dev.debug=false", "--target-dir", target,
        cwd=folder, log=layout.cache / "build-programs-rust.log", timeout_s=_BUILD_S,
    )  # fmt: skip
    for program in (_HELLO, _TYPES):
        shutil.copy2(target / "debug" / program, folder)


_COMMANDS: Final[Mapping[str, Callable[[Layout, str], Command]]] = {
    "python": _python,
    "node": _node,
    "java": _java,
    "go": lambda layout, program: _build(layout, "go", program, _build_go),
    "rust": lambda layout, program: _build(layout, "rust", program, _build_rust),
}


async def run_program(command: Command, words: Sequence[str], log: Path) -> list[str]:
    """Run a program to its end; return its lines.

    Raises:
        CaseFailed: It failed, or did not end.
    """
    environment = {**os.environ, "HOME": str(log.parent), **command.environment}
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command.argv, *words, stdout=asyncio.subprocess.PIPE, stderr=errors, env=environment
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _RUN_S)
        except TimeoutError:
            raise CaseFailed(f"it did not end in {_RUN_S:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
    if process.returncode:
        raise CaseFailed(f"exit code {process.returncode}: {_end_of(log)}")
    return output.decode().splitlines()


def _end_of(log: Path) -> str:
    return " ".join(log.read_text("utf-8", "replace").strip().splitlines()[-4:])[-400:]


def is_right(about: str, lines: Sequence[str]) -> bool:
    """Whether a program printed what its function for *about* should."""
    return _JUDGES[about](list(lines))


def _is_hello(lines: list[str]) -> bool:
    """Whether all ten came, in any order; a push consumer may get one twice."""
    return set(lines) == {f"hello {number}" for number in range(10)}


def _is_fifo(lines: list[str]) -> bool:
    """Whether each account's came in their order, once."""
    wanted = {account: [f"{account} {number}" for number in range(5)] for account in ("ada", "bob")}
    found = {account: [each for each in lines if each.startswith(account)] for account in wanted}
    return found == wanted and len(lines) == 10


def _is_delay(lines: list[str]) -> bool:
    """Whether the reminder alone came, and not before its time."""
    wanted = re.compile(r"reminder, \d+ ms after its time")
    return len(lines) == 1 and wanted.fullmatch(lines[0]) is not None


_JUDGES: Final[Mapping[str, Callable[[list[str]], bool]]] = {
    "transaction": ["paid", "paid, and left open"].__eq__,  # not what was rolled back
    "dead": ["unreadable"].__eq__,
    "delay": _is_delay,
    "fifo": _is_fifo,
    "sql": lambda lines: sorted(lines) == ["price 12", "price 15"],
    "priority": ["priority 3", "priority 2", "priority 1"].__eq__,
    _HELLO: _is_hello,
}
_OF_TYPE: Final = ("FIFO", "DELAY", "TRANSACTION", "PRIORITY")


async def _program(stage: Stage, about: str) -> None:
    """Run a program at a follower; see that what it prints is right."""
    kind = about.upper() if about.upper() in _OF_TYPE else "NORMAL"
    topic = await stage.topic(f"program_{about}", kind)
    state = await stage.at.group.until_whole()
    if about == "dead":
        async with AdminClient(stage.at.group.admins[state["leader"]], timeout_s=30.0) as admin:
            await admin.create_group(f"{topic}-readers")
            await admin.set_group(f"{topic}-readers", max_attempts=2)
    program = _HELLO if about == _HELLO else _TYPES
    command = await asyncio.to_thread(ensure, default_layout(), stage.language, program)
    follower = stage.at.group.endpoints[(state["leader"] + 1) % len(stage.at.group.endpoints)]
    words = (follower, topic) if about == _HELLO else (follower, topic, about)
    lines = await run_program(command, words, stage.work / f"{topic}.log")
    if not is_right(about, lines):
        raise CaseFailed(f"it printed {lines}")


CASES: Final[Mapping[str, Case]] = {
    f"program_{about}": partial(_program, about=about) for about in _JUDGES
}
"""Those that wait longest first."""
