"""Two of three disks are lost for good: whole processes, SIGKILL, and disks that are gone.

What the survivor lacks is measured: it was down while the other two acknowledged writes. (Frozen,
it would read those out of its sockets later.)
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AdminClient, Client
from dledger.common.status import NodeStatus
from dledger.errors import DledgerError
from dledger.store.tombstone import NAME as TOMBSTONE
from dledger.types import Appended
from e2e.harness.nodes import NodeSpec, allocate, member_of, node_command
from e2e.harness.processes import ChildProcess
from tests.waiting import eventually_works

GROUP_ID = "11111111-2222-3333-4444-555555555555"
REMOVED_CODE = 3


class Processes:
    """Three node processes, and where their lost disks are kept."""

    def __init__(self, root: Path) -> None:
        self.specs = allocate(root)
        self._running: dict[int, ChildProcess] = {}
        self._root = root

    def start(self, number: int) -> ChildProcess:
        spec = self.specs[number]
        spec.directory.mkdir(exist_ok=True)
        settings = {"group": "orders", "group_id": GROUP_ID, "tick_ms": 20}
        log = self._root / f"{spec.name}.log"
        self._running[number] = ChildProcess(node_command(spec, settings), log)
        return self._running[number]

    def kill(self, number: int) -> None:
        """SIGKILL."""
        _kill(self._running.pop(number))

    def lose(self, number: int) -> Path:
        """SIGKILL, and take the disk away."""
        self.kill(number)
        return self.specs[number].directory.rename(self._root / f"lost-{number}")

    async def ended(self, number: int) -> int | None:
        process = self._running[number]
        assert await asyncio.to_thread(process.wait, 30), "the node goes on"
        code = self._running[number].exit_code
        _kill(self._running.pop(number))
        return code

    def said(self, number: int) -> str:
        return (self._root / f"{self.specs[number].name}.log").read_text("utf-8", "replace")

    def bring_back(self, number: int, kept: Path) -> None:
        """Put a lost disk back in its place; what is there goes aside."""
        if number in self._running:
            _kill(self._running.pop(number))
        place = self.specs[number].directory
        if place.exists():
            place.rename(self._root / f"fresh-{number}")
        kept.rename(place)

    async def status(self, number: int) -> NodeStatus:
        async with AdminClient(self.specs[number].own_address) as admin:
            return await admin.status()

    async def bootstrap(self) -> None:
        members = [
            member_of(await eventually_works(partial(self.status, spec.index)), spec.own_address)
            for spec in self.specs
        ]
        async with AdminClient(self.specs[0].own_address) as admin:
            await admin.bootstrap(GROUP_ID, members)

    async def close(self) -> None:
        for process in self._running.values():
            _kill(process)


def _kill(process: ChildProcess) -> None:
    process.kill()
    process.stop()  # which closes what leads to it


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Processes]:
    """Return a founded group of three."""
    made = Processes(tmp_path)
    for number in range(3):
        made.start(number)
    await made.bootstrap()
    yield made
    await made.close()


async def append(spec: NodeSpec, body: str) -> Appended:
    async with Client(spec.endpoint, timeout_s=10) as client:
        return await client.append("topic", [body.encode()], queue_id=0)


async def written(spec: NodeSpec, *bodies: str) -> dict[str, int]:
    """Write; returns the index of each body that was acknowledged."""
    acked: dict[str, int] = {}
    for body in bodies:
        acked[body] = (await eventually_works(partial(append, spec, body))).index
    return acked


async def bodies(spec: NodeSpec) -> list[str]:
    async with Client(spec.endpoint, timeout_s=10) as client:
        return [stored.record.body.decode() async for stored in client.read("topic", 0)]


def force(spec: NodeSpec, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator does."""
    command = (sys.executable, "-m", "dledger", "force-new-group", "--group-id", GROUP_ID)
    return subprocess.run(
        [*command, "--endpoint", spec.own_address, "--json", *more],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


async def forced(spec: NodeSpec) -> dict[str, Any]:
    """Force the group on a survivor; refused until it has heard no leader for long enough."""

    async def ask() -> dict[str, Any]:
        done = await asyncio.to_thread(force, spec, "--confirm", GROUP_ID)
        if done.returncode:
            raise DledgerError(done.stderr)
        return dict(json.loads(done.stdout))

    return await eventually_works(ask, 60)


@pytest.mark.long
async def test_what_is_lost_is_what_only_the_lost_disks_had(nodes: Processes) -> None:
    """Stated, measured, and nothing else; then it grows again, and no old disk returns."""
    first = nodes.specs[0]
    before = await written(first, *(f"before {n}" for n in range(20)))
    survivor = await _a_follower(nodes)
    others = [number for number in range(3) if number != survivor]
    nodes.kill(survivor)
    unseen = await written(nodes.specs[others[0]], *(f"unseen {n}" for n in range(10)))
    kept = {number: nodes.lose(number) for number in others}
    nodes.start(survivor)
    spec = nodes.specs[survivor]
    await eventually_works(lambda: nodes.status(survivor))

    unconfirmed = await asyncio.to_thread(force, spec)
    done = await forced(spec)

    assert (unconfirmed.returncode, json.loads(unconfirmed.stdout)["forced"]) == (1, None)
    acked = before | unseen
    last_index = done["survivor"]["lastIndex"]
    stated = {body for body, index in acked.items() if index > last_index}
    after = await written(spec, *(f"after {n}" for n in range(10)))
    there = await bodies(spec)
    assert acked.keys() - set(there) == stated
    assert before.keys() <= set(there)
    assert stated <= unseen.keys()
    assert stated, "the survivor was down: it lacks what was acknowledged meanwhile"
    assert there == [body for body in (*before, *unseen, *after) if body not in stated]

    for number in others:
        nodes.start(number)
    fresh = [
        member_of(
            await eventually_works(partial(nodes.status, number)),
            nodes.specs[number].own_address,
        )
        for number in others
    ]
    async with AdminClient(spec.own_address, timeout_s=30) as admin:
        await admin.change_members(add=fresh)
    await eventually_works(lambda: _all_vote(nodes, survivor))

    again = others[0]
    nodes.bring_back(again, kept[again])
    nodes.start(again)

    assert await nodes.ended(again) == REMOVED_CODE
    assert (nodes.specs[again].directory / "data" / TOMBSTONE).exists()
    assert "was removed from group" in nodes.said(again)
    assert await bodies(spec) == there


@pytest.mark.long
async def test_the_old_pair_together_is_refused_while_the_group_is_there(
    nodes: Processes,
) -> None:
    """Started at the same moment, at their addresses; what they would acknowledge is none."""
    first = nodes.specs[0]
    before = await written(first, *(f"before {n}" for n in range(5)))
    survivor = await _a_follower(nodes)
    others = [number for number in range(3) if number != survivor]
    kept = {number: nodes.lose(number) for number in others}
    spec = nodes.specs[survivor]
    await forced(spec)
    for number in others:
        nodes.bring_back(number, kept[number])

    for number in others:
        nodes.start(number)

    assert [await nodes.ended(number) for number in others] == [REMOVED_CODE, REMOVED_CODE]
    for number in others:
        nodes.start(number)
    assert [await nodes.ended(number) for number in others] == [REMOVED_CODE, REMOVED_CODE]
    after = await written(spec, "after")
    assert await bodies(spec) == [*before, *after]
    assert (await nodes.status(survivor)).epoch == 1


async def _a_follower(nodes: Processes) -> int:
    """Return a follower that has all that is committed."""

    async def found() -> int:
        said = [await nodes.status(number) for number in range(3)]
        last = max(one.last_index for one in said)
        for number, one in enumerate(said):
            if one.leader_id not in ("", one.node_id) and one.commit_index == last:
                return number
        raise DledgerError(f"none yet: {[(one.role, one.commit_index) for one in said]}")

    return await eventually_works(found)


async def _all_vote(nodes: Processes, asked: int) -> None:
    rows = (await nodes.status(asked)).members
    if [row.voter for row in rows] != [True] * 3:
        raise DledgerError(f"not yet: {rows}")
