"""The case of ``make growth`` about transactions: what one costs beside a NORMAL message.

On real nodes, three of them (`dledger dev`); sent singly, as SDKs do, and in turns.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import grpc.aio

from dledger.client import Client
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from e2e.growth.measures import MeasuredGroup, many, measured
from e2e.growth.setting import Case, Setting
from e2e.harness.checks import at_most, none_of
from e2e.harness.command import Outcome
from e2e.harness.rocketmq_calls import channel_to, code_name

_BODY: Final = b"t" * 1024
_TURNS: Final = 3
_UNDER_WAY: Final = 16
_IDLE_S: Final = 3.0
_CPU: Final = 4.0
_BYTES: Final = 2.1
_METADATA: Final = (("x-mq-client-id", "producer"), ("x-mq-language", "PYTHON"))
_LOGGED: Final = "dledger_batch_bytes_sum"
"""Bytes of the commands in a leader's entries."""


class _Producer:
    """Sends messages and transactions by the RocketMQ protocol."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel, self._numbers = channel, 0

    async def send(self, topic: str) -> None:
        """Send a NORMAL message."""
        await self._send(topic, definition.MessageType.NORMAL)

    async def commit(self, topic: str) -> None:
        """Send a half, and commit it."""
        entry = await self._send(topic, definition.MessageType.TRANSACTION)
        await self._call(
            "EndTransaction",
            service.EndTransactionRequest(
                topic=definition.Resource(name=topic),
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=definition.TransactionResolution.COMMIT,
                source=definition.TransactionSource.SOURCE_CLIENT,
            ),
        )

    async def _send(self, topic: str, kind: Any) -> Any:
        self._numbers += 1
        message = definition.Message(
            topic=definition.Resource(name=topic),
            body=_BODY,
            system_properties=definition.SystemProperties(
                message_id=f"01{self._numbers:032X}", message_type=kind
            ),
        )
        answer = await self._call("SendMessage", service.SendMessageRequest(messages=[message]))
        return answer.entries[0]

    async def _call(self, name: str, request: Any) -> Any:
        method = self._channel.unary_unary(
            f"/{SERVICE_NAME}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(service, f"{name}Response").FromString,
        )
        answer = await method(request, metadata=_METADATA, timeout=60)
        if code_name(answer) != "OK":
            raise RuntimeError(answer.status.message)
        return answer


async def transactions(setting: Setting) -> Outcome:
    """A committed transaction beside a NORMAL message, sent singly: CPU and bytes of the log."""
    each = setting.size(3_000)
    spent: dict[str, list[tuple[float, float, float]]] = {"normal": [], "transaction": []}
    async with measured(setting.work / "transactions") as group:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            await client.create_topic("normal", "NORMAL", 8)
            await client.create_topic("transaction", "TRANSACTION", 8)
        idle = await _idle(group)
        async with channel_to(group.dev.leader_endpoint) as channel:
            producer = _Producer(channel)
            work = {"normal": producer.send, "transaction": producer.commit}
            for topic, one in work.items():  # a warm-up
                await _do(each // 10 or 1, topic, one)
            for _ in range(_TURNS):
                for topic, one in work.items():
                    spent[topic].append(await _cost(group, each, topic, one, idle))
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            stored = {each.name: each.messages for each in await client.topics()}
    sums = {topic: [sum(column) for column in zip(*of, strict=True)] for topic, of in spent.items()}
    (leader, group_cpu, size_bytes), normal = sums["transaction"], sums["normal"]
    asked = _TURNS * each + (each // 10 or 1)
    what = "a transaction beside a NORMAL message"
    return Outcome(
        lines=[
            at_most(f"{what}: CPU of the leader", round(leader / normal[0], 2), _CPU, "times"),
            at_most(f"{what}: CPU of all nodes", round(group_cpu / normal[1], 2), _CPU, "times"),
            at_most(f"{what}: bytes", round(size_bytes / normal[2], 3), _BYTES, "times"),
            none_of(f"{what}: transactions not delivered", asked - stored["transaction"]),
        ],
        figures={
            topic: {
                "leader_us": round(of[0] / (_TURNS * each) * 1e6),
                "all_nodes_us": round(of[1] / (_TURNS * each) * 1e6),
                "bytes": round(of[2] / (_TURNS * each)),
            }
            for topic, of in sums.items()
        },
    )


async def _do(count: int, topic: str, one: Any) -> None:
    if said := await many(count, _UNDER_WAY, lambda _: one(topic)):
        raise RuntimeError(said)


async def _cost(
    group: MeasuredGroup, count: int, topic: str, one: Any, idle: tuple[float, float]
) -> tuple[float, float, float]:
    """Return CPU seconds of the leader, of all nodes, and bytes of the log, beyond what is idle."""
    before, began_s, bytes_before = await _look(group)
    await _do(count, topic, one)
    after, ended_s, bytes_after = await _look(group)
    wall_s, leader = ended_s - began_s, group.dev.leader
    cpu_s = [late - early for early, late in zip(before, after, strict=True)]
    return (
        cpu_s[leader] - idle[0] * wall_s,
        sum(cpu_s) - idle[1] * wall_s,
        bytes_after - bytes_before,
    )


async def _idle(group: MeasuredGroup) -> tuple[float, float]:
    """Return the CPU of the leader, and of all nodes, in a second without anything to do."""
    before, began_s, _ = await _look(group)
    await asyncio.sleep(_IDLE_S)
    after, ended_s, _ = await _look(group)
    rates = [
        (late - early) / (ended_s - began_s) for early, late in zip(before, after, strict=True)
    ]
    return rates[group.dev.leader], sum(rates)


async def _look(group: MeasuredGroup) -> tuple[tuple[float, ...], float, float]:
    mark = await group.mark(settled=True)
    return mark.cpu_s, time.monotonic(), await asyncio.to_thread(group.total, _LOGGED)


TRANSACTION_CASES: Final[dict[str, Case]] = {"transactions": transactions}
