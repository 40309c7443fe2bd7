"""Starts the components as daemons and finds them again, and only them.

Each component is started with ``DLEDGER_E2E_COMPONENT=<state directory>:<name>`` in its
environment. The kernel keeps that as long as the process lives and forgets it with the process,
so unlike a file of process ids it is never stale: not after a crash, a reboot or a reused id.
What containerd starts (shims) inherits it; containers do not, and are found by their cgroup.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import CGROUP, Layout
from e2e.cluster.shell import environment, until

MARK = "DLEDGER_E2E_COMPONENT"
PROC = Path("/proc")
DEATH_TIMEOUT_S = 20.0
RUNTIMES = ("conmon", "containerd", "crio", "dockerd", "k3s", "kubelet")


def spawn(layout: Layout, component: str, command: Sequence[str]) -> None:
    """Start *command* as a daemon whose output goes to the component's log.

    ``setsid --fork`` leaves no child of ours behind: it outlives us, and needs no reaping.
    """
    given = {**environment(), MARK: f"{layout.state}:{component}"}
    with layout.log(component).open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=given,
            cwd="/",
            check=True,
        )


def component_of(environ: bytes, state: Path) -> str | None:
    """Return the component's name if an environment block carries the mark of *state*."""
    prefix = f"{MARK}={state}:".encode()
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode()
    return None


def components(layout: Layout) -> dict[str, list[int]]:
    """Return the processes that carry our mark, by component; shims under their containerd."""
    found: dict[str, list[int]] = {}
    for pid in pids():
        component = component_of(_read(pid, "environ"), layout.state)
        if component is not None:
            found.setdefault(component, []).append(pid)
    return found


def runtimes() -> list[str]:
    """Return the names of the kubelets and container runtimes that run here, whoever's they are."""
    living = (pid for pid in pids() if _read(pid, "cmdline"))  # one that is dead has only a name
    names = (_read(pid, "comm").decode(errors="replace").strip() for pid in living)
    return sorted({name for name in names if name.startswith(RUNTIMES)})


def in_cgroup(cgroup_file: str, cgroup: str = CGROUP) -> bool:
    """Say whether the text of ``/proc/<pid>/cgroup`` places the process below *cgroup*."""
    paths = (line.split(":", 2)[2] for line in cgroup_file.splitlines() if line.count(":") >= 2)
    return any(path.startswith(f"/{cgroup}/") for path in paths)


def contained() -> list[int]:
    """Return the processes of all containers of the local cluster."""
    return [pid for pid in pids() if in_cgroup(_read(pid, "cgroup").decode(errors="replace"))]


def of_container(cgroup_files: Mapping[int, str], container: str) -> list[int]:
    """Return the processes whose cgroup path names the container's 64-digit id."""
    return sorted(pid for pid, text in cgroup_files.items() if container in text)


def container_pids(container: str) -> list[int]:
    """Return this machine's ids of a container's processes, its first process first."""
    texts = {pid: _read(pid, "cgroup").decode(errors="replace") for pid in pids()}
    return sorted(of_container(texts, container), key=lambda pid: (_inner_pid(pid), pid))


def _inner_pid(pid: int) -> int:
    for line in _read(pid, "status").decode(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def kill(doomed: Collection[int], what: str) -> None:
    """Kill the processes at once and return when they are gone.

    Raises:
        ClusterError: when one outlives SIGKILL, which means the kernel is stuck with it.
    """
    for pid in doomed:
        send(pid, signal.SIGKILL)
    try:
        until(
            f"{what} to be gone",
            lambda: not any(alive(pid) for pid in doomed),
            timeout_s=DEATH_TIMEOUT_S,
            interval_s=0.02,
        )
    except ClusterError as error:
        stuck = [pid for pid in doomed if alive(pid)]
        raise ClusterError(f"{error}: {stuck} outlive SIGKILL") from error


def send(pid: int, number: int) -> None:
    """Send a signal; a process that is gone already is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def alive(pid: int) -> bool:
    """Say whether the process runs; a zombie does not."""
    state = _read(pid, "stat").rpartition(b")")[2].split()
    return bool(state) and state[0] not in (b"Z", b"X")


def pids() -> Iterator[int]:
    """Iterate over all processes of the machine but ourselves."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def _read(pid: int, file: str) -> bytes:
    try:
        return (PROC / str(pid) / file).read_bytes()
    except OSError:  # gone meanwhile, or not ours to read
        return b""
