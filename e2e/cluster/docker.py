"""What is asked of the Docker command: does a daemon answer, can it build, what is ours in it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping

from e2e.cluster.errors import CommandFailed, MissingPrerequisite
from e2e.cluster.shell import run

TIMEOUT_S = 10.0
DOCKER, BUILDAH = "docker", "buildah"
BUILDER_ENV = "DLEDGER_BUILDER"
"""Names the builder; without it Docker is, where its daemon answers."""
BUILDX_APART_SINCE = 23
"""From this version on the client asks a plugin for every build with BuildKit."""


def answers() -> bool:
    """Say whether there is a Docker daemon."""
    if shutil.which("docker") is None:
        return False
    try:
        run("docker", "version", "--format", "{{.Server.Version}}", timeout_s=TIMEOUT_S)
    except CommandFailed:
        return False
    return True


def builds() -> bool:
    """Say whether ``docker build`` has BuildKit, which our Dockerfiles need; asks no daemon."""
    said = run("docker", "version", "--format", "{{.Client.Version}}", check=False)
    found = re.match(r"(\d+)\.", said.strip())
    if found is not None and int(found.group(1)) < BUILDX_APART_SINCE:
        return True
    return "buildx" in run("docker", "buildx", "version", check=False)


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
