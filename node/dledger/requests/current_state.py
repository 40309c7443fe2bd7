"""Waits until this node's state has all that was acknowledged before a call came.

A follower answers reads from its own state, which may lag; where that would matter it asks its
leader how far to wait (thesis 6.4).
"""

from __future__ import annotations

from typing import Final

from dledger.calls.caller import Caller
from dledger.requests.engine import Engine
from dledger.requests.forward import Relay
from dledger.rpc.pb import dledger_pb2 as pb

READ_INDEX: Final = "/dledger.v1.Ledger/ReadIndex"


async def catch_up(engine: Engine, relay: Relay, caller: Caller, timeout_s: float) -> None:
    """Wait until this node has applied every write acknowledged before the call.

    Raises:
        Unavailable: There is no leader, or this node is further behind than *timeout_s*.
        Overloaded: Too many wait already.
    """

    async def ask() -> int:
        if engine.is_leader():
            return await engine.read_index()
        answer = await relay.unary(READ_INDEX, b"", caller)
        return int(pb.ReadIndexResponse.FromString(answer).index)

    index = await relay.run(caller, 0, ask)
    await engine.wait_applied(index, timeout_s)
