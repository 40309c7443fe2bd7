"""Logs to measure with: messages of 1 KiB through a node, and single ones as records in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import islice
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.client import Client, Record
from dledger.store.format import encode_records
from dledger.types import Entry, EntryKind
from dledger_pipeline.log.records import RecordBytes, parse

TOPIC: Final = "bench"
BATCH: Final = 256
BODY_BYTES: Final = 1024
_QUEUES: Final = 8
_BODIES: Final = 1 << 14
"""Of single messages; they come again after 16 MiB, which is beyond zstd's window at level 1."""
_CHUNK_ENTRIES: Final = 3_500
"""Some 4 MiB, as a node's Export sends."""
_BEGAN_MS: Final = 1_767_225_600_000
_WORDS: Final = ("paid", "shipped", "returned", "EUR", "USD", "express", "standard", "pending")


def produce(address: str, body_bytes: int, *, client_id: str = "bench", topic: str = TOPIC) -> int:
    """Append keyed messages of so many bytes of bodies, 256 a batch; return how many."""
    return asyncio.run(_produce(address, body_bytes, client_id, topic))


async def _produce(address: str, body_bytes: int, client_id: str, topic: str) -> int:
    rng = random.Random(4)
    batches = max(1, body_bytes // (BATCH * BODY_BYTES))
    async with Client(address, timeout_s=120, client_id=client_id) as client:
        await client.create_topic(topic, queues=_QUEUES)
        for batch in range(batches):
            records = [_record(rng, f"{batch}-{row}") for row in range(BATCH)]
            await client.append(topic, records)
    return batches * BATCH


def _record(rng: random.Random, name: str) -> Record:
    return Record(body=body(rng, name), message_id=name, keys=(f"order-{rng.randrange(10_000)}",))


def body(rng: random.Random, name: str) -> bytes:
    """Return the body of a message: 1 KiB of text, a third of it random."""
    text = f'{{"order":"{name}","token":"{rng.randbytes(170).hex()}"'
    while len(text) < BODY_BYTES - 1:
        text += f',"{rng.choice(_WORDS)}":"{rng.choice(_WORDS)}"'
    return text[: BODY_BYTES - 1].encode() + b"}"


def single_message_log(body_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a log in which each holds one message, as `records.parse` gives them."""
    rng = random.Random(5)
    bodies = [body(rng, str(number)) for number in range(_BODIES)]
    previous_chain, first_index = 0, 1
    entries = (_entry(index, bodies) for index in range(1, body_bytes // BODY_BYTES + 1))
    for some in iter(lambda: list(islice(entries, _CHUNK_ENTRIES)), []):
        encoded = encode_records(some, chain=previous_chain, position=0)
        yield parse(
            RecordBytes(
                segment="of single messages",
                offset=0,
                data=b"".join(encoded.buffers),
                positions=None,
                previous_chain=previous_chain,
                first_index=first_index,
            )
        )
        previous_chain, first_index = encoded.chains[-1], first_index + len(some)


def _entry(index: int, bodies: list[bytes]) -> Entry:
    columns = Columns(
        message_ids=(f"m-{index}",),
        bodies=(bodies[index % _BODIES],),
        born_at_ms=(_BEGAN_MS + index,),
        keys=((f"order-{index % 10_000}",),),
    )
    data = encode_produce(columns, client_id="bench", topic=TOPIC, queue_id=index % _QUEUES)
    return Entry(
        term=1,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=_BEGAN_MS + index,
        crc32c=crc32c(data),
        data=data,
    )
