"""Telemetry: answers each Settings at once with the merged Settings; streams stay open.

No other call depends on this stream, since the SDKs reopen it only minutes after a break.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from google.protobuf.message import DecodeError

from dledger.calls.admission import AdmissionControl
from dledger.calls.caller import Caller
from dledger.common.limits import (
    CONSUME_BACKOFF_S,
    DEFAULT_POLL_MS,
    MAX_BODY_BYTES,
    MAX_ID_LENGTH,
    MAX_RECEIVE_BATCH,
    MAX_TELEMETRY_STREAMS,
)
from dledger.common.shares import NO_ROOM, Share, address_of
from dledger.door.contract import Code as FailureCode
from dledger.door.contract import Failed, Stream
from dledger.errors import DledgerError
from dledger.requests.outflow import Outflow
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, code_of, ok

MAX_STREAMS: Final = 64
"""The most streams on one connection: the clients of a process, one stream each, may share it."""
_SEND_ATTEMPTS: Final = 3
_SEND_BACKOFF_MS: Final = (10, 1000)
_CONSUME_ATTEMPTS: Final = 16
_REQUEST_TIMEOUT_S: Final = 3


class _Stream:
    """One that is open: the task in which it is served, which is all that it has.

    Attributes:
        is_ended: Whether it was cancelled from here, and not because its call is over.
        is_evicted: Whether that was to make room.
    """

    __slots__ = ("is_ended", "is_evicted", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stream is served by a task")
        self.task = task
        self.is_ended = self.is_evicted = False

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.task.cancel()


class Telemetry:
    """The open Telemetry streams of one node, and their clients' connections."""

    def __init__(self, admission: AdmissionControl, outflow: Outflow) -> None:
        self._admission, self._outflow = admission, outflow
        self._open: Share[_Stream] = Share(MAX_TELEMETRY_STREAMS, _evict)
        self._streams = set[_Stream]()
        self._is_closed = False
        self._peers: dict[str, list[str]] = {}
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.taken

    def runs_on(self, client_id: str, peer: str) -> bool:
        """Whether a client's Telemetry stream uses the connection of *peer*, as gRPC names it.

        A second stream with the same client id counts only once the first has ended.
        """
        peers = self._peers.get(client_id)
        return peers is not None and peers[0] == peer

    def close(self) -> None:
        """End every stream, so that shutdown does not wait for the clients."""
        self._is_closed = True
        for stream in self._streams:
            stream.end()

    async def serve(self, caller: Caller, stream: Stream) -> None:
        """Answer one stream until the client ends it or the node closes.

        When there are as many as there may be, the oldest of the address with most goes.

        Raises:
            Failed: It is this one that had to go.
        """
        connection, client_id = caller.peer, caller.client_id
        if self._is_closed:
            return
        if self._of[connection] >= MAX_STREAMS:
            await stream.send(_refused(Code.TOO_MANY_REQUESTS, "too many open clients"))
            return
        is_named = 1 <= len(client_id) <= MAX_ID_LENGTH
        if is_named:
            self._peers.setdefault(client_id, []).append(connection)
        self._of[connection] += 1
        mine = _Stream()
        entry = self._open.enter(address_of(caller.host), mine, line=connection)
        self._streams.add(mine)
        try:
            await self._answer_all(connection, stream)
        except asyncio.CancelledError:
            if mine.is_ended:
                mine.task.uncancel()
                if mine.is_evicted:
                    raise Failed(FailureCode.RESOURCE_EXHAUSTED, NO_ROOM) from None
                return
            raise
        finally:
            self._open.leave(entry)
            self._streams.discard(mine)
            if is_named:
                self._forget(client_id, connection)
            self._of[connection] -= 1
            if not self._of[connection]:
                del self._of[connection]

    def _forget(self, client_id: str, peer: str) -> None:
        self._peers[client_id].remove(peer)
        if not self._peers[client_id]:
            del self._peers[client_id]

    async def _answer_all(self, connection: str, stream: Stream) -> None:
        before_bytes: int | None = None
        while True:
            before_bytes = await self._answer_next(connection, stream, before_bytes)
            if before_bytes is None:
                return

    async def _answer_next(
        self, connection: str, stream: Stream, before_bytes: int | None
    ) -> int | None:
        """Answer the next command; return its size, or None if the stream should end."""
        message = self._admission.message(connection, stream.read, "Telemetry", before_bytes)
        try:
            async with message as raw:
                if message.ended:
                    return None
                answer = answer_to(raw)
        except DledgerError as error:
            await stream.send(_refused(code_of(error), str(error)))
            return None
        if answer:
            async with self._outflow.room(connection, len(answer)):
                await stream.send(answer)
        return len(raw)


def answer_to(raw: bytes) -> bytes:
    """Return the response to one TelemetryCommand; empty if it needs none."""
    try:
        command = service.TelemetryCommand.FromString(raw)
    except DecodeError:
        return _refused(Code.BAD_REQUEST, "expected a TelemetryCommand")
    if not command.HasField("settings"):
        return b""
    answer = service.TelemetryCommand(status=ok(), settings=merged(command.settings))
    return bytes(answer.SerializeToString())


def merged(settings: definition.Settings) -> definition.Settings:
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
        _merge_subscription(result)
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


def _merge_subscription(settings: definition.Settings) -> None:
    subscription = settings.subscription
    subscription.fifo = False
    subscription.receive_batch_size = MAX_RECEIVE_BATCH
    asked_ms = subscription.long_polling_timeout.ToMilliseconds()
    # A stopping client waits for its polls to end, so a shorter poll makes a faster stop.
    poll_ms = min(asked_ms, DEFAULT_POLL_MS) if asked_ms > 0 else DEFAULT_POLL_MS
    subscription.long_polling_timeout.FromMilliseconds(poll_ms)
    settings.backoff_policy.Clear()
    settings.backoff_policy.max_attempts = _CONSUME_ATTEMPTS
    for delay_s in CONSUME_BACKOFF_S:
        settings.backoff_policy.customized_backoff.next.add(seconds=delay_s)


def _evict(stream: _Stream) -> None:
    stream.is_evicted = True
    stream.end()


def _refused(code: definition.Code.ValueType, sentence: str) -> bytes:
    status = definition.Status(code=code, message=sentence)
    return bytes(service.TelemetryCommand(status=status).SerializeToString())
