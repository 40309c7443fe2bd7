"""Debian's Docker in a network namespace: nothing of the machine's network or Docker is touched.

Its package is unpacked and not installed, so that no service starts. It needs containerd, runc and
iptables of the machine, as the local cluster does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from e2e.cluster import mounts, packages, processes
from e2e.cluster.errors import ClusterError, CommandFailed, MissingPrerequisite
from e2e.cluster.kind_image.places import NAMESPACE, Places
from e2e.cluster.network import NAMESPACES
from e2e.cluster.shell import run, tail, until
from e2e.cluster.steps import Steps

TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_CAPABILITIES = Path("/proc/self/status")
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
_STRAYS = (
    *("/etc/docker/key.json", "/opt/containerd/bin", "/opt/containerd/lib"),
    *("/run/docker/plugins", "/run/runc", "/sys/fs/cgroup/docker"),
)
"""What dockerd makes elsewhere, whatever it is told: a file, and directories that are empty at its
end. So does each hierarchy of cgroups of version 1 have one."""
_NAMES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD"),
    *("LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)
"""In the kernel's order (capability.h)."""


def capabilities_lacking(status: str, last: int) -> list[str]:
    """Return the names of the capabilities that a /proc/PID/status says nobody here can have."""
    line = next(each for each in status.splitlines() if each.startswith("CapBnd:"))
    bounding = int(line.split()[1], 16)
    return [
        f"CAP_{name}" for bit, name in enumerate(_NAMES[: last + 1]) if not bounding & (1 << bit)
    ]


def wrapper(lacking: list[str]) -> str:
    """Return a runc that does not ask for capabilities which this machine does not give.

    Docker gives privileged containers all that there are, by name.
    """
    words = ";".join(f's/"{each}",//g' for each in lacking)
    return f"""#!/bin/sh
bundle= process= previous=
for word in "$@"; do
  case $previous in --bundle|-b) bundle=$word ;; --process|-p) process=$word ;; esac
  previous=$word
done
for file in "${{bundle:+$bundle/config.json}}" "$process"; do
  [ -n "$file" ] && [ -f "$file" ] && sed -i '{words}' "$file"
done
exec runc "$@"
"""


def docker(places: Places, *args: str | Path, **options: object) -> str:
    """Run this Docker's client."""
    client = places.docker_program / "usr" / "bin" / "docker"
    return run(client, "--host", f"unix://{places.socket}", *args, **options)  # type: ignore[arg-type]


def provide_program(places: Places, steps: Steps) -> None:
    """Unpack Debian's Docker unless it is there."""
    if (places.docker_program / "usr" / "sbin" / "dockerd").exists():
        return
    if shutil.which("apt-get") is None:
        raise MissingPrerequisite("Docker is taken from Debian's packages: there is no apt-get")
    with steps.step("download and unpack Debian's docker.io"):
        places.top.mkdir(parents=True, exist_ok=True)
        log = places.top / "apt.log"
        for killed in places.top.glob("docker.io_*.deb"):
            killed.unlink()
        run("apt-get", "update", "-qq", env=packages.QUIET, log=log)
        run("apt-get", "download", "docker.io", cwd=places.top, log=log)
        (package,) = places.top.glob("docker.io_*.deb")
        partial = places.docker_program.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        run("dpkg-deb", "--extract", package, partial)
        package.unlink()
        partial.rename(places.docker_program)


def answers(places: Places) -> bool:
    """Say whether the daemon runs."""
    if not places.socket.exists():
        return False
    try:
        docker(places, "version", timeout_s=10)
    except CommandFailed:
        return False
    return True


def start(places: Places, steps: Steps) -> None:
    """Have the daemon run, and return when it answers; its namespace has its name again."""
    if answers(places):
        if not (NAMESPACES / NAMESPACE).exists():
            run("ip", "netns", "attach", NAMESPACE, str(_pid(places)))
        return
    with steps.step(f"dockerd in the network namespace {NAMESPACE}"):
        if not (NAMESPACES / NAMESPACE).exists():
            run("ip", "netns", "add", NAMESPACE)
        run("ip", "-n", NAMESPACE, "link", "set", "lo", "up")
        places.run.mkdir(parents=True, exist_ok=True)
        note_strays(places)
        places.config.write_text("{}\n", "ascii")
        log = places.top / "dockerd.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                inside(*_command(places)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PATH": _search_path(places)},
            )

        def ready() -> bool:
            if process.poll() is not None:
                raise ClusterError(f"dockerd ended by itself\n{log}:\n{tail(log)}")
            return answers(places)

        until("Docker to answer", ready, timeout_s=TIMEOUT_S, detail=lambda: tail(log))


def inside(*command: str, uid: int = 0, gid: int = 0) -> list[str]:
    """Return a command that runs another one in the namespace; /sys stays the machine's."""
    somebody = ["--setgid", str(gid), "--setuid", str(uid)] if uid else []
    return ["nsenter", f"--net={NAMESPACES / NAMESPACE}", *somebody, "--", *command]


def _command(places: Places) -> list[str]:
    words = [
        *(str(places.docker_program / "usr" / "sbin" / "dockerd"), "--host"),
        *(f"unix://{places.socket}", "--pidfile", str(places.run / "docker.pid")),
        *("--config-file", str(places.config)),
        *("--data-root", str(places.docker_data), "--exec-root", str(places.run / "exec")),
        *("--storage-driver", "overlay2"),
    ]
    status, last = _CAPABILITIES.read_text("ascii"), int(_LAST_CAPABILITY.read_text("ascii"))
    lacking = capabilities_lacking(status, last)
    if lacking:
        places.runc.write_text(wrapper(lacking), "ascii")
        places.runc.chmod(0o755)
        words += ["--add-runtime", f"less={places.runc}", "--default-runtime", "less"]
    return words


def _search_path(places: Places) -> str:
    return (
        f"{places.docker_program}/usr/bin:{places.docker_program}/usr/sbin:{packages.SYSTEM_PATH}"
    )


def note_strays(places: Places, root: Path = Path("/")) -> None:
    """Record what of `_STRAYS` is not there yet, so that `clear_strays` takes no one else's."""
    if places.strays.exists():
        return
    tops = (root / "sys/fs/cgroup").glob("*/")
    of_cgroups = [f"/{(top / 'docker').relative_to(root)}" for top in tops]
    absent = [each for each in (*_STRAYS, *of_cgroups) if not (root / each[1:]).exists()]
    places.strays.write_text(json.dumps(absent) + "\n", "ascii")


def clear_strays(places: Places, root: Path = Path("/")) -> None:
    """Delete what of `_STRAYS` is ours: a file, and whatever directory is empty by now."""
    if not places.strays.exists():
        return
    for each in json.loads(places.strays.read_text("ascii")):
        path = root / each[1:]
        with contextlib.suppress(OSError):  # absent, or somebody else's as well
            for below in sorted(path.rglob("*/"), reverse=True):
                below.rmdir()
            path.unlink() if path.is_file() else path.rmdir()
            path.parent.rmdir()


def stop(places: Places, steps: Steps) -> None:
    """End every container and the daemon, and remove the namespace; fine if there is none.

    Containers outlive a daemon that was killed; the next one knows them.
    """
    if not answers(places) and mounts.below(mounts.MOUNTINFO.read_text(), [places.docker_data]):
        start(places, steps)
    if answers(places):
        with steps.step("stop Docker and its containers"):
            containers = docker(places, "ps", "--all", "--quiet").split()
            if containers:
                docker(places, "rm", "--force", "--volumes", *containers)
            _end(places)
    if (NAMESPACES / NAMESPACE).exists():
        run("ip", "netns", "del", NAMESPACE, check=False)
    mounts.delete([places.run])


def _pid(places: Places) -> int:
    return int((places.run / "docker.pid").read_text("ascii"))


def _end(places: Places) -> None:
    pid = _pid(places)
    os.kill(pid, signal.SIGTERM)
    until("Docker to end", lambda: not processes.alive(pid), timeout_s=STOP_TIMEOUT_S)


def images(places: Places) -> set[str]:
    """Return the names, with tags, of all images that this Docker has."""
    listed = docker(places, "images", "--format", "{{json .}}").splitlines()
    found = [json.loads(line) for line in listed]
    return {f"{each['Repository']}:{each['Tag']}" for each in found}
