"""Moves messages to the dead letters of their consumer group, on the leader.

A message that nobody can take must not come for ever, nor hold up others. What was delivered as
often as its group allows is told by the RECEIVE that would have delivered it once more, and moved
here; a client may say so earlier (ForwardMessageToDeadLetterQueue). If a leader is gone before it
has moved what it was told, the next one is told after `deliveries.MOVE_AGAIN_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.commands import Ack, LeaseRef
from dledger.broker.dead_letter import encode_dead_letter
from dledger.broker.message import id_of_place
from dledger.broker.produce import ProduceFrame
from dledger.broker.rekeep import REKEPT, origins
from dledger.broker.results import Acked, DeadLettered, Spent
from dledger.broker.topics import Topic
from dledger.calls.caller import Caller
from dledger.checks.names import DEAD_LETTERS
from dledger.checks.resources import client_id, group_name, topic_name
from dledger.common.metrics import NodeMetrics
from dledger.errors import DledgerError, InvalidArgument, InvalidReceiptHandle, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.unreadable import UnreadableMessages
from dledger.rocketmq.arrivals import Arrivals
from dledger.rocketmq.receipts import Receipts
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import ok
from dledger.types import MovedFrom, Typed

logger = logging.getLogger(__name__)

_UNDER_WAY: Final = 64
"""Receives whose spent messages are being moved; those of more are told again, and moved then."""


class DeadLetters:
    """Serves ForwardMessageToDeadLetterQueue, and moves what receives have found."""

    def __init__(
        self,
        engine: Engine,
        arrivals: Arrivals,
        *,
        broken: UnreadableMessages,
        metrics: NodeMetrics,
    ) -> None:
        self._engine, self._arrivals, self._broken = engine, arrivals, broken
        self._metrics = metrics
        self._moving: set[asyncio.Task[None]] = set()

    def begin(self, group: str, topic: Topic, spent: Sequence[Spent]) -> None:
        """Move messages in the background; whoever polls does not wait for that."""
        if len(self._moving) >= _UNDER_WAY:
            return
        task = asyncio.get_running_loop().create_task(self._move_all(group, topic, spent))
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def close(self) -> None:
        """Stop moving; the next leader is told again."""
        for task in self._moving:
            task.cancel()
        await asyncio.gather(*self._moving, return_exceptions=True)

    async def _move_all(self, group: str, topic: Topic, spent: Sequence[Spent]) -> None:
        for each in spent:
            try:
                await self._move(group, topic, each)
            except DledgerError as error:
                lease = each.lease
                logger.warning(
                    "group %s: consumer group %s: the message at offset %d of queue %d of topic %s "
                    "was delivered %d times and is no dead letter yet, it is tried again: %s",
                    self._engine.group,
                    group,
                    lease.offset,
                    lease.queue_id,
                    topic.name,
                    each.attempts,
                    error,
                )
                self._metrics.dead_letters_refused.inc()

    async def _move(self, group: str, topic: Topic, spent: Spent) -> None:
        """Propose a DEAD_LETTER; what cannot be read at all is acknowledged, as a receive does."""
        lease = spent.lease
        try:
            command = await self._command(group, topic, spent)
        except MalformedCommandError as error:
            self._broken.note(topic.name, lease.queue_id, lease.offset, error)
            ack = Ack(group=group, topic=topic.name, leases=(lease,))
            await self._engine.propose(ack.encode())
            return
        result = await self._engine.propose(command)
        if not isinstance(result, DeadLettered):
            raise TypeError(f"DEAD_LETTER answered {result!r}")
        if result.stored is not None:
            self._metrics.dead_letters_moved.inc()
            logger.info(
                "group %s: consumer group %s: the message at offset %d of queue %d of topic %s is "
                "a dead letter after %d deliveries",
                self._engine.group,
                group,
                lease.offset,
                lease.queue_id,
                topic.name,
                spent.attempts,
            )

    async def _command(self, group: str, topic: Topic, spent: Spent) -> bytes:
        payload, lease = spent.payload, spent.lease
        entry = await self._engine.read_entry(payload.index)
        frame = ProduceFrame(entry.data, payload.start, payload.end)
        born_host, stored_at_ms = frame.born_host, entry.timestamp_ms
        if entry.data[payload.start - 1] == REKEPT:
            origin = origins(entry, payload.start, payload.end)[spent.row]
            born_host, stored_at_ms = origin.born_host, origin.stored_at_ms
        message = frame.message(spent.row)
        moved = MovedFrom(
            topic=topic.name,
            generation=topic.generation,
            queue_id=lease.queue_id,
            offset=lease.offset,
            stored_at_ms=stored_at_ms,
            born_host=born_host,
            attempts=spent.attempts,
        )
        dead = replace(
            message,
            message_id=message.message_id or id_of_place(payload.index, payload.start, spent.row),
            typed=replace(message.typed or Typed(), moved_from=moved),
        )
        return encode_dead_letter(group, lease.receive_id, dead, born_host=born_host)

    async def forward(
        self, request: service.ForwardMessageToDeadLetterQueueRequest, caller: Caller
    ) -> service.ForwardMessageToDeadLetterQueueResponse:
        """Move a message that a client holds, and does not want to get again.

        A repeated call is answered as the first one.

        Raises:
            InvalidReceiptHandle: The message was delivered again, or is none of this group's.
            InvalidArgument: It is a dead letter already.
            LimitReached: The dead letters have no topic, and there are too many.
        """
        client_id(caller)
        group, name = group_name(request.group), topic_name(request.topic)
        if name.startswith(DEAD_LETTERS):
            raise InvalidArgument(
                f"messages of topic {name!r} are dead letters already: acknowledge them, or send "
                "them back with `dledger group dead-letters resend`"
            )
        state = self._engine.state
        topic = state.topics.get(name)
        generation = 0 if topic is None else topic.generation
        receipts = Receipts(state.secret, group=group, topic=name, generation=generation)
        lease = receipts.decode(request.receipt_handle)
        if topic is None:
            raise UnknownTopic(name)
        self._arrivals.handled(group, name, (lease,))
        spent = state.groups.find_leased(group, name, lease)
        if spent is not None:
            await self._move(group, topic, spent)
        else:
            await self._check_done(group, name, lease)
        return service.ForwardMessageToDeadLetterQueueResponse(status=ok())

    async def _check_done(self, group: str, topic: str, lease: LeaseRef) -> None:
        """Raise InvalidReceiptHandle unless the message was acknowledged or moved before."""
        ack = Ack(group=group, topic=topic, leases=(lease,))
        result = await self._engine.propose(ack.encode())
        if not isinstance(result, Acked):
            raise TypeError(f"ACK answered {result!r}")
        if not all(result.outcomes):
            raise InvalidReceiptHandle(
                f"the receipt handle for queue {lease.queue_id}, offset {lease.offset} is stale: "
                "the message was delivered again"
            )
