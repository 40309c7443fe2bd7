"""``python -m e2e.cluster.kind_image``: kind where no image can be pulled, from packages alone."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import base, golang, image, lock, mounts, packages, shell
from e2e.cluster.errors import MissingPrerequisite, exit_code
from e2e.cluster.kind_image import daemon, node, person
from e2e.cluster.kind_image.places import Places
from e2e.cluster.layout import default_layout
from e2e.cluster.local import require_root
from e2e.cluster.steps import Steps
from e2e.cluster.tools import find_kubectl

INTERRUPTED = 130

EPILOG = """\
examples:
  python -m e2e.cluster.kind_image build            Docker, kind, the nodes' image; prints its name
  python -m e2e.cluster.kind_image run make demo CLUSTER=kind
  python -m e2e.cluster.kind_image run --stories make e2e CLUSTER=kind
  python -m e2e.cluster.kind_image run --user ann make demo CLUSTER=kind
  python -m e2e.cluster.kind_image down             end its Docker, with all containers
  python -m e2e.cluster.kind_image purge            that, and delete its images and files

What it built and installed stays, as the local cluster's, whose purge removes it.

Needs root, Linux, and Debian's packages, PyPI and Go modules, but no registry of images.
exit codes: of run, its command's; else 0 done, 1 failed, 2 usage, or something is missing
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m e2e.cluster.kind_image",
        description="kind where no image can be pulled: Docker and nodes from packages alone.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("build", "have Docker run and the nodes' image in it"),
        ("down", "end Docker and its containers"),
        ("purge", "down, and delete images and files"),
    ):
        commands.add_parser(name, help=text, description=text)
    runs = commands.add_parser("run", help="run a command that finds this Docker and kind")
    runs.add_argument(
        "--stories",
        action="store_true",
        help="with all that stories ask for, where there is no network to fetch it from: Spark's "
        "image, Prometheus, versitygw",
    )
    runs.add_argument(
        "--user",
        metavar="NAME",
        help="as this user and not as root; the directory that it is run in must be the user's",
    )
    runs.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD...")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = parser().parse_args(argv)
    try:
        return exit_code(lambda: _run(options))
    except KeyboardInterrupt:
        print("interrupted; the next `run` goes on, `down` ends what runs", file=sys.stderr)
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    require_root()
    places, steps = Places(default_layout()), Steps()
    if options.command == "run" and not options.argv:
        raise MissingPrerequisite("run what? For instance: run make demo CLUSTER=kind")
    somebody = person.find(options.user, Path.cwd()) if vars(options).get("user") else None
    with lock.held(places.lock, steps, "making, starting or ending kind's Docker"):
        if options.command in ("down", "purge"):
            _end(places, steps, purge=options.command == "purge")
            return 0
        provided = provide(places, steps)
        if options.command == "build":
            print(provided)
            return 0
        os.environ.update(environment_of(places, provided))
        _provide_offline(steps, stories=options.stories)
        if somebody is not None:
            person.let(somebody, places)
        lock.use(places.uses)
    command = options.argv[1:] if options.argv[0] == "--" else options.argv
    if somebody is None:
        words, environment = daemon.inside(*command), shell.environment()
    else:
        words = person.inside(somebody, *command)
        environment = person.environment(somebody, shell.environment())
    return subprocess.run(words, env=environment, check=False).returncode


def _end(places: Places, steps: Steps, *, purge: bool) -> None:
    lock.require_unused(places.uses)
    daemon.stop(places, steps)
    if purge:
        daemon.clear_strays(places)
        mounts.delete([places.top])
        steps.say(
            f"left: programs and packages, by which {places.layout.cache} is the local cluster's, "
            "too: `python -m e2e.cluster purge --cluster local` removes them"
        )


def provide(places: Places, steps: Steps) -> str:
    """Have Docker run with the nodes' image; return its name."""
    packages.ensure(places.layout, {**packages.CLUSTER_PACKAGES, **packages.IMAGE_PACKAGES}, steps)
    daemon.provide_program(places, steps)
    daemon.start(places, steps)
    provided = node.provide(places, steps)
    places.path.mkdir(exist_ok=True)
    client = places.docker_program / "usr" / "bin" / "docker"
    for name, program in (("docker", client), ("kind", golang.built(places.layout, golang.KIND))):
        partial = places.path / f"{name}.{os.getpid()}"
        shutil.copy2(program, partial)
        partial.rename(places.path / name)  # somebody may be running the old one
    return provided


def environment_of(places: Places, node_image: str) -> dict[str, str]:
    """Return what a command is told of this Docker, and of the image to make nodes of."""
    return {
        "DOCKER_HOST": f"unix://{places.socket}",
        "DOCKER_CONFIG": str(places.client_config),
        "KIND_NODE_IMAGE": node_image,
        "PATH": f"{places.path}:{os.environ.get('PATH', packages.SYSTEM_PATH)}",
        image.BASE_ENV: base.NODE.name,
        image.SPARK_BASE_ENV: base.SPARK.name,
    }


def _provide_offline(steps: Steps, *, stories: bool) -> None:
    """Do what needs the network: the command runs where there is none."""
    layout = default_layout()
    places = Places(layout)
    has = daemon.images(places)
    recipes = (image.NODE, image.WORKLOAD, *((image.SPARK,) if stories else ()))
    for each in {recipe.base.name: recipe.base for recipe in recipes}.values():
        if each.name not in has:
            archive = base.archive(layout, each, steps)
            with steps.step(f"import {each.name}"):
                daemon.docker(places, "import", archive, each.name)
    programs = (golang.VERSITYGW, golang.PROMETHEUS) if stories else ()
    for program in (golang.HELM, *programs):
        golang.ensure(layout, program, steps)
    find_kubectl(layout)
    for recipe in recipes:
        image.build(recipe, layout, steps)


if __name__ == "__main__":
    sys.exit(main())
