"""Locates what many REKEEP commands say of their rows, each found by its inner payload.

Arrays have one item for each payload, positions are bytes of the buffer that holds the bodies of a
batch of entries, as in `produce_columns`; `dledger.broker.rekeep` has the diagram, and the decoder
of one command. Called by `kept_messages` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dledger.broker.rekeep import HAS_HOSTS, REKEPT, VERSION
from dledger_pipeline.log.produce_columns import Ints, Numbers, ProduceColumns, Strings

_HEADER_BYTES: Final = 36
_COUNT_AT: Final = 32
_BACK_BYTES: Final = 5
"""Before the payload: how far back the command begins, and the command's type."""


@dataclass(frozen=True, slots=True)
class RekeepColumns:
    """Where the columns of rows begin, 8 bytes a row.

    Attributes:
        offsets_at: Their queue offsets.
        times_at: When each was stored, Unix milliseconds.
        indexes_at: The entry that stored each.
        hosts: Their producers' addresses.
    """

    offsets_at: Ints
    times_at: Ints
    indexes_at: Ints
    hosts: Strings


def rekeep_columns(
    numbers: Numbers, inner: ProduceColumns, *, entry_start: Ints, start: Ints
) -> RekeepColumns:
    """Return the columns of the REKEEPs whose payloads, *inner*, begin at *start*.

    Args:
        numbers: Of the buffer.
        inner: The payloads' own columns.
        entry_start: Where the data of each one's entry begins.
        start: Where each payload begins.

    Raises:
        MalformedMessage: There is no such REKEEP before a payload.
    """
    room = start - entry_start
    inner.check(room >= _HEADER_BYTES + _BACK_BYTES, "no REKEEP before the payload")
    inner.check(numbers.u8(start - 1) == REKEPT, "the payload is not a REKEEP's")
    head = start - 1 - numbers.u32(start - _BACK_BYTES)
    inner.check(entry_start <= head, "a REKEEP begins before its entry")
    inner.check(numbers.u8(head) == VERSION, "unknown REKEEP version")
    flags, count = numbers.u8(head + 1), numbers.u32(head + _COUNT_AT)
    inner.check(flags & ~HAS_HOSTS == 0, "unknown REKEEP flags")
    inner.check(count == inner.count, "a REKEEP of other rows than its payload")
    offsets_at, ends = head + _HEADER_BYTES, start - _BACK_BYTES
    hosts_at = offsets_at + 24 * count
    inner.check(hosts_at <= ends, "a REKEEP is cut short")
    present = np.asarray(flags & HAS_HOSTS, np.bool_)
    last = hosts_at + 4 * count
    inner.check(~present | (last + 4 <= ends), "born hosts are cut short")
    size = np.where(present, numbers.u32(np.where(present, last, 0)), 0)
    reached = np.where(present, last + 4 + size, hosts_at)
    inner.check(reached == ends, "a REKEEP does not end where its payload begins")
    hosts = Strings(present, hosts_at, count, size)
    return RekeepColumns(offsets_at, offsets_at + 8 * count, offsets_at + 16 * count, hosts)
