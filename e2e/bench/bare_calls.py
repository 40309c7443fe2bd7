"""What gRPC itself costs here: unary calls of 1 KiB to a server that does nothing.

No node can serve a call for less than this server does, no Python client make one for less. As a
program it is that server.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from e2e.bench.bare_server import bare_server, serve
from e2e.bench.figures import latency_figures
from e2e.bench.machine import MACHINE
from e2e.bench.rows import Row
from e2e.harness.ports import HOST
from e2e.harness.processes import ChildProcess
from e2e.harness.waiting import HarnessError

BARE_CALLS: Final = "bare calls"
_SERVICE: Final = "dledger.bench.Bare"
_METHOD: Final = "Call"
_SIZE_BYTES: Final = 1024
_WINDOWS: Final = (64, 1)


def bare_rows(seconds: float, log: Path) -> list[Row]:
    """Measure calls a second, how long one takes, and what server and client need for it."""
    with bare_server("e2e.bench.bare_calls", log) as (server, port):
        return [_row(server, port, window, seconds) for window in _WINDOWS]


def _row(server: ChildProcess, port: int, window: int, seconds: float) -> Row:
    uvloop.run(_call(port, window, seconds / 4))
    before, client_before_s = server.usage(), time.process_time()
    latencies_us = uvloop.run(_call(port, window, seconds))
    after, client_s = server.usage(), time.process_time() - client_before_s
    if before is None or after is None:
        raise HarnessError(f"the bare server has ended, see {server.log}")
    calls = len(latencies_us)
    return Row(
        kind=BARE_CALLS,
        system=MACHINE,
        name=f"bare grpc.aio, unary calls of 1 KiB, {window} under way",
        size_bytes=_SIZE_BYTES,
        window=window,
        figures={
            "per_s": calls / seconds,
            "server_us": (after.cpu_s - before.cpu_s) * 1e6 / calls,
            "client_us": client_s * 1e6 / calls,
            **latency_figures(latencies_us),
        },
    )


async def _call(port: int, window: int, seconds: float) -> list[float]:
    """Return how long each call took, in us, of those that began within *seconds*."""
    body, latencies_us = os.urandom(_SIZE_BYTES), list[float]()
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call: Any = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
        end_s = time.monotonic() + seconds

        async def one_after_the_other() -> None:
            while (began_s := time.monotonic()) < end_s:
                await call(body)
                latencies_us.append((time.monotonic() - began_s) * 1e6)

        await asyncio.gather(*(one_after_the_other() for _ in range(window)))
    return latencies_us


def _handler(_: int) -> grpc.GenericRpcHandler:
    async def answer(request: bytes, _: Any) -> bytes:
        return request[:1]

    handlers = {_METHOD: grpc.unary_unary_rpc_method_handler(answer)}
    return grpc.method_handlers_generic_handler(_SERVICE, handlers)


if __name__ == "__main__":
    sys.exit(uvloop.run(serve(_handler)))
