"""Says what this machine has of what a cluster needs, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import docker, golang, kind, network, packages, tools
from e2e.cluster.choose import automatic
from e2e.cluster.current import CurrentCluster
from e2e.cluster.layout import API_PORT, Layout, default_layout
from e2e.cluster.local import LocalCluster
from e2e.cluster.shell import run
from e2e.cluster.teardown import port_is_free

NEEDED_DISK_GIB = 16
NEEDED_DOCKER_GIB = 10
"""Four images (2.7 GiB), once more as build cache and as archives, and what four nodes unpack."""
NEEDED_MEMORY_GIB = 6
GIB = 2**30
ROOT_OR_KIND = "run as root (sudo), or install Docker and kind, which need none: --cluster kind"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        what: the thing.
        ok: whether it is as needed.
        detail: what was found, or what to do.
        fatal: whether `up` fails without it; otherwise it is seen to, or not needed here.
    """

    what: str
    ok: bool
    detail: str
    fatal: bool = True

    def line(self) -> str:
        """The finding in words."""
        verdict = "ok     " if self.ok else "MISSING" if self.fatal else "absent "
        return f"{verdict} {self.what}: {self.detail}"


def findings(layout: Layout, asked: str = "auto") -> Iterator[Finding]:
    """Look at everything that a cluster of that kind needs."""
    chosen = asked
    if asked == "auto":
        chosen, reason = automatic()
        yield Finding("auto", True, f"--cluster auto means {chosen} here: {reason}")
    looks = {"local": _local, "kind": _kind, "current": _current}
    yield from looks[chosen](layout)


def _kind(layout: Layout) -> Iterator[Finding]:
    """Docker has the nodes and their network, so it takes neither root nor routes of this host."""
    yield _memory()
    trouble = docker.find_trouble()
    yield Finding("Docker daemon", not trouble, trouble or "answers")
    kinds = kind.find_trouble()
    yield Finding("kind", not kinds, kinds or "there")
    if not trouble:
        yield _node_image()
        yield _disk(docker.keeps() or layout.cache, NEEDED_DOCKER_GIB)
        yield from _builder(layout)
    yield from _programs(layout, (golang.HELM, golang.KUBECTL))


def _node_image() -> Finding:
    chosen = os.environ.get(kind.NODE_IMAGE_ENV, "")
    there = bool(chosen) and docker.has(chosen)
    which = chosen or f"kind's own ({kind.NODE_IMAGE_ENV} names another one)"
    detail = chosen if there else f"Docker has to have or pull {which}"
    return Finding("nodes' image", there, detail, fatal=False)


def _builder(layout: Layout) -> Iterator[Finding]:
    """Images are built for every kind of cluster, by Docker where it answers."""
    if docker.builder() == docker.DOCKER:
        has = docker.builds()
        missing = (
            f"install docker-buildx-plugin, or set {docker.BUILDER_ENV}={docker.BUILDAH} (root)"
        )
        yield Finding("Docker's BuildKit", has, "there" if has else missing)
    else:
        root = os.geteuid() == 0
        yield Finding(
            "buildah as root", root, "yes" if root else "run as root (sudo), or by Docker"
        )
        yield _packages(layout, "image", packages.missing(packages.IMAGE_PACKAGES))


def _current(layout: Layout) -> Iterator[Finding]:
    cluster = CurrentCluster(layout)
    ready = sum(cluster.nodes_ready().values())
    detail = f"{ready} nodes ready by {cluster.kubeconfig}"
    yield Finding("cluster", ready > 0, detail if ready else f"none answers: {cluster.kubeconfig}")


def _local(layout: Layout) -> Iterator[Finding]:
    yield Finding("system", platform.system() == "Linux", f"{platform.system()}, Linux is needed")
    root = os.geteuid() == 0
    yield Finding("root", root, "yes" if root else ROOT_OR_KIND)
    yield _memory()
    yield _disk(layout.cache, NEEDED_DISK_GIB)
    yield _packages(layout, "cluster", packages.missing(packages.CLUSTER_PACKAGES))
    yield from _builder(layout)
    yield from _programs(layout, (*golang.CLUSTER_PROGRAMS, golang.HELM))
    yield from _addresses(layout)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    enough = total >= NEEDED_MEMORY_GIB
    return Finding("memory", enough, f"{total:.0f} GiB, {NEEDED_MEMORY_GIB} are needed")


def _disk(where: Path, needed_gib: int) -> Finding:
    existing = next(path for path in (where, *where.parents) if path.exists())
    free = shutil.disk_usage(existing).free / GIB
    detail = f"{free:.0f} GiB free at {existing}, {needed_gib} are needed"
    return Finding("disk", free >= needed_gib, detail)


def _packages(layout: Layout, use: str, absent: list[str]) -> Finding:
    ours = packages.recorded(layout)
    detail = f"apt-get will install {', '.join(absent)}" if absent else "all there"
    if ours:
        detail += f"; installed by us so far, purge removes them: {', '.join(sorted(ours))}"
    fatal = shutil.which("apt-get") is None
    return Finding(f"Debian packages ({use})", not absent, detail, fatal=fatal)


def _programs(layout: Layout, programs: Iterable[golang.Program]) -> Iterator[Finding]:
    for program in programs:
        path = tools.find_there(layout, program)
        detail = str(path) if path else "will be built when it is needed, minutes the first time"
        yield Finding(program.name, path is not None, detail, fatal=False)
    found = shutil.which("go")
    text = run(found, "version", cwd=Path("/")).strip() if found else "will be taken from PyPI"
    yield Finding("Go", found is not None, text, fatal=False)


def _addresses(layout: Layout) -> Iterator[Finding]:
    if shutil.which("ip") is None:
        return
    foreign = network.foreign_routes()
    yield Finding("addresses", not foreign, f"in use: {foreign}" if foreign else "free or ours")
    up = LocalCluster(layout).is_up()
    free = port_is_free(API_PORT)
    detail = "ours" if up else "free" if free else "in use by something else: ss -ltnp"
    yield Finding(f"port {API_PORT}", up or free, detail)


def main(asked: str = "auto") -> int:
    """Print all findings; 2 if one is fatal. Raises ClusterError."""
    found = list(findings(default_layout(), asked))
    for each in found:
        print(each.line())
    return 2 if any(each.fatal and not each.ok for each in found) else 0
