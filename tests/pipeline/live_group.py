"""A running ``dledger dev`` group with messages, for tests that read from nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dledger.client import AdminClient, Client, Record, StoredRecord
from dledger.common.status import NodeStatus
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.waiting import eventually_blocking

TOPIC = "orders"
QUEUES = 2
BATCHES = 160
BATCH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroup:
    """Where a group is, who it is, and an entry up to which every node has committed.

    Attributes:
        admins: Peer addresses, first that of the node which led when the messages were written.
    """

    client: str
    admins: tuple[str, ...]
    group_id: str
    last_index: int

    def stored(self) -> dict[int, list[StoredRecord]]:
        """Return what consumers would see in each queue of the topic, by its broker's own Read."""
        return asyncio.run(_stored(self.client))

    def leader(self) -> str:
        """Return the address of the node that leads now; any node may, after a pause."""
        statuses = {address: asyncio.run(_status(address)) for address in self.admins}
        leading = [address for address, status in statuses.items() if status.role == "leader"]
        return max(leading, key=lambda address: statuses[address].term, default="")


@contextmanager
def live_group(directory: Path) -> Iterator[LiveGroup]:
    """Run a group of three nodes until the block ends, with 8 MB of messages in its log."""
    running = DevGroup(directory / "data", free_port_range(), "segment_bytes=1048576")
    try:
        running.announced()
        state = eventually_blocking(running.whole, "the group is whole", 120)
        admins = _leader_first(state["adminEndpoints"], state["leader"])
        asyncio.run(_produce(state["endpoints"][0]))
        status = _committed(admins)
        yield LiveGroup(
            client=state["endpoints"][0],
            admins=admins,
            group_id=status.group_id,
            last_index=status.commit_index,
        )
    finally:
        running.stop()


def _leader_first(addresses: Sequence[str], leader: int) -> tuple[str, ...]:
    return (addresses[leader], *(a for a in addresses if a != addresses[leader]))


async def _produce(address: str) -> None:
    async with Client(address, timeout_s=120, client_id="test") as client:
        await client.create_topic(TOPIC, queues=QUEUES)
        for batch in range(BATCHES):
            await client.append(TOPIC, _records(batch))


def _records(batch: int) -> list[Record]:
    return [
        Record(
            body=f"{batch}-{row} ".encode().ljust(1024, b"x"),
            message_id=f"{batch}-{row}",
            keys=(f"key-{row % 10}",),
            tag="even" if row % 2 == 0 else "",
        )
        for row in range(BATCH)
    ]


async def _status(address: str) -> NodeStatus:
    async with AdminClient(address, timeout_s=60) as admin:
        return await admin.status()


def _has_committed(address: str, index: int) -> bool:
    return asyncio.run(_status(address)).commit_index >= index


def _committed(admins: Sequence[str]) -> NodeStatus:
    """Wait until all nodes have committed what the leader has; return its status."""
    wanted = asyncio.run(_status(admins[0]))
    for address in admins[1:]:
        eventually_blocking(
            partial(_has_committed, address, wanted.commit_index),
            f"{address} has committed entry {wanted.commit_index}",
            120,
        )
    return wanted


async def _stored(address: str) -> dict[int, list[StoredRecord]]:
    async with Client(address, timeout_s=120) as client:
        return {
            queue: [each async for each in client.read(TOPIC, queue)] for queue in range(QUEUES)
        }
