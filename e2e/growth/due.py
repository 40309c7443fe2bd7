"""Cases of ``make growth`` about messages that are due: a million in one second, a thousand each.

They run on real nodes, three of them (`dledger dev`). Each message names itself and when it is due
in its body, so that all of them are looked at in the end: which came, how often, and when.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import grpc.aio

from dledger.client import Client
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from e2e.growth.measures import MeasuredGroup, difference, many, measured
from e2e.growth.setting import Case, Setting
from e2e.harness.checks import Check, at_most, none_of
from e2e.harness.command import Outcome
from e2e.harness.rocketmq_calls import channel_to, code_name
from e2e.harness.tasks import meanwhile
from e2e.harness.waiting import HarnessError, came_true, eventually_async

_TOPIC: Final = "later"
_QUEUES: Final = 8
_BODY: Final = struct.Struct("<qq")
"""How a body begins: number, and due time, Unix ms."""
_SMALL: Final = bytes(84)
_LARGE: Final = bytes(1_008)
"""How it goes on."""
_SCATTERED_SIZE: Final = 200_000
"""A fifth of a million, to be out in a fifth of the time: its log is a multiple of the caches."""
_TOGETHER: Final = 1_000
_SCATTERED: Final = 64
"""Messages of one request, which are due at one moment, or each at its own."""
_UNDER_WAY: Final = 8
_TRIED: Final = 0.05
"""Share that is held first, for long, to see how fast that goes."""
_LONG_MS: Final = 30 * 86_400_000
_NOT_IN_TIME_S: Final = 1_800.0
_LOOK_S: Final = 0.25
_TRIES: Final = 3
_TURN_MS: Final = 50.0
_TOGETHER_S: Final = 60.0
_SCATTERED_S: Final = 300.0
_LATE_MS: Final = 1_000.0
_A_SECOND: Final = 1_000
_STEADY_S: Final = 60

Hold = Callable[[Sequence[tuple[int, int]]], Awaitable[object]]
"""Hold messages: number and due time of each."""


async def due_together(setting: Setting) -> Outcome:
    """A million messages due in one second, sent by the thousand with one time each."""
    size, rng = setting.size(1_000_000), Random(3)
    async with measured(setting.work / "due-together") as group:
        client = Client(group.dev.leader_endpoint, timeout_s=60)
        async with client:
            await client.create_topic(_TOPIC, "DELAY", _QUEUES)

            async def hold(some: Sequence[tuple[int, int]]) -> None:
                bodies = [_BODY.pack(*each) + _SMALL for each in some]
                await client.append(_TOPIC, bodies, deliver_at_ms=some[0][1])

            def times() -> list[int]:
                return [rng.randrange(1_000)] * _TOGETHER

            found = await _fire(group, size, _TOGETHER, times, hold)
    return _outcome(f"{size:,} due in a second, sent together", found, _TOGETHER_S)


async def due_scattered(setting: Setting) -> Outcome:
    """200,000 messages of 1 KiB due in one second, each in an entry of those of other moments."""
    size, rng = setting.size(_SCATTERED_SIZE), Random(4)
    async with measured(setting.work / "due-scattered") as group:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            await client.create_topic(_TOPIC, "DELAY", _QUEUES)
        async with channel_to(group.dev.leader_endpoint) as channel:
            hold = _sends(channel)

            def times() -> list[int]:
                return [rng.randrange(1_000) for _ in range(_SCATTERED)]

            found = await _fire(group, size, _SCATTERED, times, hold)
    seconds = _SCATTERED_S * _SCATTERED_SIZE / 1_000_000
    return _outcome(f"{size:,} due in a second, scattered", found, seconds)


async def due_steadily(setting: Setting) -> Outcome:
    """A thousand messages are due each second, for a minute."""
    seconds = max(5, setting.size(_STEADY_S))
    size, rng = seconds * _A_SECOND, Random(5)
    order = list(range(size))
    rng.shuffle(order)
    async with measured(setting.work / "due-steadily") as group:
        async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
            await client.create_topic(_TOPIC, "DELAY", _QUEUES)
        async with channel_to(group.dev.leader_endpoint) as channel:
            hold = _sends(channel)
            begin_ms = await _begin_ms(hold, size, _SCATTERED)
            parts = [order[first : first + _SCATTERED] for first in range(0, size, _SCATTERED)]
            await _all_held(parts, lambda n: begin_ms + n, hold)
        _check_in_time(begin_ms)
        before, arrivals = await group.mark(), _Arrivals()
        async with meanwhile(*(_follow(group, queue, arrivals) for queue in range(_QUEUES))):
            left_s = begin_ms / 1000 + seconds + 60 - time.time()
            await came_true(lambda: len(arrivals.late_ms) >= size, left_s)
        after = await group.mark(settled=True)
        read = await _read_all(group)
    seen = difference(before, after)
    late_ms = sorted(arrivals.late_ms)
    what = f"{_A_SECOND:,} due a second"
    stored, arrived = _spread(sorted(read.late_ms)), _spread(late_ms)
    lines = [
        at_most(f"{what}: p99 late, when stored", stored["p99"], _LATE_MS, "ms"),
        at_most(f"{what}: p99 late, when read", arrived["p99"], _LATE_MS, "ms"),
        at_most(f"{what}: longest turn of a loop", seen["longest_turn_ms"], _TURN_MS, "ms"),
        *_once(what, size, read),
    ]
    figures = {"messages": size, "stored_late_ms": stored, "read_late_ms": arrived, "firing": seen}
    return Outcome(lines=lines, figures=figures)


# -- holding ---------------------------------------------------------------------------------------


def _sends(channel: grpc.aio.Channel) -> Hold:
    """Return how to hold messages of several times by one SendMessage."""
    send = channel.unary_unary(
        f"/{SERVICE_NAME}/SendMessage",
        request_serializer=service.SendMessageRequest.SerializeToString,
        response_deserializer=service.SendMessageResponse.FromString,
    )
    metadata = (("x-mq-client-id", "holder"), ("x-mq-language", "PYTHON"))

    async def hold(some: Sequence[tuple[int, int]]) -> None:
        request = service.SendMessageRequest(messages=[_message(*each) for each in some])
        for _ in range(_TRIES):  # the ids are the same: what is there already is not held twice
            try:
                answer = await send(request, metadata=metadata, timeout=60)
            except grpc.aio.AioRpcError as error:
                said = str(error.details())
                continue
            if code_name(answer) == "OK":
                return
            said = answer.status.message
        raise RuntimeError(said)

    return hold


def _message(number: int, due_ms: int) -> Any:
    properties = definition.SystemProperties(
        message_id=f"01{due_ms & 0xFFFFFFFF:08X}{number & 0xFFFFFFFF:024X}",
        message_type=definition.MessageType.DELAY,
    )
    properties.delivery_timestamp.FromMilliseconds(due_ms)
    return definition.Message(
        topic=definition.Resource(name=_TOPIC),
        body=_BODY.pack(number, due_ms) + _LARGE,
        system_properties=properties,
    )


async def _begin_ms(hold: Hold, size: int, at_once: int) -> int:
    """Hold a few for long; return a second (Unix ms) by which so many should be held."""
    count = -(-round(size * _TRIED) // at_once)
    due_ms, began_s = _now_ms() + _LONG_MS, time.monotonic()
    parts = [range(-n * at_once - at_once, -n * at_once) for n in range(count)]
    await _all_held(parts, lambda _: due_ms, hold)
    rate = count * at_once / (time.monotonic() - began_s)
    return (_now_ms() // 1000 + 15 + round(1.6 * size / rate)) * 1000


async def _all_held(
    parts: Sequence[Sequence[int]], due_ms: Callable[[int], int], hold: Hold
) -> None:
    said = await many(
        len(parts), _UNDER_WAY, lambda n: hold([(each, due_ms(each)) for each in parts[n]])
    )
    if said:
        raise HarnessError(said)


def _check_in_time(begin_ms: int) -> None:
    if _now_ms() > begin_ms - 2_000:
        raise HarnessError("the machine became slower: not all were held before they were due")


# -- firing ----------------------------------------------------------------------------------------


async def _fire(
    group: MeasuredGroup, size: int, at_once: int, times: Callable[[], list[int]], hold: Hold
) -> dict[str, Any]:
    """Hold so many, and measure from their second on until all are in their queues."""
    begin_ms = await _begin_ms(hold, size, at_once)
    due_ms, parts = list[int](), list[range]()
    while len(due_ms) < size:
        some = [begin_ms + each for each in times()][: size - len(due_ms)]
        parts.append(range(len(due_ms), len(due_ms) + len(some)))
        due_ms += some
    await _all_held(parts, due_ms.__getitem__, hold)
    _check_in_time(begin_ms)
    async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
        await asyncio.sleep((begin_ms - _now_ms()) / 1000 - 1)
        early, before = await _count_stored(client), await group.mark()

        async def are_out() -> bool:
            return await _count_stored(client) >= size

        what = f"all of {size} messages are out"
        await eventually_async(what, are_out, _NOT_IN_TIME_S, poll_s=_LOOK_S)
        seconds = time.time() - begin_ms / 1000 - 1
        after = await group.mark(settled=True)
    firing = difference(before, after)
    read = await _read_all(group)
    return {
        "messages": size,
        "early": early,
        "seconds_behind_the_second": round(max(0.0, seconds), 2),
        "leader_cpu_us_a_message": round(firing["cpu_s"][group.dev.leader] / size * 1e6, 1),
        "cpu_us_a_message": round(sum(firing["cpu_s"]) / size * 1e6, 1),
        "firing": firing,
        "read": read,
    }


async def _count_stored(client: Client) -> int:
    return sum(each.messages for each in await client.topics() if each.name == _TOPIC)


def _outcome(what: str, found: dict[str, Any], seconds: float) -> Outcome:
    read: _Arrivals = found.pop("read")
    firing = found["firing"]
    lines = [
        at_most(f"{what}: longest turn of a loop", firing["longest_turn_ms"], _TURN_MS, "ms"),
        at_most(f"{what}: all out", found["seconds_behind_the_second"], seconds, "s"),
        none_of(f"{what}: out before the second", found["early"]),
        none_of(f"{what}: elections", firing["elections"]),
        *_once(what, found["messages"], read),
    ]
    return Outcome(lines=lines, figures=found)


# -- what came -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Arrivals:
    """What was read: the numbers of the messages, and how late each was."""

    numbers: set[int] = field(default_factory=set)
    late_ms: list[int] = field(default_factory=list)
    overtaken: int = 0

    def note(self, body: bytes, at_ms: int, behind_ms: int = 0) -> int:
        """Note a message; return when it was due. *behind_ms*: when the one before it was."""
        number, due_ms = _BODY.unpack_from(body)
        self.numbers.add(number)
        self.late_ms.append(at_ms - due_ms)
        self.overtaken += due_ms < behind_ms
        return int(due_ms)


def _once(what: str, size: int, read: _Arrivals) -> list[Check]:
    """Return the lines that each message came, once, and none before its time."""
    return [
        none_of(f"{what}: messages that did not come", size - len(read.numbers)),
        none_of(f"{what}: came twice", len(read.late_ms) - len(read.numbers)),
        none_of(f"{what}: early by the log's date", sum(late < 0 for late in read.late_ms)),
        none_of(f"{what}: behind one in its queue that was due later", read.overtaken),
    ]


async def _read_all(group: MeasuredGroup) -> _Arrivals:
    """Read all queues, and how late each message was when it was stored."""
    found = _Arrivals()
    async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
        for queue_id in range(_QUEUES):
            last_ms = 0
            async for batch in client.read_batches(_TOPIC, queue_id):
                bodies = iter(batch.bodies())
                entries = batch.entries or ((batch.count, batch.index, batch.stored_at_ms),)
                for count, _, stored_at_ms in entries:
                    for _ in range(count):
                        last_ms = found.note(next(bodies), stored_at_ms, last_ms)
    return found


async def _follow(group: MeasuredGroup, queue_id: int, arrivals: _Arrivals) -> None:
    async with Client(group.dev.leader_endpoint, timeout_s=60) as client:
        async for batch in client.read_batches(_TOPIC, queue_id, follow=True):
            at_ms = _now_ms()
            for body in batch.bodies():
                arrivals.note(body, at_ms)


def _spread(values: Sequence[int]) -> dict[str, int]:
    """Return some of sorted values."""
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "most": 1.0}
    return {
        name: values[min(len(values) - 1, int(len(values) * share))]
        for name, share in shares.items()
        if values
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


DUE_CASES: Final[dict[str, Case]] = {
    "due-together": due_together,
    "due-scattered": due_scattered,
    "due-steadily": due_steadily,
}
