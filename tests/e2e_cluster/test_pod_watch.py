"""What a watch of pods tells a story, and that it does not end without a word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.harness import pod_watch
from e2e.harness.pod_watch import Downtime, Watch
from e2e.harness.waiting import HarnessError
from tests.waiting import eventually_blocking

ADDED = '{"type": "ADDED", "object": {}}'


def _pod(name: str, uid: str, *, ready: bool = False, leaves: bool = False) -> dict[str, Any]:
    metadata = {"name": name, "uid": uid} | ({"deletionTimestamp": "now"} if leaves else {})
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": metadata, "status": status}


@pytest.fixture
def went() -> list[str]:
    """The pods that a `Downtime` told of."""
    return []


@pytest.fixture
def downtime(went: list[str]) -> Downtime:
    """Three pods that run, of which two count."""
    made = Downtime(["a", "b"], went.append)
    for name in ("a", "b", "c"):
        made.hear("ADDED", _pod(name, f"{name}-1", ready=True))
    return made


def test_a_pod_is_down_until_another_one_is_ready(downtime: Downtime, went: list[str]) -> None:
    """It is told once, whatever is heard of it; that it was ready to the last is no matter."""
    downtime.hear("MODIFIED", _pod("a", "a-1", ready=True, leaves=True))
    downtime.hear("DELETED", _pod("a", "a-1", ready=True, leaves=True))
    downtime.hear("ADDED", _pod("a", "a-2"))
    downtime.hear("MODIFIED", _pod("a", "a-2", ready=True))
    downtime.hear("DELETED", _pod("b", "b-1"))

    assert went == downtime.gone == ["a", "b"]
    assert downtime.worst == ("a",)


def test_two_pods_that_are_down_at_once_are_named(downtime: Downtime) -> None:
    """And stay named when they are back."""
    downtime.hear("DELETED", _pod("a", "a-1"))
    downtime.hear("ADDED", _pod("a", "a-2"))
    downtime.hear("DELETED", _pod("b", "b-1"))
    for name in ("a", "b"):
        downtime.hear("MODIFIED", _pod(name, f"{name}-2", ready=True))

    assert downtime.worst == ("a", "b")


def test_what_does_not_count_is_told_all_the_same(downtime: Downtime) -> None:
    """A pod that is not to stay; and one that is not ready, which nobody deleted."""
    downtime.hear("MODIFIED", _pod("b", "b-1"))
    downtime.hear("DELETED", _pod("c", "c-1"))

    assert (downtime.gone, downtime.worst) == (["c"], ())


def _watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, heard: Callable[..., None]
) -> Watch:
    """Return a watch whose kubectl is a script."""
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(pod_watch, "find_kubectl", lambda _: program)
    return Watch(folder / "config", "/api/v1/pods", heard)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (ADDED, "it ended by itself"),
        ("error: no such path", "error: no such path"),
        ('{"type": "ERROR", "object": {"code": 410}}', "410"),
    ],
)
def test_a_watch_that_ended_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, said: str
) -> None:
    """What happened after that is not known, and nobody may go on as if nothing had."""
    watch = _watch(tmp_path, monkeypatch, f"echo '{printed}'", lambda *_: None)

    with pytest.raises(HarnessError, match=said), watch:
        eventually_blocking(lambda: not watch.is_running or None, "it ended", 20)


def test_an_error_of_who_listens_is_raised_where_it_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the thread of the story, not in the watch's."""

    def fails(*_: Any) -> None:
        raise ValueError("not as it was thought")

    watch = _watch(tmp_path, monkeypatch, f"echo '{ADDED}'\nexec sleep 60", fails)

    with pytest.raises(HarnessError, match="not as it was thought"), watch:
        eventually_blocking(lambda: not watch.is_running or None, "it failed", 20)


def test_what_was_told_before_the_end_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listens may be slow; only a line that was cut short by the end is left out."""
    heard: list[str] = []
    may_go_on = threading.Event()

    def slowly(kind: str, _: dict[str, Any]) -> None:
        may_go_on.wait(20)
        heard.append(kind)

    cut = ADDED[:9]
    script = f"printf '%s\\n%s\\n%s' '{ADDED}' '{ADDED}' '{cut}'\ntouch told\nexec sleep 60"
    monkeypatch.chdir(tmp_path)

    with _watch(tmp_path, monkeypatch, script, slowly):
        eventually_blocking((tmp_path / "told").exists, "it was told", 20)
        threading.Timer(0.1, may_go_on.set).start()

    assert heard == ["ADDED", "ADDED"]
