"""What every node holds at the end: its queues as clients read them, its log as it is on disk."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

from dledger.client import Client
from dledger.common.status import NodeStatus
from dledger.errors import DledgerError, InvalidArgument, UnknownTopic
from e2e.chaos.clients import QUEUES, TOPIC, digest_of
from e2e.chaos.faulty_group import FaultyGroup
from e2e.chaos.log_checker import LogEntry, Queues, Stored
from e2e.cluster.errors import CommandFailed
from e2e.cluster.shell import run

_FIRST_KEPT: Final = re.compile(r"is outside \[(\d+), ")
_SETTLE_S: Final = 60.0


async def settled(group: FaultyGroup) -> int:
    """Wait until nobody writes and all nodes have applied the same; return that index.

    Raises:
        HarnessError: They do not come to the same.
    """

    async def equal() -> Sequence[NodeStatus] | None:
        statuses = await group.whole()
        if statuses is None:
            return None
        places = {
            index
            for s in statuses.values()
            for index in (s.commit_index, s.applied_index, s.last_index)
        }
        return list(statuses.values()) if len(places) == 1 else None

    statuses = await group.wait_for("all nodes to hold the same", equal, _SETTLE_S)
    return statuses[0].commit_index


async def least_committed(group: FaultyGroup) -> int:
    """Return the index up to which all nodes that answer have committed; 0 if none answers."""
    return min((s.commit_index for s in (await group.statuses()).values()), default=0)


async def read_queues(group: FaultyGroup) -> dict[str, Queues]:
    """Read every queue of the log's topic from every node. Raises DledgerError."""
    return {
        name: {queue: await _read(node.spec.endpoint, queue) for queue in range(QUEUES)}
        for name, node in group.nodes.items()
    }


async def _read(endpoint: str, queue: int) -> Sequence[Stored]:
    """Read a queue from where it begins: what went before its time is a loss, for the checker."""
    async with Client(endpoint) as client:
        try:
            return [one async for one in _stored(client, queue, 0)]
        except InvalidArgument as gone:
            if (kept := _FIRST_KEPT.search(str(gone))) is None:
                raise
            return [one async for one in _stored(client, queue, int(kept[1]))]
        except UnknownTopic:
            return []


async def _stored(client: Client, queue: int, first: int) -> AsyncIterator[Stored]:
    async for s in client.read(TOPIC, queue, start_offset=first):
        yield Stored(s.offset, s.record.message_id, digest_of(s.record.body))


async def read_logs(group: FaultyGroup, commit_index: int) -> dict[str, Sequence[LogEntry]]:
    """Read the log of every node from its disk, up to *commit_index*. The nodes have ended.

    Raises:
        DledgerError: A log does not verify.
    """
    return {
        name: [e for e in await _entries(node.data) if e.index <= commit_index]
        for name, node in group.nodes.items()
    }


async def _entries(data: Path) -> Sequence[LogEntry]:
    await _log("verify", data)
    return list(_parsed(await _log("dump", data)))


def _parsed(lines: str) -> Iterator[LogEntry]:
    for line in lines.splitlines():
        fields = json.loads(line)
        yield LogEntry(
            fields["index"], fields["term"], fields["timestampMs"], fields["crc32c"],
            fields["chain"],
        )  # fmt: skip


async def _log(action: str, data: Path) -> str:
    command = (sys.executable, "-m", "dledger", "log", action, data)
    try:
        return await asyncio.to_thread(run, *command)
    except CommandFailed as failed:
        raise DledgerError(str(failed)) from None
