"""Makes the wheels that the image installs: the locked dependencies, and the project itself."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from e2e.cluster.errors import MissingPrerequisite
from e2e.cluster.shell import run
from e2e.cluster.steps import Steps

ROOT = Path(__file__).parents[2]
IMAGE_PYTHON = "3.11"
EXTRAS = ("node", "operator")
METADATA_FILES = ("pyproject.toml", "uv.lock", "Dockerfile", "README.md", "LICENSE")
IGNORED = ("__pycache__", ".pyc", ".pyo")


def project(root: Path = ROOT) -> dict[str, Any]:
    """Return the text of ``pyproject.toml`` as a value."""
    return tomllib.loads((root / "pyproject.toml").read_text())


def sources(pyproject: dict[str, Any], root: Path = ROOT) -> list[Path]:
    """Return every file that the project's wheel or image is made from, sorted."""
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = [*METADATA_FILES, *wheel["packages"], *wheel.get("force-include", {})]
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
    """Put the wheels that ``uv.lock`` names into ``build/wheels/dependencies``; return their hash.

    Only when the lock has changed since; what has no wheel for the image's Python is built.
    """
    extras = [word for each in EXTRAS for word in ("--extra", each)]
    export = (uv(root), "export", "--frozen", "--no-dev", "--no-emit-project", "--no-header")
    text = run(*export, *extras, cwd=root)
    wanted = hashlib.sha256(text.encode()).hexdigest()[:12]
    wheels = root / "build" / "wheels"
    stamp = wheels / "dependencies.hash"
    if stamp.exists() and stamp.read_text() == wanted:
        return wanted
    with steps.step("wheels of the locked dependencies"):
        stamp.unlink(missing_ok=True)
        _empty(wheels / "dependencies")
        requirements = wheels / "requirements.txt"
        requirements.write_text(text)
        python = ("run", "--no-project", "--isolated", "--python", IMAGE_PYTHON, "--with", "pip")
        pip = ("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "-r", requirements)
        run(uv(root), *python, *pip, "-w", wheels / "dependencies", cwd=root)
        stamp.write_text(wanted)
    return wanted


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
