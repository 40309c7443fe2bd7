"""The unanswered batches of a producer, and the limit on them. Used by `append_stream` only."""

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
    """A batch without an answer.

    Attributes:
        topic: The topic that it goes to.
        command: The bytes that are sent.
        count: How many messages it has.
        appended: The future of where it is stored.
        id: Its number, assigned once there is room for it.
        streams: How many of the streams that carried it may have stored it.
    """

    topic: str
    command: bytes
    count: int
    appended: asyncio.Future[Appended]
    id: int = 0
    streams: int = 0

    @property
    def size_bytes(self) -> int:
        """How much of the byte limit it takes."""
        return len(self.command)

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """Return its encoding in a `ProduceBatches`, in parts; the command is not copied."""
        head = pb.ProduceBatch(id=self.id).SerializeToString()
        head += length_prefix(pb.ProduceBatch.COMMAND_FIELD_NUMBER, len(self.command))
        size_bytes = len(head) + len(self.command)
        field = length_prefix(pb.ProduceBatches.BATCHES_FIELD_NUMBER, size_bytes)
        return field, head, self.command

    def failure(self, error: DledgerError, *, harmless: int = 0) -> DledgerError:
        """Return the caller's error, given one that says that the batch is not stored.

        It may be stored after all if more than *harmless* streams carried it: that many are known
        not to have stored it.
        """
        if self.streams <= harmless:
            return error
        return OutcomeUnknown(f"{error}; the batch may be stored")


class Unanswered:
    """Limits unanswered batches: their bytes in total, and their messages for each topic.

    Messages are limited because the group must still remember those that are sent again after a
    failover; see `limits.MAX_MESSAGES_UNDER_WAY`.
    """

    def __init__(self, *, max_bytes: int, max_messages: int) -> None:
        self._bytes, self._max_messages = Window(max_bytes), max_messages
        self._messages: dict[str, Window] = {}

    @property
    def taken_bytes(self) -> int:
        """The bytes of unanswered batches."""
        return self._bytes.taken

    async def take(self, batch: Batch) -> None:
        """Wait until there is room for a batch; first come, first served within a topic."""
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
        """Free the room of a batch."""
        self._bytes.give(batch.size_bytes)
        self._messages[batch.topic].give(batch.count)
        self._forget(batch.topic)

    def _forget(self, topic: str) -> None:
        """Drop the window of a topic without unanswered batches."""
        messages = self._messages.get(topic)
        if messages is not None and not messages.taken and not messages.waiting:
            del self._messages[topic]
