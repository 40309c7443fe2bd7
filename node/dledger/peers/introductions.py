"""Who a member is that this node does not know yet: it asks the members that it does know.

A node that lags, or was away, may be greeted by a member that an entry added which it does not have
yet. It must hear it, or a group that needs this node stands still; but not on the sender's word. So
each member that this node knows is asked, at its own address, who else is one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from google.protobuf.message import DecodeError

from dledger.common.words import check_member
from dledger.errors import InvalidArgument, Unavailable
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import Member, NodeId

logger = logging.getLogger(__name__)

_METHOD: Final = "/dledger.v1.Admin/Status"
_TIMEOUT_S: Final = 1.0
_EVERY_S: Final = 0.5
"""Members are asked no more often, however many strangers greet."""
_MAX_ANSWER_BYTES: Final = 256 << 10
_MAX_MEMBERS: Final = 64


class Introductions:
    """What the members say of who is one, kept for a moment.

    Args:
        ask: Calls a method of a member's peer port: (member, method, request, timeout in seconds).
            It raises Unavailable.
        group_id: Returns this node's group.
    """

    def __init__(
        self,
        ask: Callable[[NodeId, str, bytes, float], Awaitable[bytes]],
        group_id: Callable[[], str],
    ) -> None:
        self._ask, self._group_id = ask, group_id
        self._lock = asyncio.Lock()
        self._asked_s = float("-inf")
        self._found: dict[NodeId, Member] = {}

    async def find(self, node_id: NodeId, members: Collection[NodeId]) -> Member | None:
        """Return *node_id* as one of these *members* knows it; None if none of them does."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._asked_s >= _EVERY_S:
                said = await asyncio.gather(*(self._members_of(each) for each in members))
                self._found = {member.id: member for one in said for member in one}
                self._asked_s = asyncio.get_running_loop().time()
            return self._found.get(node_id)

    async def _members_of(self, asked: NodeId) -> list[Member]:
        """Return whom one member takes for members; nobody if it does not answer."""
        try:
            answer = await self._ask(asked, _METHOD, b"", _TIMEOUT_S)
            return self._read(asked, answer)
        except (Unavailable, InvalidArgument, DecodeError) as error:
            logger.info("no word of %s on who is a member: %r", asked, str(error))
            return []

    def _read(self, asked: NodeId, answer: bytes) -> list[Member]:
        if len(answer) > _MAX_ANSWER_BYTES:
            raise InvalidArgument(f"an answer of {len(answer)} bytes")
        status = pb.StatusResponse.FromString(answer)
        if (status.node_id, status.group_id) != (asked, self._group_id()):
            raise InvalidArgument("another node, or one of another group, answers at its address")
        rows = (row.member for row in status.members[:_MAX_MEMBERS])
        members = [Member(id=NodeId(one.id), name=one.name, address=one.address) for one in rows]
        for member in members:
            check_member(member)
        return members
