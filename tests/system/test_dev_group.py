"""``dledger dev`` with the unmodified SDK: a whole group on this machine, its leader killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10


class DevGroup:
    """A running ``dledger dev``."""

    def __init__(self, data: Path, client_port: int, *settings: str) -> None:
        self.data = data
        self.client_port = client_port
        options = [word for setting in settings for word in ("--set", setting)]
        command = [
            sys.executable, "-m", "dledger", "dev", "--nodes", "3", "--data", str(data),
            "--client-port", str(client_port), "--json", *options,
        ]  # fmt: skip
        with (data.parent / "dev.err").open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def announced(self) -> dict[str, Any]:
        """Return the JSON line it prints when it is writable."""
        assert self.process.stdout is not None
        state: dict[str, Any] = json.loads(self.process.stdout.readline())
        return state

    def state(self) -> dict[str, Any]:
        """Return what it says of itself now."""
        state: dict[str, Any] = json.loads((self.data / "dev.json").read_text())
        return state

    def whole(self) -> dict[str, Any] | None:
        """Return the state when all nodes are ready and one leads."""
        state = self.state()
        return state if state["leader"] is not None and all(state["ready"]) else None

    def stop(self) -> int:
        """End it as Ctrl-C does; return its exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(40)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def free_port_range() -> int:
    """Return a client port whose whole range is free."""
    for first in range(21000, 60000, 1000):
        ports = [first + offset + node for offset in (0, 100, 200, 300) for node in range(3)]
        if all(_is_free(port) for port in ports):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def eventually(what: str, probe: Callable[[], Any], deadline_s: float) -> Any:
    """Return the first truthy answer within the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if answer := probe():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {deadline_s} s")


def start_workload(group: DevGroup, home: Path, *args: str) -> subprocess.Popen[str]:
    """Start the SDK client program against the group's first node."""
    endpoints = ";".join(group.state()["endpoints"])
    return subprocess.Popen(
        [sys.executable, str(ROOT / "e2e/workload.py"), "--endpoint", endpoints, *args],
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


@pytest.fixture
def group(tmp_path: Path) -> Iterator[DevGroup]:
    """Return a running, writable group of three."""
    made = DevGroup(tmp_path / "data", free_port_range(), "segment_bytes=8388608")
    made.announced()
    yield made
    if made.process.poll() is None:
        made.stop()


@pytest.mark.slow
@pytest.mark.parametrize("consumer", ["push", "simple"])
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
        state = eventually("all nodes are ready", group.whole, 30)
        acked = lines.last["acked"]
        os.kill(state["pids"][state["leader"]], signal.SIGKILL)
        lines.wait_acked(acked + 100)
    lines.stop()
    summary = lines.summary()

    assert (summary["lost"], summary["duplicates"], summary["outOfOrder"]) == (0, 0, 0), summary
    assert summary["gapMs"] < 2000, summary


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
