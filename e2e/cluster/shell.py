"""The one place that runs programs and waits for conditions."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from e2e.cluster.errors import CommandFailed, TimedOut
from e2e.cluster.layout import DNS_DOMAIN, NODE_RANGE, POD_RANGE, SERVICE_RANGE

T = TypeVar("T")

LOG_TAIL_LINES = 15
NEVER_PROXIED = (
    *("localhost", "127.0.0.1", SERVICE_RANGE, POD_RANGE, NODE_RANGE),
    *(".svc", f".{DNS_DOMAIN}"),
)
"""What is of a cluster, as NO_PROXY has it: a proxy of the machine's reaches none of it."""


def environment(own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a program is given: behind a proxy with what it must not ask the proxy for."""
    if not any(name.lower() in ("http_proxy", "https_proxy") and own[name] for name in own):
        return dict(own)
    named = [own[name] for name in ("NO_PROXY", "no_proxy") if own.get(name)]
    excepted = ",".join(dict.fromkeys([*",".join(named).split(","), *NEVER_PROXIED])).strip(",")
    return {**own, "NO_PROXY": excepted, "no_proxy": excepted}


def run(
    *argv: str | Path,
    input: str | None = None,  # noqa: A002 - the name subprocess uses
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    check: bool = True,
    log: Path | None = None,
) -> str:
    """Run a program to its end and return its standard output.

    Args:
        argv: the program and its arguments; no shell reads them.
        input: its standard input; without it the program sees the end of input at once.
        env: added to our own environment.
        cwd: the directory to run in.
        timeout_s: kill it after so long.
        check: raise on a non-zero exit code. Running out of time always raises.
        log: write both of its outputs to this file instead; then "" is returned.

    Raises:
        CommandFailed: with the last lines of what the program printed.
    """
    words = tuple(str(each) for each in argv)
    sink = None if log is None else log.open("ab")
    try:
        result = subprocess.run(
            words,
            input=None if input is None else input.encode(),
            stdin=subprocess.DEVNULL if input is None else None,
            stdout=sink or subprocess.PIPE,
            stderr=sink or subprocess.PIPE,
            env={**environment(), **(env or {})},
            cwd=cwd,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise CommandFailed(words, None, _printed(late.stdout, late.stderr, log)) from None
    except FileNotFoundError as absent:
        raise CommandFailed(words, 127, str(absent)) from None
    finally:
        if sink is not None:
            sink.close()
    if check and result.returncode != 0:
        raise CommandFailed(words, result.returncode, _printed(result.stdout, result.stderr, log))
    return "" if result.stdout is None else result.stdout.decode(errors="replace")


def _printed(stdout: bytes | None, stderr: bytes | None, log: Path | None) -> str:
    if log is not None:
        return f"{log}:\n{tail(log)}"
    return b"\n".join(each for each in (stdout, stderr) if each).decode(errors="replace")


def tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a file, or "" when there is none."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def until(
    what: str,
    condition: Callable[[], T | None],
    *,
    timeout_s: float,
    interval_s: float = 0.1,
    detail: Callable[[], str] = str,
) -> T:
    """Return the first truthy answer of *condition*.

    Args:
        what: the condition in words, for the error.
        condition: asked again and again; a falsy answer means not yet.
        timeout_s: give up after so long.
        interval_s: the pause between two questions.
        detail: asked once, when giving up, for what to add to the error.

    Raises:
        TimedOut: when no answer was truthy in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise TimedOut(what, timeout_s, detail())
        time.sleep(interval_s)
