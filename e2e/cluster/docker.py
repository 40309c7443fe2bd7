"""What is asked of the Docker command: does a daemon answer, can it build, what is ours in it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from e2e.cluster.errors import CommandFailed, MissingPrerequisite
from e2e.cluster.shell import run

INSTALL = "https://docs.docker.com/engine/install/"
TIMEOUT_S = 10.0
DOCKER, BUILDAH = "docker", "buildah"
BUILDER_ENV = "DLEDGER_BUILDER"
"""Names the builder; without it Docker is, where its daemon answers."""
BUILDX_APART_SINCE = 23
"""From this version on the client asks a plugin for every build with BuildKit."""


def answers() -> bool:
    """Say whether there is a Docker daemon that we may use."""
    return not find_trouble()


def find_trouble() -> str:
    """Return why no daemon answers us, and what to do; "" if one does."""
    if shutil.which("docker") is None:
        return f"Docker is not installed: {INSTALL}"
    try:
        run("docker", "version", "--format", "{{.Server.Version}}", timeout_s=TIMEOUT_S)
    except CommandFailed as failed:
        if "permission denied" in failed.output.lower():
            return "this user may not use Docker: sudo usermod -aG docker $USER, and log in again"
        if failed.code is None:
            return f"Docker gives no answer within {TIMEOUT_S:g} s: see docker info"
        return "no Docker daemon answers: start it, and see docker info"
    return ""


def has(name: str) -> bool:
    """Say whether Docker has an image, so that it need not be pulled."""
    return bool(run("docker", "image", "inspect", "--format", "{{.Id}}", name, check=False).strip())


def keeps() -> Path | None:
    """Return where the daemon keeps images, if that is on this machine and not in a virtual one."""
    said = run("docker", "info", "--format", "{{.DockerRootDir}}", check=False).strip()
    return Path(said) if said and Path(said).exists() else None


def builds() -> bool:
    """Say whether ``docker build`` has BuildKit, which our Dockerfiles need; asks no daemon."""
    said = run("docker", "version", "--format", "{{.Client.Version}}", check=False)
    found = re.match(r"(\d+)\.", said.strip())
    if found is not None and int(found.group(1)) < BUILDX_APART_SINCE:
        return True
    try:
        run("docker", "buildx", "version")
    except CommandFailed:
        return False
    return True


def require_builds() -> None:
    """Raise MissingPrerequisite unless `builds`."""
    if not builds():
        raise MissingPrerequisite(
            "this Docker has no buildx, without which it builds no image: install the package "
            "docker-buildx-plugin (Debian, Ubuntu: docker-buildx; see: docker buildx version), or "
            f"set {BUILDER_ENV}={BUILDAH}, which needs root"
        )


def builder(environment: Mapping[str, str] = os.environ) -> str:
    """Return what images are built by. Raises MissingPrerequisite for a builder we do not know."""
    chosen = environment.get(BUILDER_ENV, "")
    if chosen not in ("", DOCKER, BUILDAH):
        raise MissingPrerequisite(f"{BUILDER_ENV} is {chosen!r}, not {DOCKER} or {BUILDAH}")
    return chosen or (DOCKER if answers() else BUILDAH)


def images(repositories: Iterable[str]) -> list[str]:
    """Return the names, with tags, of all images of some repositories that Docker has."""
    listed = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", check=False)
    wanted = set(repositories)
    return [name for name in listed.split() if name.rpartition(":")[0] in wanted]


def forget_images(names: Iterable[str]) -> None:
    """Remove images; one that a container uses stays."""
    for name in names:
        run("docker", "image", "rm", name, check=False)
