"""Telemetry: answers each Settings at once with the merged Settings; streams stay open.

No other call depends on this stream, since the SDKs reopen it only minutes after a break.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from dledger.door.contract import Stream
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


class Telemetry:
    """The open Telemetry streams of one node, and their clients' connections."""

    def __init__(self, admission: AdmissionControl, outflow: Outflow) -> None:
        self._admission, self._outflow = admission, outflow
        self._closing = asyncio.Event()
        self._open = 0
        self._peers: dict[str, list[str]] = {}
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open

    def runs_on(self, client_id: str, peer: str) -> bool:
        """Whether a client's Telemetry stream uses the connection of *peer*, as gRPC names it.

        A second stream with the same client id counts only once the first has ended.
        """
        peers = self._peers.get(client_id)
        return peers is not None and peers[0] == peer

    def close(self) -> None:
        """End every stream, so that shutdown does not wait for the clients."""
        self._closing.set()

    async def serve(self, caller: Caller, stream: Stream) -> None:
        """Answer one stream until the client ends it or the node closes."""
        connection, client_id = caller.peer, caller.client_id
        if self._open >= MAX_TELEMETRY_STREAMS or self._of[connection] >= MAX_STREAMS:
            await stream.send(_refused(Code.TOO_MANY_REQUESTS, "too many open clients"))
            return
        is_named = 1 <= len(client_id) <= MAX_ID_LENGTH
        self._open += 1
        if is_named:
            self._peers.setdefault(client_id, []).append(connection)
        self._of[connection] += 1
        closing = asyncio.ensure_future(self._closing.wait())
        serving = asyncio.ensure_future(self._answer_all(connection, stream))
        try:
            await asyncio.wait((closing, serving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open -= 1
            if is_named:
                self._forget(client_id, connection)
            self._of[connection] -= 1
            if not self._of[connection]:
                del self._of[connection]
            closing.cancel()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

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


def _refused(code: definition.Code.ValueType, sentence: str) -> bytes:
    status = definition.Status(code=code, message=sentence)
    return bytes(service.TelemetryCommand(status=status).SerializeToString())
