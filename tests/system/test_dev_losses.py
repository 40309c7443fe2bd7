"""``dledger dev`` when a node cannot start, and when it is killed itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dledger.client import Client
from e2e.cluster.processes import alive, pids
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from e2e.harness.waiting import eventually

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
    eventually("it is told", lambda: told in group.errors(), _NEVER_S)
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


@pytest.mark.found
@pytest.mark.slow
def test_nodes_end_whose_group_is_killed_while_they_start(tmp_path: Path) -> None:
    """found: E7. They asked to end with their parent a second after it had gone, and ran on."""
    data = tmp_path / "data"
    dev = subprocess.Popen(
        [
            sys.executable, "-m", "dledger", "dev", "--data", str(data),
            "--client-port", str(free_port_range()),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually("a node is forked", lambda: nodes_of(data) or dev.poll(), _NEVER_S, poll_s=0.01)
    started = nodes_of(data)
    dev.kill()
    dev.wait()

    assert started
    try:
        eventually("all nodes have ended", lambda: not any(map(alive, nodes_of(data))), _NEVER_S)
    finally:
        for pid in nodes_of(data):
            os.kill(pid, signal.SIGKILL)


def nodes_of(data: Path) -> list[int]:
    """Return the pids of the nodes whose data is in that directory."""
    found = []
    for pid in pids():
        with suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if f"DLEDGER_DATA_DIR={data}/".encode() in environment and b"\0node\0" in command:
                found.append(pid)
    return found
