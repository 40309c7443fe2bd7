"""``make demo-outage``: what it says at its end, and of a language that is not there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.clients import demo_outage
from e2e.clients.builds import MissingTool
from e2e.clients.judging import Send, Spooled, judge_spooled
from e2e.clients.sdks import SDKS
from e2e.clients.spool import can_run
from e2e.demo.demos import Timeline

SENDS = [Send(producer=0, row=row, lasted_s=row / 10) for row in range(1, 11)]
QUEUE = [(0, row) for row in range(1, 11)]


@pytest.fixture(autouse=True)
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the figures go: below a root of the test's own."""
    path = tmp_path / "build" / "demo-outage.json"
    monkeypatch.setattr(demo_outage, "_PATH", path)
    monkeypatch.setattr("e2e.demo.demos.ROOT", tmp_path)
    return path


def _reported(*found: Spooled) -> int:
    named = {f"language-{number}": each for number, each in enumerate(found)}
    return demo_outage._report(named, Timeline())


def test_the_end_counts_all_languages_together(
    figures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a file, too; and it names no cluster, since there is none."""
    code = _reported(judge_spooled(SENDS, QUEUE), judge_spooled(SENDS, QUEUE))

    told = json.loads(figures.read_text("utf-8"))
    assert (code, told["passed"], told["sent"], told["stored"]) == (0, True, 20, 20)
    assert told["longestSendS"] == 1.0
    assert "demo-down" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stored", "wrong"),
    [
        (QUEUE[1:], "lost"),
        ([*QUEUE, QUEUE[0]], "doubled"),
        ([QUEUE[1], QUEUE[0], *QUEUE[2:]], "outOfOrder"),
    ],
)
def test_one_message_amiss_fails_it(
    figures: Path, stored: Sequence[tuple[int, int]], wrong: str
) -> None:
    """In any language."""
    code = _reported(judge_spooled(SENDS, QUEUE), judge_spooled(SENDS, stored))

    assert (code, json.loads(figures.read_text("utf-8"))[wrong]) == (1, 1)


def test_a_language_that_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to install, and before anything is started."""

    def ensure(_: object, language: str) -> Sequence[str]:
        raise MissingTool(f"no tools of {language}")

    monkeypatch.setattr(demo_outage, "ensure", ensure)

    assert demo_outage.main([]) == 2
    assert "missing: no tools of python; choose others" in capsys.readouterr().out


def test_a_client_that_repeats_nothing_is_not_asked() -> None:
    """A killed child is an error to its user, whatever the sidecar does."""
    assert [language for language in SDKS if not can_run(language)] == ["rust"]
