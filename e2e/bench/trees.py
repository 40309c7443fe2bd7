"""Another commit's tree, checked out beside this one and ready to run; it goes away afterwards."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench import machine
from e2e.cluster.errors import CommandFailed
from e2e.cluster.shell import run
from e2e.cluster.wheels import uv
from e2e.harness.waiting import HarnessError

_LOCK: Final = "uv.lock"
_SHORT: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Code that can be run.

    Attributes:
        commit: Whose; ``+`` behind it when files were changed.
        directory: Where it is.
        python: The interpreter with what it needs.
    """

    commit: str
    directory: Path
    python: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes *python* take this tree's `dledger`, and the bench of the tree that runs."""
        return {"PYTHONPATH": f"{self.directory / 'node'}:{machine.ROOT}"}

    @property
    def tells_group(self) -> bool:
        """Whether its nodes have the setting `group_id`: older ones do not know it."""
        package = self.directory / "node" / "dledger"
        places = (package / "server" / "config.py", package / "config.py")  # now; before the rooms
        settings = [place.read_text("utf-8") for place in places if place.exists()]
        return any("\n    group_id: " in text for text in settings)


def this_tree() -> Tree:
    """Return the tree that runs, as its files are now."""
    return Tree(commit=machine.commit(), directory=machine.ROOT, python=Path(sys.executable))


@contextmanager
def checked_out(revision: str, parent: Path) -> Iterator[Tree]:
    """Yield the tree of a commit in a directory of its own below *parent*.

    It runs with this tree's packages if it asks for the same ones, else with its own.

    Args:
        revision: As git takes it.
        parent: Below it nobody else's checks look: ``build`` is ignored by all of them.

    Raises:
        HarnessError: There is no such commit, or it cannot be made ready.
    """
    named = ("git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    commit = _run("no commit", *named).strip()
    directory = Path(tempfile.mkdtemp(dir=parent, prefix=f"tree-{commit[:_SHORT]}-"))
    archive = directory / "tree.tar"
    try:
        _run("git cannot write the tree", "git", "archive", "--output", archive, commit)
        _run("tar cannot read the tree", "tar", "-x", "-f", archive, "-C", directory)
        archive.unlink()
        tree = Tree(commit=commit[:_SHORT], directory=directory, python=_python(directory))
        check(tree)
        yield tree
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _python(directory: Path) -> Path:
    """Return an interpreter with the packages that the tree locks."""
    if (directory / _LOCK).read_bytes() == (machine.ROOT / _LOCK).read_bytes():
        return Path(sys.executable)
    print(f"{_LOCK} differs: making its own .venv in {directory}", flush=True)
    sync = ("sync", "--frozen", "--extra", "node", "--quiet", "--python", sys.executable)
    _run("uv cannot make the other tree's .venv", uv(), *sync, cwd=directory)
    return directory / ".venv" / "bin" / "python"


def check(tree: Tree) -> None:
    """Make sure that the tree's own code is what would run. Raises HarnessError.

    Two names for one tree would agree with each other in everything.
    """
    command = (tree.python, "-c", "import dledger; print(dledger.__file__)")
    told = _run("the other tree's dledger cannot be imported", *command, env=tree.environment)
    found = Path(told.strip()).resolve()
    if not found.is_relative_to(tree.directory.resolve()):
        raise HarnessError(f"{tree.commit} would run {found}, not its own code")


def _run(
    what: str,
    *command: str | Path,
    cwd: Path = machine.ROOT,
    env: Mapping[str, str] | None = None,
) -> str:
    """Return what a program prints. Raises HarnessError, with *what* failed and its output."""
    try:
        return run(*command, cwd=cwd, env=env)
    except CommandFailed as failed:
        raise HarnessError(f"{what}: {failed}") from failed
