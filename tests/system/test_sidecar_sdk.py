"""The official Python SDK, unmodified, beside the sidecar, while group and sidecar are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dledger.client import Client
from dledger.files.files import RealFiles
from dledger.sidecar.status import status_of
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from e2e.harness.sidecar import children, has_spare
from tests.waiting import eventually_blocking

TOPIC = "orders"
THREADS = 2
RESET = "Connection reset by peer"
MOST_RESET = 20
"""Seen: a connection that was reset while gRPC wrote to it counts as ready for some milliseconds,
and all tries of the SDK, which come at once, end on it. Such a send is there once, or not."""
PROGRAM = Path(__file__).with_name("sidecar_producer.py")


class Sdk:
    """The producer's process, and what it has said."""

    def __init__(self, endpoint: str, home: Path) -> None:
        home.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), endpoint, TOPIC, str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HOME": str(home)},
        )
        self.sends: list[tuple[int, int, str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("["):
                thread, number, error = json.loads(line)
                self.sends.append((thread, number, error))

    def go_on(self, count: int) -> None:
        """Wait for that many sends more."""
        target = len(self.sends) + count
        eventually_blocking(lambda: len(self.sends) >= target, "sends")

    def stop(self) -> None:
        """Let it end with the sends that it is at."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.close()
        self.process.wait(60)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def _stored(endpoint: str) -> list[tuple[int, int]]:
    async with Client(endpoint, timeout_s=10) as client:
        bodies = [one.record.body async for one in client.read(TOPIC, 0, linearizable=True)]
    return [(int(body.split()[0]), int(body.split()[1])) for body in bodies]


class Outage:
    """The whole group is away: SIGKILLed, or SIGSTOPped."""

    def __init__(self, group: DevGroup, *, frozen: bool) -> None:
        self._group, self._frozen = group, frozen
        self._pids = [pid for pid in group.state()["pids"] if pid]
        self._again: list[DevGroup] = []

    def begin(self) -> None:
        if self._frozen:
            self._signal(signal.SIGSTOP)
        else:
            self._group.kill()

    def end(self) -> None:
        if self._frozen:
            self._signal(signal.SIGCONT)
        else:
            group = self._group
            self._again.append(DevGroup(group.data, group.client_port, "segment_bytes=8388608"))
            self._again[0].announced()

    def clean_up(self) -> None:
        if self._frozen:
            self._signal(signal.SIGCONT)
        for one in self._again:
            one.stop()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_sdk_sees_no_error_while_the_group_and_the_sidecar_are_killed(
    group: DevGroup, tmp_path: Path, frozen: bool
) -> None:
    """All of the group at once, and the child of the sidecar twice: each once, in order."""
    endpoints, port, spool = group.state()["endpoints"], free_port_range(), tmp_path / "spool"
    command = [sys.executable, "-m", "dledger", "spool", "run", "--dir", str(spool)]
    command += ["--listen", f"127.0.0.1:{port}"]
    for endpoint in endpoints:
        command += ["--upstream", endpoint]
    errors = (tmp_path / "sidecar.err").open("wb")
    sidecar = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    assert sidecar.stdout is not None
    sidecar.stdout.readline()
    outage = Outage(group, frozen=frozen)
    sdk = Sdk(f"127.0.0.1:{port}", tmp_path / "home")
    try:
        sdk.go_on(50)
        outage.begin()
        sdk.go_on(50)
        for _ in range(2):
            eventually_blocking(lambda: has_spare(sidecar.pid), "a spare child")
            os.kill(children(sidecar.pid)[0], signal.SIGKILL)
            sdk.go_on(50)
        outage.end()
        sdk.go_on(50)
        sdk.stop()
        eventually_blocking(lambda: not status_of(RealFiles(), spool).depth, "an empty spool")
        found = asyncio.run(_stored(endpoints[0]))
    finally:
        sdk.process.kill()
        sidecar.send_signal(signal.SIGTERM)
        sidecar.communicate(timeout=60)
        errors.close()
        outage.clean_up()

    assert [send for send in sdk.sends if send[2] and RESET not in send[2]] == []
    assert sum(bool(error) for *_, error in sdk.sends) <= MOST_RESET
    for thread in range(THREADS):
        told = [(number, error) for whose, number, error in sdk.sends if whose == thread]
        there = [number for whose, number in found if whose == thread]
        assert there == [number for number, error in told if not error or number in there]
    assert {whose for whose, _ in found} == set(range(THREADS))
