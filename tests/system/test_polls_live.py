"""A crowd of consumers and a leader that is killed: they wait on, and are all served after it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, message
from tests.waiting import eventually_async

POLLS = 2_000
"""At two followers; a hundred on each connection."""
ON_CONNECTION = 100
MESSAGES = 100
WAIT_S = 40.0
GROWTH_BYTES = 16 << 20
"""By the change of leader, of each follower. It was 33 MiB before, and 1.5 GiB with 5,000 polls at
one; now 3."""
_HTTP = 300
_WAITING = re.compile(r"^dledger_waiting_polls\{.*\} (\S+)$", re.MULTILINE)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running group of three."""
    made = DevGroup(tmp_path / "data", free_port_range())
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


@pytest.mark.slow
@pytest.mark.found
async def test_all_who_wait_are_served_after_the_leader_was_killed(group: DevGroup) -> None:
    """found: security A6. All were relayed anew at once, by a call each."""
    state, leader = group.state(), group.leader
    followers = [number for number in range(3) if number != leader]
    clients = [
        RocketClient(group.client_port + followers[number % 2], f"client-{number}")
        for number in range(POLLS // ON_CONNECTION)
    ]
    await clients[0].route("t")
    polls = [
        asyncio.create_task(client.receive(batch=1, wait_s=WAIT_S, attempt_id=f"{number}"))
        for client in clients
        for number in range(ON_CONNECTION)
    ]
    await eventually_async(lambda: _waiting(group, range(3), POLLS))
    before = [_resident_bytes(state["pids"][number]) for number in followers]

    os.kill(state["pids"][leader], signal.SIGKILL)
    for number in range(MESSAGES):
        await clients[number % 2].send(message(number))

    async with asyncio.timeout(WAIT_S):
        while sum(poll.done() for poll in polls) < MESSAGES:
            await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
    got = [each for poll in polls if poll.done() for each in poll.result()[1]]
    ids = {each.system_properties.message_id for each in got}
    assert len(got) == len(ids) == MESSAGES
    await eventually_async(lambda: _waiting(group, followers, POLLS - MESSAGES))
    for number, bytes_before in zip(followers, before, strict=True):
        assert _resident_bytes(state["pids"][number]) - bytes_before < GROWTH_BYTES
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    for client in clients:
        await client.channel.close()


async def _waiting(group: DevGroup, nodes: range | list[int], count: int) -> bool:
    pages = [
        await asyncio.to_thread(_page, f"http://127.0.0.1:{group.client_port + _HTTP + number}")
        for number in nodes
    ]
    return sum(float(each) for page in pages for each in _WAITING.findall(page)) == count


def _page(address: str) -> str:
    try:
        with urllib.request.urlopen(f"{address}/metrics", timeout=5) as response:  # noqa: S310
            return str(response.read().decode())
    except OSError:
        return ""


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) << 10
