"""The Admin service's calls about transactions that their producers did not end.

Served by the leader. Nothing is ever dropped, so a producer that never comes back leaves its
transactions here: people see them, and end them in its place.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

import grpc

from dledger.broker.held_refs import HOUR_BITS, SLOT_BITS, Fate, Ref
from dledger.broker.open_halves import OpenHalf
from dledger.errors import DledgerError, InvalidArgument, Unavailable
from dledger.requests.engine import Engine
from dledger.requests.half_ends import commit, read_half, roll_back
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service, at_leader

MAX_NAMED: Final = 1_000
"""Transactions of one call."""
_NAME: Final = re.compile(r"([0-9]{1,7})-([0-9]{1,9})")
_WAS: Final = {
    Fate.HELD: "open",
    Fate.DELIVERED: "committed",
    Fate.CANCELLED: "rolled-back",
    Fate.UNKNOWN: "unknown",
}


class TransactionAdminServicer:
    """Lists open transactions, and ends them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register on the peer port's server, beside the others of Admin."""
        return admin_service(
            {
                "ListTransactions": (
                    pb.ListTransactionsRequest,
                    at_leader(self._engine, self._list),
                ),
                "EndTransactions": (pb.EndTransactionsRequest, at_leader(self._engine, self._end)),
            }
        )

    async def _list(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        """Return open transactions, those of the earliest first checks first."""
        state, generation = self._engine.state, 0
        if request.topic:
            generation = state.topics.named(request.topic).generation
        after = _ref(request.after) if request.after else Ref(-1, 0)
        most = min(max(request.limit, 1), MAX_NAMED)
        wanted = (
            (ref, half)
            for ref, half in state.held.open_halves.items()
            if ref > after and generation in (0, half.generation)
        )
        found = list(islice(wanted, most + 1))
        response = pb.ListTransactionsResponse(more=len(found) > most)
        for ref, half in found[:most]:
            response.transactions.append(await self._describe(ref, half))
        return response

    async def _describe(self, ref: Ref, half: OpenHalf) -> pb.Transaction:
        held = self._engine.state.held
        described = pb.Transaction(
            name=name_of(ref),
            since_ms=half.since_ms,
            checks=half.checks,
            next_ms=half.next_ms,
            waits=held.is_waiting(ref),
        )
        try:
            found = await read_half(self._engine, ref)
        except Unavailable:
            found = None
        if found is not None:
            topic = self._engine.state.topics.get(found.topic)
            is_there = topic is not None and topic.generation == half.generation
            described.topic = found.topic if is_there else ""
            described.client_id = found.client_id.partition("#")[0]
            if found.message is not None:
                described.message_id = found.message.message_id
                described.size_bytes = len(found.message.body)
        return described

    async def _end(self, request: pb.EndTransactionsRequest) -> pb.EndTransactionsResponse:
        """End transactions one by one; what cannot be ended now stays, and says why."""
        if len(request.names) > MAX_NAMED:
            raise InvalidArgument(
                f"a call ends {MAX_NAMED} transactions at most, not {len(request.names)}"
            )
        refs = list(map(_ref, request.names))
        response = pb.EndTransactionsResponse()
        for ref in refs:
            ended = pb.EndedTransaction(name=name_of(ref))
            try:
                work = commit if request.commits else roll_back
                ended.was = _WAS[await work(self._engine, ref)]
            except DledgerError as error:
                ended.stays_because = str(error)
            response.transactions.append(ended)
        return response


def name_of(ref: Ref) -> str:
    """Return what people call a transaction."""
    return f"{ref.hour}-{ref.slot}"


def _ref(name: str) -> Ref:
    found = _NAME.fullmatch(name)
    ref = Ref(int(found[1]), int(found[2])) if found else None
    if ref is None or ref.hour >> HOUR_BITS or ref.slot >> SLOT_BITS:
        raise InvalidArgument(f"{name[:80]!r} is no transaction: they are called HOUR-SLOT")
    return ref
