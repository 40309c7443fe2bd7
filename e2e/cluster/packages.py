"""Debian packages: what is missing is installed, and recorded so that ``purge`` takes it away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.layout import Layout
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

CNI_PLUGINS = Path("/usr/lib/cni")

# Package -> a program of it, wherever on the PATH; a file that must lie where it says, if absolute.
CLUSTER_PACKAGES: Mapping[str, str] = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": f"{CNI_PLUGINS}/loopback",
    "iptables": "iptables",
    "iproute2": "ip",
    "util-linux": "nsenter",
}
IMAGE_PACKAGES: Mapping[str, str] = {"buildah": "buildah", "debootstrap": "debootstrap"}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}


def missing(wanted: Mapping[str, str]) -> list[str]:
    """Return the packages whose program or file is not on this machine."""
    return [name for name, sign in wanted.items() if not _present(sign)]


def _present(sign: str) -> bool:
    if Path(sign).is_absolute():
        return Path(sign).exists()
    return shutil.which(sign, path=SYSTEM_PATH) is not None


def ensure(layout: Layout, wanted: Mapping[str, str], steps: Steps) -> None:
    """Install what is missing of *wanted* and add it to the record.

    Raises:
        MissingPrerequisite: when packages are missing and this is no Debian.
    """
    absent = missing(wanted)
    if not absent:
        return
    if shutil.which("apt-get") is None:
        raise MissingPrerequisite(f"install these programs, there is no apt-get: {absent}")
    layout.cache.mkdir(parents=True, exist_ok=True)
    log = layout.cache / "apt.log"
    with steps.step(f"apt-get install {' '.join(absent)}"):
        before = installed()
        run("apt-get", "update", "-qq", env=QUIET, log=log)
        options = ("-y", "-qq", "--no-install-recommends")
        try:
            run("apt-get", "install", *options, *absent, env=QUIET, log=log)
        finally:
            record(layout, installed() - before)


def installed() -> set[str]:
    """Return the names of all installed packages."""
    lines = run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n").splitlines()
    return {line.split()[1] for line in lines if line.startswith("ii")}


def recorded(layout: Layout) -> set[str]:
    """Return the packages that earlier runs installed."""
    try:
        return set(json.loads(layout.packages.read_text()))
    except FileNotFoundError:
        return set()


def record(layout: Layout, names: Collection[str]) -> None:
    """Add to the record of what we installed."""
    every = sorted(recorded(layout) | set(names))
    layout.packages.write_text(json.dumps(every, indent=1) + "\n")


def remove(layout: Layout, steps: Steps) -> None:
    """Remove every recorded package that is still there, and the record."""
    ours = sorted(recorded(layout) & installed())
    if ours:
        with steps.step(f"apt-get remove {' '.join(ours)}"):
            run("apt-get", "purge", "-y", "-qq", *ours, env=QUIET, log=layout.cache / "apt.log")
    layout.packages.unlink(missing_ok=True)
