"""Cases of ``make growth`` about SQL92 filters: many consumers of one, and one without a match.

They run on real nodes, three of them (`dledger dev`), and ask these how many messages they looked
at (`dledger_filter_evaluated_messages_total`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import grpc.aio

from dledger.client import Client
from dledger.types import Record
from e2e.growth.measures import MeasuredGroup, difference, many, measured
from e2e.growth.setting import Case, Setting
from e2e.harness.checks import at_most, none_of
from e2e.harness.command import Outcome
from e2e.harness.rocketmq_calls import Consumer, channel_to
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import came_true, eventually_async

_QUEUES: Final = 8
_CONSUMERS: Final = 50
_EVALUATIONS: Final = 1.2
_CPU_S: Final = 10.0
_TURN_MS: Final = 50.0
_ALL_S: Final = 900.0
_POLL_S: Final = 20.0
_IDLE_S: Final = 5.0
_EVALUATED: Final = "dledger_filter_evaluated_messages_total"


async def share_a_filter(setting: Setting) -> Outcome:
    """Fifty consumers of one group ask with one expression, while messages are sent."""
    size = setting.size(50_000) // 100 * 100 or 100
    got = Counter[int]()
    async with measured(setting.work / "filter-shared") as group, AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(group.dev.leader_endpoint, timeout_s=60))
        await client.create_topic("t", queues=_QUEUES)
        channel = await stack.enter_async_context(channel_to(group.dev.leader_endpoint))
        await _warm_up(channel)

        async def consume(number: int) -> None:
            consumer = Consumer(channel, f"c-{number}", "t", "g", sql="price > 89")
            while True:
                if messages := await consumer.receive(wait_s=_POLL_S):
                    got.update(int(each.body) for each in messages)
                    await consumer.ack(messages)

        async def send(number: int) -> None:
            first = 100 * number
            records = [
                Record(body=b"%d" % (first + n), properties={"price": f"{n}"}) for n in range(100)
            ]
            await client.append("t", records, queue_id=number % _QUEUES)

        async with meanwhile(*map(consume, range(_CONSUMERS))):
            before = await group.mark()
            if said := await many(size // 100, 4, send):
                raise RuntimeError(said)
            await came_true(lambda: len(got) >= size // 10, _ALL_S)
            after, evaluated = await group.mark(settled=True), await _count_evaluated(group)
    seen = difference(before, after)
    what = f"SQL92, {_CONSUMERS} consumers, {size:,} messages"
    each = round(evaluated / size, 3)
    return Outcome(
        lines=[
            at_most(f"{what}: evaluations a message", each, _EVALUATIONS, ""),
            none_of(f"{what}: matches not delivered", size // 10 - len(got)),
            none_of(f"{what}: matches delivered twice", sum(got.values()) - len(got)),
            at_most(f"{what}: longest turn of a loop", seen["longest_turn_ms"], _TURN_MS, "ms"),
        ],
        figures={"messages": size, "evaluations": evaluated, "sending": seen},
    )


async def without_a_match(setting: Setting) -> Outcome:
    """A million messages of which an expression matches none."""
    size = setting.size(1_000_000) // 1_000 * 1_000 or 1_000
    async with measured(setting.work / "filter-none") as group:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            await client.create_topic("t", queues=_QUEUES)
            async with channel_to(group.dev.leader_endpoint) as channel:
                await _warm_up(channel)
            properties = {"price": "1", "region": "eu", "kind": "b", "of": "x"}
            records = [Record(body=b"m" * 100, properties=properties)] * 1_000
            said = await many(
                size // 1_000, 4, lambda n: client.append("t", records, queue_id=n % _QUEUES)
            )
        if said:
            raise RuntimeError(said)
        idle, idle_s = await group.mark(), time.monotonic()
        await asyncio.sleep(_IDLE_S)
        before, before_s = await group.mark(), time.monotonic()
        async with channel_to(group.dev.leader_endpoint) as channel:
            consumer = Consumer(channel, "c", "t", "g", sql="price > 5")

            async def consume() -> None:
                while True:
                    await consumer.receive(wait_s=_POLL_S)

            async def is_passed() -> bool:
                return await _count_evaluated(group) >= size

            async with meanwhile(consume()):
                await eventually_async("all is looked at", is_passed, _ALL_S, poll_s=0.5)
        after, after_s = await group.mark(settled=True), time.monotonic()
        evaluated, leader = await _count_evaluated(group), group.dev.leader
    seen = difference(before, after)
    idle_rate = (before.cpu_s[leader] - idle.cpu_s[leader]) / (before_s - idle_s)
    cpu_s = round(seen["cpu_s"][leader] - idle_rate * (after_s - before_s), 2)
    what = f"SQL92, {size:,} messages without a match"
    return Outcome(
        lines=[
            at_most(f"{what}: CPU of the leader", cpu_s, _CPU_S * setting.scale, "s"),
            at_most(f"{what}: longest turn of a loop", seen["longest_turn_ms"], _TURN_MS, "ms"),
            at_most(f"{what}: evaluations a message", round(evaluated / size, 3), 1.01, ""),
        ],
        figures={
            "messages": size,
            "evaluations": evaluated,
            "leader_cpu_s": cpu_s,
            "seconds": round(after_s - before_s, 1),
            "passing": seen,
        },
    )


async def _warm_up(channel: grpc.aio.Channel) -> None:
    """Let the leader make its parser, which takes 30 ms once, and is not what is measured."""
    await Consumer(channel, "c", "t", "warm-up", sql="a = 1").receive()


async def _count_evaluated(group: MeasuredGroup) -> int:
    return int(await asyncio.to_thread(group.total, _EVALUATED))


FILTER_CASES: Final[dict[str, Case]] = {
    "filter-shared": share_a_filter,
    "filter-none": without_a_match,
}
