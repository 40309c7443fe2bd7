"""What gRPC itself costs here: unary calls of 1 KiB to a server that does nothing.

No node can serve a call for less than these servers do, no Python client make one for less. As a
program it is one of them: gRPC's own, or with ``native`` ours.
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

from dledger.door.contract import Answer, Fail, Headers, Unary
from dledger.door.server import DoorServer
from dledger.server.config import GRPC, NATIVE
from e2e.bench.bare_server import answer_port, bare_server, serve
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
_WINDOWS: Final = (64, 16, 1)
_SERVERS: Final = {GRPC: "grpc.aio", NATIVE: "client port of ours"}


def bare_rows(seconds: float, log: Path) -> list[Row]:
    """Measure calls a second, how long one takes, and what server and client need for it."""
    rows = []
    for kind, name in _SERVERS.items():
        with bare_server("e2e.bench.bare_calls", log, kind) as (server, port):
            rows += [_row(name, server, port, window, seconds) for window in _WINDOWS]
    return rows


def _row(name: str, server: ChildProcess, port: int, window: int, seconds: float) -> Row:
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
        name=f"bare {name}, unary calls of 1 KiB, {window} under way",
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


async def _serve_natively() -> int:
    def answer(_: Headers, body: bytes, answer: Answer, __: Fail) -> None:
        answer(body[:1])

    server = DoorServer(f"{HOST}:0", {f"/{_SERVICE}/{_METHOD}": Unary(answer)})
    await server.start()
    await answer_port(int(server.address.rpartition(":")[2]))
    await server.stop(0)
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(_serve_natively() if sys.argv[1:] == [NATIVE] else serve(_handler)))
