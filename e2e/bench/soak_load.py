"""The soak's clients: numbered batches at a fixed rate, single messages beside, readers of all.

Asked as `e2e.bench.loads` says, with these modes:

- ``{"mode": "closed", "window", "batch", "size_bytes", "seconds"}``: as many batches as get
  through; answers ``{"per_s"}``, in batches.
- ``{"mode": "fill", "messages", "size_bytes"}``: so many single messages, each by itself as later,
  as quickly as they go.
- ``{"mode": "start", "rate", "batch", "size_bytes", "singles"}``: batches, and single messages
  through a batching producer, due at fixed times from now on.
- ``{"mode": "tell"}``: what came since the last question: ``{"latencies_us", "gap_s"}``, and
  ``{"failures"}`` by type so far.
- ``{"mode": "stop", "seconds"}``: ends both, waits for the readers, answers what the audits found.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, Final

import uvloop

from dledger.client import AppendStream, BatchingProducer, Client, follow
from e2e.bench.load_server import Answer, closed_loop, every, open_loop, serve
from e2e.harness.sequence import HEAD_BYTES, SequenceAudit, numbered

TOPICS: Final = ("soak", "soak-singles")
_QUEUES: Final = 8
_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.1
_FILLERS: Final = 512
_ALONE: Final = 1
"""Bytes of a batch: any message is more, and makes one of its own."""


def main() -> int:
    """Answer until the input ends."""
    return uvloop.run(_serve(sys.argv[1].split(",")))


async def _serve(endpoints: list[str]) -> int:
    async with (
        AppendStream(endpoints, timeout_s=_TIMEOUT_S) as stream,
        BatchingProducer(endpoints, batch_bytes=_ALONE, timeout_s=_TIMEOUT_S) as producer,
    ):
        load = SoakLoad(endpoints, stream, producer)
        await load.prepare()
        modes = (load.closed, load.fill, load.start, load.tell, load.stop)
        code = await serve({mode.__name__: mode for mode in modes})
        load.end_reading()
    return code


class SoakLoad:
    """The clients of one run."""

    def __init__(
        self, endpoints: list[str], stream: AppendStream, producer: BatchingProducer
    ) -> None:
        self._endpoints, self._stream, self._producer = endpoints, stream, producer
        self._audits = {topic: SequenceAudit() for topic in TOPICS}
        self._sent = dict.fromkeys(TOPICS, 0)
        self._failures: Counter[str] = Counter()
        self._latencies_us: list[int] = []
        self._gap_s = 0.0
        self._acked_s = time.monotonic()
        self._readers: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        """Create the topics, and begin to read them."""
        async with Client(self._endpoints[0], timeout_s=_TIMEOUT_S) as client:
            for topic in TOPICS:
                await client.create_topic(topic, queues=_QUEUES)
        for number, (topic, queue_id) in enumerate(itertools.product(TOPICS, range(_QUEUES))):
            shift = number % len(self._endpoints)
            nodes = [*self._endpoints[shift:], *self._endpoints[:shift]]
            self._readers.append(asyncio.create_task(self._read(nodes, topic, queue_id)))

    def end_reading(self) -> None:
        """Stop the readers."""
        for reader in self._readers:
            reader.cancel()

    async def _read(self, nodes: list[str], topic: str, queue_id: int) -> None:
        async for batch in follow(nodes, topic, queue_id):
            self._audits[topic].read(queue_id, batch.bodies())

    # -- writing ---------------------------------------------------------------------------------

    async def _batch(self, batch: int, filler: bytes, due_s: float) -> None:
        await self._attempt(
            TOPICS[0],
            lambda number: self._stream.append(TOPICS[0], numbered(number, batch, filler)),
            due_s,
        )

    async def _single(self, filler: bytes, due_s: float) -> None:
        await self._attempt(
            TOPICS[1],
            lambda number: self._producer.send(
                TOPICS[1], numbered(number, 1, filler)[0], queue_id=number % _QUEUES
            ),
            due_s,
        )

    async def _attempt(
        self, topic: str, send: Callable[[int], Coroutine[Any, Any, Any]], due_s: float
    ) -> None:
        number = self._sent[topic]
        self._sent[topic] += 1
        try:
            await send(number)
        except Exception as error:  # noqa: BLE001 - a client that breaks has failed its caller, too
            self._failures[type(error).__name__] += 1
            return
        self._audits[topic].acked(number)
        now_s = time.monotonic()
        self._gap_s = max(self._gap_s, now_s - self._acked_s)
        self._acked_s = now_s
        self._latencies_us.append(round((now_s - due_s) * 1e6))

    async def closed(self, *, window: int, batch: int, size_bytes: int, seconds: float) -> Answer:
        """Keep *window* batches under way; return how many a second were acknowledged."""
        filler = os.urandom(size_bytes - HEAD_BYTES)
        end_s = time.monotonic() + seconds
        done = 0

        async def attempt(due_s: float) -> None:
            nonlocal done
            await self._batch(batch, filler, due_s)
            done += time.monotonic() <= end_s

        await closed_loop(window, seconds, attempt)
        self._latencies_us, self._gap_s = [], 0.0
        return {"per_s": done / seconds}

    async def fill(self, *, messages: int, size_bytes: int) -> Answer:
        """Send so many single messages, before anything counts."""
        filler = os.urandom(size_bytes - HEAD_BYTES)
        left = iter(range(messages))

        async def worker() -> None:
            for _ in left:
                await self._single(filler, time.monotonic())

        await asyncio.gather(*(worker() for _ in range(_FILLERS)))
        self._latencies_us, self._gap_s = [], 0.0
        return {}

    async def start(self, *, rate: float, batch: int, size_bytes: int, singles: float) -> Answer:
        """Send from now on: batches, and single messages beside them."""
        filler = os.urandom(size_bytes - HEAD_BYTES)
        self._acked_s = time.monotonic()
        self._writers = [
            asyncio.create_task(open_loop(every(1 / each), send))
            for each, send in (
                (rate, lambda due_s: self._batch(batch, filler, due_s)),
                (singles, lambda due_s: self._single(filler, due_s)),
            )
            if each > 0
        ]
        return {}

    async def tell(self) -> Answer:
        """Return what came since the last question."""
        told = {
            "latencies_us": self._latencies_us,
            "gap_s": max(self._gap_s, time.monotonic() - self._acked_s),
            "failures": dict(self._failures),
        }
        self._latencies_us, self._gap_s = [], 0.0
        return told

    async def stop(self, *, seconds: float) -> Answer:
        """End writing; return the audits once everything was read, at the latest after *seconds*.

        A reader that gave up counts as a failure: what it should have read is lost.
        """
        for writer in self._writers:
            writer.cancel()
        for ended in await asyncio.gather(*self._writers, return_exceptions=True):
            if isinstance(ended, Exception):
                self._failures[f"writer: {ended!r}"] += 1
        for _ in range(int(seconds / _POLL_S)):
            if not any(audit.missing for audit in self._audits.values()):
                break
            await asyncio.sleep(_POLL_S)
        for reader in self._readers:
            if reader.done() and (error := reader.exception()) is not None:
                self._failures[f"reader: {error}"] += 1
        return {
            "audits": {
                topic: {"sent": self._sent[topic], **asdict(audit.found())}
                for topic, audit in self._audits.items()
            },
            "failures": dict(self._failures),
        }


if __name__ == "__main__":
    sys.exit(main())
