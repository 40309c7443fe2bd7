"""Asking until it is so: how tests wait for what others bring about. No test has a loop of its own.

A deadline is for what never comes: it is generous, and nothing is said about how long a thing
takes. Whoever gives up says what was asked, how often, what the last answer was, and how far things
had got.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from dledger.errors import DledgerError

_T = TypeVar("_T")
DEADLINE_S: Final = 60.0
"""More than ten times what anything takes that is waited for without a deadline of its own."""
_POLL_S: Final = 0.01
_SERVER_POLL_S: Final = 0.2
"""Between two questions to a server, which may be a process that is started for each."""


async def eventually(
    probe: Callable[[], _T | None],
    what: str = "",
    deadline_s: float = DEADLINE_S,
    *,
    progress: Callable[[], object] | None = None,
) -> _T:
    """Return the first truthy answer of *probe*, which must not block.

    Args:
        probe: Asked again and again, while the event loop goes on.
        what: What is waited for, in words; "": the line on which *probe* stands.
        deadline_s: For what never comes.
        progress: Asked once, when giving up, for how far it has got.

    Raises:
        AssertionError: There was none by the deadline.
    """
    loop = asyncio.get_running_loop()
    asked, end_s = 1, loop.time() + deadline_s
    while not (answer := probe()):
        if loop.time() >= end_s:
            raise _given_up(what or _place(probe), deadline_s, asked, answer, progress)
        asked += 1
        await asyncio.sleep(_POLL_S)
    return answer


async def eventually_async(
    probe: Callable[[], Awaitable[_T | None]],
    what: str = "",
    deadline_s: float = DEADLINE_S,
    *,
    progress: Callable[[], object] | None = None,
) -> _T:
    """Do what `eventually` does, for a probe that is awaited; one that hangs is given up, too."""
    asked, answer = 0, None
    try:
        async with asyncio.timeout(deadline_s) as limit:
            while True:
                asked += 1
                if answer := await probe():
                    return answer
                await asyncio.sleep(_SERVER_POLL_S)
    except TimeoutError:
        if not limit.expired():
            raise
    raise _given_up(what or _place(probe), deadline_s, asked, answer, progress)


def eventually_blocking(
    probe: Callable[[], _T | None],
    what: str = "",
    deadline_s: float = DEADLINE_S,
    *,
    progress: Callable[[], object] | None = None,
) -> _T:
    """Do what `eventually` does where there is no event loop; *probe* may block."""
    asked, end_s = 1, time.monotonic() + deadline_s
    while not (answer := probe()):
        if time.monotonic() >= end_s:
            raise _given_up(what or _place(probe), deadline_s, asked, answer, progress)
        asked += 1
        time.sleep(_POLL_S)
    return answer


async def eventually_works(work: Callable[[], Awaitable[_T]], deadline_s: float = DEADLINE_S) -> _T:
    """Return what *work* gives once it raises no error of ours any more; else raise the last."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + deadline_s
    while True:
        try:
            return await work()
        except DledgerError:
            if loop.time() > end_s:
                raise
        await asyncio.sleep(5 * _POLL_S)


def _given_up(
    what: str, deadline_s: float, asked: int, answer: object, progress: Callable[[], object] | None
) -> AssertionError:
    reached = "" if progress is None else f"; {progress()}"
    return AssertionError(
        f"{what}: not within {deadline_s:g} s; asked {asked} times, the last answer was "
        f"{answer!r:.200}{reached}"
    )


def _place(probe: Callable[[], object]) -> str:
    """Return where a probe is written, or what it is."""
    code = getattr(probe, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else repr(probe)
