"""``dledger group set`` and ``dledger group dead-letters``, as people run them."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.cli.dead_letters_command import backoff
from dledger.cli.main import main
from dledger.rpc.rocketmq_stubs import definition, service
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.requests.rocketmq_client import RocketClient, code, message


@pytest.mark.parametrize(
    ("text", "delays_ms"),
    [
        ("500ms", (500,)),
        ("1s,10s,1m", (1_000, 10_000, 60_000)),
        ("1s..10sx2", (1_000, 2_000, 4_000, 8_000, 10_000)),
        ("1s..2hx9", (1_000, 9_000, 81_000, 729_000, 6_561_000, 7_200_000)),
        ("1s..1sx2", (1_000,)),
    ],
)
def test_a_backoff_is_a_list_or_written_out(text: str, delays_ms: tuple[int, ...]) -> None:
    """As the protocol has both, and the log one."""
    assert backoff(text) == delays_ms


@pytest.mark.parametrize("text", ["", "1", "1s,", "-1s", "2s..1sx2", "1s..2sx1", "0s..2sx2", "1d"])
def test_what_is_no_backoff_is_refused(text: str) -> None:
    """By argparse, with a sentence."""
    with pytest.raises(argparse.ArgumentTypeError):
        backoff(text)


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """One node with two dead letters of group g."""
    async with memory_group() as group, RocketClient(group.nodes[0].port) as client:
        await client.send(message(1), message(2))
        _, received, _ = await client.receive()
        for each in received:
            request = service.ForwardMessageToDeadLetterQueueRequest(
                group=definition.Resource(name="g"),
                topic=definition.Resource(name="t"),
                receipt_handle=each.system_properties.receipt_handle,
            )
            response = await client.call("ForwardMessageToDeadLetterQueue", request)
            assert code(response.status) == "OK"
        yield group


async def _run(group: MemoryGroup, *words: str) -> int:
    endpoint = f"127.0.0.1:{group.nodes[0].peer_port}"
    argv = ["group", *words, "--endpoint", endpoint, "--json"]
    return await asyncio.to_thread(main, argv)


def _said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


async def test_a_group_is_set(group: MemoryGroup, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not named stays; what was there before is told."""
    assert await _run(group, "set", "g", "--max-attempts", "5") == 0
    first = _said(capsys)
    assert await _run(group, "set", "g", "--backoff", "1s..4sx2") == 0
    second = _said(capsys)
    assert await _run(group, "set", "g") == 1

    assert (first["before_max_attempts"], first["max_attempts"]) == (17, 5)
    assert (second["max_attempts"], second["backoff_ms"]) == (5, [1_000, 2_000, 4_000])


async def test_dead_letters_are_worked_off(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run changes nothing; a resend and a drop take one each."""
    of = "--group", "g", "--limit", "1"
    said = []
    for words in (("resend", "--dry-run"), ("resend",), ("drop",), ("list",)):
        assert await _run(group, "dead-letters", *words, *of) == 0
        said.append(_said(capsys))

    assert [[each["offset"] for each in one["letters"]] for one in said] == [[0], [0], [1], []]
    assert [one["did"] for one in said] == ["resend (dry run)", "resend", "drop", "list"]
    assert group.nodes[0].engine.state.topics.messages("t") == 3
