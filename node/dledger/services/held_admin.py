"""The Admin service's calls about messages that are held until they are due. Served by the leader.

A group that was founded on a restored log lets what that held wait for a word, unless it was told
otherwise (`replica.founding`): here it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import grpc

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.commands import ResumeHeld
from dledger.broker.held_refs import HeldMessage
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import HeldResumed
from dledger.errors import DledgerError, InvalidArgument
from dledger.requests.engine import Engine
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin_port import admin_service, at_leader

MOST_LISTED: Final = 256


class HeldAdminServicer:
    """Shows what is held, and gives the word for what waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to register on the peer port's server, beside the others of Admin."""
        return admin_service(
            {
                "ListHeld": (pb.ListHeldRequest, at_leader(self._engine, self._list)),
                "ResumeHeld": (pb.ResumeHeldRequest, at_leader(self._engine, self._resume)),
            }
        )

    async def _list(self, request: pb.ListHeldRequest) -> pb.ListHeldResponse:
        if not 0 <= request.limit <= MOST_LISTED:
            raise InvalidArgument(f"limit is 0 to {MOST_LISTED}, not {request.limit}")
        held = self._engine.state.held
        topics = {topic.generation: topic.name for topic in self._engine.state.topics.all()}
        first = [
            await self._show(message, topics.get(message.generation, ""))
            for message in self._first(request.limit)
        ]
        return pb.ListHeldResponse(
            messages=held.count, size_bytes=held.size_bytes, waiting=held.waiting, first=first
        )

    def _first(self, limit: int) -> list[HeldMessage]:
        """Return some held messages, by their hours."""
        found: list[HeldMessage] = []
        for message in self._each_held():
            if len(found) == limit:
                break
            found.append(message)
        return sorted(found, key=lambda each: (each.due_ms, each.ref))

    def _each_held(self) -> Iterator[HeldMessage]:
        buckets = self._engine.state.held.buckets()
        for hour in sorted(buckets):
            for piece in range(buckets[hour].pieces):
                yield from buckets[hour].messages(piece)

    async def _show(self, message: HeldMessage, topic: str) -> pb.HeldMessage:
        shown = pb.HeldMessage(
            topic=topic,
            due_ms=message.due_ms,
            waits=self._engine.state.held.is_waiting(message.ref),
        )
        payload = message.payload
        try:
            entry = await self._engine.read_entry(payload.index)
            stored = ProduceFrame(entry.data, payload.start, payload.end).message(message.row)
        except (DledgerError, MalformedCommandError):
            return shown
        shown.message_id, shown.size_bytes = stored.message_id, len(stored.body)
        return shown

    async def _resume(self, request: pb.ResumeHeldRequest) -> pb.ResumeHeldResponse:
        result = await self._engine.propose(ResumeHeld(cancels=request.drops).encode())
        if not isinstance(result, HeldResumed):
            raise TypeError(f"RESUME_HELD answered {result!r}")
        return pb.ResumeHeldResponse(messages=result.waited)
