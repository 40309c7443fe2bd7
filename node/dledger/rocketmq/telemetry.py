"""Telemetry: answers each Settings at once with the merged Settings; streams stay open.

No other call depends on this stream, since the SDKs reopen it only minutes after a break. What the
group itself asks of clients goes the same way (`Telemetry.ask`): one task answers a stream, another
may ask on it, and what they write stands in one line.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from dledger.broker.redelivery import DEFAULT, Retries
from dledger.calls.admission import AdmissionControl
from dledger.calls.caller import Caller
from dledger.checks.resources import topic_name
from dledger.common.limits import (
    DEFAULT_POLL_MS,
    MAX_BODY_BYTES,
    MAX_ID_LENGTH,
    MAX_RECEIVE_BATCH,
    MAX_TELEMETRY_STREAMS,
)
from dledger.common.shares import NO_ROOM, Entry, Share, address_of
from dledger.door.contract import Code as FailureCode
from dledger.door.contract import Failed, Rest, Stream
from dledger.errors import DledgerError
from dledger.requests.outflow import Outflow
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, code_of, ok

logger = logging.getLogger(__name__)

MAX_STREAMS: Final = 64
"""The most streams on one connection: the clients of a process, one stream each, may share it."""
_SEND_ATTEMPTS: Final = 3
_SEND_BACKOFF_MS: Final = (10, 1000)
_NEVER_LAST: Final = (1 << 31) - 1
"""What a client is told whose messages come without end."""
_REQUEST_TIMEOUT_S: Final = 3
_ASK_S: Final = 5.0
"""How long a question may take to be written; a client that does not read is asked nothing."""
_TOPICS_KEPT: Final = 64
"""Of those that one client publishes to, as its Settings say."""
CURRENT_S: Final = 2.0
"""How long Settings wait for a state that is not behind; SDKs wait for three seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscribed:
    """What a consumer group has for the topics that a client names.

    Attributes:
        retries: How often a message comes, and when again.
        in_order: Whether one of the topics is FIFO: then the client works through the messages of a
            message group one after the other, and tries each again where it is.
    """

    retries: Retries
    in_order: bool = False


SubscribedTo: TypeAlias = Callable[[str, Sequence[str]], Subscribed]
"""Returns what a consumer group has for topics, given by their names."""
WaitForState: TypeAlias = Callable[[Caller], Awaitable[None]]
"""Returns once this node's state is not behind; raises DledgerError if that takes too long."""


class _Stream:
    """One that is open; while its client says nothing, the `contract.Rest` of its call.

    Attributes:
        stream: The call.
        caller: Who has opened it.
        peer: Its connection.
        client_id: Its client's; empty: it has no name that counts.
        entry: What it has of all streams.
        before_bytes: The size of the last command; None: none has come.
        task: In which it is served; None: it waits.
        topics: To which its client publishes, as far as it has said so.
        is_ended: Whether it was ended from here, and not because its call is over.
        is_evicted: Whether that was to make room.
    """

    __slots__ = (
        "_line",
        "_telemetry",
        "before_bytes",
        "caller",
        "client_id",
        "entry",
        "is_ended",
        "is_evicted",
        "peer",
        "stream",
        "task",
        "topics",
    )
    reads: Final = True
    entry: Entry[_Stream]

    def __init__(
        self, telemetry: Telemetry, caller: Caller, client_id: str, stream: Stream
    ) -> None:
        self._telemetry, self.caller, self.client_id = telemetry, caller, client_id
        self.peer, self.stream = caller.peer, stream
        self.before_bytes: int | None = None
        self.task: asyncio.Task[object] | None = None
        self.is_ended = self.is_evicted = False
        self.topics: Sequence[str] = ()
        self._line: asyncio.Lock | None = None

    async def write(self, message: bytes) -> None:
        """Send a message behind those that are being sent. Raises as `Stream.send` does."""
        if self._line is None:
            self._line = asyncio.Lock()
        async with self._line:
            await self.stream.send(message)

    def end(self) -> None:
        """End it from here."""
        if self.is_ended:
            return
        self.is_ended = True
        if self.task is None:
            self.stream.go_on()
        else:
            self.task.cancel()

    def wait(self) -> None:
        """Wait for its client."""

    async def serve(self) -> Rest | None:
        """Answer what has come."""
        return await self._telemetry.go_on(self)

    def drop(self) -> None:
        """Note that its client is gone."""
        self._telemetry.leave(self)


class Telemetry:
    """The open Telemetry streams of one node, and their clients' connections."""

    def __init__(
        self,
        admission: AdmissionControl,
        outflow: Outflow,
        subscribed: SubscribedTo,
        wait_for_state: WaitForState,
    ) -> None:
        self._admission, self._outflow = admission, outflow
        self._subscribed, self._wait_for_state = subscribed, wait_for_state
        self._open: Share[_Stream] = Share(MAX_TELEMETRY_STREAMS, _evict)
        self._streams = set[_Stream]()
        self._is_closed = False
        self._of_client: dict[str, list[_Stream]] = {}
        self._of_topic: dict[str, dict[_Stream, None]] = {}
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.taken

    def runs_on(self, client_id: str, peer: str) -> bool:
        """Whether a client's Telemetry stream uses the connection of *peer*, as gRPC names it.

        A second stream with the same client id counts only once the first has ended.
        """
        streams = self._of_client.get(client_id)
        return streams is not None and streams[0].peer == peer

    def close(self) -> None:
        """End every stream, so that shutdown does not wait for the clients."""
        self._is_closed = True
        for stream in tuple(self._streams):
            stream.end()

    async def serve(self, caller: Caller, stream: Stream) -> Rest | None:
        """Answer one stream until the client ends it or the node closes.

        When there are as many as there may be, the oldest of the address with most goes.

        Raises:
            Failed: It is this one that had to go.
        """
        peer, client_id = caller.peer, caller.client_id
        if self._is_closed:
            return None
        if self._of[peer] >= MAX_STREAMS:
            await stream.send(_refused(Code.TOO_MANY_REQUESTS, "too many open clients"))
            return None
        if len(client_id) > MAX_ID_LENGTH:
            client_id = ""
        self._of[peer] += 1
        mine = _Stream(self, caller, client_id, stream)
        if client_id:
            self._of_client.setdefault(client_id, []).append(mine)
        mine.entry = self._open.enter(address_of(caller.host), mine, line=peer)
        self._streams.add(mine)
        return await self.go_on(mine)

    def leave(self, mine: _Stream) -> None:
        """Note that a stream is over."""
        self._open.leave(mine.entry)
        self._streams.discard(mine)
        peer, client_id = mine.peer, mine.client_id
        if client_id:
            self._of_client[client_id].remove(mine)
            if not self._of_client[client_id]:
                del self._of_client[client_id]
        self._publishes(mine, ())
        self._of[peer] -= 1
        if not self._of[peer]:
            del self._of[peer]

    async def go_on(self, mine: _Stream) -> Rest | None:
        """Answer a stream until there is nothing to read; return it if it waits then.

        Raises:
            Failed: It had to go.
        """
        waits = False
        mine.task = asyncio.current_task()
        try:
            while not mine.is_ended:
                if not await self._answer_next(mine):
                    return None
                if mine.stream.may_leave and not mine.stream.is_readable:
                    waits = True
                    return mine
        except asyncio.CancelledError:
            if not mine.is_ended:
                raise
            if mine.task is not None:
                mine.task.uncancel()
        finally:
            mine.task = None
            if not waits:
                self.leave(mine)
        if mine.is_evicted:
            raise Failed(FailureCode.RESOURCE_EXHAUSTED, NO_ROOM)
        return None

    async def _answer_next(self, mine: _Stream) -> bool:
        """Answer the next command; return whether the stream goes on."""
        peer, stream = mine.peer, mine.stream
        message = self._admission.message(peer, stream.read, "Telemetry", mine.before_bytes)
        try:
            async with message as raw:
                if message.ended:
                    return False
                command = command_of(raw)
                if command and command.settings.WhichOneof("pub_sub") == "subscription":
                    await self._be_current(mine)
                answer = answer_to(command, self._subscribed)
        except DledgerError as error:
            await mine.write(_refused(code_of(error), str(error)))
            return False
        if answer:
            self._publishes(mine, topics_of(command) if command else ())
            async with self._outflow.room(peer, len(answer)):
                await mine.write(answer)
        mine.before_bytes = len(raw)
        return True

    # -- what the group asks -----------------------------------------------------------------------

    def _publishes(self, mine: _Stream, topics: Sequence[str]) -> None:
        for topic in mine.topics:
            streams = self._of_topic[topic]
            del streams[mine]
            if not streams:
                del self._of_topic[topic]
        mine.topics = topics
        for topic in topics:
            self._of_topic.setdefault(topic, {})[mine] = None

    async def ask(
        self,
        topic: str,
        client_ids: Sequence[str],
        command: bytes,
        *,
        others: bool,
        but_not: str = "",
    ) -> int:
        """Send a command to one of a topic's producers; return how many have it: 0 or 1.

        Args:
            topic: The topic.
            client_ids: Clients that are known to send to it, in the order in which they are tried.
            command: A TelemetryCommand.
            others: Whether it may be any other that says that it publishes to the topic.
            but_not: One that is not among these.
        """
        for stream in self._whom(topic, client_ids, others=others):
            is_other = stream.client_id not in client_ids
            if is_other and stream.client_id == but_not:
                continue
            if await self._write(stream, command):
                return 1
        return 0

    def _whom(self, topic: str, client_ids: Sequence[str], *, others: bool) -> Iterator[_Stream]:
        """Yield whom to ask: of a client its newest stream, of others those asked least lately."""
        for client_id in client_ids:
            streams = self._of_client.get(client_id)
            if streams:
                yield streams[-1]
        for stream in list(self._of_topic.get(topic, ())) if others else ():
            if stream in (known := self._of_topic.get(topic, {})):
                del known[stream]
                known[stream] = None
                yield stream

    async def _write(self, stream: _Stream, command: bytes) -> bool:
        """Send a command; return whether its client takes it."""
        try:
            async with asyncio.timeout(_ASK_S), self._outflow.room(stream.peer, len(command)):
                await stream.write(command)
        except Exception as error:  # noqa: BLE001 - of the call, whatever serves it: it is over
            logger.info("client %s was not asked: %r", stream.client_id, error)
            return False
        return True

    async def _be_current(self, mine: _Stream) -> None:
        """Wait for a state that knows the topics of a subscription as the group does now.

        A follower that lags would say of a new FIFO topic that it has no order, and its client
        would work in parallel until it sends its Settings again. Without a leader it is told what
        this node knows, since SDKs do not start otherwise.
        """
        try:
            async with asyncio.timeout(CURRENT_S):
                await self._wait_for_state(mine.caller)
        except (DledgerError, TimeoutError) as error:
            logger.info("Settings are answered from a state that may be behind: %s", error)


def _of_nobody(group: str, topics: Sequence[str]) -> Subscribed:
    del group, topics
    return Subscribed(DEFAULT)


def command_of(raw: bytes) -> service.TelemetryCommand | None:
    """Return the command that a client sent; None if it is none."""
    try:
        return service.TelemetryCommand.FromString(raw)
    except DecodeError:
        return None


def answer_to(
    command: service.TelemetryCommand | None, subscribed: SubscribedTo = _of_nobody
) -> bytes:
    """Return the response to what `command_of` returned; empty if it needs none."""
    if command is None:
        return _refused(Code.BAD_REQUEST, "expected a TelemetryCommand")
    if not command.HasField("settings"):
        return b""
    answer = service.TelemetryCommand(status=ok(), settings=merged(command.settings, subscribed))
    return bytes(answer.SerializeToString())


def topics_of(command: service.TelemetryCommand) -> Sequence[str]:
    """Return the topics to which a client publishes that sends these Settings: some of them."""
    topics = list[str]()
    for each in command.settings.publishing.topics[:_TOPICS_KEPT]:
        try:
            topics.append(topic_name(each))
        except DledgerError:
            continue
    return tuple(dict.fromkeys(topics))


def merged(
    settings: definition.Settings, subscribed: SubscribedTo = _of_nobody
) -> definition.Settings:
    """Return the client's Settings, with every field filled in that the server decides.

    Metrics stay off, as with the original broker. The Python SDK's push consumer then stops
    reading this stream after the first Settings, which is why those must be complete.
    """
    result = definition.Settings()
    result.CopyFrom(settings)
    result.metric.Clear()
    result.metric.on = False
    if not result.request_timeout.ToMilliseconds():
        result.request_timeout.seconds = _REQUEST_TIMEOUT_S
    if settings.WhichOneof("pub_sub") == "subscription":
        _merge_subscription(result, subscribed)
    else:
        _merge_publishing(result)
    return result


def _merge_publishing(settings: definition.Settings) -> None:
    settings.publishing.max_body_size = MAX_BODY_BYTES
    settings.publishing.validate_message_type = True
    initial_ms, max_ms = _SEND_BACKOFF_MS
    settings.backoff_policy.Clear()
    settings.backoff_policy.max_attempts = _SEND_ATTEMPTS
    backoff = settings.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(initial_ms)
    backoff.max.FromMilliseconds(max_ms)
    backoff.multiplier = 2


def _merge_subscription(settings: definition.Settings, subscribed: SubscribedTo) -> None:
    subscription = settings.subscription
    topics = [_full_name(entry.topic) for entry in subscription.subscriptions]
    found = subscribed(_full_name(subscription.group), topics)
    subscription.fifo = found.in_order
    subscription.receive_batch_size = MAX_RECEIVE_BATCH
    asked_ms = subscription.long_polling_timeout.ToMilliseconds()
    # A stopping client waits for its polls to end, so a shorter poll makes a faster stop.
    poll_ms = min(asked_ms, DEFAULT_POLL_MS) if asked_ms > 0 else DEFAULT_POLL_MS
    subscription.long_polling_timeout.FromMilliseconds(poll_ms)
    settings.backoff_policy.Clear()
    retries = found.retries
    settings.backoff_policy.max_attempts = retries.max_attempts or _NEVER_LAST
    for delay_ms in retries.backoff_ms:
        settings.backoff_policy.customized_backoff.next.add().FromMilliseconds(delay_ms)


def _full_name(resource: definition.Resource) -> str:
    namespace = f"{resource.resource_namespace}%" if resource.resource_namespace else ""
    return f"{namespace}{resource.name}"


def _evict(stream: _Stream) -> None:
    stream.is_evicted = True
    stream.end()


def _refused(code: definition.Code.ValueType, sentence: str) -> bytes:
    status = definition.Status(code=code, message=sentence)
    return bytes(service.TelemetryCommand(status=status).SerializeToString())
