"""The bench of compaction plays a group to its end, and judges what it saw."""

from __future__ import annotations

import json

import pytest

from e2e.bench.compaction import judge, main


def test_a_small_group_is_played_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """Each message of the users' that is live is kept; so few keys cost too much each."""
    code = main(["--keys", "200", "--hours", "80", "--churn-percent", "4"])

    *told, last = [
        json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")
    ]
    assert [each["hour"] for each in told] == [72]
    assert (last["hour"], code) == (80, 1)
    assert last["kept"] >= 200
    assert last["copied"] > 0


def test_blocks_are_compared_with_those_of_the_middle() -> None:
    """Of an even number of periods, too; a figure at its bound is kept."""
    names = ("leaderUs", "appliedUs", "longestTurnMs", "logShare", "writtenPerSent")
    found = [
        {"hour": hour, "blocks": blocks, "stateBytesARow": 5.0} | dict.fromkeys(names, 1.0)
        for hour, blocks in ((72, 1), (144, 20), (216, 30), (288, 20))
    ]

    assert all(each.kept for each in judge(found))
    found[-1]["blocks"] = 21
    assert [each.what for each in judge(found) if not each.kept] == [
        "blocks, beside those at hour 144"
    ]
