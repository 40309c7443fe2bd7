"""Compact on the wire: what the request says, what the answer tells, and how a lie ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from dledger.errors import InvalidArgument
from dledger.replica.compacting import Claim
from dledger.replica.compactor import Compacted
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.compaction import CompactionServicer


class _Backend:
    """A node that notes what it is asked, and answers or raises what a test says."""

    def __init__(self, outcome: Compacted | InvalidArgument) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, Claim]] = []

    async def compact(self, group_id: str, claim: Claim, *, timeout_s: float) -> Compacted:
        assert 0 < timeout_s < 10
        self.asked.append((group_id, claim))
        if isinstance(self.outcome, InvalidArgument):
            raise self.outcome
        return self.outcome


@asynccontextmanager
async def _called(backend: _Backend) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((CompactionServicer(backend).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel.unary_unary(
            "/dledger.v1.Admin/Compact",
            request_serializer=pb.CompactRequest.SerializeToString,
            response_deserializer=pb.CompactResponse.FromString,
        )
    await server.stop(None)


_REQUEST = pb.CompactRequest(
    group_id="g",
    as_of_index=9,
    as_of_chain=8,
    topic="t",
    generation=7,
    queue_id=1,
    first=2,
    to=30,
    stays=b"bits",
    alone=b"more",
    again_in_ms=60_000,
    proofs=[pb.Beaten(offset=3, by=4), pb.Beaten(offset=5, by=5)],
)


async def test_a_claim_and_what_came_of_it_are_translated() -> None:
    """Each field, both ways."""
    backend = _Backend(Compacted(ask=(3, 5), kept=1, let_go=2, written_bytes=3, later=4))

    async with _called(backend) as call:
        answer = await call(_REQUEST, timeout=9)

    claim = Claim(
        as_of_index=9,
        as_of_chain=8,
        topic="t",
        generation=7,
        queue_id=1,
        first=2,
        to=30,
        stays=b"bits",
        alone=b"more",
        again_in_ms=60_000,
        proofs={3: 4, 5: 5},
    )
    assert backend.asked == [("g", claim)]
    assert answer == pb.CompactResponse(ask=[3, 5], kept=1, let_go=2, written_bytes=3, later=4)


async def test_a_lie_ends_the_call_by_name() -> None:
    """So that the job stops, and says which message it was."""
    async with _called(_Backend(InvalidArgument("offset 3 is a lie"))) as call:
        with pytest.raises(grpc.aio.AioRpcError, match="offset 3 is a lie") as caught:
            await call(_REQUEST, timeout=9)

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_two_bitmaps_of_a_mebibyte_have_room() -> None:
    """Even if nothing makes it smaller; more has not."""
    backend = _Backend(Compacted())
    large = pb.CompactRequest(stays=bytes(1 << 20), alone=bytes(1 << 20))

    async with _called(backend) as call:
        assert await call(large, timeout=9) == pb.CompactResponse()
        with pytest.raises(grpc.aio.AioRpcError, match="the limit is 3145728"):
            await call(pb.CompactRequest(stays=bytes(3 << 20)), timeout=9)
