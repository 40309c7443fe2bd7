"""A group that is founded on a restored log: what that held waits for a word before all else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.broker.command_frame import CommandType, split
from dledger.files.memory_files import MemoryFiles
from dledger.replica.bootstrap_record import BootstrapRecord
from dledger.replica.founding import DROP, FIRE, HOLD, found_group, is_unfounded
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import LOG_DIRECTORY, begin_restore, finish_restore, join
from dledger.types import Entry, EntryKind, Member, Membership, NodeId
from tests.raft.bench import data_entry

RECORD = BootstrapRecord(
    "new", Membership.of([Member(id=NodeId("a"), name="a", address="a:1")], "new")
)
DIRECTORY = Path("/data")


def _log(entries: int) -> tuple[MemoryFiles, CommitLog]:
    """Return a log of another group with so many entries of term 3."""
    files = MemoryFiles()
    identity = begin_restore(files, DIRECTORY, "a", group_id="old")
    directory = DIRECTORY / LOG_DIRECTORY
    log = CommitLog.open(files, directory, identity=identity, segment_bytes=1 << 20)
    if entries:
        log.append([data_entry(3, index + 1) for index in range(entries)])
        log.sync()
    log.close()
    restored = finish_restore(files, DIRECTORY, identity, entries)
    joined = join(files, DIRECTORY, restored, "new")
    return files, CommitLog.open(files, directory, identity=joined, segment_bytes=1 << 20)


def _found(files: MemoryFiles, log: CommitLog, held: str, recovered_to: int) -> list[Entry]:
    before = log.last_index
    file = HardStateFile(files, DIRECTORY)
    state = found_group(log, file, RECORD, recovered_to=recovered_to, held=held)
    entries = list(log.read(before + 1, log.last_index, 1 << 20))
    assert state.term == file.load().term == entries[-1].term
    assert entries[-1].kind is EntryKind.MEMBERSHIP
    return entries


def _kinds(entry: Entry) -> list[int]:
    return [kind for kind, _, _ in split(entry.data)]


def test_what_was_held_waits_before_the_group_is_founded() -> None:
    """So whoever leads it, also after the founder is gone, has the word in its log."""
    files, log = _log(4)

    word, founding = _found(files, log, HOLD, 4)

    assert _kinds(word) == [CommandType.PAUSE_HELD]
    assert (word.index, founding.index) == (5, 6)
    assert word.term <= founding.term
    assert word.timestamp_ms == data_entry(3, 4).timestamp_ms


@pytest.mark.parametrize(
    ("held", "kinds"),
    [(FIRE, []), (DROP, [[CommandType.PAUSE_HELD, CommandType.RESUME_HELD]])],
)
def test_whoever_restores_may_have_it_fire_or_drop(held: str, kinds: list[list[int]]) -> None:
    """By one entry, or none."""
    files, log = _log(4)

    *words, _ = _found(files, log, held, 4)

    assert [_kinds(each) for each in words] == kinds


def test_an_empty_log_is_founded_by_one_entry() -> None:
    """Nothing can be held there."""
    files, log = _log(0)

    assert len(_found(files, log, HOLD, 0)) == 1


def test_a_founding_that_was_cut_short_is_finished() -> None:
    """The word was written and the founding was not: it is not said twice, and nothing is lost."""
    files, log = _log(4)
    word, founding = _found(files, log, HOLD, 4)
    files, torn = _log(4)
    torn.append([word])
    torn.sync()

    was_unfounded = is_unfounded(torn, 4)
    again = _found(files, torn, HOLD, 4)

    assert was_unfounded
    assert again == [founding]
    assert not is_unfounded(torn, 4)
    assert not is_unfounded(log, 4)
