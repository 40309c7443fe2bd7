"""Lets one process at a time start or stop a cluster, and none while another one uses it.

Programs are built by one process at a time, too.

The kernel lets go of both locks when their holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import Steps


@contextmanager
def held(
    path: Path, steps: Steps, what: str = "starting or stopping the cluster"
) -> Iterator[None]:
    """Hold the lock file; wait, and say what for, while somebody else does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            steps.say(f"waiting: somebody else is {what} ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


_uses: dict[Path, int] = {}


def use(path: Path) -> None:
    """Say that this process uses the cluster, until it ends or calls `let_go`."""
    if path not in _uses:
        # A descriptor, not a file object: it is meant to stay open.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _uses[path] = descriptor


def let_go(path: Path) -> None:
    """Undo `use`; fine if there was none."""
    descriptor = _uses.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


def used_elsewhere(path: Path) -> bool:
    """Say whether another process uses the cluster; ours must have let go."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def require_unused(path: Path) -> None:
    """Raise ClusterError while another process uses the cluster; undoes `use`.

    A story of that one may have stopped the API server or cut a node off: not ours to repair.
    """
    let_go(path)
    if used_elsewhere(path):
        raise ClusterError(
            "another process uses the cluster, which is not to be taken from it; wait for it, "
            f"or stop it (see: fuser -v {path})"
        )
