"""Asks the other members of a group, at their own addresses, how they are.

Called before a group is forced (`replica.force_group`): who answers is not lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from google.protobuf.message import DecodeError

from dledger.errors import InvalidArgument, Unavailable
from dledger.peers.status_call import Ask, status_of
from dledger.replica.force_group import Reached
from dledger.types import Member

logger = logging.getLogger(__name__)

_TRIES: Final = 2
_PAUSE_S: Final = 1.1
"""Together they last longer than gRPC waits before it connects again, which is a second."""


async def survey(
    members: Collection[Member],
    *,
    group_id: str,
    ask: Ask,
) -> list[Reached]:
    """Return what those of *members* say that are there.

    A node with another disk, or of another group, at a member's address is not that member.

    Args:
        members: Whom to ask.
        group_id: The group.
        ask: Calls a method of a member's peer port.
    """
    said = await asyncio.gather(*(_said(one, group_id, ask) for one in members))
    return [one for one in said if one is not None]


async def _said(member: Member, group_id: str, ask: Ask) -> Reached | None:
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        try:
            status = await status_of(member.id, group_id, ask)
        except InvalidArgument as error:
            logger.info("%s (%s) is not there: %s", member.name, member.id, error)
            return None
        except (Unavailable, DecodeError) as error:
            logger.info("%s (%s) does not answer: %s", member.name, member.id, error)
        else:
            return Reached(
                member=member,
                leader_id=status.leader_id,
                last_term=status.last_term,
                last_index=status.last_index,
                epoch=status.epoch,
            )
    return None
