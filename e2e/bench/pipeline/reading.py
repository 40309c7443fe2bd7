"""Lines about reading: a log, which is what compaction is made of, and queries of a backup.

What a query reads is counted in bytes that the store gave. The backup has 64 objects, as one of
4 GiB has at the size that objects have by default.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from unittest import mock

import pyarrow as pa

from dledger_pipeline.archive.catalog import load
from dledger_pipeline.archive.entry_ranges import on_disk
from dledger_pipeline.archive.planning import archived_messages
from dledger_pipeline.archive.queue_offsets import message_ranges
from dledger_pipeline.archive.selection import Selection
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.log.records import parse
from dledger_pipeline.object_store.store import Store
from e2e.bench.pipeline.logs import BATCH, BODY_BYTES, produce
from e2e.bench.pipeline.measuring import (
    Cost,
    Figure,
    Parts,
    Unmeasured,
    check_whole,
    cost,
    in_rounds,
)
from e2e.bench.pipeline.subject import Bench

_GB: Final = 1e9
_OBJECTS: Final = 64
_PARTS: Final = 10
"""A time range of 1 % is looked for at so many places."""
_RARE: Final = "rare"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a query took: messages found, bytes that the store gave, and the processor."""

    messages: int
    store_bytes: int
    cost: Cost


def time_range(bench: Bench) -> Figure:
    """A time with a hundredth of the entries, at ten places: the largest part of the bytes read."""
    store = _queried(bench)
    manifest = load(store)
    times = bench.table.column("timestamp_ms").to_numpy()
    times = times[times > 0]
    starts = [len(times) * part // _PARTS for part in range(_PARTS)]

    def one() -> tuple[float, float, Parts]:
        found = [
            _read(
                store,
                Selection(first_ms=int(times[at]), last_ms=int(times[at + len(times) // 100 - 1])),
            )
            for at in starts
        ]
        check_whole("queries by time", sum(each.messages for each in found), 1)
        parts = {
            "objects": len(manifest.files),
            "mean": sum(each.store_bytes for each in found) / _PARTS / manifest.object_bytes,
            "messages": sum(each.messages for each in found) / _PARTS,
            "cpuS": sum(each.cost.cpu_s for each in found) / _PARTS,
        }
        most = max(each.store_bytes for each in found)
        wall_s = sum(each.cost.wall_s for each in found)
        return most / manifest.object_bytes, wall_s, parts

    return in_rounds(bench.rounds, one)


def rare_topic(bench: Bench) -> Figure:
    """A topic that few objects hold: CPU seconds of reading everything, in those of reading it."""
    store = _queried(bench)
    manifest = load(store)

    def one() -> tuple[float, float, Parts]:
        everything, rare = _read(store, Selection()), _read(store, Selection(topic=_RARE))
        check_whole("a query by topic", rare.messages, BATCH)
        check_whole("a query of everything", everything.messages, rare.messages + 1)
        parts = {
            "bytesRead": rare.store_bytes / manifest.object_bytes,
            "cpuS": rare.cost.cpu_s,
            "everythingCpuS": everything.cost.cpu_s,
        }
        return everything.cost.cpu_s / rare.cost.cpu_s, rare.cost.wall_s, parts

    return in_rounds(bench.rounds, one)


def planning(bench: Bench) -> Figure:
    """A query of a faked backup of 1 TB: the most CPU seconds that planning one takes."""

    def one() -> tuple[float, float, Parts]:
        command = (sys.executable, "-m", "e2e.bench.planning", "--json")
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise Unmeasured(ran.stderr.strip()[-2000:])
        found = json.loads(ran.stdout)
        parts = {"maxRssMB": max(each["max_rss_bytes"] for each in found) / 1e6}
        most = max(each["cpu_s"] for each in found)
        return most, most, parts

    return in_rounds(bench.rounds, one)


def _read(store: Store, selection: Selection) -> _Read:
    """Plan and read a query as the driver and its tasks do, in this process."""
    messages = 0

    def work() -> None:
        nonlocal messages
        for share in archived_messages(store, load(store), selection):
            messages += sum(batch.num_rows for batch in share.read())

    with _counted() as sizes:
        took = cost(work)
    return _Read(messages=messages, store_bytes=sum(sizes), cost=took)


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Yield the sizes of all objects that stores give in this process meanwhile."""
    sizes: list[int] = []
    get = Store.get

    def counting(store: Store, name: str, **options: int) -> pa.Buffer:
        found = get(store, name, **options)
        sizes.append(found.size)
        return found

    with mock.patch.object(Store, "get", counting):
        yield sizes


def _queried(bench: Bench) -> Store:
    """Return a store with a backup of many objects, the last of which hold a rare topic."""
    bench.table  # noqa: B018, the log as it is before more is written
    path = bench.disk / "queried"
    store = Store.open(path.as_uri())
    if not path.exists():
        produce(bench.node.endpoint, 4 * BATCH * BODY_BYTES, client_id=_RARE, topic=_RARE)
        request = BackupRequest(
            endpoints=(bench.node.admin,),
            store=store,
            target_bytes=max(bench.record_bytes // _OBJECTS, 1 << 20),
            runner=RunnerName.PLAIN,
        )
        backup(request, Progress("backup"))
    return store
