"""What `dledger spool drain` does: waits until nothing waits in a directory.

Beside the process that has the directory it watches; without one it replays by itself, as that
would. Called by `cli.spool_command`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.client import SpoolingProducer
from dledger.errors import DirectoryLocked, InvalidArgument, StorageError
from dledger.files.files import Files
from dledger.sidecar.reach import Reach
from dledger.sidecar.replay import Replay, is_disk_failure
from dledger.sidecar.upstream import Tls, Upstream
from dledger.spool.counters import Counts
from dledger.spool.looking import Look
from dledger.spool.opening import LOCK_NAME, limits_of, open_spool
from dledger.spool.spool import Spool
from dledger.spool.worker import Worker

_LOOK_S: Final = 0.5
_STANDS_STILL: Final = 60
"""After so many looks without a change it is asked whether anybody has the directory at all."""

Tell = Callable[[int], None]
"""Is told how many messages wait, now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What became of it.

    Attributes:
        left: How many messages wait.
        rejected: How many the group has refused for good meanwhile.
        by_sidecar: Whether another process had the directory.
    """

    left: int
    rejected: int
    by_sidecar: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to bring messages to the group, if nobody else does.

    Attributes:
        addresses: ``HOST:PORT`` of nodes or of a Service; none: it was not said.
        tls: What a connection believes and shows.
        max_bytes: The limit of the directory.
    """

    addresses: Sequence[str]
    tls: Tls
    max_bytes: int


def drain_now(
    files: Files, directory: Path, way: Way, *, timeout_s: float | None, tell: Tell
) -> Drained:
    """Do what `drain` does, without an event loop."""
    return asyncio.run(drain(files, directory, way, timeout_s=timeout_s, tell=tell))


async def drain(
    files: Files, directory: Path, way: Way, *, timeout_s: float | None, tell: Tell
) -> Drained:
    """Wait until nothing waits, or until the time is over.

    Raises:
        InvalidArgument: Nobody has the directory, and there is no way to the group.
        DledgerError: The directory cannot be used.
    """
    look = Look(files, directory)
    before = {one.place for one in look.refusals()}
    by_sidecar = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            if look.survey().found.depth:
                by_sidecar = is_used(files, directory)
                if by_sidecar:
                    await _watch(files, directory, tell)
                else:
                    await _bring(files, directory, way, tell)
    rejected = {one.place for one in look.refusals()} - before
    left = look.survey().found.depth.total()
    return Drained(left=left, rejected=len(rejected), by_sidecar=by_sidecar)


def is_used(files: Files, directory: Path) -> bool:
    """Whether a process has the directory. Raises StorageError."""
    try:
        files.lock(directory / LOCK_NAME).close()
    except BlockingIOError:
        return True
    except OSError as error:
        raise StorageError(f"cannot use spool {directory}: {error}") from error
    return False


async def _watch(files: Files, directory: Path, tell: Tell) -> None:
    """Wait for the process that has the directory; the state file says how far it is."""
    look, last, still = Look(files, directory), -1, 0
    while True:
        left = look.backlog() or look.survey().found.depth.total()
        if not left:
            return
        tell(left)
        last, still = left, still + 1 if left == last else 0
        if still == _STANDS_STILL:
            if not is_used(files, directory):
                raise StorageError(f"what had {directory} has ended, and {left} messages wait")
            still = 0
        await asyncio.sleep(_LOOK_S)


async def _bring(files: Files, directory: Path, way: Way, tell: Tell) -> None:
    """Bring what waits to the group. Raises as `drain`."""
    if not way.addresses:
        raise InvalidArgument(
            f"no sidecar has {directory}, so nothing is on its way: start it, or give --upstream"
        )
    with ThreadPoolExecutor(1, thread_name_prefix="dledger-spool") as executor:
        loop = asyncio.get_running_loop()
        limits = limits_of(way.max_bytes)
        try:
            spool = await loop.run_in_executor(
                executor, lambda: open_spool(files, directory, limits=limits)
            )
        except DirectoryLocked:  # a sidecar has begun just now
            await _watch(files, directory, tell)
            return
        try:
            of_lanes, own = spool.of_lanes, spool.waiting - spool.of_lanes
            if not own:
                await _replay(Worker(executor, spool), way, tell)
        finally:
            await loop.run_in_executor(executor, spool.close)
    if own and of_lanes:
        raise InvalidArgument(f"messages of a SpoolingProducer and of a sidecar are in {directory}")
    if own:
        await _let_a_producer_send(directory, way, tell)


async def _replay(worker: Worker, way: Way, tell: Tell) -> None:
    """Replay as the sidecar does. Raises StorageError: the disk failed."""
    spool: Spool = worker.spool
    upstream, drained = Upstream(way.addresses, way.tls), asyncio.Event()
    replay = Replay(
        worker,
        upstream,
        Reach(),
        Counts(),
        on_stored=lambda _key, _count: None,
        on_drained=drained.set,
    )
    replay.report_damage()
    running = asyncio.create_task(replay.run())
    try:
        while not (drained.is_set() or running.done()) and spool.waiting:
            tell(spool.waiting)
            await asyncio.wait([running], timeout=_LOOK_S)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await upstream.close()
    error = None if running.cancelled() else running.exception()
    if error is not None:
        if not is_disk_failure(error):
            raise error
        raise StorageError(f"the disk failed: {error}") from error


async def _let_a_producer_send(directory: Path, way: Way, tell: Tell) -> None:
    """Have the messages of a SpoolingProducer sent by one. Raises as `drain`."""
    if way.tls() is not None:
        raise InvalidArgument("a SpoolingProducer's messages go in plain text, not by TLS")
    async with SpoolingProducer(
        list(way.addresses), directory, max_bytes=way.max_bytes
    ) as producer:
        await _until(lambda: producer.counters().depth, tell)


async def _until(depth: Callable[[], int], tell: Tell) -> None:
    while left := depth():
        tell(left)
        await asyncio.sleep(_LOOK_S)
