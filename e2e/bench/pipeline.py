"""``make bench-pipeline``: what the pipeline does a second, beside what the machine can do at all.

One run, one log, one Spark session: parse, backup and restore in MB/s of record bytes, beside a raw
read of the segments, a bare pyarrow writer, and Spark's own Parquet writer fed by the same source.
Prints a table, writes ``build/bench-pipeline.json``. Figures of one run may be compared with each
other; a machine that does other work makes all of them smaller.

exit codes: 0 all was measured, 2 a step left a part of the log out (or wrong usage), else it failed
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from dledger.client import Client, Record
from dledger_pipeline.archive.archive import write_range
from dledger_pipeline.archive.entry_ranges import on_disk
from dledger_pipeline.archive.queue_offsets import message_ranges
from dledger_pipeline.archive.restore import restore
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.log.records import parse
from dledger_pipeline.log.segments import read_log
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.spark.session import spark_session
from dledger_pipeline.spark.source import FORMAT, View, register
from e2e.bench.machine import facts as machine_facts
from e2e.bench.machine import synced_rate
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range

ROOT: Final = Path(__file__).resolve().parents[2]
REPORT: Final = ROOT / "build" / "bench-pipeline.json"
_TOPIC: Final = "bench"
_BATCH: Final = 256
_BODY_BYTES: Final = 1024
_READ_BYTES: Final = 4 << 20
_SYNC_BYTES: Final = 256 << 10
_PROBE_S: Final = 1.0
_TARGET_BYTES: Final = 64 << 20
_WORDS: Final = ("paid", "shipped", "returned", "EUR", "USD", "express", "standard", "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: a log on disk and the node that serves it.

    Attributes:
        data: The node's data directory.
        admin: Its peer address.
        record_bytes: What its committed records take.
        messages: How many it holds.
        table: Its entries in memory.
        spark: A running session.
    """

    data: Path
    admin: str
    record_bytes: int
    messages: int
    table: pa.Table
    spark: SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """A figure to take.

    Attributes:
        name: In a word.
        remark: What is done.
        work: Does it; writes, if it does, to the empty path that it is given. Returns how much of
            the log it went through.
        whole: How much that is if it is all: a step that skips half of the log is no faster.
    """

    name: str
    remark: str
    work: Callable[[Subject, Path], int]
    whole: Callable[[Subject], int] = lambda subject: subject.table.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRate:
    """One figure: MB/s of record bytes in each round."""

    step: PipelineStep
    mb_per_s: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the middle round's."""
        return statistics.median(self.mb_per_s)


class Unmeasured(Exception):
    """A step did not do what it is measured by; the message says which, and how much it did."""


def main() -> int:
    """Run every step and report; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=_at_least_1, default=256, help="message bodies in the log")
    parser.add_argument(
        "--rounds", type=_at_least_1, default=3, help="how often each figure is taken"
    )
    parser.add_argument("--data", type=Path, help="where the disks are (default: build/)")
    args = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.data or ROOT / "build", prefix="bench-") as scratch:
        facts = machine_facts()
        facts["syncedMBs"] = round(synced_rate(Path(scratch, "probe"), _SYNC_BYTES, _PROBE_S), 1)
        with group(Path(scratch), args.mib << 20) as (data, admin), session() as (spark, start_s):
            subject = prepared(data, admin, spark, args.mib << 20)
            facts |= {"recordBytes": subject.record_bytes, "sparkStartS": round(start_s, 1)}
            print_facts(facts)
            try:
                rows = measured(subject, Path(scratch), args.rounds)
            except Unmeasured as error:
                print(f"bench-pipeline: {error}", file=sys.stderr)
                return 2
    report(facts, rows)
    return 0


def _at_least_1(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is nothing to measure")
    return number


@contextmanager
def group(scratch: Path, body_bytes: int) -> Iterator[tuple[Path, str]]:
    """Run a group of one node with messages; yield its data directory and peer address."""
    running = DevGroup(scratch / "group", free_port_range(), nodes=1)
    try:
        state = running.announced()
        asyncio.run(produce(state["endpoints"][0], body_bytes))
        yield scratch / "group" / "node-0", state["adminEndpoints"][0]
    finally:
        running.stop()


async def produce(address: str, body_bytes: int) -> None:
    """Append keyed messages of 1 KiB whose bodies compress like JSON does."""
    rng = random.Random(4)
    async with Client(address, timeout_s=120, client_id="bench") as client:
        await client.create_topic(_TOPIC, queues=8)
        for batch in range(batches(body_bytes)):
            await client.append(_TOPIC, [record(rng, batch, row) for row in range(_BATCH)])


def batches(body_bytes: int) -> int:
    """Return how many batches hold so many bytes of bodies."""
    return body_bytes // (_BATCH * _BODY_BYTES)


def record(rng: random.Random, batch: int, row: int) -> Record:
    """Return one message; its body is text, a third of it random."""
    body = f'{{"order":"{batch}-{row}","token":"{rng.randbytes(170).hex()}"'
    while len(body) < _BODY_BYTES - 1:
        body += f',"{rng.choice(_WORDS)}":"{rng.choice(_WORDS)}"'
    return Record(
        body=body[: _BODY_BYTES - 1].encode() + b"}",
        message_id=f"{batch}-{row}",
        keys=(f"order-{rng.randrange(10_000)}",),
    )


@contextmanager
def session() -> Iterator[tuple[SparkSession, float]]:
    """Start Spark; yield the session and how many seconds that took, a first task included."""
    began_s = time.monotonic()
    with spark_session("dledger-bench", conf={"spark.driver.memory": "1g"}) as spark:
        register(spark)
        spark.range(1).count()
        yield spark, time.monotonic() - began_s


def prepared(data: Path, admin: str, spark: SparkSession, body_bytes: int) -> Subject:
    """Read the log once, which also brings it into the page cache."""
    chunks = list(read_log(data))
    return Subject(
        data=data,
        admin=admin,
        record_bytes=sum(len(chunk.data) for chunk in chunks),
        messages=batches(body_bytes) * _BATCH,
        table=pa.Table.from_batches([parse(chunk) for chunk in chunks]),
        spark=spark,
    )


# -- steps ---------------------------------------------------------------------------------------


def raw_read(subject: Subject, _: Path) -> int:
    """Read as many bytes of the segment files and do nothing with them."""
    left = subject.record_bytes
    for path in sorted(subject.data.glob("log/*.seg")):
        with path.open("rb", buffering=0) as file:
            while left > 0 and (data := file.read(min(left, _READ_BYTES))):
                left -= len(data)
    return subject.record_bytes - left


def parse_log(subject: Subject, _: Path) -> int:
    """Read all records, checked."""
    return sum(parse(chunk).num_rows for chunk in read_log(subject.data))


def read_messages(subject: Subject, _: Path) -> int:
    """Read all messages: parse, place, and parse again to decode."""
    shares = message_ranges(on_disk(subject.data))
    return sum(batch.num_rows for share in shares for batch in share.read())


def bare_pyarrow(subject: Subject, out: Path) -> int:
    """Write entries that are in memory already."""
    pq.write_table(subject.table, out, compression="zstd")
    return int(pq.read_metadata(out).num_rows)


def archive(subject: Subject, out: Path) -> int:
    """Read, check and write objects, without Spark and without a node."""
    store = Store.open(out.as_uri())
    chain = records = 0
    for segment in on_disk(subject.data):
        row = write_range(store, "bench", segment.read(), previous_chain=chain)
        chain, records = row.last_chain, records + row.records
    return records


def backup_job(subject: Subject, out: Path) -> int:
    """Run the backup job."""
    store = Store.open(out.as_uri())
    request = BackupRequest(
        endpoints=(subject.admin,),
        store=store,
        target_bytes=_TARGET_BYTES,
        runner=RunnerName.SPARK,
    )
    records = backup(request, Progress("backup"))["records"]
    assert isinstance(records, int)
    return records


def spark_writer(subject: Subject, out: Path) -> int:
    """Let Spark write what our source reads from the same node in the same ranges."""
    source = subject.spark.read.format(FORMAT).option("view", View.ENTRIES)
    frame = source.option("endpoint", subject.admin).load()
    frame.write.option("compression", "zstd").parquet(out.as_uri())
    return sum(int(pq.read_metadata(part).num_rows) for part in out.glob("*.parquet"))


def restore_job(_: Subject, out: Path) -> int:
    """Restore what the backup step left."""
    store = Store.open(out.with_name("backup").as_uri())
    return restore(store, None, out, name="bench/node-0").records


STEPS: Final = (
    PipelineStep(
        name="raw read",
        remark="segment files from the page cache",
        work=raw_read,
        whole=lambda subject: subject.record_bytes,
    ),
    PipelineStep(name="parse", remark="records checked (CRC32C twice), 1 process", work=parse_log),
    PipelineStep(
        name="messages",
        remark="placed and decoded, 1 process",
        work=read_messages,
        whole=lambda subject: subject.messages,
    ),
    PipelineStep(
        name="bare pyarrow", remark="zstd Parquet from memory, 1 process", work=bare_pyarrow
    ),
    PipelineStep(name="archive", remark="parse + objects + hash + fsync, 1 process", work=archive),
    PipelineStep(name="backup", remark="the job: a node's Export -> Spark tasks", work=backup_job),
    PipelineStep(
        name="spark writer", remark="the same Export -> Spark's Parquet writer", work=spark_writer
    ),
    PipelineStep(
        name="restore", remark="backup -> data directory, synced, 1 process", work=restore_job
    ),
)


# -- measuring and telling -----------------------------------------------------------------------


def measured(subject: Subject, scratch: Path, rounds: int) -> list[StepRate]:
    """Take all figures *rounds* times in turn, so that a busy minute is shared by all of them.

    One more round comes first and does not count: caches and the JVM's compiler are cold.
    """
    taken: list[list[float]] = [[] for _ in STEPS]
    for number in range(rounds + 1):
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        for step, figures in zip(STEPS, taken, strict=True):
            figures.append(one_round(step, subject, scratch / step.name.replace(" ", "-")))
    return [
        StepRate(step=step, mb_per_s=tuple(figures[1:]))
        for step, figures in zip(STEPS, taken, strict=True)
    ]


def one_round(step: PipelineStep, subject: Subject, out: Path) -> float:
    """Return MB/s; the output stays, for the steps that come later.

    Raises:
        Unmeasured: The step did not go through the whole log, or there is none.
    """
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)
    began_s = time.monotonic()
    done = step.work(subject, out)
    took_s = time.monotonic() - began_s
    whole = step.whole(subject)
    if not done >= whole > 0:
        raise Unmeasured(f"{step.name} went through {done:,} of {whole:,}")
    return round(subject.record_bytes / took_s / 1e6, 1)


def print_facts(facts: dict[str, Any]) -> None:
    """Print the machine and the log."""
    print(f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, ", end="")
    print(f"Linux {facts['kernel']}, Python {facts['python']}, load {facts['load_before']}")
    print(f"disk, 256 KiB write + fdatasync: {facts['syncedMBs']} MB/s")
    print(f"log: {facts['recordBytes'] / 1e6:,.0f} MB of records; ", end="")
    print(f"Spark was there after {facts['sparkStartS']} s, which no figure includes\n", flush=True)


def report(facts: dict[str, Any], rows: list[StepRate]) -> None:
    """Print the table and how figures compare; write the JSON file."""
    for row in rows:
        spread = f"{min(row.mb_per_s):,.0f}-{max(row.mb_per_s):,.0f}"
        print(f"{row.step.name:14} {row.median:>8,.0f} MB/s  {spread:>13}  {row.step.remark}")
    median = {row.step.name: row.median for row in rows}
    ratios = {
        f"{name} / {other}": round(median[name] / median[other], 2)
        for name, other in (
            ("backup", "spark writer"),
            ("archive", "bare pyarrow"),
            ("parse", "raw read"),
        )
    }
    print("\n" + "   ".join(f"{name} = {value}x" for name, value in ratios.items()))
    figures = [
        {"name": row.step.name, "mbPerS": row.median, "rounds": row.mb_per_s} for row in rows
    ]
    text = json.dumps({"machine": facts, "rows": figures, "ratios": ratios}, indent=2)
    REPORT.write_text(text + "\n", "utf-8")
    print(f"as JSON: {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
