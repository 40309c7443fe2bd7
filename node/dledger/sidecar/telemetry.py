"""Telemetry: on the same upstream connection as its client's calls, for as long as there is one.

A node takes calls for a client's own only where its Telemetry is: were it answered here alone, what
a push consumer holds for long would be delivered twice. While the group is away, Settings are
answered here, or SDKs would not start. Used by `passing`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import grpc
import grpc.aio

from dledger.common.backoff import Backoff
from dledger.door.contract import Failed, Stream
from dledger.rocketmq.telemetry import answer_to, command_of
from dledger.sidecar.reach import Reach
from dledger.sidecar.upstream import Metadata, Upstream, path_of

TELEMETRY_PATH: Final = path_of("Telemetry")
_PATIENCE_S: Final = 1.0
"""How long Settings wait for the group's answer; SDKs wait for three seconds."""
_BACKOFF_S: Final = (0.05, 1.0)


class TelemetryPassage:
    """One client's stream."""

    def __init__(
        self, upstream: Upstream, metadata: Metadata, stream: Stream, reach: Reach
    ) -> None:
        self._upstream, self._metadata = upstream, metadata
        self._stream, self._reach = stream, reach
        self._call: Any = None
        self._settings = b""
        self._is_answered = True
        self._patience: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        """Pass on both ways until the client ends the stream."""
        up = asyncio.get_running_loop().create_task(self._keep_open())
        try:
            while (message := await self._stream.read()) is not None:
                await self._pass_on(message)
        finally:
            if self._patience is not None:
                self._patience.cancel()
            up.cancel()
            with contextlib.suppress(asyncio.CancelledError, Failed):
                await up

    async def _pass_on(self, message: bytes) -> None:
        if answer_to(command_of(message)):
            self._settings, self._is_answered = message, False
            if self._reach.away:
                self._answer_here()
            else:
                loop = asyncio.get_running_loop()
                self._patience = loop.call_later(_PATIENCE_S, self._answer_here)
        await self._write(message)

    def _answer_here(self) -> None:
        """Answer Settings, unless the group has."""
        if not self._is_answered:
            self._is_answered = True
            with contextlib.suppress(Failed):
                self._stream.send_now(answer_to(command_of(self._settings)))

    async def _write(self, message: bytes) -> None:
        call = self._call
        if call is not None:
            with contextlib.suppress(
                grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError
            ):
                await call.write(message)

    async def _keep_open(self) -> None:
        """Have a stream to the group, again and again; Settings are what it begins with."""
        backoff = Backoff(*_BACKOFF_S)
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            call = self._upstream.stream(TELEMETRY_PATH, self._metadata)
            try:
                if self._settings:
                    await call.write(self._settings)
                self._call = call
                while (answer := await call.read()) is not grpc.aio.EOF:
                    self._is_answered = True
                    await self._stream.send(bytes(answer))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            finally:
                self._call = None
                call.cancel()
            await asyncio.sleep(backoff.next_s(loop.time() - began_s))
