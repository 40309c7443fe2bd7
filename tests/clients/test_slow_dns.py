"""What a measurement of clients under a silent DNS makes of its rounds; nothing is started."""

from __future__ import annotations

import subprocess

import pytest

from e2e.clients import slow_dns
from e2e.clients.slow_dns import FAILED, WAYS, Took, Way, quicker, table


def test_the_quicker_round_counts_and_a_failed_one_only_where_all_failed() -> None:
    """A busy machine is slower, never quicker; a failure may be its, too."""
    slow: Took = {"producer": 3.0, "send": 0.1}
    quick: Took = {"producer": 0.5, "send": 0.1}
    failed: Took = {"producer": 0.1, FAILED: "send: no route"}

    assert quicker([slow, failed, quick]) == quick
    assert quicker([failed, failed]) == failed


def test_the_table_says_what_was_not_measured_and_why_something_failed() -> None:
    """It goes into docs/clients.md as it is."""
    way = WAYS[0].name
    made = table({"go": {way: {FAILED: "a | b"}}, "java": {}, "rust": {way: {"producer": 0.5}}})

    assert made.splitlines()[2:] == [
        "| go | a / b | not measured | not measured | not measured |",
        "| java | not measured | not measured | not measured | not measured |",
        "| rust | 0.50 s | not measured | not measured | not measured |",
    ]


def test_what_ends_without_a_figure_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as unshare's without root."""
    ended = subprocess.CompletedProcess([], 1, stdout="", stderr="x\nunshare failed\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)

    assert slow_dns._round("go", ("driver",), Way("silent")) == {FAILED: "unshare failed"}


def test_a_language_that_is_none_and_a_user_without_root_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is built."""
    monkeypatch.setattr(slow_dns, "ensure", lambda *_: pytest.fail("it began"))

    assert slow_dns.main(["golang"]) == 2
    assert "golang; there are python, " in capsys.readouterr().err
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert slow_dns.main([]) == 2
    assert "sudo" in capsys.readouterr().err
