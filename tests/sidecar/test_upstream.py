"""A call that has ended keeps nothing of what it brought: requests of a replay are of megabytes."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from dledger.rpc.rocketmq_stubs import SERVICE_NAME
from dledger.sidecar.upstream import Upstream, UpstreamError, path_of
from e2e.harness.ports import free_port_range
from tests.waiting import eventually

SEND = path_of("SendMessage")


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """The sidecar collects cycles seldom: what is in one stays for a minute and more."""
    gc.disable()
    yield
    gc.enable()


async def _let_go(address: str, calls: int = 3) -> None:
    """Call, and wait until nobody has the request any more."""
    upstream, body = Upstream([address]), b"x" * 1000
    before = sys.getrefcount(body)
    for _ in range(calls):
        with contextlib.suppress(UpstreamError):
            await upstream.unary(SEND, body, (), 10.0)
    await eventually(lambda: sys.getrefcount(body) == before, "requests to be let go")
    await upstream.close()


async def test_a_call_that_reaches_nobody_lets_its_request_go() -> None:
    """Found: an outage of a minute, with 100,000 messages of 1 KiB waiting, took 3 GB."""
    await _let_go(f"127.0.0.1:{free_port_range()}")


async def test_a_call_that_is_answered_lets_its_request_go() -> None:
    """A replay makes one after the other."""
    got: list[int] = []

    async def answer(request: bytes, context: object) -> bytes:
        got.append(len(request))
        return b""

    handlers = {"SendMessage": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        await _let_go(f"127.0.0.1:{port}")
    finally:
        await server.stop(0)

    assert got == [1000, 1000, 1000]
