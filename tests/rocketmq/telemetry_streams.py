"""Open Telemetry streams, without a door in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from dledger.broker.redelivery import DEFAULT
from dledger.calls.admission import AdmissionControl
from dledger.calls.caller import Caller
from dledger.door.contract import Arrival, AwaitedStream, Rest
from dledger.requests.outflow import Outflow
from dledger.rocketmq.telemetry import Subscribed, Telemetry


class _Silent(AwaitedStream):
    """A stream whose client says nothing; a `contract.Stream`."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def read(self) -> bytes | None:
        await asyncio.Event().wait()
        return None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.read()) is not None:
            yield message

    async def send(self, message: bytes) -> None:
        self.sent.append(message)

    def send_now(self, message: bytes) -> None:
        self.sent.append(message)

    def prove(self, arrival: Arrival) -> None:
        arrival.lost()


async def _nothing_missing(caller: Caller) -> None:
    """A state that is never behind."""
    del caller


class Streams:
    """Some, by the connections of their clients."""

    def __init__(self) -> None:
        self.telemetry = Telemetry(
            AdmissionControl(), Outflow(), lambda *_: Subscribed(DEFAULT), _nothing_missing
        )
        self._open: list[asyncio.Task[Rest | None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._open:
            task.cancel()
            with contextlib.suppress(BaseException):
                await task
        assert len(self.telemetry) == 0

    async def open(self, peer: str) -> asyncio.Task[Rest | None]:
        """Open one, and return when it is open."""
        caller = Caller(
            client_id=f"client of {peer}",
            peer=peer,
            tls=False,
            forwarded=False,
            deadline_s=1e9,
            host=peer.rpartition(":")[0],
            fields={},
        )
        task = asyncio.get_running_loop().create_task(self.telemetry.serve(caller, _Silent()))
        self._open.append(task)
        await asyncio.sleep(0)
        return task
