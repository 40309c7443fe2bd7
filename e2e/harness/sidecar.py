"""A ``dledger spool run`` as a child process: what it says of itself, and its child's death."""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from dledger.files.files import RealFiles
from dledger.sidecar.status import SpoolStatus, status_of
from e2e.cluster.processes import kill
from e2e.harness.ports import HOST, free_ports
from e2e.harness.processes import ChildProcess, Command
from e2e.harness.waiting import eventually_async

_READING: Final = {"pipe_read", "anon_pipe_read"}
_SPARE_S: Final = 60.0
_SERVES_S: Final = 60.0
_METRIC: Final = re.compile(r"^dledger_spool_(\w+)\{.*\} (\S+)$", re.MULTILINE)
_DIRECTLY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without the machine's proxy, which does not reach this machine's loopback."""


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, the oldest first."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(word) for word in text.split()]


def has_spare(pid: int) -> bool:
    """Whether a sidecar has a second child that waits to be told to go: it reads its stdin."""
    pids = children(pid)
    return len(pids) == 2 and Path(f"/proc/{pids[1]}/wchan").read_text("ascii") in _READING


class SidecarProcess:
    """A running sidecar.

    Attributes:
        endpoint: What an SDK is given.
        kills: How often its child was killed.
    """

    def __init__(self, directory: Path, upstream: Sequence[str], *options: str) -> None:
        self.directory = directory
        port, self._metrics_port = free_ports(2)
        self.endpoint = f"{HOST}:{port}"
        self.kills = 0
        command: list[str | Path] = [
            *(sys.executable, "-m", "dledger", "spool", "run", "--dir", directory),
            *("--listen", self.endpoint, "--metrics", f"{HOST}:{self._metrics_port}"),
            *(word for each in upstream for word in ("--upstream", each)),
            *options,
        ]
        self._process = ChildProcess(Command(command), directory.with_suffix(".log"))

    async def serves(self) -> bool:
        """Whether its child serves. Its ports take connections before, which wait for that."""
        return bool(await asyncio.to_thread(self.metrics))

    async def kill_child(self) -> None:
        """SIGKILL the process that serves, as soon as there is another one to go on.

        Raises:
            HarnessError: There was none.
        """
        await eventually_async("a spare child of the sidecar", self._has_spare, _SPARE_S)
        child = children(self._process.pid)[0]
        await asyncio.to_thread(kill, [child], "the sidecar's child")
        self.kills += 1

    async def _has_spare(self) -> bool:
        return has_spare(self._process.pid)

    def metrics(self) -> Mapping[str, float]:
        """Return what it exports, without ``dledger_spool_``; nothing while no child serves."""
        try:
            url = f"http://{HOST}:{self._metrics_port}/metrics"
            with _DIRECTLY.open(url, timeout=2) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError):
            return {}
        return {name: float(value) for name, value in _METRIC.findall(text)}

    def status(self) -> SpoolStatus:
        """Return what ``dledger spool status`` says. Raises DledgerError."""
        return status_of(RealFiles(), self.directory)

    def log_text(self) -> str:
        """Return what it has logged so far."""
        return self._process.log.read_text("utf-8")

    async def until_empty(self, deadline_s: float) -> None:
        """Wait until its disk has nothing that waits. Raises HarnessError."""

        async def is_empty() -> bool:
            return not (await asyncio.to_thread(self.status)).depth

        await eventually_async(f"nothing waits in {self.directory}", is_empty, deadline_s, 0.2)

    def stop(self) -> None:
        """End it in order."""
        self._process.stop()


@asynccontextmanager
async def beside(
    directory: Path, upstream: Sequence[str], *options: str
) -> AsyncIterator[SidecarProcess]:
    """Run a sidecar, which ends with the block; its log is beside its directory."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    sidecar = SidecarProcess(directory, upstream, *options)

    try:
        await eventually_async(f"{sidecar.endpoint} is served", sidecar.serves, _SERVES_S)
        yield sidecar
    finally:
        await asyncio.to_thread(sidecar.stop)
