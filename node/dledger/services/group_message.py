"""A consumer group as the Admin service says it."""

from __future__ import annotations

import asyncio
from typing import Final

from dledger.common.status import Backlog
from dledger.rpc.pb import dledger_pb2 as pb

_QUEUES_IN_A_TURN: Final = 1_024
"""Queues that are visited before the event loop goes on, so that others are not blocked."""


class Turns:
    """Yields the event loop now and then; the state may change meanwhile."""

    def __init__(self) -> None:
        self._queues = 0

    async def looked_at(self, queues: int) -> None:
        """Return at once, or, after very many queues, in the next iteration of the loop."""
        self._queues += queues
        if self._queues >= _QUEUES_IN_A_TURN:
            self._queues = 0
            await asyncio.sleep(0)


def backlog_message(backlog: Backlog) -> pb.Backlog:
    """Return a group's backlog in a topic."""
    response = pb.Backlog(
        group=backlog.group, topic=backlog.topic, unread=backlog.unread, held=backlog.held
    )
    for each in backlog.filters:
        response.filters.add(
            filter=replace_surrogates(each.filter), unread=each.unread, waits=each.waits
        )
    return response


def replace_surrogates(text: str) -> str:
    """Return a text of the state; JSON in the log allows lone surrogates, a protobuf not."""
    return text.encode("utf-8", "replace").decode()
