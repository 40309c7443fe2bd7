"""A group founded on a restored log: the history is there, the old members are not."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from dledger.client import AdminClient, Client
from dledger.errors import UnknownTopic
from dledger.files.files import RealFiles
from dledger.store.commit_log import CommitLog
from dledger.store.identity import (
    LOG_DIRECTORY,
    begin_restore,
    finish_restore,
    load_identity,
)
from dledger.types import Entry
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range

SMALL_SEGMENTS = "segment_bytes=1048576"
MESSAGES = [f"message {number}".encode() * 100 for number in range(3000)]

pytestmark = pytest.mark.slow


def records(directory: Path) -> tuple[str, list[Entry]]:
    """Return the group id and all entries of a node's data directory."""
    files = RealFiles()
    identity = load_identity(files, directory)
    assert identity is not None
    log = CommitLog.open(files, directory / LOG_DIRECTORY, identity=identity)
    try:
        entries: list[Entry] = []
        while len(entries) < log.last_index:
            entries += log.read(len(entries) + 1, log.last_index, 1 << 20)
        return identity.group_id, entries
    finally:
        log.close()


def restore(directory: Path, name: str, group_id: str, entries: list[Entry]) -> None:
    """Write *entries* as the log of a node that has joined no group."""
    files = RealFiles()
    identity = begin_restore(files, directory, name, group_id=group_id)
    log = CommitLog.open(files, directory / LOG_DIRECTORY, identity=identity, segment_bytes=1 << 20)
    log.append(entries)
    log.sync()
    log.close()
    finish_restore(files, directory, identity, log.last_index)


async def write_all(endpoint: str) -> None:
    async with Client(endpoint) as client:
        for start in range(0, len(MESSAGES), 50):
            await client.append("topic", MESSAGES[start : start + 50], queue_id=0)


async def read_all(endpoint: str) -> list[bytes]:
    async with Client(endpoint) as client:
        return [stored.record.body async for stored in client.read("topic", 0)]


def read_until_whole(endpoint: str, count: int) -> list[bytes]:
    """Return what one node gives, once it has applied *count* messages."""
    deadline_s = time.monotonic() + 30
    while True:
        try:
            bodies = asyncio.run(read_all(endpoint))
        except UnknownTopic:  # a follower that has not applied its making yet
            bodies = []
        if len(bodies) >= count or time.monotonic() > deadline_s:
            return bodies
        time.sleep(0.2)


@pytest.fixture
def source(tmp_path: Path) -> tuple[str, list[Entry]]:
    """Return the log of a group of three that holds `MESSAGES` and is gone."""
    group = DevGroup(tmp_path / "old", free_port_range(), SMALL_SEGMENTS)
    asyncio.run(write_all(group.announced()["endpoints"][0]))
    group.stop()
    return records(tmp_path / "old" / "node-0")


def test_a_group_founded_on_a_restored_log_has_its_history(
    tmp_path: Path, source: tuple[str, list[Entry]]
) -> None:
    """One member is restored, the others are empty; then the founder dies, and nothing is lost."""
    old_group_id, entries = source
    restore(tmp_path / "new" / "node-0", "dev/node-0", old_group_id, entries)
    group = DevGroup(tmp_path / "new", free_port_range(), SMALL_SEGMENTS)
    state = group.announced()

    async def status(at: int) -> tuple[str, int]:
        async with AdminClient(state["adminEndpoints"][at]) as admin:
            said = await admin.status()
            return said.group_id, said.recovered_to

    before = [read_until_whole(endpoint, len(MESSAGES)) for endpoint in state["endpoints"]]
    group_id, recovered_to = asyncio.run(status(0))
    os.kill(state["pids"][state["leader"]], signal.SIGKILL)
    asyncio.run(write_all(state["endpoints"][1]))
    after = read_until_whole(state["endpoints"][1], 2 * len(MESSAGES))
    group.stop()

    assert before == [MESSAGES] * 3
    assert (group_id != old_group_id, recovered_to) == (True, entries[-1].index)
    assert after == MESSAGES * 2
    new_group_id, restored = records(tmp_path / "new" / "node-2")
    assert (new_group_id, restored[: len(entries)]) == (group_id, entries)


def test_a_half_restored_directory_starts_no_node(
    tmp_path: Path, source: tuple[str, list[Entry]]
) -> None:
    """Without an identity a log is damage, not an empty disk."""
    old_group_id, entries = source
    files = RealFiles()
    identity = begin_restore(files, tmp_path / "half", "dev/node-0", group_id=old_group_id)
    log = CommitLog.open(files, tmp_path / "half" / LOG_DIRECTORY, identity=identity)
    log.append(entries[:10])
    log.close()

    assert load_identity(files, tmp_path / "half") is None
    with pytest.raises(Exception, match=r"missing, but log/0+1.seg exists"):
        begin_restore(files, tmp_path / "half", "dev/node-0", group_id=old_group_id)
