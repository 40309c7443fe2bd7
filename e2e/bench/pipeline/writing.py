"""Lines about writing a backup: an archive from memory, a job from a live node, and what it takes.

A processor's second of a bare ``pyarrow.parquet.write_table`` is the measure: the same table, zstd
at level 1, no checks, no hash, no sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from dledger_pipeline.archive.archive import write_range
from dledger_pipeline.archive.catalog import load
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.log.export_client import TARGET_BYTES
from dledger_pipeline.log.records import RecordBytes, parse
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.source import FORMAT, View
from e2e.bench.pipeline.logs import produce
from e2e.bench.pipeline.measuring import (
    Cost,
    Figure,
    Parts,
    check_whole,
    command_cost,
    cost,
    in_rounds,
    process_cpu_s,
)
from e2e.bench.pipeline.subject import Bench

_GB: Final = 1e9
_NEW_PART: Final = 100
_LEVEL: Final = 1


def archive(bench: Bench) -> Figure:
    """Records in memory -> checked, written as objects, hashed, synced; beside bare pyarrow."""
    record_bytes, table = bench.record_bytes, bench.table

    def one() -> tuple[float, float, Parts]:
        bare = bare_pyarrow(bench)
        ours = cost(partial(_archive, bench, bench.emptied("archive")))
        parts = {
            "bareGBPerCpuS": record_bytes / bare.cpu_s / _GB,
            "archiveGBPerCpuS": record_bytes / ours.cpu_s / _GB,
            "bareWallS": bare.wall_s,
        }
        return bare.cpu_s / ours.cpu_s, ours.wall_s, parts

    check_whole("the table", table.num_rows, 1)
    return in_rounds(bench.rounds, one)


def bare_pyarrow(bench: Bench) -> Cost:
    """Write the table that is in memory; return what it took.

    In row groups of 64 MiB: of those of 16, 64, and all in one, they take the least.
    """
    path = bench.disk / "bare.parquet"
    rows = max(1, TARGET_BYTES * bench.table.num_rows // bench.record_bytes)
    write = partial(
        pq.write_table,
        bench.table,
        path,
        compression="zstd",
        compression_level=_LEVEL,
        row_group_size=rows,
    )
    took = cost(write)
    check_whole("bare pyarrow", pq.read_metadata(path).num_rows, bench.table.num_rows)
    path.unlink()
    return took


def _archive(bench: Bench, path: Path) -> None:
    store = Store.open(path.as_uri())
    chain = records = 0
    for some in _ranges(bench.chunks):
        row = write_range(store, "bench", map(parse, some), previous_chain=chain)
        chain, records = row.last_chain, records + row.records
    check_whole("archive", records, bench.table.num_rows)


def _ranges(chunks: list[RecordBytes]) -> Iterator[list[RecordBytes]]:
    """Yield the chunks in ranges of some 64 MiB."""
    some: list[RecordBytes] = []
    size_bytes = 0
    for chunk in chunks:
        if some and size_bytes + len(chunk.data) > TARGET_BYTES:
            yield some
            some, size_bytes = [], 0
        some.append(chunk)
        size_bytes += len(chunk.data)
    if some:
        yield some


def live(bench: Bench) -> Figure:
    """``dledger-pipeline backup`` of a live node, without Spark; the node's own work counts."""
    record_bytes = bench.record_bytes

    def one() -> tuple[float, float, Parts]:
        bare = bare_pyarrow(bench)
        path = bench.emptied("live")
        job, node_s = _of_node(bench, path, "--runner", "plain")
        check_whole("backup", load(Store.open(path.as_uri())).records, bench.table.num_rows)
        cpu_s = job.cpu_s + node_s
        parts = {
            "bareGBPerCpuS": record_bytes / bare.cpu_s / _GB,
            "backupGBPerCpuS": record_bytes / cpu_s / _GB,
            "jobCpuS": job.cpu_s,
            "nodeCpuS": node_s,
        }
        return bare.cpu_s / cpu_s, job.wall_s, parts

    return in_rounds(bench.rounds, one)


def _of_node(bench: Bench, store: Path, *options: str) -> tuple[Cost, float]:
    """Run a backup; return what it took, and what the node took meanwhile."""
    before_s = process_cpu_s(bench.node.pids)
    job = bench.back_up(store, *options)
    return job, process_cpu_s(bench.node.pids) - before_s


def beside_spark(bench: Bench) -> Figure:
    """Bytes a second of the job beside Spark's own Parquet writer, both in one session.

    The writer is fed by our source, reads the same node, and compresses with zstd too. By the
    clock: the JVM, its compiler and Python's workers are not to be told apart. A first round does
    not count, since the JVM is cold.
    """
    spark, rows = bench.spark, bench.table.num_rows

    def ours(path: Path) -> None:
        request = BackupRequest(
            endpoints=(bench.node.admin,), store=Store.open(path.as_uri()), runner=RunnerName.SPARK
        )
        records = backup(request, Progress("backup"))["records"]
        assert isinstance(records, int)
        check_whole("backup by Spark", records, rows)

    def spark_writer(path: Path) -> None:
        source = spark.read.format(FORMAT).option("view", View.ENTRIES)
        frame = source.option("endpoint", bench.node.admin).load()
        frame.write.option("compression", "zstd").parquet(path.as_uri())
        written = sum(int(pq.read_metadata(part).num_rows) for part in path.glob("*.parquet"))
        check_whole("Spark's writer", written, rows)

    def one() -> tuple[float, float, Parts]:
        writer = cost(lambda: spark_writer(bench.emptied("spark-writer")))
        job = cost(lambda: ours(bench.emptied("by-spark")))
        parts = {
            "backupMBPerS": bench.record_bytes / job.wall_s / 1e6,
            "writerMBPerS": bench.record_bytes / writer.wall_s / 1e6,
        }
        return writer.wall_s / job.wall_s, job.wall_s, parts

    one()
    return in_rounds(bench.rounds, one)


def new_plain(bench: Bench) -> Figure:
    """One per cent more, backed up without Spark: what that takes beyond the bytes' own."""
    return _new(bench, "plain")


def new_by_spark(bench: Bench) -> Figure:
    """The same by Spark, from its start to its end."""
    return _new(bench, "spark")


def _new(bench: Bench, runner: str) -> Figure:
    """The bytes' own is what a bare pyarrow takes for as many: the least that any writer takes."""
    bench.table  # noqa: B018, the log as it is before more is written
    path = bench.emptied(f"new-{runner}")
    per_byte_s = bare_pyarrow(bench).cpu_s / bench.record_bytes
    bench.back_up(path, "--runner", "plain")
    store = Store.open(path.as_uri())
    numbers = iter(range(bench.rounds))

    def one() -> tuple[float, float, Parts]:
        before = load(store)
        client_id = f"new-{runner}-{next(numbers)}"
        produce(bench.node.endpoint, bench.body_bytes // _NEW_PART, client_id=client_id)
        job, node_s = _of_node(bench, path, "--runner", runner)
        after = load(store)
        known = {row.name for row in before.files}
        written = sum(row.record_bytes for row in after.files if row.name not in known)
        new = after.record_bytes - before.record_bytes
        check_whole("a backup of what is new", new, bench.body_bytes // _NEW_PART)
        parts = {"jobCpuS": job.cpu_s, "nodeCpuS": node_s, "writtenMB": written / 1e6}
        return job.cpu_s + node_s - written * per_byte_s, job.wall_s, parts

    return in_rounds(bench.rounds, one)


def starting(_: Bench) -> Figure:
    """What it takes to start the command and to say its version: imports, above all."""

    def one() -> tuple[float, float, Parts]:
        took = command_cost("dledger_pipeline", "--version")
        return took.cpu_s, took.wall_s, {}

    return in_rounds(3, one)


def size(bench: Bench) -> Figure:
    """Bytes of the objects beside zstd, level 1, of the record bytes, each range in one piece."""
    manifest = load(bench.backed_up)
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    raw = b"".join(bytes(chunk.data) for chunk in bench.chunks)
    check_whole("the backup", manifest.record_bytes, len(raw))
    at = packed = 0
    for row in manifest.files:
        packed += len(codec.compress(raw[at : at + row.record_bytes], asbytes=True))
        at += row.record_bytes
    objects = sum(row.object_bytes for row in manifest.files)
    parts = {"objectBytes": objects, "zstdBytes": packed, "recordBytes": len(raw)}
    return Figure(rounds=(round(objects / packed, 3),), parts=parts)
