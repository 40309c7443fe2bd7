"""Telemetry: each Settings is answered at once with the merged Settings; streams stay open.

No other call depends on this stream: after a break the SDKs open it again only minutes later.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from google.protobuf.message import DecodeError

from dledger.rpc.limits import (
    CONSUME_BACKOFF_S,
    DEFAULT_POLL_MS,
    MAX_BODY_BYTES,
    MAX_RECEIVE_BATCH,
    MAX_TELEMETRY_STREAMS,
)
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, ok

_SEND_ATTEMPTS: Final = 3
_SEND_BACKOFF_MS: Final = (10, 1000)
_CONSUME_ATTEMPTS: Final = 16
_REQUEST_TIMEOUT_S: Final = 3


class Telemetry:
    """The open Telemetry streams of one node."""

    def __init__(self) -> None:
        self._closing = asyncio.Event()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def close(self) -> None:
        """End every stream, so that shutting down does not wait for the clients."""
        self._closing.set()

    async def serve(self, requests: Any, context: Any) -> None:
        """Answer one stream until the client ends it or the node closes."""
        if self._open >= MAX_TELEMETRY_STREAMS:
            await context.write(_refused(Code.TOO_MANY_REQUESTS, "too many open clients"))
            return
        self._open += 1
        closing = asyncio.ensure_future(self._closing.wait())
        serving = asyncio.ensure_future(_answer_all(requests, context))
        try:
            await asyncio.wait((closing, serving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open -= 1
            closing.cancel()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def _answer_all(requests: Any, context: Any) -> None:
    async for raw in requests:
        answer = answer_to(raw)
        if answer is not None:
            await context.write(answer)


def answer_to(raw: bytes) -> bytes | None:
    """Return the answer to one TelemetryCommand; None when it needs none."""
    try:
        command = service.TelemetryCommand.FromString(raw)
    except DecodeError:
        return _refused(Code.BAD_REQUEST, "this is no TelemetryCommand")
    if not command.HasField("settings"):
        return None
    answer = service.TelemetryCommand(status=ok(), settings=merged(command.settings))
    return bytes(answer.SerializeToString())


def merged(settings: Any) -> Any:
    """Return the client's Settings with everything filled in that the server decides.

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


def _merge_publishing(settings: Any) -> None:
    settings.publishing.max_body_size = MAX_BODY_BYTES
    settings.publishing.validate_message_type = True
    initial_ms, max_ms = _SEND_BACKOFF_MS
    settings.backoff_policy.Clear()
    settings.backoff_policy.max_attempts = _SEND_ATTEMPTS
    backoff = settings.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(initial_ms)
    backoff.max.FromMilliseconds(max_ms)
    backoff.multiplier = 2


def _merge_subscription(settings: Any) -> None:
    subscription = settings.subscription
    subscription.fifo = False
    subscription.receive_batch_size = MAX_RECEIVE_BATCH
    asked_ms = subscription.long_polling_timeout.ToMilliseconds()
    # What a client does not poll for longer, it does not wait for longer when it stops.
    poll_ms = min(asked_ms, DEFAULT_POLL_MS) if asked_ms > 0 else DEFAULT_POLL_MS
    subscription.long_polling_timeout.FromMilliseconds(poll_ms)
    settings.backoff_policy.Clear()
    settings.backoff_policy.max_attempts = _CONSUME_ATTEMPTS
    for delay_s in CONSUME_BACKOFF_S:
        settings.backoff_policy.customized_backoff.next.add(seconds=delay_s)


def _refused(code: int, sentence: str) -> bytes:
    status = definition.Status(code=code, message=sentence)
    return bytes(service.TelemetryCommand(status=status).SerializeToString())
