"""Batches that their producer has no answer for yet, and how much of them there may be.

Owned by `append_stream`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dledger.common.window import Window
from dledger.errors import DledgerError, OutcomeUnknown
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.wire import length_prefix
from dledger.types import Appended


@dataclass(slots=True)
class Batch:
    """A batch that is not answered.

    Attributes:
        topic: Where it goes.
        command: What is sent.
        count: How many messages it has.
        appended: The future of where it went.
        id: Its number, from the moment on in which there is room for it.
        streams: How many streams have carried it that may have stored it.
    """

    topic: str
    command: bytes
    count: int
    appended: asyncio.Future[Appended]
    id: int = 0
    streams: int = 0

    @property
    def size_bytes(self) -> int:
        """What it takes of the window."""
        return len(self.command)

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """Return the pieces of its field in a `ProduceBatches`; the command is not copied."""
        head = pb.ProduceBatch(id=self.id).SerializeToString()
        head += length_prefix(pb.ProduceBatch.COMMAND_FIELD_NUMBER, len(self.command))
        size_bytes = len(head) + len(self.command)
        field = length_prefix(pb.ProduceBatches.BATCHES_FIELD_NUMBER, size_bytes)
        return field, head, self.command

    def failure(self, error: DledgerError, *, harmless: int = 0) -> DledgerError:
        """Return what to tell the caller of *error*, which says that the batch is not stored.

        It may be all the same if it was sent before: by more than the *harmless* streams, of which
        it is known that they did not store it.
        """
        if self.streams <= harmless:
            return error
        return OutcomeUnknown(f"{error}; the batch may be stored")


class Unanswered:
    """What may wait for its answer: bytes in all, and messages of each topic.

    By number, because what is sent again after a failover must still be remembered by the group:
    `limits.MAX_MESSAGES_UNDER_WAY`.
    """

    def __init__(self, *, max_bytes: int, max_messages: int) -> None:
        self._bytes, self._max_messages = Window(max_bytes), max_messages
        self._messages: dict[str, Window] = {}

    @property
    def taken_bytes(self) -> int:
        """Bytes of the batches that wait for their answer."""
        return self._bytes.taken

    async def take(self, batch: Batch) -> None:
        """Return when there is room for a batch; in the order of asking, for those of a topic."""
        messages = self._messages.setdefault(batch.topic, Window(self._max_messages))
        try:
            await messages.take(batch.count)
            try:
                await self._bytes.take(batch.size_bytes)
            except asyncio.CancelledError:
                messages.give(batch.count)
                raise
        except asyncio.CancelledError:
            self._forget(batch.topic)
            raise

    def give(self, batch: Batch) -> None:
        """Let others have a batch's room."""
        self._bytes.give(batch.size_bytes)
        self._messages[batch.topic].give(batch.count)
        self._forget(batch.topic)

    def _forget(self, topic: str) -> None:
        """Keep nothing of a topic that has nothing under way."""
        messages = self._messages.get(topic)
        if messages is not None and not messages.taken and not messages.waiting:
            del self._messages[topic]
