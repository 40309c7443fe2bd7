"""Builds the project's images as OCI archives: by Docker if its daemon answers, else by buildah.

``python -m e2e.cluster.image build`` prints name and archive; without changes it takes a moment.
With ``--spark`` it is the pipeline's image, with ``--workload`` that of the stories' clients.
The tag carries a hash of all that the image is made from, so a node can never mistake an old
image for a new one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import base, docker, lock, packages, wheels
from e2e.cluster.docker import DOCKER, builder
from e2e.cluster.errors import ClusterError, CommandFailed, MissingPrerequisite, exit_code
from e2e.cluster.layout import (
    NODE_IMAGE,
    SPARK_IMAGE,
    WORKLOAD_IMAGE,
    Layout,
    default_layout,
)
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

KEPT_ARCHIVES = 2
BASE_ENV, SPARK_BASE_ENV = "DLEDGER_IMAGE_BASE", "DLEDGER_SPARK_IMAGE_BASE"
"""Name an image that Docker has or can pull, to build on instead of the Dockerfile's base."""
MAX_ATTEMPTS = 5
BUILD_ENVIRONMENT = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
"""Without attestations an archive has one image, and nothing else that a node could ask for."""
NOT_PULLED = ("failed to resolve source metadata", "failed to create LLB definition")
"""How BuildKit begins when it cannot have a base: of today's Docker, and of one before 23."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image's full name, and the archive that it is in."""

    name: str
    archive: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one of the project's images is made.

    Attributes:
        repository: the image's name without its tag.
        files: its Dockerfile, and what that copies from the project.
        base: what it is based on where there is no registry.
        make_dependencies: makes what the Dockerfile installs first, and returns a hash of it.
        adds_to: the recipe of the project's image that it is a layer on, if it is.
    """

    repository: str
    files: tuple[str, ...]
    base: base.Base
    make_dependencies: Callable[[Steps], str]
    adds_to: Recipe | None = None

    @property
    def stem(self) -> str:
        """How its archives' names begin."""
        return self.repository.rpartition("/")[2]


NODE = Recipe(
    repository=NODE_IMAGE,
    files=("Dockerfile",),
    base=base.NODE,
    make_dependencies=wheels.make_dependencies,
)
SPARK = Recipe(
    repository=SPARK_IMAGE,
    files=("Dockerfile.spark", "pipeline/image/entrypoint.sh"),
    base=base.SPARK,
    make_dependencies=wheels.make_spark_packages,
)
WORKLOAD = Recipe(
    repository=WORKLOAD_IMAGE,
    files=("Dockerfile.workload",),
    base=base.NODE,
    make_dependencies=wheels.make_sdk,
    adds_to=NODE,
)


def tag(version: str, content: str) -> str:
    """Return the tag of a version with that content; never ``latest``."""
    return f"{version}-{content}"


def describe(recipe: Recipe, base_name: str, root: Path = wheels.ROOT) -> Image:
    """Return the image that the present sources make, built or not."""
    pyproject = wheels.project(root)
    files = wheels.sources(pyproject, *recipe.files, wheels.CHOICE, root=root)
    chosen = tag(pyproject["project"]["version"], wheels.content_hash(files, base_name, root=root))
    archive = root / "build" / "images" / f"{recipe.stem}-{chosen}.tar"
    return Image(f"{recipe.repository}:{chosen}", archive)


def build(recipe: Recipe = NODE, layout: Layout | None = None, steps: Steps | None = None) -> Image:
    """Return the image of the present sources, built if it is not yet."""
    layout, steps = layout or default_layout(), steps or Steps()
    by_docker = builder() == DOCKER
    below = build(recipe.adds_to, layout, steps) if recipe.adds_to else None
    on_the_base = docker_base(recipe) if by_docker else buildahs_base(recipe)
    base_name = below.name if below else on_the_base
    with lock.held(wheels.ROOT / "build" / "image.lock", steps):
        image = describe(recipe, base_name)
        if image.archive.exists():
            return image
        dependencies = recipe.make_dependencies(steps)
        if below is None:
            image = _wheel_of_settled_sources(recipe, base_name, steps)
        image.archive.parent.mkdir(parents=True, exist_ok=True)
        partial = image.archive.with_suffix(".partial")
        for killed in image.archive.parent.glob(f"{recipe.stem}-[0-9]*.partial"):
            killed.unlink()
        arguments = [
            *("--file", recipe.files[0]),
            *build_arguments(recipe, base_name, dependencies, image.name),
        ]
        if by_docker:
            # Docker is every checkout's: another one would take our image away before it is saved.
            with lock.held(layout.cache / "docker.lock", steps, "building an image in Docker"):
                _provide_to_docker(below)
                _by_docker(image, base_name, arguments, partial, steps)
        else:
            _provide_buildah(layout, recipe, below, steps)
            _by_buildah(layout, image, arguments, partial, steps)
        partial.rename(image.archive)
        _forget_old(recipe, image.archive)
    return image


def require_builder() -> None:
    """Raise MissingPrerequisite unless our images can be built: asked before a cluster is made."""
    if builder() == DOCKER:
        docker.require_builds()
        return
    for recipe in (NODE, SPARK):
        buildahs_base(recipe)
    _require_root()


def chosen_base(recipe: Recipe, environment: Mapping[str, str] = os.environ) -> str:
    """Return the base that the environment names for a recipe; Spark's may be another one."""
    general = environment.get(BASE_ENV, "")
    return (environment.get(SPARK_BASE_ENV, "") or general) if recipe is SPARK else general


def buildahs_base(recipe: Recipe) -> str:
    """Return the base that buildah builds on. Raises MissingPrerequisite if another is named."""
    if chosen_base(recipe):
        raise MissingPrerequisite(
            f"{BASE_ENV} and {SPARK_BASE_ENV} are for Docker; buildah makes its bases by "
            "debootstrap, from the Debian that this machine installs packages from"
        )
    return recipe.base.name


def docker_base(recipe: Recipe, root: Path = wheels.ROOT) -> str:
    """Return the base that the environment, or else a recipe's Dockerfile by its digest, names."""
    if chosen := chosen_base(recipe):
        return chosen
    lines = (root / recipe.files[0]).read_text().splitlines()
    return next(line.removeprefix("ARG BASE=") for line in lines if line.startswith("ARG BASE="))


def _wheel_of_settled_sources(recipe: Recipe, base_name: str, steps: Steps) -> Image:
    """Make the project's wheel and return its image: of sources that nobody wrote to meanwhile."""
    for _ in range(MAX_ATTEMPTS):
        before = describe(recipe, base_name)
        wheels.make_project(steps)
        if describe(recipe, base_name) == before:
            return before
    raise ClusterError(f"the sources changed during each of {MAX_ATTEMPTS} builds")


def build_arguments(
    recipe: Recipe, base_name: str, dependencies: str, image_name: str
) -> list[str]:
    """Return the options, the same for both builders, that fill in the Dockerfile's ARGs."""
    values = {"BASE": base_name, "DEPENDENCIES": dependencies}
    if recipe.adds_to is None:  # else that has the project
        values["PROJECT"] = image_name.rpartition(":")[2]
    return [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]


def _by_docker(
    image: Image, base_name: str, arguments: Sequence[str], out: Path, steps: Steps
) -> None:
    with steps.step(f"docker build {image.name}"):
        command = ("docker", "build", "-t", image.name, *arguments, ".")
        try:
            run(*command, cwd=wheels.ROOT, env=BUILD_ENVIRONMENT)
        except CommandFailed as failed:
            if not any(each in failed.output for each in NOT_PULLED):
                raise
            raise MissingPrerequisite(
                f"Docker cannot have the base {base_name}: name one that it has or can pull by "
                f"{BASE_ENV} ({SPARK_BASE_ENV} for Spark's)\n{failed}"
            ) from failed
        run("docker", "save", "--output", out, image.name)
        repository = image.name.rpartition(":")[0]
        docker.forget_images(name for name in docker.images([repository]) if name != image.name)


def _provide_to_docker(below: Image | None) -> None:
    """Load the image to add to, unless Docker still has it."""
    if below and not run("docker", "images", "--quiet", below.name).strip():
        run("docker", "load", "--input", below.archive)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise MissingPrerequisite("building an image without Docker needs root: run with sudo")


def _provide_buildah(layout: Layout, recipe: Recipe, below: Image | None, steps: Steps) -> None:
    """Provide buildah, and in its storage what the recipe's image is based on."""
    _require_root()
    packages.ensure(layout, packages.IMAGE_PACKAGES, steps)
    if below is None:
        base.ensure(layout, recipe.base, steps)
    elif not base.buildah(layout, "images", "--quiet", below.name, check=False).strip():
        base.buildah(layout, "pull", "--quiet", f"oci-archive:{below.archive}")


def _by_buildah(
    layout: Layout, image: Image, arguments: Sequence[str], out: Path, steps: Steps
) -> None:
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
    repository = kept.rpartition(":")[0]
    listing = json.loads(base.buildah(layout, "images", "--json") or "[]")
    names = [name for image in listing or [] for name in image.get("names") or []]
    for name in names:
        if name.startswith(f"{repository}:") and name != kept:
            base.buildah(layout, "rmi", name, check=False)


def _forget_old(recipe: Recipe, newest: Path) -> None:
    named = newest.parent.glob(f"{recipe.stem}-[0-9]*.tar")
    archives = sorted(named, key=lambda path: path.stat().st_mtime)
    for path in archives[:-KEPT_ARCHIVES]:
        path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster.image",
        description="Build the image of node and operator, or another of the project's.",
        epilog="example: python -m e2e.cluster.image build --spark --json",
    )
    parser.add_argument(
        "command", choices=("build", "wheels"), help="wheels: only what `docker build` needs"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--spark", action="store_true", help="the image that Spark work runs in")
    which.add_argument(
        "--workload", action="store_true", help="node's image and SDK, for the stories' clients"
    )
    parser.add_argument("--json", action="store_true", help="print name and archive as JSON")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    recipe = SPARK if options.spark else WORKLOAD if options.workload else NODE
    if options.command == "wheels":
        steps = Steps()
        recipe.make_dependencies(steps)
        if recipe.adds_to is None:
            wheels.make_project(steps)
        return 0
    image = build(recipe)
    described = {"name": image.name, "archive": str(image.archive)}
    print(json.dumps(described) if options.json else f"{image.name}\n{image.archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
