"""Founds a group on this node's log, which may be a restored one. Called by `server.replica`.

The group that a log was copied from may still be there, or was for long after: what it held until
a time it has delivered, or will. So the first entry that is new in a restored log lets all that is
held wait for a word (PAUSE_HELD), ahead of the entry that founds the group: whoever leads the new
group has both, and applies them before it lets anything go.
"""

from __future__ import annotations

from crc32c import crc32c

from dledger.broker.commands import PauseHeld, ResumeHeld
from dledger.replica.bootstrap_record import BootstrapRecord
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.types import Entry, EntryKind, HardState

HOLD, FIRE, DROP = "hold", "fire", "drop"
"""What becomes of messages that the group held which a restored log was copied from."""


def is_unfounded(log: CommitLog, recovered_to: int) -> bool:
    """Whether a log ends where the restored one did, or behind the word on what that held."""
    if log.last_index == recovered_to:
        return True
    if not recovered_to or log.last_index != recovered_to + 1:
        return False
    (entry,) = log.read(log.last_index, log.last_index, 0)
    return entry.kind is EntryKind.DATA


def found_group(
    log: CommitLog,
    hard_state_file: HardStateFile,
    record: BootstrapRecord,
    *,
    recovered_to: int,
    held: str,
) -> HardState:
    """Append the entries that found a group to the log, and write their term to the hard state.

    Args:
        log: This node's.
        hard_state_file: Likewise.
        record: The group.
        recovered_to: The last entry of a restored log; 0: it is empty.
        held: What becomes of what that held.
    """
    entries: list[Entry] = []
    last_index, last_term = log.last_index, log.term(log.last_index)
    if recovered_to and last_index == recovered_to and held != FIRE:
        entries.append(_word(log, record.group_id, drops=held == DROP))
        last_index += 1
    entries.append(record.entry(last_index=last_index, last_term=last_term))
    hard_state = HardState(term=entries[-1].term)
    hard_state_file.save(hard_state)
    log.append(entries)
    log.sync()
    return hard_state


def _word(log: CommitLog, group_id: str, *, drops: bool) -> Entry:
    """Return the entry that says what becomes of what is held; it is as old as the log's last."""
    data = PauseHeld(pause_id=group_id).encode()
    if drops:
        data += ResumeHeld(cancels=True).encode()
    return Entry(
        term=log.term(log.last_index),
        index=log.last_index + 1,
        kind=EntryKind.DATA,
        timestamp_ms=_newest_ms(log),
        crc32c=crc32c(data),
        data=data,
    )


def _newest_ms(log: CommitLog) -> int:
    for index in range(log.last_index, log.first_index - 1, -1):
        (entry,) = log.read(index, index, 0)
        if entry.timestamp_ms:
            return entry.timestamp_ms
    return 0
