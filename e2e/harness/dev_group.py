"""A ``dledger dev`` group as a child process: real nodes, for tests and for whole runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from e2e.cluster.processes import alive
from e2e.harness.ports import free_port_range
from e2e.harness.waiting import eventually, eventually_async

_STOP_S: Final = 60
_WHOLE_S: Final = 180.0
_starting = threading.Lock()


class DevGroup:
    """A running ``dledger dev``; what it says on stderr goes to ``<data>.err``.

    *under* is a command that runs it, in its own place: ``prlimit``, with what it limits.
    """

    def __init__(
        self, data: Path, client_port: int, *settings: str, nodes: int = 3,
        under: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.data = data
        self.client_port = client_port
        options = [word for setting in settings for word in ("--set", setting)]
        command = [
            *(*under, sys.executable, "-m", "dledger", "dev", "--nodes", str(nodes)),
            *("--data", str(data), "--client-port", str(client_port), "--json", *options),
        ]
        with data.with_suffix(".err").open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.endpoints: list[str] = []
        self.tls_endpoints: list[str] = []
        self.admins: list[str] = []

    def announced(self) -> dict[str, Any]:
        """Return the JSON line it prints when it is writable."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the group did not start: {self.errors()}"
        state: dict[str, Any] = json.loads(line)
        self.endpoints, self.admins = state["endpoints"], state["adminEndpoints"]
        self.tls_endpoints = state.get("tlsEndpoints", [])
        return state

    def state(self) -> dict[str, Any]:
        """Return what it says of itself now."""
        state: dict[str, Any] = json.loads((self.data / "dev.json").read_text("utf-8"))
        return state

    @property
    def leader(self) -> int:
        """The index of who led when `dledger dev` last looked; 0 if nobody did."""
        return int(self.state()["leader"] or 0)

    @property
    def leader_endpoint(self) -> str:
        """Where clients reach that node."""
        return self.endpoints[self.leader]

    def whole(self) -> dict[str, Any] | None:
        """Return the state when all nodes run and are ready and one leads."""
        state = self.state()
        running = all(pid and alive(pid) for pid in state["pids"])
        whole = running and state["leader"] is not None and all(state["ready"])
        return state if whole else None

    async def until_whole(self) -> dict[str, Any]:
        """Wait for `whole`, and return it. Raises HarnessError."""
        what = f"the nodes of {self.data} all run and one leads"
        return await eventually_async(what, lambda: asyncio.to_thread(self.whole), _WHOLE_S)

    def deaths(self) -> int:
        """Return how often a node has ended by itself so far."""
        return self.errors().count("died")

    def stop(self) -> int:
        """End it as Ctrl-C does; return its exit code, and show what it said if that is not 0."""
        self.process.send_signal(signal.SIGINT)
        code = self._ended()
        if code:
            print(f"dledger dev, exit {code}: {self.errors()}", file=sys.stderr)
        return code

    def kill(self) -> None:
        """SIGKILL every node, and what would restart them. The data stays as the nodes left it."""
        self.process.send_signal(signal.SIGSTOP)
        pids = [pid for pid in self.state()["pids"] if pid and alive(pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self._ended()
        eventually("the nodes are gone", lambda: not any(map(alive, pids)), 10)

    def _ended(self) -> int:
        code = self.process.wait(_STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def errors(self) -> str:
        """Return what it said on stderr so far."""
        return self.data.with_suffix(".err").read_text("utf-8")


@asynccontextmanager
async def running(
    data: Path, settings: Sequence[str], *, nodes: int = 3, under: Sequence[str] = ()
) -> AsyncIterator[DevGroup]:
    """Run a group that is writable, with its data in *data*, which must not be there yet."""
    data.parent.mkdir(parents=True, exist_ok=True)
    group: DevGroup | None = None

    def start() -> DevGroup:
        nonlocal group
        with _starting:  # this process may be given a range again until its ports are bound
            group = DevGroup(data, free_port_range(), *settings, nodes=nodes, under=under)
            group.announced()
        return group

    try:
        yield await asyncio.to_thread(start)
    finally:
        if group is not None:
            await asyncio.to_thread(group.stop)
