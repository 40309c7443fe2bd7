"""An honest producer and consumer, and what became of each thing that they asked."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc.aio

from dledger.client import Client
from dledger.errors import DledgerError
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service
from e2e.harness.rocketmq_calls import Consumer, channel_to, code_name, send_request
from e2e.harness.tasks import meanwhile
from e2e.hostile.scene import Scene

TOPIC: Final = "victim"
GROUP: Final = "victims"
_EVERY_S: Final = 0.04
_TIMEOUT_S: Final = 3.0
_ATTEMPTS: Final = 3
_QUEUES: Final = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """One message with all its attempts: when, for how long, and what was said last."""

    message_id: str
    at_s: float
    took_s: float
    said: str

    @property
    def ok(self) -> bool:
        """Whether it was acknowledged."""
        return self.said == "OK"


@dataclass(slots=True)
class Victim:
    """What an honest client saw; times are of the monotonic clock."""

    endpoints: Sequence[str]
    sent: list[Sent] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    received_s: list[float] = field(default_factory=list)
    refused: list[tuple[float, str]] = field(default_factory=list)

    def rate(self, since_s: float, until_s: float) -> float:
        """Return the acknowledged messages a second that were sent in [since, until)."""
        good = sum(one.ok for one in self.sent if since_s <= one.at_s < until_s)
        return good / max(until_s - since_s, 1e-9)

    def deliveries(self, since_s: float, until_s: float) -> float:
        """Return the messages a second that the consumer was given in [since, until)."""
        came = sum(since_s <= at_s < until_s for at_s in self.received_s)
        return came / max(until_s - since_s, 1e-9)

    def acknowledged(self) -> set[str]:
        """Return the ids of the messages that the group said it has."""
        return {one.message_id for one in self.sent if one.ok}

    def refusals(self, since_s: float) -> list[str]:
        """Return what was not answered well since then: sends and polls."""
        sends = [one.said for one in self.sent if one.at_s >= since_s and not one.ok]
        return sends + [said for at_s, said in self.refused if at_s >= since_s]

    async def stored(self) -> Counter[str]:
        """Return how often each of its messages is stored; the log is read through any node."""
        found: Counter[str] = Counter()
        last: DledgerError | None = None
        for endpoint in self.endpoints:
            found.clear()
            try:
                async with Client(endpoint, timeout_s=30.0) as client:
                    for queue_id in range(_QUEUES):
                        reading = client.read(TOPIC, queue_id, linearizable=True)
                        async for one in reading:
                            found[one.record.message_id] += 1
            except DledgerError as error:
                last = error
                continue
            return found
        raise last or RuntimeError("no endpoint")


@asynccontextmanager
async def at_work(scene: Scene, plain: Sequence[str]) -> AsyncIterator[Victim]:
    """Let an honest producer and consumer work meanwhile; they begin with the leader.

    *plain* are the ports without TLS: what is stored is read there afterwards.
    """
    first = scene.leader
    ordered = [*scene.endpoints[first:], *scene.endpoints[:first]]
    victim = Victim([*plain[first:], *plain[:first]])
    async with Client(victim.endpoints[0], timeout_s=30.0) as client:
        await client.create_topic(TOPIC, queues=_QUEUES)
        async with AsyncExitStack() as stack:
            trusted = scene.trusted.encode() if scene.tls else None
            opened = [channel_to(one, trusted) for one in ordered]
            channels = [await stack.enter_async_context(one) for one in opened]
            async with meanwhile(_produce(victim, channels), _consume(victim, channels)):
                yield victim


async def _produce(victim: Victim, channels: Sequence[grpc.aio.Channel]) -> None:
    sends = [
        channel.unary_unary(
            f"/{SERVICE_NAME}/SendMessage",
            request_serializer=service.SendMessageRequest.SerializeToString,
            response_deserializer=service.SendMessageResponse.FromString,
        )
        for channel in channels
    ]
    at = 0
    for number in itertools.count(1):
        began_s = time.monotonic()
        message_id = f"01FEEDFACE{number:024d}"
        said = ""
        for _ in range(_ATTEMPTS):
            said = await _sent(sends[at % len(sends)], message_id)
            if said == "OK":
                break
            at += 1  # as an SDK does: the next node
        took_s = time.monotonic() - began_s
        victim.sent.append(Sent(message_id, began_s, took_s, said))
        await asyncio.sleep(max(0.0, _EVERY_S - took_s))


async def _sent(send: Any, message_id: str) -> str:
    request = send_request(TOPIC, message_id, b"v" * 64)
    metadata = (("x-mq-client-id", "victim@1@0@honest"),)
    try:
        return code_name(await send(request, timeout=_TIMEOUT_S, metadata=metadata))
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)


async def _consume(victim: Victim, channels: Sequence[grpc.aio.Channel]) -> None:
    for number in itertools.count():
        channel = channels[number % len(channels)] if victim.refused else channels[0]
        consumer = Consumer(channel, "victim@1@1@honest", TOPIC, GROUP)
        try:
            messages = await consumer.receive(wait_s=1.0, invisible_s=30.0)
            victim.received.update(one.system_properties.message_id for one in messages)
            victim.received_s += [time.monotonic()] * len(messages)
            if messages:
                await consumer.ack(messages)
        except (grpc.aio.AioRpcError, RuntimeError) as error:
            victim.refused.append((time.monotonic(), f"poll: {str(error)[:80]}"))
            await asyncio.sleep(0.2)
