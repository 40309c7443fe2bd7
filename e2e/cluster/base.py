"""The bases of the images where there is no registry: Debian with Python, by debootstrap.

Everything of buildah's lies in our cache, so that it meddles with nobody else's images.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import lock, mounts
from e2e.cluster.layout import Layout
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

SUITE = "bookworm"
# What no container reads, half of what debootstrap brings.
UNREAD = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
BLOB_CACHE = Path("/var/lib/containers/cache/blob-info-cache-v1.boltdb")
ENVIRONMENT = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}


@dataclass(frozen=True, slots=True)
class Base:
    """One base.

    Attributes:
        repository: the image's name without its tag.
        packages: what it has beside Debian's minimum.
    """

    repository: str
    packages: tuple[str, ...]

    @property
    def name(self) -> str:
        """The image's name; its tag changes with what goes into it."""
        recipe = "\0".join((SUITE, *self.packages, *UNREAD))
        digest = hashlib.sha256(recipe.encode()).hexdigest()
        return f"{self.repository}:{SUITE}-{digest[:12]}"


NODE = Base("localhost/dledger-base", ("python3", "python3-venv", "ca-certificates"))
SPARK = Base("localhost/dledger-spark-base", (*NODE.packages, "openjdk-17-jre-headless", "tini"))


def storage(layout: Layout) -> Path:
    """Where buildah keeps layers."""
    return layout.cache / "buildah"


def buildah(layout: Layout, *args: str | Path, cwd: Path | None = None, check: bool = True) -> str:
    """Run buildah on our own storage; return what it prints."""
    where = ("--root", storage(layout), "--runroot", layout.cache / "buildah-run")
    return run("buildah", *where, *args, cwd=cwd, check=check, env=ENVIRONMENT)


def ensure(layout: Layout, base: Base, steps: Steps) -> None:
    """Make the base image unless it is there."""
    if buildah(layout, "images", "--quiet", base.name, check=False).strip():
        return
    tree = archive(layout, base, steps)
    with steps.step(f"base image {base.name}"):
        container = buildah(layout, "from", "scratch").strip()
        buildah(layout, "add", "--quiet", container, tree, "/")
        buildah(layout, "config", "--cmd", "/bin/sh", container)
        buildah(layout, "commit", "--quiet", "--rm", container, base.name)


def archive(layout: Layout, base: Base, steps: Steps) -> Path:
    """Return a tar of the base's files, made once."""
    path = layout.images / f"{base.name.rpartition(':')[2]}.tar"
    if not path.exists():
        with lock.held(layout.cache / "base.lock", steps, f"making {base.repository}"):
            if not path.exists():
                with steps.step(f"debootstrap {SUITE} for {base.repository} (once, a minute)"):
                    _bootstrap(layout, base, path)
    return path


def forget() -> None:
    """Delete the one thing that buildah keeps outside our cache, whatever it is told."""
    BLOB_CACHE.unlink(missing_ok=True)
    for directory in BLOB_CACHE.parents[:2]:
        with contextlib.suppress(OSError):  # absent, or somebody else's as well
            directory.rmdir()


def _bootstrap(layout: Layout, base: Base, archive: Path) -> None:
    tree = layout.cache / "base"
    mounts.delete([tree])
    tree.mkdir(parents=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    include = f"--include={','.join(base.packages)}"
    log = layout.cache / "debootstrap.log"
    log.unlink(missing_ok=True)
    # Else it only warns that it cannot check a signature where Debian's keyring is not installed.
    run("debootstrap", "--force-check-gpg", "--variant=minbase", include, SUITE, tree, log=log)
    for directory in UNREAD:
        shutil.rmtree(tree / directory, ignore_errors=True)
        (tree / directory).mkdir(parents=True)
    partial = archive.with_suffix(f".{os.getpid()}.partial")
    with tarfile.open(partial, "w") as opened:
        opened.add(tree, arcname=".", filter=_without_devices)
    partial.rename(archive)
    mounts.delete([tree])


def _without_devices(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if entry.isdev() else entry
