"""Sends of RocketMQ clients in plain gRPC, as `e2e.bench.loads` asks for them.

A client has an id and a connection of its own, and one topic for all. ``append`` is answered as by
the other programs; ``timed`` also says when each send was due (``due_s``, monotonic), with those
that failed left out.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from dledger.rpc.channel import options
from dledger.rpc.dial import dial
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.rpc.status import Code
from e2e.bench.figures import send_times
from e2e.bench.load_server import Answer, Tally, closed_loop, open_loop, serve

TOPIC: Final = "bench-sidecar"
SEND: Final = f"/{SERVICE_NAME}/SendMessage"
_ATTEMPT_S: Final = 30.0
"""Nobody gives up early: the latency of a send says what its caller would have waited."""


def main() -> int:
    """Answer until the input ends."""
    return uvloop.run(_serve(sys.argv[1].split(","), sys.argv[2]))


async def _serve(endpoints: list[str], client_id: str) -> int:
    clients = [SendingClient(endpoint, client_id) for endpoint in endpoints]

    async def append(*, node: int, **asked: Any) -> Answer:
        return (await clients[node].load(**asked)).answer()

    async def send_timed(*, node: int, **asked: Any) -> Answer:
        tally = await clients[node].load(**asked)
        return tally.answer() | {"due_s": tally.due_s}

    return await serve({"append": append, "timed": send_timed})


class Timed(Tally):
    """What is counted, and when each send that was answered was due."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.due_s: list[float] = []

    def note(self, began_s: float, messages: int = 1, *, late: bool = False) -> None:
        """Count a send; those behind the end count, too."""
        del late
        super().note(began_s, messages, late=True)
        self.due_s += [began_s] * messages


class SendingClient:
    """One client of one address."""

    def __init__(self, endpoint: str, client_id: str) -> None:
        self._channel = dial(endpoint, options())
        self._send: Any = self._channel.unary_unary(SEND)
        self._metadata = (
            ("x-mq-client-id", client_id), ("x-mq-language", "JAVA"), ("x-mq-protocol", "v2"),
            ("x-mq-client-version", "5.2.0"), ("x-mq-date-time", "20260101T000000Z"),
        )  # fmt: skip
        self._ids = map(f"{os.getpid():08X}{{:024X}}".format, itertools.count())

    async def load(
        self, *, size_bytes: int, batch: int, window: int, seconds: float, rate: float
    ) -> Timed:
        """Send in a closed or an open loop."""
        body = os.urandom(size_bytes)
        tally = Timed(seconds)

        async def attempt(due_s: float) -> None:
            if await self._one(body, batch):
                tally.note(due_s)
            else:
                tally.note_failure()

        await self._one(body, 1)  # connecting is no part of what is measured
        if rate > 0:
            await open_loop(send_times(rate, seconds), attempt)
        else:
            await closed_loop(window, seconds, attempt)
        return tally

    async def _one(self, body: bytes, batch: int) -> bool:
        """Send messages by one call; return whether all are stored, or kept."""
        messages = [self._message(body) for _ in range(batch)]
        request = service.SendMessageRequest(messages=messages).SerializeToString()
        try:
            answer = await self._send(request, metadata=self._metadata, timeout=_ATTEMPT_S)
        except grpc.aio.AioRpcError:
            return False
        return int(service.SendMessageResponse.FromString(answer).status.code) == Code.OK

    def _message(self, body: bytes) -> definition.Message:
        message = definition.Message(topic=definition.Resource(name=TOPIC), body=body)
        system = message.system_properties
        system.message_id, system.message_type = next(self._ids), definition.MessageType.NORMAL
        system.born_timestamp.FromMilliseconds(time.time_ns() // 1_000_000)
        system.born_host = "bench"
        return message


if __name__ == "__main__":
    sys.exit(main())
