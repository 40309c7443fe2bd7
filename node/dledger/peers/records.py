"""Entries that a peer's damaged log needs, by index: asked of any member, on the peer port.

Committed or not, leader or not: the asker knows each entry's identity and takes no other. One unary
call, with frames of its own::

    request  := first u64 | last u64 | max_bytes u32 | group id, UTF-8
    response := as `peer_codec.encode_entries`: those of [first, last] that are whole there
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final

import grpc
import grpc.aio

from dledger.errors import (
    DledgerError,
    FaultyEntry,
    InvalidArgument,
    NewerCommand,
    OffsetOutOfRange,
    StorageError,
    Unavailable,
    WrongGroup,
)
from dledger.peers.peer_codec import BadFrame, decode_entries, encode_entries
from dledger.peers.peers import Peers
from dledger.rpc.status import abort
from dledger.store.commit_log import CommitLog
from dledger.types import Entry, NodeId

SERVICE: Final = "dledger.v1.Records"
MAX_BYTES: Final = 4 << 20
"""Entry data in one answer; a larger entry comes alone."""
_METHOD: Final = "Read"
_TIMEOUT_S: Final = 5.0
_REQUEST: Final = struct.Struct("<QQI")


class RecordsServicer:
    """Answers from this node's log.

    Args:
        log: Returns the group's id and the open log; raises NotJoined.
    """

    def __init__(self, log: Callable[[], tuple[str, CommitLog]]) -> None:
        self._log = log

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service to register on the peer port's server."""
        read = grpc.unary_unary_rpc_method_handler(self._read)
        return grpc.method_handlers_generic_handler(SERVICE, {_METHOD: read})

    async def _read(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            return encode_entries(await self._entries(request))
        except struct.error as error:
            return await abort(context, InvalidArgument(f"request is cut short: {error}"))
        except DledgerError as error:
            return await abort(context, error)

    async def _entries(self, request: bytes) -> tuple[Entry, ...]:
        first, last, max_bytes = _REQUEST.unpack_from(request)
        group_id, log = self._log()
        asked = request[_REQUEST.size :].decode(errors="replace")
        if asked != group_id:
            raise WrongGroup(ours=group_id, theirs=asked)
        return await asyncio.to_thread(whole_entries, log, first, last, min(max_bytes, MAX_BYTES))


class RecordsClient:
    """Asks peers for entries."""

    def __init__(self, peers: Peers, group_id: str) -> None:
        self._peers = peers
        self._group_id = group_id

    def peers(self) -> list[NodeId]:
        """Return who can be asked now."""
        return self._peers.connected_ids()

    async def fetch(self, peer: NodeId, first: int, last: int) -> tuple[Entry, ...]:
        """Return entries of [first, last], as far as the peer has them.

        Raises:
            Unavailable: The peer did not answer, or not well.
        """
        request = _REQUEST.pack(first, last, MAX_BYTES) + self._group_id.encode()
        answer = await self._peers.ask(peer, f"/{SERVICE}/{_METHOD}", request, _TIMEOUT_S)
        try:
            return decode_entries(answer)
        except (BadFrame, NewerCommand) as error:
            raise Unavailable(f"{peer} sent entries that are of no use: {error}") from error


def whole_entries(log: CommitLog, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
    """Return what the log can give of [first, last], from the first whole entry on."""
    first, last = max(first, log.first_index), min(last, log.last_index)
    for damaged in log.faulty:
        if first in damaged:
            first = damaged.stop
    if first > last:
        return ()
    try:
        return log.read(first, last, max_bytes)
    except (FaultyEntry, OffsetOutOfRange, StorageError):
        return ()
