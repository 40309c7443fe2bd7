"""What `dledger status` says of clocks: nothing, as long as they are right."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.cli.main import clock_lines
from dledger.common.status import NodeStatus


def _status(**changes: Any) -> NodeStatus:
    texts = ("node_id", "name", "group", "group_id", "role", "leader_id", "not_ready_reason")
    numbers = ("term", "commit_index", "applied_index", "last_index", "synced_index")
    sizes = ("storage_used_bytes", "storage_capacity_bytes")
    said: dict[str, Any] = dict.fromkeys((*texts, "version", "writes_refused_reason"), "x")
    said |= dict.fromkeys((*numbers, *sizes), 1)
    return NodeStatus(**said, ready=True, members=(), last_failover=None, **changes)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, []),
        ({"clock_ahead_ms": 5_000, "log_ahead_ms": 5_000}, []),
        ({"clock_ahead_ms": 73_000}, ["its clock is 73.0 s ahead of the group's date"]),
        ({"clock_behind_ms": 5_001}, ["its clock is 5.0 s behind the group's date"]),
        ({"log_ahead_ms": 90_500}, ["the log's time is 90.5 s ahead of the group's date"]),
    ],
)
def test_a_clock_that_is_apart_is_told(said: dict[str, int], words: list[str]) -> None:
    """And a log that is ahead, which runs slower until they meet."""
    lines = clock_lines(_status(**said))

    assert len(lines) == len(words)
    assert all(line.startswith(start) for line, start in zip(lines, words, strict=True))
