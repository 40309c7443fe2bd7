"""``dledger dev`` with the unmodified SDK: a whole group on this machine, its leader killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AdminClient
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.waiting import eventually_blocking

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10


def start_workload(group: DevGroup, home: Path, *args: str) -> subprocess.Popen[str]:
    """Start the SDK client program against the group's first node."""
    endpoints = ";".join(group.state()["endpoints"])
    return subprocess.Popen(
        [sys.executable, str(ROOT / "e2e/harness/workload.py"), "--endpoint", endpoints, *args],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home)},
    )


class Lines:
    """The JSON lines of a workload, read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.last: dict[str, Any] = {}

    def wait_acked(self, count: int) -> None:
        """Read on until *count* messages were acknowledged."""
        while self.last.get("acked", 0) < count:
            self._next()

    def stop(self) -> None:
        """Let it end its producing now."""
        self._process.terminate()

    def summary(self) -> dict[str, Any]:
        """Read on until the summary."""
        while not self.last.get("summary"):
            self._next()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait(30)
        return self.last

    def _next(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the workload ended early; its last line was {self.last}"
        if line.startswith("{"):
            self.last = json.loads(line)


def _is_another(group: DevGroup, state: dict[str, Any]) -> bool:
    return group.state() != state


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running, writable group of three."""
    made = DevGroup(tmp_path / "data", free_port_range(), "segment_bytes=8388608")
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("consumer", ["push", pytest.param("simple", marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_over_ten_kills_of_the_leader(
    group: DevGroup, tmp_path: Path, consumer: str
) -> None:
    """SIGKILL of the leader's pid from the JSON, half of ten kills with each kind of consumer."""
    workload = start_workload(
        group, tmp_path, "--topic", "kills", "--consumer", consumer, "--seconds", "300",
        "--threads", "4",
    )  # fmt: skip
    lines = Lines(workload)
    lines.wait_acked(100)
    for _ in range(KILLS // 2):
        state = eventually_blocking(group.whole, "all nodes are ready", 30)
        acked = lines.last["acked"]
        os.kill(state["pids"][state["leader"]], signal.SIGKILL)
        lines.wait_acked(acked + 100)
        eventually_blocking(partial(_is_another, group, state), "the death is noticed", 10)
    eventually_blocking(group.whole, "all nodes are ready", 30)
    lines.stop()
    summary = lines.summary()

    assert (summary["lost"], summary["duplicates"], summary["outOfOrder"]) == (0, 0, 0), summary


@pytest.mark.slow
def test_leadership_follows_the_clients(group: DevGroup, tmp_path: Path) -> None:
    """The SDK keeps to one node; when that is a follower, it leads before long."""
    workload = start_workload(
        group, tmp_path, "--topic", "near", "--consumer", "none", "--seconds", "120",
        "--threads", "16",
    )  # fmt: skip
    lines = Lines(workload)
    lines.wait_acked(100)
    asyncio.run(transfer(group, to=2))
    eventually_blocking(lambda: group.state()["leader"] == 2, "the leader moved away", 10)

    eventually_blocking(lambda: group.state()["leader"] == 0, "the clients' node leads", 60)
    lines.stop()
    summary = lines.summary()

    assert (summary["failed"], summary["lost"], summary["duplicates"]) == (0, 0, 0), summary


async def transfer(group: DevGroup, *, to: int) -> None:
    """Hand leadership to a node by its number."""
    state = group.state()
    async with AdminClient(state["adminEndpoints"][to]) as admin:
        target = (await admin.status()).node_id
    if state["leader"] != to:
        async with AdminClient(state["adminEndpoints"][state["leader"]]) as admin:
            await admin.transfer_leader(target)


@pytest.mark.slow
def test_a_restarted_group_has_its_topics_and_messages(tmp_path: Path) -> None:
    """Ctrl-C and start again: the log is recovered, the consume queues are rebuilt from it."""
    port = free_port_range()
    first = DevGroup(tmp_path / "data", port)
    first.announced()
    lines = Lines(start_workload(first, tmp_path, "--topic", "kept", "--messages", "200"))
    assert lines.summary()["lost"] == 0
    assert first.stop() == 0

    second = DevGroup(tmp_path / "data", port)
    endpoint = second.announced()["endpoints"][2]
    listed = subprocess.run(
        [sys.executable, "-m", "dledger", "topic", "list", "--json", "--endpoint", endpoint],
        capture_output=True,
        check=True,
    )
    second.stop()

    (topic,) = json.loads(listed.stdout)
    assert topic["name"] == "kept"
    assert topic["messages"] >= 200


@pytest.mark.slow
def test_a_group_is_not_started_on_the_data_of_another_shape(tmp_path: Path) -> None:
    """Exit 2 and a sentence that says what to use instead."""
    port = free_port_range()
    group = DevGroup(tmp_path / "data", port)
    group.announced()
    group.stop()

    refused = subprocess.run(
        [
            sys.executable, "-m", "dledger", "dev", "--nodes", "1", "--data",
            str(tmp_path / "data"), "--client-port", str(port),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip

    assert refused.returncode == 2
    assert f"3 nodes at --client-port {port}" in refused.stderr
