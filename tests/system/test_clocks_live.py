"""Whole nodes whose wall clocks are wrong: nothing goes by one of them, and it is told."""

from __future__ import annotations

import time

import pytest

from dledger.replica.log_clock import RealClock
from dledger.server import node
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually

_HOUR_MS = 3_600_000


class _WrongClock(RealClock):
    """A node's clocks; a test sets the wall clock ahead."""

    def __init__(self) -> None:
        self.jump_ms = 0

    def unix_ms(self) -> int:
        return super().unix_ms() + self.jump_ms


@pytest.fixture
def live(unfounded: LiveNodes, monkeypatch: pytest.MonkeyPatch) -> LiveNodes:
    """Return nodes of no group yet, each with a clock of its own; a few MiB make segments."""
    monkeypatch.setattr(node, "RealClock", _WrongClock)
    return unfounded.where(segment_bytes=1 << 20, retention_hours=72)


def _set_ahead(live: LiveNodes, number: int, hours: int) -> None:
    clock = live.nodes[number]._clock
    assert isinstance(clock, _WrongClock)
    clock.jump_ms = hours * _HOUR_MS


async def _retained(live: LiveNodes) -> None:
    """Let the leader drop what is too old, as it does each second."""
    replica = live.nodes[await live.leader()]._replica
    assert replica is not None
    await replica.maintenance._propose_retention()


async def _written(live: LiveNodes, *bodies: bytes) -> int:
    """Store some messages; return the first one's offset."""
    async with live.client(0) as client:
        return (await client.append("t", list(bodies), queue_id=0)).offsets[0]


async def _read(live: LiveNodes, number: int) -> list[tuple[int, int]]:
    """Return offset and time of each message of the queue, at one node."""
    async with live.client(number) as client:
        return [
            (record.offset, record.stored_at_ms)
            async for record in client.read("t", 0, linearizable=True)
        ]


@pytest.mark.found
async def test_a_clock_that_is_ahead_while_its_node_leads_drops_nothing(live: LiveNodes) -> None:
    """73 hours for a second dropped 378 of 400 messages, seconds old, on all nodes (P2)."""
    leader = await live.found(0, 1, 2)
    for _ in range(25):
        await _written(live, *[b"x" * 16_384] * 16)
    wrong = (leader + 1) % 3
    _set_ahead(live, wrong, 73)

    async with live.admin(leader) as admin:
        await admin.transfer_leader(live.nodes[wrong].node_id)
    await eventually(lambda: live.status(wrong).role == "leader" and live.status(wrong).ready)
    await eventually(lambda: live.status(wrong).clock_ahead_ms)
    last = await _written(live, b"while it leads")
    await _retained(live)
    async with live.admin(wrong) as admin:
        told = await admin.status()
    _set_ahead(live, wrong, 0)
    await eventually(lambda: live.status(wrong).clock_ahead_ms < 5_000)
    now_ms = time.time() * 1000

    assert (told.role, round(told.clock_ahead_ms / _HOUR_MS)) == ("leader", 73)
    assert told.log_ahead_ms < 5_000
    for number in range(3):
        messages = await _read(live, number)
        assert [offset for offset, _ in messages] == list(range(last + 1))
        assert abs(messages[-1][1] - now_ms) < 60_000


async def test_a_group_whose_clocks_all_step_leaps_and_drops_nothing(live: LiveNodes) -> None:
    """As after a weekend off: new messages are of today, and what is there has its hours left."""
    await live.found(0, 1, 2)
    for _ in range(25):
        await _written(live, *[b"x" * 16_384] * 16)
    for number in range(3):
        _set_ahead(live, number, 2_400)

    await eventually(lambda: max(live.status(number).now_ms for number in range(3)) > _ahead(2_399))
    last = await _written(live, b"behind the leap")
    await _retained(live)

    messages = await _read(live, 1)
    assert [offset for offset, _ in messages] == list(range(last + 1))
    assert messages[-2][1] < _ahead(1)
    assert messages[-1][1] > _ahead(2_399)


def _ahead(hours: int) -> float:
    return time.time() * 1000 + hours * _HOUR_MS
