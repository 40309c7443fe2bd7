"""What a producer has sent, or is to send, without an answer yet, and the limit on it.

A *call* is one `append`. Its records are a batch of their own; the single records of several calls
may share one (`joining`). Used by `append_stream` and `joining`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from dledger.common.window import Window
from dledger.errors import (
    DledgerError,
    MessageIdConflict,
    OutcomeUnknown,
    Refused,
    SeveralQueues,
    Unavailable,
)
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.wire import length_prefix
from dledger.types import Appended, Record

_JOINED: Final = pb.ProduceBatch(joined=True).SerializeToString()


class Call:
    """One `append` without an answer.

    Attributes:
        topic: The topic that its records go to.
        queue_id: The queue that was asked for.
        count: How many records it has.
        size_bytes: How much of the byte limit it takes.
        record: Its only record, if it may share a batch; else None.
        appended: The future of where they are stored; done if the caller no longer waits.
        batch: The batch that they are in, once there was room for it.
    """

    __slots__ = ("appended", "batch", "count", "queue_id", "record", "size_bytes", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        *,
        count: int,
        size_bytes: int,
        record: Record | bytes | None = None,
    ) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.count, self.size_bytes, self.record = count, size_bytes, record
        self.appended: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.batch: Batch | None = None

    def fail(self, error: DledgerError) -> None:
        """Tell the caller, if it still waits."""
        if not self.appended.done():
            self.appended.set_exception(error)

    def expire(self, timeout_s: float) -> None:
        """Tell the caller that there was no answer in time, unless there was."""
        if self.appended.done():
            return
        error = Unavailable(f"no answer within {timeout_s:g} s")
        self.fail(self.batch.failure(error) if self.batch is not None else error)


class Batch:
    """What is sent together, and answered together.

    Attributes:
        topic: The topic that it goes to.
        queue_id: The queue that was asked for.
        lane: Of single records that may share it: their lane, see `joining`; else None.
        calls: Whose records it has, in order. If it has several calls, each has one record.
        command: The bytes that are sent; empty as long as calls may join.
        message_ids: If it has several calls: the id of each one's record, once it is encoded.
        made_up: Whether all those ids were made up here.
        count: How many records it has.
        size_bytes: How much of the byte limit it takes.
        id: Its number.
        streams: How many of the streams that carried it may have stored it.
    """

    __slots__ = (
        "calls",
        "command",
        "count",
        "id",
        "lane",
        "made_up",
        "message_ids",
        "queue_id",
        "size_bytes",
        "streams",
        "topic",
    )

    def __init__(self, topic: str, queue_id: int, *, lane: int | None = None) -> None:
        self.topic, self.queue_id, self.lane = topic, queue_id, lane
        self.calls: list[Call] = []
        self.command = b""
        self.message_ids: Sequence[str] = ()
        self.made_up = True
        self.count = self.size_bytes = self.id = self.streams = 0

    @property
    def is_awaited(self) -> bool:
        """Whether any caller still waits for it."""
        return any(not call.appended.done() for call in self.calls)

    def add(self, call: Call) -> None:
        """Take in the records of a call."""
        self.calls.append(call)
        self.count += call.count
        self.size_bytes += call.size_bytes
        call.batch = self

    def without_abandoned(self) -> list[Call]:
        """Remove and return the calls whose callers no longer wait; before it is encoded."""
        gone = [call for call in self.calls if call.appended.done()]
        if gone:
            self.calls = [call for call in self.calls if not call.appended.done()]
            self.count -= sum(call.count for call in gone)
            self.size_bytes -= sum(call.size_bytes for call in gone)
        return gone

    def parts(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Return its encoding in a `ProduceBatches`, in parts; the command is not copied."""
        head = pb.ProduceBatch(id=self.id).SerializeToString()
        head += length_prefix(pb.ProduceBatch.COMMAND_FIELD_NUMBER, len(self.command))
        tail = _JOINED if len(self.calls) > 1 else b""
        size_bytes = len(head) + len(self.command) + len(tail)
        field = length_prefix(pb.ProduceBatches.BATCHES_FIELD_NUMBER, size_bytes)
        return field, head, self.command, tail

    def failure(self, error: DledgerError, *, harmless: int = 0) -> DledgerError:
        """Return its callers' error, given one that says that the batch is not stored.

        It may be stored after all if more than *harmless* streams carried it: that many are known
        not to have stored it.
        """
        if self.streams <= harmless:
            return error
        return OutcomeUnknown(f"{error}; the batch may be stored")

    def fail(self, error: DledgerError) -> None:
        """Tell all callers."""
        for call in self.calls:
            call.fail(error)

    def settle(self, answer: pb.ProduceAnswer) -> bool:
        """Tell the callers what the answer says; False if it does not say enough to tell each."""
        if len(self.calls) == 1:
            _settle_one(self.calls[0], answer)
            return True
        if answer.refused:
            if not answer.stopped:  # for what all of it has in common: the topic, the queue
                self.fail(Refused(answer.refused))
            return not answer.stopped
        if answer.conflicts:
            self._tell_conflicts(answer.conflicts)
            return False
        if answer.recall_handles:
            return self._tell_handles(answer)
        if not self._is_in_a_row(answer):
            return False
        first = answer.first_offset
        for offset, call in enumerate(self.calls, first):
            if not call.appended.done():
                appended = Appended(queue_id=answer.queue_id, offsets=(offset,), index=answer.index)
                call.appended.set_result(appended)
        return True

    def _tell_conflicts(self, rows: Sequence[int]) -> None:
        """Tell those whose ids are taken, which is all that there is to say of their records."""
        nowhere = Appended(queue_id=-1, offsets=(-1,), index=0)
        for call in (self.calls[row] for row in rows if 0 <= row < len(self.calls)):
            call.fail(MessageIdConflict.of((0,), appended=nowhere))

    def _tell_handles(self, answer: pb.ProduceAnswer) -> bool:
        """Tell what recalls each; False if some do not wait: they need answers of their own."""
        if len(answer.recall_handles) != self.count or not all(answer.recall_handles):
            return False
        for handle, call in zip(answer.recall_handles, self.calls, strict=True):
            if not call.appended.done():
                appended = Appended(
                    queue_id=answer.queue_id,
                    offsets=(-1,),
                    index=answer.index,
                    recall_handles=(handle,),
                )
                call.appended.set_result(appended)
        return True

    def _is_in_a_row(self, answer: pb.ProduceAnswer) -> bool:
        """Whether all was stored at once, now or before, and lies where the answer says.

        Ids of the callers' own may be those of messages that were stored before, each at another
        time and in another queue, and the answer names one entry and one queue.
        """
        first, offsets = answer.first_offset, answer.offsets
        return not offsets or (
            self.made_up and list(offsets) == list(range(first, first + self.count))
        )


def _settle_one(call: Call, answer: pb.ProduceAnswer) -> None:
    """Tell the only caller of a batch."""
    if call.appended.done():
        return
    first = answer.first_offset
    offsets = tuple(answer.offsets) or tuple(range(first, first + call.count))
    appended = Appended(
        queue_id=answer.queue_id,
        offsets=offsets,
        index=answer.index,
        recall_handles=tuple(answer.recall_handles),
    )
    if answer.key_queues:
        call.appended.set_exception(SeveralQueues(answer.refused, queues=answer.key_queues))
    elif answer.refused:
        call.appended.set_exception(Refused(answer.refused))
    elif answer.conflicts:
        conflict = MessageIdConflict.of(answer.conflicts, appended=appended)
        call.appended.set_exception(conflict)
    else:
        call.appended.set_result(appended)


class Unanswered:
    """Limits what is unanswered: its bytes in total, and its messages for each topic.

    Messages are limited because the group must still remember those that are sent again after a
    failover; see `limits.MAX_MESSAGES_UNDER_WAY`.
    """

    def __init__(self, *, max_bytes: int, max_messages: int) -> None:
        self._bytes, self._max_messages = Window(max_bytes), max_messages
        self._messages: dict[str, Window] = {}

    @property
    def taken_bytes(self) -> int:
        """The bytes that are unanswered."""
        return self._bytes.taken

    def take_now(self, call: Call) -> bool:
        """Take room for a call if there is some and nobody waits; return whether it was taken."""
        messages = self._messages.get(call.topic)
        if messages is None:
            messages = self._messages[call.topic] = Window(self._max_messages)
        if not messages.has_room(call.count) or not self._bytes.take_now(call.size_bytes):
            return False
        return messages.take_now(call.count)

    async def take(self, call: Call) -> None:
        """Wait until there is room for a call; first come, first served within a topic."""
        messages = self._messages.setdefault(call.topic, Window(self._max_messages))
        try:
            await messages.take(call.count)
            try:
                await self._bytes.take(call.size_bytes)
            except asyncio.CancelledError:
                messages.give(call.count)
                raise
        except asyncio.CancelledError:
            self._forget(call.topic)
            raise

    def give(self, call: Call | Batch) -> None:
        """Free the room of a call, or of all calls of a batch."""
        self._bytes.give(call.size_bytes)
        self._messages[call.topic].give(call.count)
        self._forget(call.topic)

    def _forget(self, topic: str) -> None:
        """Drop the window of a topic without anything unanswered."""
        messages = self._messages.get(topic)
        if messages is not None and not messages.taken and not messages.waiting:
            del self._messages[topic]
