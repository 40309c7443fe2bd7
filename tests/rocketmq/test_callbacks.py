"""What is served without a coroutine: every end gives back what it held, and loses nothing.

In the node's own process, and in batches of a door.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.calls.method import AnyMethod
from dledger.calls.pipeline import Pipeline
from dledger.errors import DiskFull, DledgerError, Overloaded
from dledger.requests.config import RequestConfig
from dledger.rpc.rocketmq_stubs import service
from dledger.server.config import NATIVE
from dledger.server.node_report import load_of
from tests.requests import memory_group as made
from tests.requests.memory_group import WAIT_S, MemoryGroup
from tests.requests.rocketmq_client import MESSAGE_ID, RocketClient, code, message
from tests.waiting import eventually

IDS = 6


@pytest.fixture(autouse=True, scope="module", params=[NATIVE, made.DOOR])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """What serves the clients."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(made, "client_server", request.param)
        yield request.param


@asynccontextmanager
async def served() -> AsyncIterator[tuple[MemoryGroup, Any]]:
    """One node, and a client of it."""
    config = RequestConfig(default_queues=1)
    async with (
        made.memory_group(config=config) as group,
        RocketClient(group.nodes[0].port) as client,
    ):
        yield group, client


def held(group: MemoryGroup) -> tuple[int, ...]:
    """Return what requests hold at the node; all zero while there are none."""
    parts = group.nodes[0].parts
    admission = parts.context.admission
    counts = (admission.taken, admission.waiting, len(admission._connections))
    return (*counts, load_of(parts).held_request_bytes, len(parts.messaging.sender._batches))


def coroutines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the methods are added that a coroutine serves from now on."""
    names: list[str] = []
    serve = Pipeline.serve

    async def noted(pipeline: Pipeline, method: AnyMethod, *args: Any, **more: Any) -> Any:
        names.append(method.label)
        return await serve(pipeline, method, *args, **more)

    monkeypatch.setattr(Pipeline, "serve", noted)
    return names


async def test_what_is_plain_needs_no_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent, released and acknowledged; the first message creates its topic, which is awaited."""
    async with served() as (group, client):
        await client.send(message(1))
        names = coroutines(monkeypatch)
        sent = await client.send(message(2), message(3))
        _, messages, _ = await client.receive(batch=10)
        released = await client.change(messages[0].system_properties.receipt_handle, 0)
        acked = await client.ack(*messages[1:])

        assert [code(each.status) for each in (sent, released, acked)] == ["OK", "OK", "OK"]
        assert [entry.offset for entry in sent.entries] == [1, 2]
        assert names == []
        assert held(group) == (0, 0, 0, 0, 0)


async def test_an_unknown_outcome_is_tried_again_by_a_coroutine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is stored once; its client notices nothing."""
    async with served() as (group, client):
        await client.send(message(1))
        names = coroutines(monkeypatch)
        group.lose_outcomes = 1
        sent = await client.send(message(2, body=b"once"))

        assert (code(sent.status), sent.entries[0].offset) == ("OK", 1)
        assert len(names) == 1
        assert await group.bodies("t") == [b"body", b"once"]
        assert held(group) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [(Overloaded("full"), "TOO_MANY_REQUESTS"), (DiskFull("full"), "INTERNAL_SERVER_ERROR")],
    ids=["overloaded", "disk full"],
)
async def test_a_refusal_is_told_in_the_protocols_codes(
    monkeypatch: pytest.MonkeyPatch, refusal: DledgerError, told: str
) -> None:
    """What may pass is tried until shortly before the client's deadline, the rest is told now."""
    async with served() as (group, client):
        await client.send(message(1))
        group.refuse = refusal
        sent = await client.send(message(2), timeout_s=1)

        assert code(sent.status) == told
        assert held(group) == (0, 0, 0, 0, 0)


async def test_a_client_that_gives_up_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its message may be stored, as after any call that ends without an answer."""
    async with served() as (group, client):
        await client.send(message(1))
        committed = group._commit_batch
        stuck: list[None] = []
        monkeypatch.setattr(group, "_commit_batch", lambda: stuck.append(None))
        sending = asyncio.ensure_future(client.send(message(2)))
        await eventually(lambda: bool(stuck))
        taken = held(group)
        sending.cancel()
        await eventually(lambda: held(group)[0] == 0)
        monkeypatch.setattr(group, "_commit_batch", committed)
        group._commit_batch()

        assert taken[0] > 0
        assert taken[3] == taken[0]  # the metric tells it
        assert held(group) == (0, 0, 0, 0, 0)
        assert await group.bodies("t") == [b"body", b"body"]


async def test_a_stopping_server_ends_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of its grace."""
    async with served() as (group, client):
        await client.send(message(1))
        stuck: list[None] = []
        monkeypatch.setattr(group, "_commit_batch", lambda: stuck.append(None))
        sending = asyncio.ensure_future(client.send(message(2)))
        await eventually(lambda: bool(stuck))
        await group.nodes[0].servers[0].stop(0)
        with pytest.raises(grpc.aio.AioRpcError):
            await sending

        await eventually(lambda: held(group)[0] == 0)  # a door's node hears of it a turn later


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("send", "send", "other", "give up", "lose", "refuse", "leave", "lead")),
        st.integers(0, IDS - 1),
    ),
    min_size=8,
    max_size=30,
)


@given(STEPS)
@settings(max_examples=25)
def test_whatever_comes_together_nothing_is_lost_doubled_or_kept(steps: list[Step]) -> None:
    """Repeats, ids of other messages, clients that leave, lost outcomes, elections, refusals."""
    asyncio.run(_whatever(steps))


async def _whatever(steps: list[Step]) -> None:
    async with asyncio.timeout(WAIT_S), served() as (group, client):
        await client.send(message(99, body=b"first"))
        calls: list[tuple[Step, asyncio.Task[Any]]] = []
        for what, number in steps:
            if what in ("send", "other", "give up"):
                body = b"%d" % number if what != "other" else b"other %d" % number
                call = asyncio.ensure_future(client.send(message(number, body=body)))
                calls.append(((what, number), call))
                await asyncio.sleep(0)
                if what == "give up":
                    await asyncio.sleep(0)
                    call.cancel()
            elif what == "lose":
                group.lose_outcomes += 1
            elif what == "refuse":
                group.refuse = Overloaded("for a moment")
            else:
                group.refuse = None
                group.elect(0 if what == "lead" else None)
            if number % 2:
                await asyncio.sleep(0.001)
        group.refuse = None
        group.elect(0)
        answers = await asyncio.gather(*(call for _, call in calls), return_exceptions=True)

        stored = await group.bodies("t")
        for ((what, number), _), answer in zip(calls, answers, strict=True):
            if what == "give up":
                continue
            assert isinstance(answer, service.SendMessageResponse), answer
            assert code(answer.status) == "OK"
            body = b"%d" % number if what == "send" else b"other %d" % number
            assert answer.entries[0].message_id == MESSAGE_ID(number)
            assert stored[answer.entries[0].offset] == body
        assert len(stored) == len(set(stored))
        assert held(group) == (0, 0, 0, 0, 0)
