"""PullMessage: a queue's messages from an offset on, without leases: who reads keeps its own place.

It takes nothing from anybody: members of the group that receive get the same messages. An offset
that the queue does not have is refused with the next one that it has, so that a reader that was
away for longer than retention goes on there, and knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.filters import tag_codes
from dledger.broker.kept_messages import Codes
from dledger.broker.message import Encoding
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Payload
from dledger.broker.rekeep import REKEPT, origins
from dledger.broker.results import Delivery
from dledger.broker.topics import Topic
from dledger.calls.caller import Caller
from dledger.checks.resources import client_id, group_name, topic_name
from dledger.common.limits import MAX_RECEIVE_BATCH, MAX_WAITING_POLLS
from dledger.common.shares import Share, address_of
from dledger.errors import NotLeader, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.outflow import Outflow
from dledger.requests.places import Places
from dledger.requests.queue_followers import QueueFollowers
from dledger.requests.topic_resolver import TopicResolver
from dledger.requests.unpacking import Unpacking
from dledger.requests.unreadable import UnreadableMessages
from dledger.rocketmq.delivery_form import PullForm, repack
from dledger.rocketmq.offsets import queue_of
from dledger.rocketmq.receiving import nothing_new, tags_of, wait_of
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok
from dledger.types import Entry

MAX_RUNS_SCANNED = 4_096
"""Runs that a look may pass over because of its filter, before others get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pull:
    """One PullMessage request, checked."""

    topic: Topic
    resource: definition.Resource
    queue_id: int
    offset: int
    limit: int
    codes: Codes
    wait_s: float


class _Waiting:
    """A pull that waits; *over*: others wait in its place."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def give_way(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class Puller:
    """Serves PullMessage on the leader."""

    def __init__(
        self,
        engine: Engine,
        resolver: TopicResolver,
        followers: QueueFollowers,
        *,
        broken: UnreadableMessages,
        outflow: Outflow,
        unpacking: Unpacking,
    ) -> None:
        self._engine, self._resolver, self._followers = engine, resolver, followers
        self._broken, self._outflow, self._unpacking = broken, outflow, unpacking
        self._places = Places(engine)
        self._share: Share[_Waiting] = Share(MAX_WAITING_POLLS, _Waiting.give_way)

    async def pull(
        self, request: service.PullMessageRequest, caller: Caller
    ) -> AsyncGenerator[service.PullMessageResponse]:
        """Yield the status, the messages, and at last the offset to go on from."""
        pull = await self._check(request, caller)
        del request  # free its memory while it waits
        queue, offsets, behind = await self._find(pull, caller)
        if not queue.first <= behind <= queue.end:
            yield _out_of_range(pull, queue)
            nearest = min(max(behind, queue.first), queue.end)
            yield service.PullMessageResponse(next_offset=nearest)
            return
        if not offsets:
            yield service.PullMessageResponse(status=nothing_new().status)
            yield service.PullMessageResponse(next_offset=behind)
            return
        places = [queue.locate(offset) for offset in offsets]
        deliveries = [
            Delivery(
                queue_id=pull.queue_id, offset=offset, attempt=0, payload=at.payload, row=at.row
            )
            for offset, at in zip(offsets, places, strict=True)
        ]
        largest_bytes = max(at.payload.end - at.payload.start for at in places)
        yield service.PullMessageResponse(status=ok())
        async with self._outflow.room(caller.connection, largest_bytes):
            async for message in self._messages(pull, deliveries, caller):
                yield message
        yield service.PullMessageResponse(next_offset=behind)

    async def _check(self, request: service.PullMessageRequest, caller: Caller) -> _Pull:
        client_id(caller)
        group, name = group_name(request.group), topic_name(request.message_queue.topic)
        if request.filter_expression.type == definition.FilterType.SQL:
            raise Rejected(
                Code.ILLEGAL_FILTER_EXPRESSION,
                "PullMessage takes no SQL92 filter: use tags, or ReceiveMessage",
            )
        tags = tags_of(request.filter_expression)
        if request.batch_size < 1:
            raise Rejected(Code.BAD_REQUEST, f"batch_size must be positive: {request.batch_size}")
        await self._places.settle()
        topic = queue_of(request.message_queue, self._engine.state.topics.named(name))
        await self._resolver.group(group)
        return _Pull(
            topic=topic,
            resource=request.message_queue.topic,
            queue_id=request.message_queue.id,
            offset=request.offset,
            limit=min(request.batch_size, MAX_RECEIVE_BATCH),
            codes=tag_codes(tags),
            wait_s=wait_of(request),
        )

    async def _find(self, pull: _Pull, caller: Caller) -> tuple[ConsumeQueue, list[int], int]:
        """Return the queue, the messages that were found, and the offset behind what was seen.

        Raises:
            UnknownTopic: It was deleted while the pull waited.
        """
        loop = asyncio.get_running_loop()
        until_s = min(caller.since_s + pull.wait_s, caller.deadline_s)
        waiting, at = _Waiting(), pull.offset
        entry = self._share.enter(address_of(caller.host), waiting, line=caller.line)
        try:
            while True:
                queue = self._queue(pull)
                if not queue.first <= at <= queue.end:
                    return queue, [], at
                found, at = matching(queue, at, pull.codes, pull.limit)
                left_s = until_s - loop.time()
                if found or left_s <= 0 or waiting.over.done() or self._followers.closed:
                    return queue, found, at
                if at < queue.end:
                    await asyncio.sleep(0)
                else:
                    await self._wait(pull, waiting, left_s)
        finally:
            self._share.leave(entry)

    def _queue(self, pull: _Pull) -> ConsumeQueue:
        if not self._engine.is_leader():
            raise NotLeader(None)
        topics = self._engine.state.topics
        if not topics.is_there(pull.topic):
            raise UnknownTopic(pull.topic.name)
        return topics.queue(pull.topic.name, pull.queue_id)

    async def _wait(self, pull: _Pull, waiting: _Waiting, timeout_s: float) -> None:
        """Return when the queue has changed, or at the end of the time or of its room to wait."""
        changed = asyncio.ensure_future(
            self._followers.wait(pull.topic.name, pull.queue_id, timeout_s)
        )
        try:
            await asyncio.wait((changed, waiting.over), return_when=asyncio.FIRST_COMPLETED)
            if changed.done():
                changed.result()
        finally:
            changed.cancel()

    async def _messages(
        self, pull: _Pull, deliveries: Sequence[Delivery], caller: Caller
    ) -> AsyncIterator[service.PullMessageResponse]:
        """Yield one response per message; those that cannot be decoded are passed over."""
        form = PullForm(pull.topic, pull.resource)
        entry: Entry | None = None
        payload: Payload | None = None
        for each in deliveries:
            if entry is None or entry.index != each.payload.index:
                entry = await self._engine.read_entry(each.payload.index)
            if payload != each.payload:
                payload = each.payload
                frame = ProduceFrame(entry.data, payload.start, payload.end)
                is_rekept = entry.data[payload.start - 1] == REKEPT
                rekept = origins(entry, payload.start, payload.end) if is_rekept else None
            try:
                message = frame.message(each.row)
            except MalformedCommandError as error:
                self._broken.note(pull.topic.name, each.queue_id, each.offset, error)
                continue
            if message.encoding is not Encoding.IDENTITY:
                try:
                    content = await self._unpacking.content_of(message.body, caller.host)
                except Rejected:
                    content = None
                message = repack(message, content, caller.language)
            if rekept is None:
                yield form.response(message, each, frame.born_host, entry.timestamp_ms)
            else:
                origin = rekept[each.row]
                yield form.response(message, each, origin.born_host, origin.stored_at_ms)


def matching(queue: ConsumeQueue, at: int, codes: Codes, limit: int) -> tuple[list[int], int]:
    """Return up to *limit* offsets from *at* on whose tags a filter names, and how far that went.

    That is the offset behind the last one looked at: `end` if there is nothing more.
    """
    found: list[int] = []
    for scanned, run in enumerate(queue.runs(at)):
        if scanned == MAX_RUNS_SCANNED:
            return found, at
        at = run.end
        if codes is None or run.code in codes:
            at = min(run.end, run.first + limit - len(found))
            found.extend(range(run.first, at))
            if len(found) == limit:
                return found, at
    return found, queue.end


def _out_of_range(pull: _Pull, queue: ConsumeQueue) -> service.PullMessageResponse:
    said = (
        f"offset {pull.offset} of queue {pull.queue_id} of topic {pull.topic.name!r} is not there: "
        f"the queue has [{queue.first}, {queue.end})"
    )
    status = definition.Status(code=Code.ILLEGAL_OFFSET, message=said)
    return service.PullMessageResponse(status=status)
