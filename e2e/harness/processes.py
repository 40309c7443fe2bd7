"""Child processes, and the processor time and memory they use. Each is ended by its own pid."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.harness.waiting import HarnessError

_STOP_S: Final = 20.0
_ENDS_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL")
"""A run that is killed leaves nothing behind, frozen processes included."""
_ESTABLISHED: Final = "01"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments, and what is added to the environment.

    Attributes:
        argv: No shell reads them.
        environment: Added to our own.
        answers: Whether it answers requests on its standard output; else that is part of its log.
    """

    argv: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    answers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process took so far: processor seconds, and memory now and at most."""

    cpu_s: float
    rss_mb: float
    peak_mb: float

    @property
    def rss_mib(self) -> float:
        """Its memory now, in units of 2^20 bytes."""
        return self.rss_mb * 1e6 / (1 << 20)


class ChildProcess:
    """A running program; it ends with ours, whose main thread has to start it."""

    def __init__(self, command: Command, log: Path) -> None:
        self.log = log
        self.answers = command.answers
        self._name = Path(command.argv[0]).name
        self._answers = b""
        own = {key: value for key, value in os.environ.items() if not key.startswith("DLEDGER_")}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                (*_ENDS_WITH_PARENT, *command.argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if command.answers else errors,
                stderr=errors,
                env=own | dict(command.environment),
                bufsize=0,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, -N by signal N; None while it runs."""
        return self._process.poll()

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Send one line of JSON and return the one in answer. Raises HarnessError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            answer = json.loads(self._line(time.monotonic() + timeout_s))
        except (OSError, ValueError) as error:
            raise HarnessError(f"{self._says()}: {error}") from error
        if "error" in answer:
            raise HarnessError(f"{self._says()}: {answer['error']}")
        return dict(answer)

    def _line(self, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while b"\n" not in self._answers:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([output], [], [], left_s)[0]:
                raise TimeoutError("no answer in time")
            piece = os.read(output, 1 << 20)
            if not piece:
                raise ConnectionError("it has ended")
            self._answers += piece
        line, _, self._answers = self._answers.partition(b"\n")
        return line

    def _says(self) -> str:
        return f"{self._name}, see {self.log}"

    def usage(self) -> Usage | None:
        """Return what it took so far; None when it has ended."""
        return usage_of(self.pid)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it did not come in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """End it: in order, and by force where that takes too long."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self.wait(timeout_s):
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self._process.wait(_STOP_S)


def usage_of(pid: int) -> Usage | None:
    """Return what a process took so far; None when there is none of that id."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
        status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return None
    return parse_usage(stat, status)


def parse_usage(stat: str, status: str) -> Usage | None:
    """Read the texts of ``/proc/<pid>/stat`` and ``status``; None for a process that has ended."""
    fields = stat.rpartition(")")[2].split()
    kib = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in status.splitlines())
        if name in ("VmRSS", "VmHWM")
    }
    if len(kib) < 2:
        return None
    ticks = int(fields[11]) + int(fields[12])
    return Usage(
        cpu_s=ticks / _TICKS_PER_S,
        rss_mb=kib["VmRSS"] * 1024 / 1e6,
        peak_mb=kib["VmHWM"] * 1024 / 1e6,
    )


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process's sockets; none if it is gone."""
    links = set[str]()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                links.add(str(descriptor.readlink()))
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def tcp_table(pid: int | str = "self") -> list[str]:
    """Return the lines of the kernel's tables of TCP sockets, as a process sees them."""
    tables = [Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")]  # Java's are IPv6
    return [
        line
        for table in tables
        if table.exists()
        for line in table.read_text("ascii").splitlines()[1:]
    ]


def socket_inode(table: Iterable[str], port: int, remote_port: int) -> str | None:
    """Return the inode of the socket between two ports, from lines of ``/proc/net/tcp``."""
    ends = f":{port:04X}", f":{remote_port:04X}"
    rows = (line.split() for line in table)
    return next((row[9] for row in rows if (row[1][-5:], row[2][-5:]) == ends), None)


def connected_ports(pid: int) -> set[int]:
    """Return the remote ports of a process's established TCP connections."""
    inodes = sockets_of(pid)
    rows = (line.split() for line in tcp_table(pid))
    return {
        int(row[2].rpartition(":")[2], 16)
        for row in rows
        if row[3] == _ESTABLISHED and row[9] in inodes
    }
