"""``dledger dev`` when a node cannot start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dledger.client import Client
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.waiting import eventually_blocking

_NEVER_S = 120
"""For what comes in a moment, and on a busy machine later."""


def spoil(group: DevGroup, node: int) -> None:
    """End a node, and leave nothing of its hard state that it could read."""
    pid = group.state()["pids"][node]
    os.kill(pid, signal.SIGSTOP)  # it writes nothing between the two
    for path in (group.data / f"node-{node}").rglob("hard_state*"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    os.kill(pid, signal.SIGKILL)


async def written(group: DevGroup, node: int) -> int:
    """Append one message by way of a node; return where it is."""
    async with Client(group.endpoints[node], timeout_s=_NEVER_S) as client:
        return (await client.append("kept", [b"one"], queue_id=0)).offsets[0]


@pytest.mark.found
@pytest.mark.slow
async def test_the_majority_goes_on_when_one_node_refuses_its_disk(tmp_path: Path) -> None:
    """found: anchors. It ended the two others; told, it stays down, and a restart goes on, too."""
    port = free_port_range()
    group = DevGroup(tmp_path / "data", port)
    group.announced()
    assert await written(group, 0) == 0

    spoil(group, 2)
    told = "node 2 stays down, and the others go on without it: it refuses to start (exit 3)"
    eventually_blocking(lambda: told in group.errors(), "it is told", _NEVER_S)
    assert await written(group, 0) == 1
    assert group.stop() == 0

    again = DevGroup(group.data, port)
    assert again.announced()["leader"] in (0, 1)
    assert await written(again, 1) == 2
    spoil(again, 0)
    assert again.process.wait(_NEVER_S) == 2
    assert again.process.stdout is not None
    again.process.stdout.close()
    last = again.errors().splitlines()[-1]
    assert last.startswith("dledger dev: node 0 refuses to start (exit 3): ")
    assert "; node 2 refuses to start (exit 3): " in last
