"""The entries with which a restored log begins its new life: what was erased since, erased again.

A log that is restored to an earlier entry has what was erased behind that. So the ERASEs that the
archive knows follow the last restored entry, before anything else can be stored: where nothing is
yet they mean nothing. Equal archives give equal bytes. Called by `restore`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from dledger.store.format import encode_records
from dledger.types import Entry, EntryKind
from dledger_pipeline.archive.erased import Erased
from dledger_pipeline.log.records import ENTRY_SCHEMA, RecordBytes, parse

_COMMANDS: Final = 32
"""ERASEs of an entry, at most: a megabyte, which a node replicates like any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEntry:
    """What the next entry follows: the last one, and the log's time there, Unix milliseconds."""

    index: int
    term: int
    chain: int
    log_ms: int


def erasing_entries(erased: Erased, last: LastEntry) -> pa.Table:
    """Return the entries (`records.ENTRY_SCHEMA`) behind *last* that erase what is *erased*."""
    commands = [each.encode() for each in erased.commands()]
    data = [b"".join(commands[at : at + _COMMANDS]) for at in range(0, len(commands), _COMMANDS)]
    entries = [
        Entry(
            term=last.term,
            index=last.index + 1 + number,
            kind=EntryKind.DATA,
            timestamp_ms=last.log_ms,
            crc32c=crc32c(each),
            data=each,
        )
        for number, each in enumerate(data)
    ]
    if not entries:
        return ENTRY_SCHEMA.empty_table()
    encoded = encode_records(entries, chain=last.chain, position=0)
    records = RecordBytes(
        segment="erasures",
        offset=0,
        data=b"".join(encoded.buffers),
        positions=None,
        previous_chain=last.chain,
        first_index=entries[0].index,
    )
    return pa.Table.from_batches([parse(records)])
