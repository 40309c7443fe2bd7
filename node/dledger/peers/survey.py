"""Asks the other members of a group, at their own addresses, how they are.

Called before a group is forced (`replica.force_group`): who answers is not lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from google.protobuf.message import DecodeError

from dledger.errors import Unavailable
from dledger.replica.force_group import Reached
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.types import Member, NodeId

logger = logging.getLogger(__name__)

_METHOD: Final = "/dledger.v1.Admin/Status"
_TIMEOUT_S: Final = 1.0
_TRIES: Final = 2
_PAUSE_S: Final = 1.1
"""Together they last longer than gRPC waits before it connects again, which is a second."""
_MAX_ANSWER_BYTES: Final = 256 << 10


async def survey(
    members: Collection[Member],
    *,
    group_id: str,
    ask: Callable[[NodeId, str, bytes, float], Awaitable[bytes]],
) -> list[Reached]:
    """Return what those of *members* say that are there.

    A node with another disk, or of another group, at a member's address is not that member.

    Args:
        members: Whom to ask.
        group_id: The group.
        ask: Calls a method of a member's peer port: (member, method, request, timeout in seconds).
            It raises Unavailable.
    """
    said = await asyncio.gather(*(_said(one, group_id, ask) for one in members))
    return [one for one in said if one is not None]


async def _said(
    member: Member,
    group_id: str,
    ask: Callable[[NodeId, str, bytes, float], Awaitable[bytes]],
) -> Reached | None:
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        try:
            return _read(member, group_id, await ask(member.id, _METHOD, b"", _TIMEOUT_S))
        except (Unavailable, DecodeError) as error:
            logger.info("%s (%s) does not answer: %s", member.name, member.id, error)
    return None


def _read(member: Member, group_id: str, answer: bytes) -> Reached | None:
    if len(answer) > _MAX_ANSWER_BYTES:
        return None
    status = pb.StatusResponse.FromString(answer)
    if (status.node_id, status.group_id) != (member.id, group_id):
        logger.info("another disk is at the address of %s: %r", member.name, status.node_id[:80])
        return None
    return Reached(
        member=member,
        leader_id=status.leader_id,
        last_term=status.last_term,
        last_index=status.last_index,
        epoch=status.epoch,
    )
