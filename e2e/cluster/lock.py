"""Lets one process at a time start or stop a cluster."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.steps import Steps


@contextmanager
def held(path: Path, steps: Steps) -> Iterator[None]:
    """Hold the lock file; wait, and say so, while somebody else does.

    The kernel lets go of it when its holder dies, however it dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            steps.say(f"waiting: somebody else is starting or stopping the cluster ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
