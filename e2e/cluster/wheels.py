"""Makes what the images install: the locked dependencies, and the project's own wheel."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

ROOT = Path(__file__).parents[2]
IMAGE_PYTHON = "3.11"
NODE_EXTRAS = ("node", "operator")
SPARK_EXTRAS = ("node", "pipeline")
METADATA_FILES = ("pyproject.toml", "uv.lock", "README.md", "LICENSE", "NOTICE")
CHOICE = "e2e/cluster/wheels.py"
"""What chooses from the lock is one of the things that an image is made from."""
# An eighth of what Spark brings, and nothing that runs here reads it: a shell for Spark Connect, a
# database for streaming state, tests, headers, and programs that name this machine's Python.
UNREAD = (
    "bin",
    "pandas/tests",
    "pyarrow/include",
    "pyarrow/tests",
    "pyspark/jars/connect-repl",
    "pyspark/jars/rocksdbjni-*.jar",
)
IGNORED = ("__pycache__", ".pyc", ".pyo")
SDK = "rocketmq-python-client"
"""The client library of which a node imports two generated modules (`rpc.rocketmq_stubs`):
what that library needs for itself is in the image of the stories' programs only."""


def project(root: Path = ROOT) -> dict[str, Any]:
    """Return the text of ``pyproject.toml`` as a value."""
    return tomllib.loads((root / "pyproject.toml").read_text())


def sources(pyproject: dict[str, Any], *more: str, root: Path = ROOT) -> list[Path]:
    """Return every file that the project's wheel is made from, and *more* files, sorted."""
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = [*METADATA_FILES, *more, *wheel["packages"], *wheel.get("force-include", {})]
    return sorted(path for each in included for path in _files(root / each))


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path]
    return [
        each
        for each in path.rglob("*")
        if each.is_file() and not any(part.endswith(IGNORED) for part in each.parts)
    ]


def content_hash(files: Iterable[Path], *salt: str, root: Path = ROOT) -> str:
    """Return 12 hex digits that change with any file's path or content, or with the salt."""
    digest = hashlib.sha256("\0".join(salt).encode())
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root)}\0{content}\0".encode())
    return digest.hexdigest()[:12]


def uv(root: Path = ROOT) -> str:
    """Return uv, from the PATH or from where `make setup` puts it."""
    own = root / "build" / "uv" / "bin" / "uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        raise MissingPrerequisite("uv is not installed; run `make setup`, which installs it")
    return found


def make_dependencies(steps: Steps, root: Path = ROOT) -> str:
    """Put the node's and operator's locked wheels into ``build/wheels``; return their hash."""
    with steps.step("wheels of the locked dependencies"):
        return _wheels_once("dependencies", needed_by(NODE_EXTRAS, _lock(root)), root)


def make_sdk(steps: Steps, root: Path = ROOT) -> str:
    """Put the wheels that the SDK needs beside the node's into ``build/wheels``; return a hash."""
    with steps.step("wheels of the SDK"):
        return _wheels_once("sdk", added_by_sdk(NODE_EXTRAS, _lock(root)), root)


def _wheels_once(name: str, wanted: Collection[str], root: Path) -> str:
    """Put the locked wheels of some of the node's packages into a directory; return their hash.

    Only when the lock has changed since; what has no wheel for the image's Python is built.
    """

    def make(directory: Path, requirements: Path) -> None:
        python = ("run", "--no-project", "--isolated", "--python", IMAGE_PYTHON, "--with", "pip")
        pip = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "-r", requirements)
        run(uv(root), *python, *pip, "-w", directory, cwd=root)

    return _once(NODE_EXTRAS, wanted, root / "build" / "wheels" / name, make, root)


def make_spark_packages(steps: Steps, root: Path = ROOT) -> str:
    """Put the pipeline's locked packages into ``build/spark-packages``; return their hash.

    Installed, not as wheels: Spark has none, and to make one takes longer than all the rest.
    """

    def make(directory: Path, requirements: Path) -> None:
        python = ("--python", IMAGE_PYTHON, "--target", directory)
        run(uv(root), "pip", "install", "--quiet", "--no-deps", *python, "-r", requirements)
        for path in (path for pattern in UNREAD for path in directory.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    with steps.step("packages of the pipeline"):
        wanted = needed_by(SPARK_EXTRAS, _lock(root))
        return _once(SPARK_EXTRAS, wanted, root / "build" / "spark-packages", make, root)


def _lock(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "uv.lock").read_text())


def _once(
    extras: Iterable[str],
    wanted_names: Collection[str],
    directory: Path,
    make: Callable[[Path, Path], None],
    root: Path,
) -> str:
    """Fill the directory with those of the extras' locked packages, unless that is done."""
    words = [word for each in extras for word in ("--extra", each)]
    left_out = sorted(_reached(extras, _lock(root), beyond=()) - set(wanted_names))
    words += [word for each in left_out for word in ("--no-emit-package", each)]
    export = (uv(root), "export", "--frozen", "--no-dev", "--no-emit-project", "--no-header")
    text = run(*export, *words, cwd=root)
    wanted = hashlib.sha256("\0".join((text, *UNREAD)).encode()).hexdigest()[:12]
    stamp = directory.with_name(f"{directory.name}.hash")
    if stamp.exists() and stamp.read_text() == wanted:
        return wanted
    stamp.unlink(missing_ok=True)
    _empty(directory)
    requirements = directory.with_name(f"{directory.name}.txt")
    requirements.write_text(text)
    make(directory, requirements)
    stamp.write_text(wanted)
    return wanted


def needed_by(extras: Iterable[str], lock: dict[str, Any]) -> set[str]:
    """Return the packages that an image with *extras* of the project carries."""
    return _reached(extras, lock, beyond={SDK})


def added_by_sdk(extras: Iterable[str], lock: dict[str, Any]) -> set[str]:
    """Return the packages that *extras* of the project bring only because the SDK needs them."""
    return _reached(extras, lock, beyond=()) - needed_by(extras, lock)


def _reached(extras: Iterable[str], lock: dict[str, Any], *, beyond: Collection[str]) -> set[str]:
    """Return what the requirements of *extras* lead to, but not through packages in *beyond*."""
    packages = {package["name"]: package for package in lock["package"]}
    reached = set[tuple[str, str]]()
    waiting = [("dledger", extra) for extra in extras]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in reached:
            continue
        reached.add((name, extra))
        if name not in beyond:
            package = packages[name]
            more = package.get("optional-dependencies", {}).get(extra, ())
            for row in more if extra else package.get("dependencies", ()):
                waiting += [(row["name"], each) for each in ("", *row.get("extra", ()))]
    return {name for name, _ in reached} - {"dledger"}


def make_project(steps: Steps, root: Path = ROOT) -> None:
    """Put the project's own wheel into ``build/wheels/project``."""
    with steps.step("wheel of the project"):
        directory = root / "build" / "wheels" / "project"
        _empty(directory)
        run(uv(root), "build", "--quiet", "--wheel", "--out-dir", directory, cwd=root)
        # uv marks what it makes as not to be kept; a builder would take that for our content.
        (directory / ".gitignore").unlink(missing_ok=True)


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
