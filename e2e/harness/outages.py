"""A group that takes no writes, in five ways; each lasts as long as its block.

What ``dledger dev`` would start again does not come back before: it is stopped meanwhile itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from dledger.client import Client
from dledger.errors import DledgerError
from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.processes import kill, send
from e2e.harness.dev_group import DevGroup
from e2e.harness.volume import Volume

NODES: Final = 3
_DISK_BYTES: Final = 64 << 20
_FILLER: Final = "filler"
_PIECES_BYTES: Final = (256 << 10, 16 << 10, 1 << 10)
_FILLED_TIMES: Final = 3
"""A disk that refuses a piece so often in a row has no room for it."""
Outage: TypeAlias = Callable[[DevGroup], contextlib.AbstractAsyncContextManager[None]]


@asynccontextmanager
async def kill_all(group: DevGroup) -> AsyncIterator[None]:
    """All nodes are SIGKILLed."""
    async with _kill(group, range(NODES)):
        yield


@asynccontextmanager
async def leave_minority(group: DevGroup) -> AsyncIterator[None]:
    """The leader and one more are SIGKILLed; the third knows that it has no majority."""
    leader = int((await group.until_whole())["leader"])
    async with _kill(group, {leader, (leader + 1) % NODES}):
        yield


@asynccontextmanager
async def freeze_all(group: DevGroup) -> AsyncIterator[None]:
    """All nodes are SIGSTOPped: their connections stay, and nothing answers."""
    async with _freeze(group, range(NODES)):
        yield


@asynccontextmanager
async def freeze_leader(group: DevGroup) -> AsyncIterator[None]:
    """The leader is SIGSTOPped; the others go on without it."""
    leader = int((await group.until_whole())["leader"])
    async with _freeze(group, {leader}):
        yield


@asynccontextmanager
async def fill_disks(group: DevGroup) -> AsyncIterator[None]:
    """Nothing more goes on the disks of all nodes, which have to be `small_disks`."""
    disks = _disks(group.data)
    for each in disks:
        each.fill(0)
    await _fill_up(group.leader_endpoint)
    try:
        yield
    finally:
        for each in disks:
            each.empty()


OUTAGES: Final[Mapping[str, Outage]] = {
    "killed": kill_all,
    "frozen": freeze_all,
    "minority": leave_minority,
    "full_disks": fill_disks,
    "frozen_leader": freeze_leader,
}


def needs_disks(name: str) -> bool:
    """Whether an outage needs `small_disks`."""
    return OUTAGES[name] is fill_disks


SETTINGS_OF_SMALL_DISKS: Final = ("segment_bytes=1048576", "disk_watermark_percent=0")
"""Small segments, and nothing is dropped to make room: else the disks never are full."""


@contextmanager
def small_disks(data: Path) -> Iterator[None]:
    """Give each node of the group in *data* a small disk of its own.

    Raises:
        MissingPrerequisite: This process may not mount.
    """
    if not Volume.is_possible(data.parent / "probe"):
        raise MissingPrerequisite("disks of their own are mounted, which needs root")
    disks = _disks(data)
    try:
        for each in disks:
            each.mount()
        yield
    finally:
        for each in disks:
            each.unmount()


def _disks(data: Path) -> list[Volume]:
    return [Volume(data / f"node-{number}", size_bytes=_DISK_BYTES) for number in range(NODES)]


async def _fill_up(endpoint: str) -> None:
    """Write until the group refuses the smallest piece: segments have their room from before."""
    async with Client(endpoint, timeout_s=2.0) as client:
        for size_bytes in _PIECES_BYTES:
            refused = 0
            while refused < _FILLED_TIMES:
                try:
                    await client.append(_FILLER, [bytes(size_bytes)], queue_id=0)
                    refused = 0
                except DledgerError:  # also: its leader hands over, as there is no room
                    refused += 1


@asynccontextmanager
async def _kill(group: DevGroup, which: Collection[int]) -> AsyncIterator[None]:
    pids = [group.state()["pids"][number] for number in which]
    group.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.to_thread(kill, pids, "the nodes")
        yield
    finally:
        group.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def _freeze(group: DevGroup, which: Collection[int]) -> AsyncIterator[None]:
    pids = [group.state()["pids"][number] for number in which]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)
