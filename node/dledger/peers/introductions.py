"""Looks up a member that this node does not know yet, by asking the members that it knows.

A node that lags may get a handshake from a member whose membership entry it does not have yet. It
must accept that member, or a group that needs this node cannot commit, but it cannot trust the
sender's claim. So it asks each member that it knows, at that member's own address, for the list of
members. Called by the server for each handshake of an unknown sender.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from google.protobuf.message import DecodeError

from dledger.common.words import check_member
from dledger.errors import InvalidArgument, Unavailable
from dledger.peers.status_call import Ask, status_of
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import Member, NodeId

logger = logging.getLogger(__name__)

_EVERY_S: Final = 0.5
"""The least interval between two lookups, however many unauthenticated handshakes arrive."""
_MAX_MEMBERS: Final = 64


class Introductions:
    """The members' answers to who belongs to the group, cached briefly.

    Args:
        ask: Calls a method of a member's peer port.
        group_id: Returns this node's group.
    """

    def __init__(
        self,
        ask: Ask,
        group_id: Callable[[], str],
    ) -> None:
        self._ask, self._group_id = ask, group_id
        self._lock = asyncio.Lock()
        self._asked_s = float("-inf")
        self._found: dict[NodeId, Member] = {}

    async def find(self, node_id: NodeId, members: Collection[NodeId]) -> Member | None:
        """Return the member *node_id* as one of *members* knows it; None if none of them does."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._asked_s >= _EVERY_S:
                said = await asyncio.gather(*(self._members_of(each) for each in members))
                self._found = {member.id: member for one in said for member in one}
                self._asked_s = asyncio.get_running_loop().time()
            return self._found.get(node_id)

    async def _members_of(self, asked: NodeId) -> list[Member]:
        """Return the members according to one member; empty if it does not answer."""
        try:
            return _members(await status_of(asked, self._group_id(), self._ask))
        except (Unavailable, InvalidArgument, DecodeError) as error:
            logger.info("cannot get the list of members from %s: %r", asked, str(error))
            return []


def _members(status: pb.StatusResponse) -> list[Member]:
    """Return the members of a status. Raises InvalidArgument."""
    rows = (row.member for row in status.members[:_MAX_MEMBERS])
    members = [Member(id=NodeId(one.id), name=one.name, address=one.address) for one in rows]
    for member in members:
        check_member(member)
    return members
