"""Load through `dledger.client`, as `e2e.bench.loads` asks for it.

Messages of one size and batch size have a topic of their own. Beside ``append`` it knows ``read``:
such a topic's committed messages, all queues from their first offset, by *window* readers at once,
until *seconds* have passed; a "request" is a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import Final

import uvloop

from dledger.client import AppendStream, Client
from dledger.errors import DledgerError
from e2e.bench.figures import send_times
from e2e.bench.load_server import Answer, Tally, closed_loop, open_loop, serve
from e2e.harness.tasks import cancelled

QUEUES: Final = 8
_ATTEMPT_S: Final = 30.0


def main() -> int:
    """Answer until the input ends."""
    return uvloop.run(_serve(sys.argv[1].split(",")))


async def _serve(endpoints: list[str]) -> int:
    writer = Steady(endpoints)
    return await serve(
        {
            "append": lambda node, **asked: append(endpoints[node], **asked),
            "read": lambda node, **asked: read(endpoints[node], **asked),
            "steady": writer.start,
            "acks": writer.acks,
            "stop": writer.stop,
        }
    )


def topic_of(size_bytes: int, batch: int) -> str:
    """Return the topic of messages of a size and batch size."""
    return f"bench-{size_bytes}-{batch}"


async def append(
    endpoint: str, *, size_bytes: int, batch: int, window: int, seconds: float, rate: float
) -> Answer:
    """Append batches in a closed or an open loop."""
    bodies = [os.urandom(size_bytes) for _ in range(batch)]
    topic = topic_of(size_bytes, batch)
    async with Client(endpoint, timeout_s=_ATTEMPT_S) as client:
        await client.create_topic(topic, queues=QUEUES)
    async with AppendStream(endpoint, timeout_s=_ATTEMPT_S) as stream:
        await stream.append(topic, bodies)  # connecting is no part of what is measured
        tally = Tally(seconds)

        async def attempt(due_s: float) -> None:
            try:
                await stream.append(topic, bodies)
                tally.note(due_s, late=rate > 0)  # an open loop waits for what it has begun
            except DledgerError:
                tally.note_failure()

        if rate > 0:
            await open_loop(send_times(rate, seconds), attempt)
        else:
            await closed_loop(window, seconds, attempt)
    return tally.answer()


async def read(
    endpoint: str, *, size_bytes: int, batch: int, window: int, seconds: float, rate: float
) -> Answer:
    """Read committed messages, each batch taken apart."""
    del rate
    topic = topic_of(size_bytes, batch)
    counts = [0] * QUEUES
    began_s = time.monotonic()
    async with Client(endpoint) as client:
        pending = list(range(QUEUES))

        async def reader() -> None:
            while pending:
                queue_id = pending.pop()
                async for found in client.read_batches(topic, queue_id):
                    counts[queue_id] += len(found.bodies())

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(reader() for _ in range(window)))
    took_s = time.monotonic() - began_s
    batches = sum(counts) // batch
    return {"requests": batches, "failures": 0, "seconds": took_s, "latencies_us": []}


class Steady:
    """One writer in the background that notes its acknowledgements."""

    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self._acks_ns: list[int] = []
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, node: int, size_bytes: int, pace_s: float) -> Answer:
        """Start to write through one node."""
        self._task = asyncio.create_task(self._write(self._endpoints[node], size_bytes, pace_s))
        return {"acks_ns": [], "failures": 0}

    async def _write(self, endpoint: str, size_bytes: int, pace_s: float) -> None:
        body = os.urandom(size_bytes)
        async with Client(endpoint, timeout_s=_ATTEMPT_S) as client:
            while True:
                try:
                    await client.append("bench-steady", [body])
                    self._acks_ns.append(time.monotonic_ns())
                except DledgerError:
                    self._failures += 1
                await asyncio.sleep(pace_s)

    async def acks(self) -> Answer:
        """Return what came since the last question."""
        taken = {"acks_ns": self._acks_ns, "failures": self._failures}
        self._acks_ns, self._failures = [], 0
        return taken

    async def stop(self) -> Answer:
        """End the writer."""
        assert self._task is not None
        await cancelled(self._task)
        return await self.acks()


if __name__ == "__main__":
    sys.exit(main())
