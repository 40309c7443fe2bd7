"""The clients of the overload rows: more than the group can take, in one way or another.

Requests are unary ``Ledger.Append`` calls of bytes made beforehand, so that a client costs little;
each gets message ids of its own. Asked as `e2e.bench.loads` says, with these modes:

- ``{"mode": "closed", "window", "batch", "size_bytes", "seconds"}``: answers ``{"per_s"}``.
- ``{"mode": "flood", "rate", "batch", "size_bytes", "seconds"}``: requests due at fixed times,
  whatever came of those before. Answers ``{"sent", "refused", "untyped", "expired",
  "latencies_us"}``: the counts by error, those that waited until their own deadline (gRPC's client
  calls some of them cancelled), and the latencies of acknowledged requests.
- ``{"mode": "hold", "connections"}``: opens so many connections that speak HTTP/2 and ask for
  nothing; answers ``{"open", "turned_away"}``. ``{"mode": "release"}`` closes them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import sys
import time
import uuid
from collections import Counter
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from dledger.client import Client
from dledger.rpc.channel import OPTIONS
from dledger.rpc.metadata import by_key
from dledger.rpc.pb import dledger_pb2 as pb
from e2e.bench.figures import send_times
from e2e.bench.load_server import Answer, closed_loop, open_loop, serve

TOPIC: Final = "overload"
_QUEUES: Final = 8
_METHOD: Final = "/dledger.v1.Ledger/Append"
_TIMEOUT_S: Final = 10.0
_CHANNELS: Final = 4
_MARK: Final = b"number--number--"
_MAX_UNDER_WAY: Final = 20_000
_OPENED_AT_ONCE: Final = 200
_ACCEPTED_S: Final = 5.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How an HTTP/2 connection begins, and empty SETTINGS."""


def main() -> int:
    """Answer until the input ends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return uvloop.run(_serve(sys.argv[1].split(",")))


async def _serve(endpoints: list[str]) -> int:
    async with Client(endpoints[0], timeout_s=30) as client:
        await client.create_topic(TOPIC, queues=_QUEUES)
    load = OverloadLoad(endpoints)
    modes = (load.closed, load.flood, load.hold, load.release)
    return await serve({mode.__name__: mode for mode in modes})


class Requests:
    """Append requests of one shape; each with ids that no other one has."""

    def __init__(self, batch: int, size_bytes: int) -> None:
        body, run = os.urandom(size_bytes), uuid.uuid4().hex[:8]
        records = [
            pb.Record(message_id=f"{run}{row:04x}{_MARK.decode()}", body=body)
            for row in range(batch)
        ]
        request = pb.AppendRequest(client_id="overload", topic=TOPIC, queue_id=-1, records=records)
        self._parts = request.SerializeToString().split(_MARK)
        self._numbers = itertools.count()

    def next(self) -> bytes:
        """Return one more."""
        return (b"%016x" % next(self._numbers)).join(self._parts)


class OverloadLoad:
    """The clients of one run."""

    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints
        self._held: list[asyncio.StreamWriter] = []

    async def closed(
        self, *, node: int, window: int, batch: int, size_bytes: int, seconds: float
    ) -> Answer:
        """Keep *window* requests under way; return how many a second were acknowledged."""
        requests, tally = Requests(batch, size_bytes), RefusalTally()
        began_s = time.monotonic()
        async with Channels(self._endpoints[node]) as channels:
            await closed_loop(
                window, seconds, lambda s: tally.call(channels.next(), requests.next(), s)
            )
        return tally.answer() | {"per_s": tally.acked / (time.monotonic() - began_s)}

    async def flood(
        self, *, node: int, rate: float, batch: int, size_bytes: int, seconds: float
    ) -> Answer:
        """Send at fixed times, whatever comes of it."""
        requests, tally = Requests(batch, size_bytes), RefusalTally()
        end_s = time.monotonic() + seconds
        times_s = itertools.takewhile(
            lambda _: time.monotonic() <= end_s, send_times(rate, seconds)
        )
        async with Channels(self._endpoints[node]) as channels:
            await open_loop(
                times_s,
                lambda s: tally.call(channels.next(), requests.next(), s),
                most=_MAX_UNDER_WAY,
            )
        return tally.answer()

    async def hold(self, *, node: int, connections: int) -> Answer:
        """Open connections that ask for nothing."""
        host, _, port = self._endpoints[node].rpartition(":")
        gate = asyncio.Semaphore(_OPENED_AT_ONCE)
        opened = await asyncio.gather(
            *(self._open(gate, host, int(port)) for _ in range(connections))
        )
        return {"open": sum(opened), "turned_away": connections - sum(opened)}

    async def _open(self, gate: asyncio.Semaphore, host: str, port: int) -> bool:
        """Open one, and see whether the node answers."""
        async with gate:
            try:
                async with asyncio.timeout(_ACCEPTED_S):
                    reader, writer = await asyncio.open_connection(host, port)
                    self._held.append(writer)
                    writer.write(_PREFACE)
                    return bool(await reader.read(1))
            except (OSError, TimeoutError):
                return False

    async def release(self) -> Answer:
        """Close them all."""
        for writer in self._held:
            writer.close()
        self._held = []
        return {}


class Channels:
    """A few connections to one node, used in turn."""

    def __init__(self, endpoint: str) -> None:
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self._channels = [
            grpc.aio.insecure_channel(endpoint, options=options) for _ in range(_CHANNELS)
        ]
        self._turns = itertools.cycle([each.unary_unary(_METHOD) for each in self._channels])

    async def __aenter__(self) -> Channels:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()

    def next(self) -> Any:
        """Return the method at the next connection."""
        return next(self._turns)


class RefusalTally:
    """What became of requests."""

    def __init__(self) -> None:
        self.acked = self._sent = self._expired = 0
        self._latencies_us: list[int] = []
        self._refused: Counter[str] = Counter()
        self._untyped: Counter[str] = Counter()

    async def call(self, method: Any, request: bytes, due_s: float) -> None:
        """Send one request, and count what comes."""
        self._sent += 1
        ends_s = time.monotonic() + _TIMEOUT_S
        try:
            await method(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if time.monotonic() >= ends_s:
                self._expired += 1
            else:
                self._count(error)
            return
        self.acked += 1
        self._latencies_us.append(round((time.monotonic() - due_s) * 1e6))

    def _count(self, error: grpc.aio.AioRpcError) -> None:
        """Tell what the node says by name, or gRPC itself by its code, from what nobody says."""
        name = by_key(error.trailing_metadata()).get("dledger-error")
        if name is not None:
            self._refused[str(name)] += 1
        elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._refused[str(error.details())[:60]] += 1
        else:
            self._untyped[f"{error.code().name}: {error.details()}"[:80]] += 1

    def answer(self) -> Answer:
        """Return it in the bench's language."""
        return {
            "sent": self._sent,
            "refused": dict(self._refused),
            "untyped": dict(self._untyped),
            "expired": self._expired,
            "latencies_us": self._latencies_us,
        }


if __name__ == "__main__":
    sys.exit(main())
