"""The replay: lanes beside each other, in order, in large calls; a poison message goes aside."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.common.limits import MAX_MESSAGES
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import Code
from dledger.sidecar.replay import (
    CALL_S,
    LEAST_BYTES,
    LEAST_MESSAGES,
    Part,
    least_of,
    next_call,
    next_limit,
    replay_metadata,
    request_of,
)
from dledger.sidecar.upstream import Metadata
from dledger.spool.payload import Message
from dledger.spool.reader import Chunk, Spooled
from dledger.types import Record
from tests.sidecar.fakes import LOST, REFUSED, FakeGroup, message
from tests.sidecar.test_sends import Bench
from tests.spool.spool_harness import Disk
from tests.waiting import eventually


def spooled(lane: int, sequence: int, size_bytes: int = 100) -> Spooled:
    """Return a message of a lane."""
    one = message("orders", b"x", f"{sequence:06}").SerializeToString()
    return Spooled(
        sequence=sequence,
        size_bytes=size_bytes,
        message=Message(
            topic="orders",
            client_id="bob",
            lane=lane,
            lane_sequence=sequence,
            record=Record(body=one, message_id=f"{sequence:06}"),
        ),
    )


async def filled(count: int, *, clients: int = 1, each: int = 1) -> Bench:
    """Return a bench whose group is away, and that has so many messages of each client."""
    bench = Bench(Disk(max_bytes=1 << 24, file_bytes=1 << 18), FakeGroup())
    bench.open()
    bench.group.error = REFUSED
    for number in range(1, count + 1, each):
        for client in range(clients):
            name = f"client-{client}" if clients > 1 else "bob"
            bench.send(*range(number, number + each), client_id=name)
    await bench.answered(count * clients // each)
    return bench


async def test_a_lane_goes_in_large_calls_with_where_they_begin() -> None:
    """Token, lane, first sequence: what the group remembers for 30 days."""
    bench = await filled(900, each=100)
    bench.group.error = None
    await bench.drained()

    assert bench.group.numbers() == list(range(1, 901))
    expected, lanes = 1, set[int]()
    for count, header in bench.group.calls:
        token, lane, first = header.split(";")
        assert (token, int(first)) == (bytes(range(16)).hex(), expected)
        lanes.add(int(lane))
        expected += count
    assert len(lanes) == 1
    assert 0 < lanes.pop() < 1 << 32
    assert len(bench.group.calls) < 20
    await bench.end()


async def test_a_poison_message_goes_aside_with_its_reason_and_blocks_nobody() -> None:
    """Found by halves; all around it is stored in order."""
    bench = await filled(60)
    bench.group.code = lambda one: (
        Code.ILLEGAL_MESSAGE_ID if one.system_properties.message_id == "000037" else Code.OK
    )
    bench.group.error = None
    await bench.drained()

    assert bench.group.numbers() == [n for n in range(1, 61) if n != 37]
    aside = [(one.record.message_id, one.reason) for one in bench.disk.rejected()]
    assert aside == [("000037", f"code {Code.ILLEGAL_MESSAGE_ID}")]
    assert (bench.counts.rejected, bench.counts.replayed) == (1, 59)
    await bench.end()


async def test_what_ten_times_ends_in_an_internal_error_goes_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node's fault or the message's: the lane goes on."""
    monkeypatch.setattr("dledger.sidecar.replay.BACKOFF_S", (0.001, 0.001))
    bench = await filled(5)
    bench.group.code = lambda one: (
        Code.INTERNAL_ERROR if one.system_properties.message_id == "000003" else Code.OK
    )
    bench.group.error = None
    await bench.drained()

    assert bench.group.numbers() == [1, 2, 4, 5]
    assert [one.record.message_id for one in bench.disk.rejected()] == ["000003"]
    await bench.end()


async def test_a_deleted_topic_takes_its_whole_call_aside() -> None:
    """No message of it is tried by itself."""
    bench = await filled(40)
    bench.group.code = lambda _: Code.TOPIC_NOT_FOUND
    bench.group.error, before = None, bench.group.asked
    await bench.drained()

    assert len(bench.disk.rejected()) == 40
    assert bench.group.asked - before < 20
    await bench.end()


async def test_lanes_are_replayed_beside_each_other() -> None:
    """One that the group does not take now keeps none of the others back."""
    bench = await filled(30, clients=4)
    bench.group.code = lambda _: Code.OK
    held, is_held = bench.group.unary, asyncio.Event()

    async def unary(path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        if ("x-mq-client-id", "client-0") in metadata:
            is_held.set()
            await asyncio.Event().wait()
        return await held(path, body, metadata, timeout_s)

    bench.group.unary = unary
    await is_held.wait()  # its call before this one has ended
    bench.group.error = None
    await eventually(lambda: len(bench.group.stored) == 90, "the other lanes' messages")

    for client in (1, 2, 3):
        assert bench.group.numbers(f"client-{client}") == list(range(1, 31))
    assert bench.sends.worker is not None
    assert bench.sends.worker.spool.waiting == 120
    await bench.end()


async def test_a_call_that_is_too_much_is_halved() -> None:
    """A slow connection takes few at a time."""
    bench = await filled(64)
    held = bench.group.unary

    async def unary(path: str, body: bytes, metadata: Metadata, timeout_s: float) -> bytes:
        if len(service.SendMessageRequest.FromString(body).messages) > 8:
            raise LOST
        return await held(path, body, metadata, timeout_s)

    bench.group.unary = unary
    bench.group.error = None
    await bench.drained()

    assert bench.group.numbers() == list(range(1, 65))
    await bench.end()


def test_a_call_is_of_consecutive_messages_of_one_lane() -> None:
    """A hole, another lane, the limits: each begins another call."""
    part = Part(Chunk(messages=(), last=0), 0)

    def first(*waiting: Spooled, limit: int = 99) -> int:
        return len(next_call(deque((one, part) for one in waiting), limit))

    assert first(spooled(1, 1), spooled(1, 2), spooled(1, 3)) == 3
    assert first(spooled(1, 1), spooled(1, 3)) == 1
    assert first(spooled(1, 1), spooled(2, 2)) == 1
    assert first(*(spooled(1, n) for n in range(1, 9)), limit=5) == 5
    assert first(spooled(1, 1, 9 << 20), spooled(1, 2, 9 << 20)) == 1
    assert first(spooled(1, 1, 99 << 20)) == 1


SOME = st.integers(1, MAX_MESSAGES)


@given(SOME, SOME, st.floats(0, 5), SOME)
def test_a_call_is_as_large_as_live_sends_can_bear(
    limit: int, count: int, lasted_s: float, least: int
) -> None:
    """They wait behind it: a slow one is followed by a smaller one, and never by a tiny one."""
    count = min(limit, count)

    after = next_limit(limit, count, lasted_s, least)

    assert min(limit, least) <= after <= min(2 * limit, MAX_MESSAGES)
    assert after >= limit // 2
    if limit < least:
        assert after == min(2 * limit, least)
    elif lasted_s > CALL_S or count < limit:
        assert after <= limit


@given(st.floats(0.0001, 0.02), st.floats(1e-6, 1e-4))
def test_calls_come_to_take_what_they_should(own_s: float, message_s: float) -> None:
    """Whatever a call and each of its messages cost."""
    limit = LEAST_MESSAGES
    for _ in range(40):
        limit = next_limit(limit, limit, own_s + limit * message_s, LEAST_MESSAGES)

    lasts_s = own_s + limit * message_s
    assert limit in (LEAST_MESSAGES, MAX_MESSAGES) or CALL_S / 2 < lasts_s <= CALL_S * 1.1


def test_calls_are_reduced_by_their_bytes_and_by_the_lanes_beside_each_other() -> None:
    """Live sends wait behind all that are under way."""
    assert least_of([spooled(1, 1, 100)], 1) == LEAST_MESSAGES
    assert least_of([spooled(1, 1, 100)], 16) == LEAST_MESSAGES // 16
    assert least_of([spooled(1, 1, LEAST_BYTES // 8)] * 3, 1) == 8
    assert least_of([spooled(1, 1, LEAST_BYTES // 8)], 16) == 1
    assert least_of([spooled(1, 1, 4 << 20)], 1) == 1


def test_a_call_has_the_messages_as_they_came() -> None:
    """Nothing of them is parsed, so that nothing can be lost."""
    messages = [spooled(7, n) for n in range(5, 300)]

    sent = service.SendMessageRequest.FromString(request_of(messages))

    assert [one.SerializeToString() for one in sent.messages] == [
        one.message.record.body for one in messages
    ]
    assert replay_metadata("ab", messages[0]) == (
        ("x-mq-client-id", "bob"),
        ("x-dledger-replay", "ab;7;5"),
    )
