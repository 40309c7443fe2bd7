"""Lines about restoring: to memory, where only the processor counts, and to a disk."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dledger_pipeline.archive.restore import restore
from dledger_pipeline.log.export_client import ExportClient
from dledger_pipeline.object_store.store import Store
from e2e.bench.pipeline.logs import produce
from e2e.bench.pipeline.measuring import (
    Cost,
    Figure,
    Parts,
    Unmeasured,
    check_whole,
    command_cost,
    cost,
    in_rounds,
)
from e2e.bench.pipeline.subject import Bench
from e2e.harness.waiting import eventually

_GB: Final = 1e9
_NAME: Final = "bench/node-0"
_PIECE_BYTES: Final = 4 << 20
_SEGMENT_BYTES: Final = 64 << 20
_PROBE_BYTES: Final = 512 << 20
_SMALL: Final = 1 << 20
_DROPS: Final = ("segment_bytes", "snapshot_bytes")


def batched(bench: Bench) -> Figure:
    """The bench's log, in batches of 256, to a memory file system: GB a second of a processor."""
    return _to_memory(bench, bench.backed_up, bench.table.num_rows)


def singles(bench: Bench) -> Figure:
    """The same of a log in which each entry holds one message."""
    return _to_memory(bench, bench.singles_backed_up, bench.body_bytes >> 10)


def _to_memory(bench: Bench, store: Store, records: int) -> Figure:
    def one() -> tuple[float, float, Parts]:
        took, record_bytes = _restored(store, bench.memory / "restored", records)
        return record_bytes / took.cpu_s / _GB, took.wall_s, {"recordMB": record_bytes / 1e6}

    one()  # a process that has just begun takes its memory from the system
    return in_rounds(bench.rounds, one)


def _restored(store: Store, directory: Path, records: int) -> tuple[Cost, int]:
    """Restore, and remove it; return what it took, and the bytes of records."""
    found = []
    took = cost(lambda: found.append(restore(store, None, directory, name=_NAME)))
    shutil.rmtree(directory)
    check_whole("restore", found[0].records, records)
    return took, found[0].record_bytes


def to_disk(bench: Bench) -> Figure:
    """By the clock, beside the lower of what the processors and what the disk could do at most.

    The disk: files of 64 MiB, preallocated, written in pieces of 4 MiB, each file synced, one after
    the other; measured before and behind each round.
    """
    cores = os.cpu_count() or 1
    records = bench.table.num_rows
    store = bench.backed_up
    in_memory = batched(bench).median * cores

    def one() -> tuple[float, float, Parts]:
        before = _synced_gb_s(bench.disk)
        took, record_bytes = _restored(store, bench.disk / "restored", records)
        disk = statistics.mean((before, _synced_gb_s(bench.disk)))
        rate = record_bytes / took.wall_s / _GB
        parts = {"restoreGBPerS": rate, "diskGBPerS": disk, "memoryTimesCoresGBPerS": in_memory}
        return rate / min(disk, in_memory), took.wall_s, parts

    return in_rounds(bench.rounds, one)


def _synced_gb_s(directory: Path) -> float:
    """Return how fast the disk takes new files of a segment's size, each of them synced."""
    data = os.urandom(_PIECE_BYTES)
    paths = [directory / f"probe-{number}" for number in range(_PROBE_BYTES // _SEGMENT_BYTES)]
    began_s = time.monotonic()
    for path in paths:
        with path.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, _SEGMENT_BYTES)
            for at in range(0, _SEGMENT_BYTES, _PIECE_BYTES):
                os.pwrite(file.fileno(), data, at)
            os.fdatasync(file.fileno())
    took_s = time.monotonic() - began_s
    for path in paths:
        path.unlink()
    return _PROBE_BYTES / took_s / _GB


def disk_behind_retention(bench: Bench) -> Figure:
    """What a restored directory takes on a disk, beside the node's that had dropped old entries."""
    with ExitStack() as kept:
        settings = (*(f"{name}={_SMALL}" for name in _DROPS), "snapshot_entries=10")
        node = bench.node_in(
            kept, "small", *settings, "storage_bytes=67108864", "disk_watermark_percent=1"
        )
        numbers = iter(range(100))

        def dropped() -> bool:
            produce(node.endpoint, 16 << 20, client_id=f"small-{next(numbers)}")
            with ExportClient(node.admin) as exporter:
                return exporter.plan().first_available > 1

        eventually("the node drops old entries", dropped, 300)
        path = bench.emptied("small-store")
        where = ("--endpoint", node.admin, "--store", path.as_uri())
        took = command_cost("dledger_pipeline", "backup", *where, "--runner", "plain")
        node_bytes = _settled(lambda: _taken_bytes(node.data))
    directory = bench.disk / "small-restored"
    result = restore(Store.open(path.as_uri()), None, directory, name=_NAME, segment_bytes=_SMALL)
    if result.first_index == 1:
        raise Unmeasured("the backup begins with entry 1: the node had dropped nothing")
    restored_bytes = _taken_bytes(directory)
    parts = {"restoredBytes": restored_bytes, "nodeBytes": node_bytes}
    return Figure(
        rounds=(round(restored_bytes / node_bytes, 3),), wall_s=(took.wall_s,), parts=parts
    )


def _settled(measure: Callable[[], int]) -> int:
    """Return what *measure* gives when it gives the same twice, a second apart."""
    before = -1

    def same() -> int | None:
        nonlocal before
        before, last = measure(), before
        return before if before == last else None

    return eventually("the node's disk is settled", same, 60, 1.0)


def _taken_bytes(directory: Path) -> int:
    """Return what the files below *directory* take on the disk."""
    return sum(512 * path.stat().st_blocks for path in directory.rglob("*") if path.is_file())
