"""Reads one queue from any node of a group, and from the next one when that is gone.

Committed messages are the same at the same offsets on every node, so a reader goes on where it
was. Exported from `dledger.client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from dledger.client.ledger_client import Client
from dledger.client.stored_batch import StoredBatch
from dledger.errors import Unavailable, UnknownTopic
from dledger.rpc.channel import nodes_of

_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0


async def follow(
    addresses: str | Sequence[str], topic: str, queue_id: int, *, start_offset: int = 0
) -> AsyncGenerator[StoredBatch]:
    """Yield the committed batches of one queue from *start_offset* on, for ever.

    While no node answers it waits. What is not taken is not sent. A topic that was just created may
    not have reached the node that is asked: that one catches up before it is believed.

    Args:
        addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
        topic: The topic.
        queue_id: The queue.
        start_offset: The first offset wanted.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidArgument: There is no address; or the queue has nothing at that offset any more.
    """
    nodes = nodes_of(addresses, for_what="reader")
    offset, turn, wait_s, doubted = start_offset, 0, _RETRY_S, False
    while True:
        async with Client(nodes[turn % len(nodes)]) as client:
            batches = client.read_batches(
                topic, queue_id, start_offset=offset, follow=True, linearizable=doubted
            )
            try:
                async with aclosing(batches):
                    async for batch in batches:
                        yield batch
                        offset, wait_s, doubted = batch.end_offset, _RETRY_S, False
            except Unavailable:
                pass
            except UnknownTopic:
                if doubted:
                    raise
                doubted = True
                continue
        turn += 1
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _RETRY_MAX_S)
