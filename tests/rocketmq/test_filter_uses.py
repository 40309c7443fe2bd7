"""The use of consumers' filters: committed before a poll waits, and told when it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from dledger.broker import kept_messages
from dledger.broker.command_frame import CommandType, split
from dledger.broker.group_filters import FILTER_GONE_MS, USE_IS_SAID_MS
from dledger.common.metrics import NodeMetrics
from tests.requests.memory_group import MemoryGroup
from tests.requests.rocketmq_client import RocketClient, message
from tests.waiting import eventually

_WAIT_S = 20.0
_NUMBERS = itertools.count(1)


async def _send(client: RocketClient, *tags: str) -> None:
    """Send a message of each tag."""
    for tag in tags:
        await client.send(message(next(_NUMBERS), tag=tag))


def _uses(group: MemoryGroup) -> int:
    kinds = [kind for entry in group.log for kind, _, _ in split(entry.data)]
    return kinds.count(CommandType.USE_FILTER)


def _value(metrics: NodeMetrics, name: str) -> float:
    (labels,) = [
        sample.labels
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    ]
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_a_group_with_one_filter_says_it_once(
    client: RocketClient, group: MemoryGroup
) -> None:
    """Then nothing, however long and often its members ask."""
    await client.route("t")
    for hours in (0, 0, 1, 1):
        group.clock_skew_ms += hours * 3_599_000
        await client.receive(expression="a")

    assert _uses(group) == 1


async def test_among_several_a_waiting_filter_is_said_each_third_of_its_time(
    client: RocketClient, group: MemoryGroup
) -> None:
    """However many polls ask with it."""
    await client.route("t")
    await client.receive(expression="a")
    await client.receive(expression="b")
    assert _uses(group) == 2

    for expected in (3, 4):
        group.clock_skew_ms += USE_IS_SAID_MS
        await asyncio.gather(*(client.receive(expression="a") for _ in range(5)))
        assert _uses(group) == expected


@pytest.mark.found
async def test_a_quiet_consumer_loses_nothing_to_a_busy_one(
    client: RocketClient, group: MemoryGroup
) -> None:
    """The poll with b waits while a takes all that is its own: b's message reaches it."""
    await client.route("t")
    waiting = asyncio.create_task(client.receive(expression="b", wait_s=_WAIT_S))
    await group.polls()
    groups = group.nodes[0].engine.state.groups
    assert groups.is_filter_said("g", "t", ("b",), group.now_ms())

    await _send(client, "a")
    await client.receive(expression="a")
    waiting.cancel()
    await _send(client, "b", "a")
    _, first, _ = await client.receive(expression="a", batch=9)
    _, second, _ = await client.receive(expression="b", batch=9)

    assert [each.system_properties.tag for each in first] == ["a"]
    assert [each.system_properties.tag for each in second] == ["b"]


async def test_the_end_of_a_filter_is_told(
    client: RocketClient, group: MemoryGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """By a line that names it, and a counter of what was kept for it."""
    caplog.set_level(logging.INFO, "dledger.rocketmq.filter_watch")
    await client.route("t")
    for tags in ("a", "b"):
        await client.receive(expression=tags)
    await _send(client, "b", "a")
    await client.receive(expression="a", batch=9)

    for _ in range(1 + FILTER_GONE_MS // USE_IS_SAID_MS):
        group.clock_skew_ms += USE_IS_SAID_MS
        await client.receive(expression="a")

    assert "topic t with filter 'b' no more" in caplog.text
    assert _value(group.nodes[0].parts.context.metrics, "dledger_filter_ended_messages_total") == 1


async def test_a_filter_that_waits_for_a_slower_one_is_told(
    client: RocketClient,
    group: MemoryGroup,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a line, once, and a counter, each time."""
    monkeypatch.setattr(kept_messages, "MAX_KEPT_RUNS", 1)
    await client.route("t")
    for tags in ("a", "b"):
        await client.receive(expression=tags)
    queues = group.nodes[0].engine.state.topics.named("t").queues
    await _send(client, *"bba" * queues)
    await client.receive(expression="a", batch=1)
    await client.receive(expression="a", batch=1)

    await eventually(lambda: "waits for a slower one" in caplog.text)
    assert caplog.text.count("waits for a slower one") == 1
    assert _value(group.nodes[0].parts.context.metrics, "dledger_filter_waits_total") >= 1
