"""Lines about reading a log: no promise of their own, but what queries and compaction are made of.

Queries of a backup have lines of their own: a function each, and a row each in `lines.LINES`.
"""

from __future__ import annotations

from typing import Final

from dledger_pipeline.archive.entry_ranges import on_disk
from dledger_pipeline.archive.queue_offsets import message_ranges
from dledger_pipeline.log.records import parse
from e2e.bench.pipeline.logs import BATCH, BODY_BYTES
from e2e.bench.pipeline.measuring import Figure, Parts, check_whole, cost, in_rounds
from e2e.bench.pipeline.subject import Bench

_GB: Final = 1e9


def parsed(bench: Bench) -> Figure:
    """Records in memory to columns, each checked: GB a second of a processor."""

    def work() -> None:
        done = sum(parse(chunk).num_rows for chunk in bench.chunks)
        check_whole("parse", done, bench.table.num_rows)

    def one() -> tuple[float, float, Parts]:
        took = cost(work)
        return bench.record_bytes / took.cpu_s / _GB, took.wall_s, {}

    return in_rounds(bench.rounds, one)


def messages(bench: Bench) -> Figure:
    """A node's disk to messages: read twice, once to place them and once to decode them."""
    wanted = bench.body_bytes // (BATCH * BODY_BYTES) * BATCH
    record_bytes = bench.record_bytes

    def work() -> None:
        shares = message_ranges(on_disk(bench.node.data))
        check_whole("messages", sum(len(b) for share in shares for b in share.read()), wanted)

    def one() -> tuple[float, float, Parts]:
        took = cost(work)
        return record_bytes / took.cpu_s / _GB, took.wall_s, {}

    return in_rounds(bench.rounds, one)
