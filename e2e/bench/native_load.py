"""Load through `dledger.client`, as `e2e.bench.loads` asks for it.

Messages of one size and batch size have a topic of their own. Beside ``append`` it knows ``read``:
such a topic's committed messages, all queues from their first offset, by *window* readers at once,
until *seconds* have passed; a "request" is a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

from dledger.client import AppendStream, Client
from dledger.errors import DledgerError
from e2e.bench.figures import send_times

QUEUES: Final = 8
_ATTEMPT_S: Final = 30.0
_MAX_UNDER_WAY: Final = 4096
"""Requests of an open loop at once; beyond, a due request waits, and its latency shows it."""


def main() -> int:
    """Answer until the input ends."""
    return uvloop.run(serve(sys.argv[1].split(",")))


async def serve(endpoints: list[str]) -> int:
    """Answer one request after the other."""
    writer = Steady(endpoints)
    modes: dict[str, Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]] = {
        "append": lambda asked: append(endpoints[asked["node"]], asked),
        "read": lambda asked: read(endpoints[asked["node"]], asked),
        "steady": writer.start,
        "acks": writer.acks,
        "stop": writer.stop,
    }
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        try:
            answer = await modes[asked["mode"]](asked)
        except DledgerError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


class Tally:
    """What is counted while a load runs."""

    def __init__(self, seconds: float) -> None:
        self.began_s = time.monotonic()
        self.end_s = self.began_s + seconds
        self.seconds = seconds
        self.latencies_us: list[int] = []
        self.failures = 0

    async def call(self, attempt: Coroutine[Any, Any, Any], due_s: float, *, late: bool) -> None:
        """Await *attempt*; *late* answers, behind the end, count in an open loop only."""
        try:
            await attempt
        except DledgerError:
            self.failures += 1
            return
        now_s = time.monotonic()
        if late or now_s <= self.end_s:
            self.latencies_us.append(round((now_s - due_s) * 1e6))

    def answer(self) -> dict[str, Any]:
        """Return it in the bench's language."""
        return {
            "requests": len(self.latencies_us),
            "failures": self.failures,
            "seconds": self.seconds,
            "latencies_us": self.latencies_us,
        }


def topic_of(asked: dict[str, Any]) -> str:
    """Return the topic of the messages that are asked for."""
    return f"bench-{asked['size_bytes']}-{asked['batch']}"


async def append(endpoint: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Append batches in a closed or an open loop."""
    bodies = [os.urandom(asked["size_bytes"]) for _ in range(asked["batch"])]
    topic = topic_of(asked)
    async with Client(endpoint, timeout_s=_ATTEMPT_S) as client:
        await client.create_topic(topic, queues=QUEUES)
    async with AppendStream(endpoint, timeout_s=_ATTEMPT_S) as stream:
        await stream.append(topic, bodies)  # connecting is no part of what is measured
        tally = Tally(asked["seconds"])
        if asked["rate"] > 0:
            await _open_loop(tally, asked["rate"], lambda: stream.append(topic, bodies))
        else:
            await _closed_loop(tally, asked["window"], lambda: stream.append(topic, bodies))
    return tally.answer()


async def _closed_loop(
    tally: Tally, window: int, attempt: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    async def worker() -> None:
        while (due_s := time.monotonic()) < tally.end_s:
            await tally.call(attempt(), due_s, late=False)

    await asyncio.gather(*(worker() for _ in range(window)))


async def _open_loop(
    tally: Tally, rate: float, attempt: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    free = asyncio.Semaphore(_MAX_UNDER_WAY)

    async def one(due_s: float) -> None:
        try:
            await tally.call(attempt(), due_s, late=True)
        finally:
            free.release()

    async with asyncio.TaskGroup() as group:
        for offset_s in send_times(rate, tally.seconds):
            due_s = tally.began_s + offset_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await free.acquire()
            group.create_task(one(due_s))


async def read(endpoint: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Read committed messages, each batch taken apart."""
    topic = topic_of(asked)
    counts = [0] * QUEUES
    began_s = time.monotonic()
    async with Client(endpoint) as client:

        async def queue(queue_id: int) -> None:
            async for batch in client.read_batches(topic, queue_id):
                counts[queue_id] += len(batch.bodies())

        pending = list(range(QUEUES))

        async def reader() -> None:
            while pending:
                await queue(pending.pop())

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(asked["seconds"]):
                await asyncio.gather(*(reader() for _ in range(asked["window"])))
    took_s = time.monotonic() - began_s
    batches = sum(counts) // asked["batch"]
    return {"requests": batches, "failures": 0, "seconds": took_s, "latencies_us": []}


class Steady:
    """One writer in the background that notes its acknowledgements."""

    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self._acks_ns: list[int] = []
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Start to write through one node."""
        endpoint = self._endpoints[asked["node"]]
        self._task = asyncio.create_task(self._write(endpoint, asked))
        return {"acks_ns": [], "failures": 0}

    async def _write(self, endpoint: str, asked: dict[str, Any]) -> None:
        body = os.urandom(asked["size_bytes"])
        async with Client(endpoint, timeout_s=_ATTEMPT_S) as client:
            while True:
                try:
                    await client.append("bench-steady", [body])
                    self._acks_ns.append(time.monotonic_ns())
                except DledgerError:
                    self._failures += 1
                await asyncio.sleep(asked["pace_s"])

    async def acks(self, _: dict[str, Any]) -> dict[str, Any]:
        """Return what came since the last question."""
        taken = {"acks_ns": self._acks_ns, "failures": self._failures}
        self._acks_ns, self._failures = [], 0
        return taken

    async def stop(self, asked: dict[str, Any]) -> dict[str, Any]:
        """End the writer."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        return await self.acks(asked)


if __name__ == "__main__":
    sys.exit(main())
