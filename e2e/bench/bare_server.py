"""A gRPC server that does nothing of its own: a child that answers its port as a line of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from e2e.harness.ports import HOST
from e2e.harness.processes import ChildProcess, Command

_ANSWER_S: Final = 20.0


@contextmanager
def bare_server(module: str, log: Path, *words: str) -> Iterator[tuple[ChildProcess, int]]:
    """Run *module* with these *words*, whose program answers its port; yield it and the port."""
    server = ChildProcess(Command((sys.executable, "-m", module, *words), answers=True), log)
    try:
        yield server, server.ask({}, timeout_s=_ANSWER_S)["port"]
    finally:
        server.stop()


async def serve(handler_at: Callable[[int], grpc.GenericRpcHandler]) -> int:
    """Serve what *handler_at* returns for the port, until the input ends."""
    server = grpc.aio.server()
    port = server.add_insecure_port(f"{HOST}:0")
    server.add_generic_rpc_handlers((handler_at(port),))
    await server.start()
    await answer_port(port)
    await server.stop(None)
    return 0


async def answer_port(port: int) -> None:
    """Answer the port to each line of the input, until that ends."""
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps({"port": port}), flush=True)
