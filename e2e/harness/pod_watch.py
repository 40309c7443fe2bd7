"""What becomes of pods, change by change: a look every now and then could miss one that was away.

A watch tells every change, in its order. Used by stories, and by tests on a real API server.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from e2e.cluster.layout import default_layout
from e2e.cluster.tools import find_kubectl
from e2e.harness.waiting import HarnessError

_STOP_S: Final = 60.0
"""For what was told until the end, too, which is still heard."""


class Watch:
    """Hears of each change of the objects of a kind in a namespace while the block runs.

    It begins with what is there. What was told before the end of the block is heard, however long
    *heard* takes with each.

    Args:
        kubeconfig: Whose API server it is.
        path: Such as ``/api/v1/namespaces/shop/pods``.
        heard: Called with ``ADDED``, ``MODIFIED`` or ``DELETED`` and the object, in a thread of the
            watch's own.

    Raises:
        HarnessError: When the block ends: the watch ended before, or *heard* failed; what happened
            after that is not known.
    """

    def __init__(
        self, kubeconfig: Path, path: str, heard: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._path = path
        self._heard = heard
        self._command = (
            *(str(find_kubectl(default_layout())), f"--kubeconfig={kubeconfig}"),
            *("get", "--raw", f"{path}?watch=1&timeoutSeconds=7200"),
        )
        self._is_ending = False
        self._failure: Exception | None = None

    @property
    def is_running(self) -> bool:
        """Whether it hears of what changes."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._is_ending = True
        self._process.terminate()
        self._process.wait(_STOP_S)
        self._thread.join(_STOP_S)
        if self._thread.is_alive() and error is None:
            raise HarnessError(f"watch of {self._path}: still busy after {_STOP_S:.0f} s")
        if self._failure is not None and error is None:
            raise HarnessError(f"watch of {self._path}: {self._failure}") from self._failure

    def _follow(self) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout as lines:
                for line in lines:
                    if line.endswith("\n") or not self._is_ending:
                        self._hear(line)
            if not self._is_ending:
                self._failure = HarnessError("it ended by itself")
        except Exception as error:  # noqa: BLE001 - raised by the thread that has to hear of it
            self._failure = error

    def _hear(self, line: str) -> None:
        try:
            change = json.loads(line)
        except ValueError:
            raise HarnessError(line.strip()) from None
        if change["type"] == "ERROR":
            raise HarnessError(line.strip())
        self._heard(change["type"], change["object"])


class Downtime:
    """Which pods went, and which were down at once: from being deleted until another one is ready.

    A pod that is not ready for another reason is not down by anybody's doing.

    Args:
        counted: The names of the pods of which there may not be two down at once.
        went: Called with the name of each pod that goes, once, counted or not.

    Attributes:
        gone: The names of the pods that went, in order.
        worst: The counted pods that were down at the worst moment.
    """

    def __init__(self, counted: Collection[str], went: Callable[[str], None]) -> None:
        self._counted = frozenset(counted)
        self._went = went
        self._left: set[str] = set()
        self._down: set[str] = set()
        self.seen: set[str] = set()
        self.gone: list[str] = []
        self.worst: tuple[str, ...] = ()

    def hear(self, kind: str, pod: dict[str, Any]) -> None:
        """Take note of a change, as a `Watch` tells it."""
        metadata = pod["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        self.seen.add(name)
        if kind == "DELETED" or "deletionTimestamp" in metadata:
            self._leaves(name, uid)
        elif uid not in self._left and is_ready(pod):
            self._down.discard(name)

    def _leaves(self, name: str, uid: str) -> None:
        if uid in self._left:
            return
        self._left.add(uid)
        self.gone.append(name)
        if name in self._counted:
            self._down.add(name)
            self.worst = max(self.worst, tuple(sorted(self._down)), key=len)
        self._went(name)


def is_ready(pod: dict[str, Any]) -> bool:
    """Say whether the kubelet calls a pod ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(row["type"] == "Ready" and row["status"] == "True" for row in conditions)
