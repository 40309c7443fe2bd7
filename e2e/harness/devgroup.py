"""A ``dledger dev`` group as a child process: for tests of whole groups and for ``make bench``."""

from __future__ import annotations

import contextlib
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

_STOP_S = 60
_RANGES = range(21_000, 32_500, 500)
"""First ports; all below those that Linux gives to outgoing connections."""
_GUARD = 499
_HOST = "127.0.0.1"
_KEPT = 3
"""How many groups of a process may start at once; more would leave too few ranges to others."""
_guards: dict[int, None] = {}
"""The first ports of this process's ranges; the one that was given last stands last."""


class DevGroup:
    """A running ``dledger dev``; what it says on stderr goes to ``<data>.err``."""

    def __init__(self, data: Path, client_port: int, *settings: str, nodes: int = 3) -> None:
        self.data = data
        self.client_port = client_port
        options = [word for setting in settings for word in ("--set", setting)]
        command = [
            *(sys.executable, "-m", "dledger", "dev", "--nodes", str(nodes)),
            *("--data", str(data), "--client-port", str(client_port), "--json", *options),
        ]
        with data.with_suffix(".err").open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def announced(self) -> dict[str, Any]:
        """Return the JSON line it prints when it is writable."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the group did not start: {self.data.with_suffix('.err').read_text('utf-8')}"
        state: dict[str, Any] = json.loads(line)
        return state

    def state(self) -> dict[str, Any]:
        """Return what it says of itself now."""
        state: dict[str, Any] = json.loads((self.data / "dev.json").read_text("utf-8"))
        return state

    def whole(self) -> dict[str, Any] | None:
        """Return the state when all nodes run and are ready and one leads."""
        state = self.state()
        alive = all(pid and _exists(pid) for pid in state["pids"])
        whole = alive and state["leader"] is not None and all(state["ready"])
        return state if whole else None

    def stop(self) -> int:
        """End it as Ctrl-C does; return its exit code, and show what it said if that is not 0."""
        self.process.send_signal(signal.SIGINT)
        code = self._ended()
        if code:
            said = self.data.with_suffix(".err").read_text("utf-8")
            print(f"dledger dev, exit {code}: {said}", file=sys.stderr)
        return code

    def kill(self) -> None:
        """SIGKILL every node, and what would restart them. The data stays as the nodes left it."""
        self.process.send_signal(signal.SIGSTOP)
        pids = [pid for pid in self.state()["pids"] if pid and _exists(pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self._ended()
        eventually("the nodes are gone", lambda: not any(map(_exists, pids)), 10)

    def _ended(self) -> int:
        code = self.process.wait(_STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def _exists(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not yet waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def free_port_range() -> int:
    """Return a client port whose whole range is free, and this process's until it ends.

    That nobody listens there is not enough: another run's group may be starting, or be down for
    a moment because its test killed it. So no other process gets the range, and in this one the
    next calls get others: of the few that it keeps, the one that was given longest ago. A range
    for each call would take all of them bit by bit.
    """
    new = [first for first in _RANGES if first not in _guards]
    for first in [*new, *_guards] if len(_guards) < _KEPT else [*_guards, *new]:
        ports = [first + offset + node for offset in (0, 100, 200, 300) for node in range(3)]
        with _guarded(first) as ours:
            if ours and all(_is_free(port) for port in ports):
                _guards.pop(first, None)
                _guards[first] = None
                return first
    raise AssertionError("no free ports")


@contextlib.contextmanager
def _guarded(first: int) -> Iterator[bool]:
    """Whether no other process has the range: who has it keeps its last port bound.

    It is given back unless it is among `_guards` in the end.
    """
    if first in _guards:
        yield True
        return
    guard = socket.socket()
    try:
        guard.bind((_HOST, first + _GUARD))
    except OSError:
        yield False
    else:
        yield True
        if first in _guards:
            guard.detach()  # bound until the process ends
    finally:
        guard.close()


def _is_free(port: int) -> bool:
    """Whether nobody listens there; what is left of closed connections does not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
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
