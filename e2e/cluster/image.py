"""Builds the project's image as an OCI archive: by Docker if its daemon answers, else by buildah.

``python -m e2e.cluster.image build`` prints name and archive; without changes it takes a moment.
The tag carries a hash of all that the image is made from, so a node can never mistake an old
image for a new one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import base, lock, packages, wheels
from e2e.cluster.errors import ClusterError, MissingPrerequisite
from e2e.cluster.kind import docker_answers
from e2e.cluster.layout import Layout, default_layout
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

REPOSITORY = "dledger.io/dledger"
DOCKER_BASE = "python:3.11-slim-bookworm"
KEPT_ARCHIVES = 2
MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Image:
    """An image's full name, and the archive that it is in."""

    name: str
    archive: Path


def tag(version: str, content: str) -> str:
    """Return the tag of a version with that content; never ``latest``."""
    return f"{version}-{content}"


def describe(base_name: str, root: Path = wheels.ROOT) -> Image:
    """Return the image that the present sources make, built or not."""
    pyproject = wheels.project(root)
    content = wheels.content_hash(wheels.sources(pyproject, root), base_name, root=root)
    chosen = tag(pyproject["project"]["version"], content)
    return Image(f"{REPOSITORY}:{chosen}", root / "build" / "images" / f"dledger-{chosen}.tar")


def build(layout: Layout | None = None, steps: Steps | None = None) -> Image:
    """Return the image of the present sources, built if it is not yet."""
    layout, steps = layout or default_layout(), steps or Steps()
    docker = docker_answers()
    base_name = DOCKER_BASE if docker else base.name()
    with lock.held(wheels.ROOT / "build" / "image.lock", steps):
        image = describe(base_name)
        if image.archive.exists():
            return image
        dependencies = wheels.make_dependencies(steps)
        image = _wheel_of_settled_sources(base_name, steps)
        image.archive.parent.mkdir(parents=True, exist_ok=True)
        partial = image.archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        arguments = build_arguments(base_name, dependencies, image.name)
        if docker:
            _by_docker(image, arguments, partial, steps)
        else:
            _by_buildah(layout, image, arguments, partial, steps)
        partial.rename(image.archive)
        _forget_old(image.archive)
    return image


def _wheel_of_settled_sources(base_name: str, steps: Steps) -> Image:
    """Make the project's wheel and return its image: of sources that nobody wrote to meanwhile."""
    for _ in range(MAX_ATTEMPTS):
        before = describe(base_name)
        wheels.make_project(steps)
        if describe(base_name) == before:
            return before
    raise ClusterError(f"the sources changed during each of {MAX_ATTEMPTS} builds")


def build_arguments(base_name: str, dependencies: str, image_name: str) -> list[str]:
    """Return the options, the same for both builders, that fill in the Dockerfile's ARGs."""
    project = image_name.rpartition(":")[2]
    values = {"BASE": base_name, "DEPENDENCIES": dependencies, "PROJECT": project}
    return [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]


def _by_docker(image: Image, arguments: Sequence[str], out: Path, steps: Steps) -> None:
    with steps.step(f"docker build {image.name}"):
        environment = {"DOCKER_BUILDKIT": "1"}
        run("docker", "build", "-t", image.name, *arguments, ".", cwd=wheels.ROOT, env=environment)
        run("docker", "save", "--output", out, image.name)


def _by_buildah(
    layout: Layout, image: Image, arguments: Sequence[str], out: Path, steps: Steps
) -> None:
    if os.geteuid() != 0:
        raise MissingPrerequisite("building an image without Docker needs root: run with sudo")
    packages.ensure(layout, packages.IMAGE_PACKAGES, steps)
    base.ensure(layout, steps)
    with steps.step(f"buildah build {image.name}"):
        build_command = ("build", "--layers", "--pull-never", "--format", "oci")
        base.buildah(layout, *build_command, "-t", image.name, *arguments, ".", cwd=wheels.ROOT)
    with steps.step("export"):
        # zstd: three nodes read it in half the time of gzip, and of no compression. The same layer
        # always gives the same bytes, so that a node has to read only the layer that changed.
        zstd = ("--compression-format", "zstd", "--compression-level", "1")
        destination = f"oci-archive:{out}:{image.name}"
        base.buildah(layout, "push", "--quiet", *zstd, image.name, destination)
        _forget_old_images(layout, image.name)


def _forget_old_images(layout: Layout, kept: str) -> None:
    listing = json.loads(base.buildah(layout, "images", "--json") or "[]")
    names = [name for image in listing or [] for name in image.get("names") or []]
    for name in names:
        if name.startswith(f"{REPOSITORY}:") and name != kept:
            base.buildah(layout, "rmi", name, check=False)


def _forget_old(newest: Path) -> None:
    archives = sorted(newest.parent.glob("dledger-*.tar"), key=lambda path: path.stat().st_mtime)
    for path in archives[:-KEPT_ARCHIVES]:
        path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster.image",
        description="Build the image of node and operator.",
        epilog="example: python -m e2e.cluster.image build --json",
    )
    parser.add_argument(
        "command", choices=("build", "wheels"), help="wheels: only what `docker build` needs"
    )
    parser.add_argument("--json", action="store_true", help="print name and archive as JSON")
    options = parser.parse_args(argv)
    try:
        if options.command == "wheels":
            steps = Steps()
            wheels.make_dependencies(steps)
            wheels.make_project(steps)
            return 0
        image = build()
    except MissingPrerequisite as missing:
        print(f"missing: {missing}", file=sys.stderr)
        return 2
    except ClusterError as failed:
        print(f"failed: {failed}", file=sys.stderr)
        return 1
    described = {"name": image.name, "archive": str(image.archive)}
    print(json.dumps(described) if options.json else f"{image.name}\n{image.archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
