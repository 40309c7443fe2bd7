"""A sidecar that hears nothing from its group, or is cut off from it for days: once, or told."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dledger.broker.deduplication import SILENT_KEPT
from dledger.files.files import RealFiles
from dledger.replica import log_clock
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service
from dledger.rpc.status import Code
from dledger.sidecar.status import status_of
from tests.sidecar.fakes import request
from tests.system.live_nodes import LiveNodes
from tests.system.lost_answers import Line, between
from tests.system.test_sidecar_live import TOPIC, Beside, stored
from tests.waiting import eventually

OTHERS = 20_000
DAYS_S = 3 * 86_400
AT_ONCE = 100
_BUSY_S = 30.0
"""A machine that is busy otherwise takes more than an SDK's patience to sync; that is not asked."""


@pytest.fixture
async def nodes(unfounded: LiveNodes) -> LiveNodes:
    """Return a group of one node, with a topic of one queue."""
    await unfounded.found(0)
    async with unfounded.client(0) as client:
        await client.create_topic(TOPIC, queues=1)
        await client.create_topic("others", queues=1)
    return unfounded


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.long)])
async def test_every_answer_of_a_send_is_lost_and_each_message_is_stored_once(
    nodes: LiveNodes, tmp_path: Path, seconds: int
) -> None:
    """Of the first try, of each other one, and of each replay; two lanes, in order."""
    lanes, done = {"alice": 1_000_000, "bob": 2_000_000}, asyncio.Event()

    async def send(client_id: str, first: int) -> list[int]:
        codes: list[int] = []
        while not done.is_set():
            codes.append(await beside.send(first + len(codes), client_id))
            await asyncio.sleep(0.02)
        return codes

    async with (
        between(nodes.client_address(0)) as line,
        Beside([f"127.0.0.1:{line.port}"], tmp_path / "spool") as beside,
    ):
        beside.timeout_s = _BUSY_S
        senders = [asyncio.create_task(send(name, first)) for name, first in lanes.items()]
        await eventually(lambda: _taken(beside) > 20, "messages at the group")
        line.line = Line.ANSWERLESS
        await asyncio.sleep(seconds)
        await eventually(lambda: line.lost > 2, "answers that are lost")
        line.line, before = Line.WHOLE, _taken(beside)
        await eventually(lambda: _taken(beside) > before + 20, "more messages at the group")
        done.set()
        codes = dict(zip(lanes, await asyncio.gather(*senders), strict=True))
        await beside.drained()
        counters = beside.sidecar.counters()
        found = await stored(nodes)

    assert counters.spooled > 0
    assert (counters.rejected, counters.unknown_outcomes) == (0, 0)
    for name, first in lanes.items():
        assert set(codes[name]) == {Code.OK}
        mine = [number for number in found if first <= number < first + 1_000_000]
        assert mine == list(range(first, first + len(codes[name])))


def _taken(beside: Beside) -> int:
    counters = beside.sidecar.counters()
    return counters.stored + counters.replayed


class PlayedClock:
    """The machine's, and the time that was played."""

    def __init__(self) -> None:
        self._real = log_clock.RealClock()
        self.played_s = 0.0

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""
        return self._real.monotonic_s() + self.played_s

    def unix_ms(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return self._real.unix_ms() + int(self.played_s * 1000)


@pytest.fixture
def played(nodes: LiveNodes, monkeypatch: pytest.MonkeyPatch) -> PlayedClock:
    """Return the clock by which the group's log goes on; its node never counts as frozen."""
    monkeypatch.setattr(log_clock, "_MOST_BETWEEN_LOOKS_US", DAYS_S * 1_000_000)
    clock, node = PlayedClock(), nodes.nodes[0]
    driver: Any = node._driver
    driver.log_clock._clock = clock
    return clock


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.long
async def test_a_host_that_is_cut_off_for_three_days_doubles_nothing_that_its_replay_had_begun(
    nodes: LiveNodes, played: PlayedClock, tmp_path: Path
) -> None:
    """What had come by live sends alone may be doubled: just so many are of unknown outcome.

    20,000 other clients send meanwhile, so that the group forgets the ids. Of one host a replay had
    reached the group, which it was not told; of another host only live sends had.
    """
    async with AsyncExitStack() as stack:
        began, late = [
            await stack.enter_async_context(between(nodes.client_address(0))) for _ in range(2)
        ]
        began.line = Line.CUT
        one, other = (
            Beside([f"127.0.0.1:{line.port}"], tmp_path / name)
            for name, line in (("began", began), ("late", late))
        )
        one.timeout_s = other.timeout_s = _BUSY_S
        async with one:
            assert {await one.send(number, "alice") for number in range(1, 51)} == {Code.OK}
        began.line = Line.ANSWERLESS
        await stack.enter_async_context(one)  # made anew, it replays all of it in one call
        await eventually(lambda: began.lost, "a replay")
        began.line = Line.CUT
        await stack.enter_async_context(other)
        late.line = Line.ANSWERLESS
        sends = [asyncio.create_task(other.send(number, "bob")) for number in range(101, 104)]
        await eventually(lambda: late.lost == len(sends), "live sends")
        late.line = Line.CUT  # before its first try is over, so that no replay has begun
        assert set(await asyncio.gather(*sends)) == {Code.OK}
        before = await stored(nodes)
        await _others_send(nodes.client_address(0), played)
        told = [status_of(RealFiles(), tmp_path / name) for name in ("began", "late")]
        began.line = late.line = Line.WHOLE
        await one.drained()
        await other.drained()
        found = Counter(await stored(nodes))

    assert OTHERS > SILENT_KEPT
    assert sorted(before) == [*range(1, 51), *range(101, 104)]
    assert found.keys() == {*range(1, 51), *range(101, 104)}
    doubled = {number for number, count in found.items() if count > 1}
    assert [each.unknown_outcomes for each in told] == [1, 3]  # one was tried before the replay
    assert doubled == {101, 102, 103}


async def _others_send(address: str, played: PlayedClock) -> None:
    """Have 20,000 clients send one message each, over three days."""
    async with grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.unary_unary(
            f"/{SERVICE_NAME}/SendMessage",
            response_deserializer=service.SendMessageResponse.FromString,
        )
        for first in range(0, OTHERS, AT_ONCE):
            played.played_s += DAYS_S * AT_ONCE / OTHERS
            calls = (
                method(
                    request("others", number),
                    metadata=(("x-mq-client-id", f"other-{number}"),),
                    timeout=60,
                )
                for number in range(first, first + AT_ONCE)
            )
            answers = await asyncio.gather(*calls)
            assert {answer.status.code for answer in answers} == {Code.OK}
