"""``dledger held``, as people run it after a restore."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic, PauseHeld
from dledger.broker.held_commands import encode_produce_held
from dledger.broker.held_refs import Kind
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.cli.main import main
from dledger.types import Typed
from tests.requests.memory_group import MemoryGroup, memory_group


def _held(number: int, due_ms: int) -> bytes:
    batch = Columns(
        message_ids=[f"id-{number}"],
        bodies=[b"body"],
        born_at_ms=[0],
        typed=[Typed(deliver_at_ms=due_ms)],
    )
    produce = encode_produce(batch, client_id="c", topic="d")
    return encode_produce_held(Kind.TIMER, [due_ms], produce)


@pytest.fixture
async def group() -> AsyncIterator[MemoryGroup]:
    """One node with two messages of a restored log, which wait, and one that was sent since."""
    async with memory_group() as group:
        now_ms = group.now_ms()
        await group.commit(CreateTopic(name="d", type="DELAY", queues=1).encode())
        await group.commit(_held(1, now_ms + 60_000))
        await group.commit(_held(2, now_ms + 50_000))
        await group.commit(PauseHeld(pause_id="new").encode())
        await group.commit(_held(3, now_ms + 40_000))
        yield group


async def _run(group: MemoryGroup, *words: str) -> int:
    endpoint = f"127.0.0.1:{group.nodes[0].peer_port}"
    return await asyncio.to_thread(main, ["held", *words, "--endpoint", endpoint, "--json"])


def _said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


async def test_what_is_held_is_shown_by_its_time(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """And which of it waits for a word."""
    assert await _run(group, "list") == 0

    said = _said(capsys)
    assert (said["messages"], said["waiting"]) == (3, 2)
    shown = [(each["message_id"], each["topic"], each["waits"]) for each in said["first"]]
    assert shown == [("id-3", "d", False), ("id-2", "d", True), ("id-1", "d", True)]


async def test_the_counts_alone_need_no_message(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a limit of 0; one beyond its bounds is refused."""
    assert await _run(group, "list", "--limit", "0") == 0
    assert _said(capsys)["first"] == []

    assert await _run(group, "list", "--limit", "257") == 1


@pytest.mark.parametrize(("how", "left"), [("--fire", 3), ("--drop", 1)])
async def test_what_waits_is_let_go_or_dropped_once(
    group: MemoryGroup, capsys: pytest.CaptureFixture[str], how: str, left: int
) -> None:
    """What was sent to the restored group itself is not touched."""
    assert await _run(group, "resume", how) == 0
    first = _said(capsys)
    assert await _run(group, "resume", how) == 0
    again = _said(capsys)

    held = group.nodes[0].engine.state.held
    assert (first["messages"], again["messages"]) == (2, 0)
    assert (held.count, held.waiting) == (left, 0)
