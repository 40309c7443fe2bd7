"""The cases of ``make growth``: each builds what has grown, and says which lines are kept."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import grpc.aio

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.client import Client
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb import dledger_pb2_grpc as pb_grpc
from e2e.cluster.shell import run
from e2e.growth.due import DUE_CASES
from e2e.growth.filters import FILTER_CASES
from e2e.growth.measures import AppendProbe, MeasuredGroup, difference, many, measured
from e2e.growth.setting import Case, Setting
from e2e.growth.transactions import TRANSACTION_CASES
from e2e.harness.checks import Check, at_most, none_of, refused
from e2e.harness.command import Outcome
from e2e.harness.rocketmq_calls import POLLS_A_CHANNEL, Consumer, channel_to
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import came_true, eventually_async

ROOT: Final = Path(__file__).parents[2]
TURN_MS: Final = 100.0
PEAK_MB: Final = 400.0
HELD_MB: Final = 150.0
HELD_BYTES: Final = 10.0
HELD_FREEZE_MS: Final = 5.0
DUE_MS: Final = 50.0
FIFO_US: Final = 2.0
_QUEUES_A_TOPIC: Final = 1_024
_STATE_S: Final = 900.0
_AT_ONCE: Final = 256
_MESSAGES: Final = 60
_POLL_S: Final = 60.0
_LEASE_S: Final = 45.0
_STORM_S: Final = 60.0


# -- the state alone, in processes of their own ---------------------------------------------------


async def state(setting: Setting) -> Outcome:
    """What a snapshot, a look and a Release take of the loop, by CPU of its thread."""
    outcome = Outcome()
    for name, size in (("client-ids", 100_000), ("queues", 65_536), ("groups", 10_000)):
        found = await _in_process(outcome, name, setting.size(size))
        outcome.lines.append(_at_most_a_turn(f"state: freeze of {size:,} {name}", found, "freeze"))
        if name == "queues":
            said = str(found["one_more"])
            outcome.lines.append(refused("state: one topic of 1,024 queues more", said, "queues"))
    busy = await _in_process(outcome, "busy-groups", setting.size(300))
    outcome.lines += [
        _at_most_a_turn("state: freeze of 300 busy groups", busy, "freeze"),
        at_most("state: peak memory, 300 busy groups", busy["peak_mb"], PEAK_MB, "MB"),
    ]
    leases = await _in_process(outcome, "leases", setting.size(1_000_000))
    outcome.lines += [
        _at_most_a_turn("state: a look, 1,000,000 leases over at once", leases, "longest_look"),
        _at_most_a_turn("state: a receive of them", leases, "longest_receive"),
        _at_most_a_turn("state: a client that held none parts", leases, "release_of_none"),
    ]
    held = await _in_process(outcome, "held", setting.size(10_000_000))
    due = await _in_process(outcome, "due", setting.size(1_000_000))
    outcome.lines += [
        at_most("state: memory of 10,000,000 held messages", held["held_mb"], HELD_MB, "MB"),
        at_most("state: each of them in a snapshot", held["bytes_each"], HELD_BYTES, "B"),
        at_most("state: freeze of 10,000,000 held", held["freeze_ms"], HELD_FREEZE_MS, "ms"),
        at_most("state: a step, 1,000,000 due in a second", due["longest_step_ms"], DUE_MS, "ms"),
        at_most("state: a release of 1,024", due["longest_release_ms"], DUE_MS, "ms"),
    ]
    fifo = await _in_process(outcome, "fifo", setting.size(200_000))
    outcome.lines += [
        at_most(
            f"state: a FIFO message of {groups} groups beside NORMAL",
            round(fifo[f"fifo_{groups}_groups_us"] - fifo[beside], 2),
            FIFO_US,
            "us",
        )
        for groups, beside in (("10", "normal_us"), ("1000", "normal_by_8_us"))
    ]
    ids, groups = outcome.figures["client-ids"], outcome.figures["groups"]
    outcome.lines += [
        at_most("state: client ids silent for an hour", ids["kept_share_after_an_hour"], 0.5, ""),
        refused("state: one group more than 10,000", str(groups["one_more"]), "10000 groups"),
        at_most("state: groups idle for a month", groups["kept_share_after_a_month"], 0.5, ""),
        none_of("state: refusals of a new group a month later", int(bool(groups["a_month_later"]))),
        at_most("state: letting the idle groups go", groups.get("expire_ms"), TURN_MS, "ms"),
    ]
    return outcome


def _at_most_a_turn(what: str, found: dict[str, Any], name: str) -> Check:
    return at_most(what, found[f"{name}_ms"], TURN_MS, "ms")


async def _in_process(outcome: Outcome, dimension: str, size: int) -> dict[str, Any]:
    command = (sys.executable, "-m", "e2e.growth.state", dimension, str(size))
    told = await asyncio.to_thread(run, *command, cwd=ROOT, timeout_s=_STATE_S)
    found: dict[str, Any] = json.loads(told)
    outcome.figures[dimension] = {"size": size} | found
    return found


# -- whole groups: a snapshot of what has grown ----------------------------------------------------


async def client_ids(setting: Setting) -> Outcome:
    """A hundred thousand client ids that sent one message each."""
    size = setting.size(100_000)

    async def build(group: MeasuredGroup) -> None:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            await client.create_topic("t", queues=8)
        async with channel_to(group.dev.leader_endpoint) as channel:
            produce = channel.stream_stream("/dledger.v1.Ledger/Produce")
            answered = asyncio.Semaphore(0)

            async def requests() -> AsyncIterator[bytes]:
                for first in range(0, size, _AT_ONCE):
                    numbers = range(first, min(first + _AT_ONCE, size))
                    batches = [pb.ProduceBatch(id=n, command=_of_client(n)) for n in numbers]
                    yield pb.ProduceBatches(batches=batches).SerializeToString()
                    for _ in numbers:
                        await answered.acquire()

            async for raw in produce(requests()):
                for answer in pb.ProduceAnswers.FromString(raw).answers:
                    if answer.refused:
                        raise RuntimeError(answer.refused)
                    answered.release()

    return await _snapshot(setting, "client-ids", f"{size:,} client ids", build)


def _of_client(number: int) -> bytes:
    """Return a message of its own client id, both as an SDK makes them."""
    columns = Columns(
        message_ids=[f"01{number:012X}00010A1B2C3D4E5F"], bodies=[b"x" * 16], born_at_ms=[0]
    )
    return encode_produce(columns, client_id=f"host-{number:07d}@7@0@1a2b3c4d5e", topic="t")


async def queues(setting: Setting) -> Outcome:
    """As many queues as there may be, and one topic more."""
    size = setting.size(65_536)
    topics, rest = divmod(size - 1, _QUEUES_A_TOPIC)  # one is the probe's

    async def build(group: MeasuredGroup) -> None:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:

            async def create(number: int) -> None:
                queues = _QUEUES_A_TOPIC if number < topics else rest
                if queues:
                    await client.create_topic(f"big-{number:04d}", queues=queues)

            if said := await many(topics + 1, 8, create):
                raise RuntimeError(said)

    async def beyond(group: MeasuredGroup) -> Check:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            said = await many(1, 1, lambda _: client.create_topic("one-more", queues=1))
        return refused(f"one queue more than {size:,}", said, "queues")

    return await _snapshot(setting, "queues", f"{size:,} queues", build, beyond)


async def groups(setting: Setting) -> Outcome:
    """Ten thousand groups that read eight queues to their ends, and one more."""
    size = setting.size(10_000)

    async def read(channel: grpc.aio.Channel, name: str) -> None:
        consumer = Consumer(channel, f"reader-of-{name}", "t", name)
        await consumer.ack(await consumer.receive(limit=8))

    async def build(group: MeasuredGroup) -> None:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            await client.create_topic("t", queues=8)
            for queue_id in range(8):
                await client.append("t", [b"m"], queue_id=queue_id)
        admin = group.dev.admins[group.dev.leader]
        async with channel_to(group.dev.leader_endpoint) as channel, channel_to(admin) as made_by:
            create = pb_grpc.AdminStub(made_by).CreateGroup

            async def make_and_read(number: int) -> None:
                name = f"group-{number:06d}"
                await create(pb.CreateGroupRequest(name=name))  # on demand only so many a second
                await read(channel, name)

            said = await many(size, 32, make_and_read)
        if said:
            raise RuntimeError(said)

    async def beyond(group: MeasuredGroup) -> Check:
        async with channel_to(group.dev.leader_endpoint) as channel:
            said = await many(1, 1, lambda _: read(channel, "one-more"))
        return refused(f"one group more than {size:,}", said, "groups already")

    return await _snapshot(setting, "groups", f"{size:,} groups", build, beyond)


async def _snapshot(
    setting: Setting,
    name: str,
    what: str,
    build: Callable[[MeasuredGroup], Awaitable[None]],
    beyond: Callable[[MeasuredGroup], Awaitable[Check]] | None = None,
) -> Outcome:
    """Build something, take a snapshot of it at every node, and check the group's bounds."""
    outcome = Outcome()
    async with measured(setting.work / name) as group, group.probed() as probe:
        begun = await group.mark()
        await build(group)
        built = await group.mark()
        if beyond is not None:
            outcome.lines.append(await beyond(group))
        outcome.figures = {"building": difference(begun, built)}
        outcome.figures |= await _snapshots_of(group, probe)
        seen = outcome.figures["snapshots"]
        outcome.lines += [
            at_most(f"{what}: longest turn of a loop", seen["longest_turn_ms"], TURN_MS, "ms"),
            none_of(f"{what}: elections", seen["elections"]),
            none_of(f"{what}: nodes that died", seen["deaths"]),
            none_of(f"{what}: snapshots not taken", len(outcome.figures["refused"])),
            at_most(f"{what}: peak memory of a node", round(group.peak_mb), PEAK_MB, "MB"),
        ]
    return outcome


async def _snapshots_of(group: MeasuredGroup, probe: AppendProbe) -> dict[str, Any]:
    before, since_s = await group.mark(), time.monotonic()
    said = await group.snapshots()
    await group.dev.until_whole()  # who died comes back
    after = await group.mark()
    return {
        "snapshots": difference(before, after),
        "refused": said,
        "frozen_ms": group.frozen_ms(),
        "longest_gap_ms": probe.longest_gap_ms(since_s),
        "appends_failed": probe.failed,
        "peak_mb": round(group.peak_mb),
    }


# -- whole groups: consumers that wait -------------------------------------------------------------


async def polls(setting: Setting) -> Outcome:
    """A message (append, delivery, ack) beside ten waiting polls of a group, and a thousand."""
    outcome = Outcome()
    costs: dict[int, float] = {}
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(measured(setting.work / "polls"))
        client = await stack.enter_async_context(Client(group.dev.leader_endpoint, timeout_s=60))
        await client.create_topic("t", queues=8)
        for count in (10, setting.size(1_000)):
            costs[count] = await _a_message(group, client, count)
    few, much = costs.values()
    outcome.figures = {"leader_cpu_ms_a_message": {str(k): round(v, 2) for k, v in costs.items()}}
    outcome.lines.append(
        at_most("1,000 waiting polls beside 10: CPU a message", round(much / few, 2), 2, "times")
    )
    return outcome


async def _a_message(group: MeasuredGroup, client: Client, count: int) -> float:
    """Return the leader's CPU ms a message while *count* polls wait, beyond what it takes idle."""
    taken = asyncio.Semaphore(0)

    async def poll(consumer: Consumer) -> None:
        while True:
            if messages := await consumer.receive(limit=1, wait_s=_POLL_S, invisible_s=300):
                await consumer.ack(messages)
                taken.release()

    async with AsyncExitStack() as stack:
        await _waiting(stack, group, count, "t", poll)
        idle, idle_s = await group.mark(), time.monotonic()
        await asyncio.sleep(5)
        begun, begun_s = await group.mark(), time.monotonic()
        for number in range(_MESSAGES):
            await client.append("t", [b"m"], queue_id=number % 8)
            async with asyncio.timeout(30):
                await taken.acquire()
        ended, ended_s = await group.mark(), time.monotonic()
    leader = group.dev.leader
    idle_rate = (begun.cpu_s[leader] - idle.cpu_s[leader]) / (begun_s - idle_s)
    busy_s = ended.cpu_s[leader] - begun.cpu_s[leader] - idle_rate * (ended_s - begun_s)
    return max(busy_s, 0.01) / _MESSAGES * 1000


async def _waiting(
    stack: AsyncExitStack,
    group: MeasuredGroup,
    count: int,
    topic: str,
    poll: Callable[[Consumer], Coroutine[Any, Any, None]],
) -> None:
    """Start so many polls, which end with *stack*, and wait until the leader has them."""
    channels = [
        await stack.enter_async_context(channel_to(group.dev.leader_endpoint))
        for _ in range(-(-count // POLLS_A_CHANNEL))
    ]
    consumers = (
        Consumer(channels[n // POLLS_A_CHANNEL], f"p-{n}", topic, "g") for n in range(count)
    )
    await stack.enter_async_context(meanwhile(*map(poll, consumers)))

    async def wait() -> bool:
        return await asyncio.to_thread(group.waiting_polls) >= count

    await eventually_async(f"{count} polls wait", wait, 120)


async def storm(setting: Setting) -> Outcome:
    """A thousand polls wait while fifty thousand leases of their group end at once."""
    outcome, leased = Outcome(), setting.size(50_176) // 256 * 256 or 256
    count = setting.size(1_000)
    async with measured(setting.work / "storm") as group, AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(group.dev.leader_endpoint, timeout_s=60))
        await client.create_topic("t", queues=8)
        body = [b"m" * 32] * 256
        for number in range(leased // 256):
            await client.append("t", body, queue_id=number % 8)
        over_s = await _lease_all(group, leased)
        again, seen = [0], set[str]()

        async def poll(consumer: Consumer) -> None:
            while again[0] < leased:
                got = await consumer.receive(wait_s=_POLL_S, invisible_s=600)
                again[0] += len(got)
                seen.update(
                    f"{each.system_properties.queue_id}/{each.system_properties.queue_offset}"
                    for each in got
                )

        await _waiting(stack, group, count, "t", poll)
        outcome.figures["polls_waited_s_before"] = round(over_s - time.monotonic(), 1)
        before = await group.mark()
        async with group.probed() as probe:
            since_s = time.monotonic()
            await came_true(lambda: again[0] >= leased, over_s + _STORM_S - time.monotonic())
            took_s, after = time.monotonic() - over_s, await group.mark()
            gap_ms = probe.longest_gap_ms(since_s)
        found = difference(before, after)
        outcome.figures |= {
            "leases": leased,
            "polls": count,
            "again": again[0],
            "different": len(seen),
            "seconds": round(took_s, 1),
            "longest_gap_ms": gap_ms,
            "storm": found,
        }
    what = "1,000 polls, 50,000 leases over at once"
    turn_ms = found["longest_turn_ms"]
    outcome.lines += [
        at_most(f"{what}: longest turn of a loop", turn_ms, TURN_MS, "ms"),
        none_of(f"{what}: elections", found["elections"]),
        none_of(f"{what}: nodes that died", found["deaths"]),
        none_of(f"{what}: messages not delivered again", leased - len(seen)),
        none_of(f"{what}: delivered twice", again[0] - len(seen)),
    ]
    return outcome


async def _lease_all(group: MeasuredGroup, count: int) -> float:
    """Take all messages, until one moment, which is returned (monotonic time)."""
    over_s, got = time.monotonic() + _LEASE_S, [0]
    async with channel_to(group.dev.leader_endpoint) as channel:
        takers = [Consumer(channel, f"taker-{n}", "t", "g") for n in range(8)]

        async def take(number: int) -> None:
            if got[0] < count:
                left_s = max(over_s - time.monotonic(), 0.001)
                queue_id = number % 8
                taken = await takers[queue_id].receive(queue_id=queue_id, invisible_s=left_s)
                got[0] += len(taken)

        said = await many(2 * -(-count // 32), 16, take)
    if said or got[0] < count or time.monotonic() > over_s - 5:
        raise RuntimeError(f"{got[0]} of {count} messages leased in {_LEASE_S:g} s {said}")
    return over_s


CASES: Final[dict[str, Case]] = {
    "state": state,
    "client-ids": client_ids,
    "queues": queues,
    "groups": groups,
    "polls": polls,
    "storm": storm,
    **DUE_CASES,
    **FILTER_CASES,
    **TRANSACTION_CASES,
}
