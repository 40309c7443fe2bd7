"""What `dledger spool status` says of a directory, beside the process that uses it."""

from __future__ import annotations

import pytest

from dledger.errors import CorruptFile
from dledger.files.memory_files import MemoryFiles
from dledger.sidecar.status import LaneStatus, lines_of, status_of
from tests.spool.spool_harness import DIR, Disk, message
from tests.spool.test_spool_lanes import LaneGroup, bring, sent


def test_depth_age_and_unknown_outcomes_are_told() -> None:
    """While the sidecar has the directory open, and writes to it."""
    disk = Disk()
    spool = disk.open()
    spool.append([sent(1, "bob", tried=True), sent(2, "bob"), sent(3, "alice")])

    found = status_of(disk.files, DIR)
    born_ms = message(1).record.born_at_ms

    assert (found.depth, found.unknown_outcomes, found.oldest_ms) == (3, 1, born_ms)
    assert found.known_until_ms == born_ms + 3_600_000
    assert found.lanes == (
        LaneStatus(client_id="bob", topic="orders", depth=2),
        LaneStatus(client_id="alice", topic="orders", depth=1),
    )
    assert lines_of(found)[0].startswith("3 messages wait, ")
    assert lines_of(found)[1].startswith("1 of unknown outcome, known until 2023-11-14 23:13:20 ")


def test_what_was_set_aside_is_told() -> None:
    """And nothing waits."""
    disk = Disk()
    spool = disk.open()
    spool.append([sent(7, "bob")])
    bring(spool, LaneGroup())

    found = status_of(disk.files, DIR)

    assert (found.depth, found.rejected, found.known_until_ms) == (0, 1, 0)


def test_looking_changes_nothing() -> None:
    """Not a byte, and no call that writes."""
    disk = Disk()
    disk.open().append([sent(1, "bob")])
    before = {name: bytes(disk.contents(name)) for name in disk.files.list(DIR)}

    status_of(disk.files, DIR)

    assert {name: bytes(disk.contents(name)) for name in disk.files.list(DIR)} == before


def test_a_directory_that_is_no_spool_is_refused() -> None:
    """Nothing is founded by looking."""
    with pytest.raises(CorruptFile, match="it is no spool"):
        status_of(MemoryFiles(), DIR)
