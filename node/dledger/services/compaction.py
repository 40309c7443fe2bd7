"""The Admin service's call for compaction: it translates, and decides nothing.

For the job that has read all keys of a compacted topic; `replica.compactor` serves it.
"""

from __future__ import annotations

from typing import Protocol

import grpc

from dledger.replica.compacting import Claim
from dledger.replica.compactor import Compacted
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service


class CompactionBackend(Protocol):
    """What the node does for the call."""

    async def compact(self, group_id: str, claim: Claim, *, timeout_s: float) -> Compacted:
        """Let go of what a claim of that group says may go; see `Compactor.compact`.

        Raises WrongGroup and NotJoined, too.
        """


class CompactionServicer:
    """Serves Compact."""

    def __init__(self, backend: CompactionBackend) -> None:
        self._backend = backend

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register on the peer port's server, beside `AdminServicer`'s."""
        return admin_service({"Compact": (pb.CompactRequest, self._compact)})

    async def _compact(self, request: pb.CompactRequest, timeout_s: float) -> pb.CompactResponse:
        claim = Claim(
            as_of_index=request.as_of_index,
            as_of_chain=request.as_of_chain,
            topic=request.topic,
            generation=request.generation,
            queue_id=request.queue_id,
            first=request.first,
            to=request.to,
            stays=request.stays,
            alone=request.alone,
            again_in_ms=request.again_in_ms,
            proofs={proof.offset: proof.by for proof in request.proofs},
        )
        done = await self._backend.compact(request.group_id, claim, timeout_s=timeout_s)
        return pb.CompactResponse(
            ask=done.ask,
            kept=done.kept,
            let_go=done.let_go,
            written_bytes=done.written_bytes,
            later=done.later,
        )
