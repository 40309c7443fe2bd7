"""``dledger dev`` that is killed: its nodes end with it, however early that is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.cluster.processes import alive, pids
from e2e.harness.ports import free_port_range
from tests.waiting import eventually_blocking

_NEVER_S = 120
"""For what comes in a moment, and on a busy machine later."""


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
    eventually_blocking(lambda: nodes_of(data) or dev.poll(), "a node is forked", _NEVER_S)
    started = nodes_of(data)
    dev.kill()
    dev.wait()

    assert started
    try:
        eventually_blocking(
            lambda: not any(map(alive, nodes_of(data))), "all nodes have ended", _NEVER_S
        )
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
