"""Reads one queue from any node of a group, and continues at another node if that one fails.

Every node has the same committed messages at the same offsets, so a reader continues where it was,
also where the next messages are gone. `follow` is exported from `dledger.client`; `table_reader`
uses both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from dledger.client.ledger_client import Client
from dledger.client.stored_batch import StoredBatch
from dledger.common.backoff import Backoff
from dledger.errors import Unavailable, UnknownTopic
from dledger.rpc.channel import nodes_of

_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0


def follow(
    addresses: str | Sequence[str],
    topic: str,
    queue_id: int,
    *,
    start_offset: int = 0,
    generation: int = 0,
) -> AsyncGenerator[StoredBatch]:
    """Yield the committed batches of one queue from *start_offset* on; never ends.

    While no node answers, it waits. The node sends only as fast as batches are taken. If a node
    does not know the topic, which may be new, it is asked again with a linearizable read. Offsets
    are of one topic: if it is deleted and made again, the reader ends, rather than go on at its
    offset in the new one.

    Args:
        addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
        topic: The topic.
        queue_id: The queue.
        start_offset: The first offset to read.
        generation: Of which topic of that name *start_offset* is, if it was kept from another call:
            `StoredBatch.generation`; 0: whichever there is.

    Raises:
        UnknownTopic: The topic does not exist.
        TopicMadeAnew: It does not any more, and another has its name; an UnknownTopic, too.
        InvalidArgument: There is no address, or the queue no longer has the offset.
    """
    return _read(
        addresses, topic, queue_id, offset=start_offset, generation=generation, to_end=False
    )


def read_to_end(
    addresses: str | Sequence[str],
    topic: str,
    queue_id: int,
    *,
    start_offset: int = 0,
    generation: int = 0,
) -> AsyncGenerator[StoredBatch]:
    """Yield the batches of one queue; end when all that was acknowledged before has come.

    "Before" is the first call for a batch. All else is as with `follow`.
    """
    return _read(
        addresses, topic, queue_id, offset=start_offset, generation=generation, to_end=True
    )


async def _read(
    addresses: str | Sequence[str],
    topic: str,
    queue_id: int,
    *,
    offset: int,
    generation: int,
    to_end: bool,
) -> AsyncGenerator[StoredBatch]:
    nodes = nodes_of(addresses, for_what="reader")
    turn, backoff, doubted = 0, Backoff(_RETRY_S, _RETRY_MAX_S), False
    while True:
        async with Client(nodes[turn % len(nodes)]) as client:
            parts = client.read_parts(
                topic,
                queue_id,
                start_offset=offset,
                follow=not to_end,
                linearizable=to_end or doubted,
                generation=generation,
            )
            try:
                async with aclosing(parts):
                    async for told, batches in parts:
                        generation, doubted = told, False
                        for batch in batches:
                            yield batch
                            offset = batch.end_offset
                            backoff.reset()
                if to_end:
                    return
            except Unavailable:
                pass
            except UnknownTopic:
                if to_end or doubted:
                    raise
                doubted = True
                continue
        turn += 1
        await asyncio.sleep(backoff.next_s())
