"""``make bench-restart``: how long a node with a long log takes until it votes again.

Builds the data directory of a group of one through the store itself (the node's own segments,
synced, and a snapshot where the default policy would have taken the last one), drops them
from the page cache, starts a real ``dledger node`` on it, and prints JSON. More than five
seconds are a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from dledger.broker.commands import CreateTopic
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.state import BrokerState
from dledger.client import AdminClient
from dledger.common.status import NodeStatus
from dledger.files.files import RealFiles
from dledger.replica.bootstrap_record import BootstrapRecord
from dledger.replica.snapshots import Snapshots
from dledger.store.commit_log import CommitLog
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.store.snapshot_files import SNAPSHOT_DIRECTORY, SnapshotFiles
from dledger.types import Entry, EntryKind, HardState, Member, Membership
from e2e.bench import machine
from e2e.harness.nodes import NodeSpec, allocate, node_command, status_of
from e2e.harness.processes import ChildProcess
from e2e.harness.waiting import HarnessError, eventually_async

BUDGET_S: Final = 5.0
_GROUP_ID: Final = "00000000-0000-4000-8000-00000000be9c"
_BATCH: Final = 64
_BODY: Final = bytes(1024)
_ENTRIES_A_WRITE: Final = 128
_DEADLINE_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """What to build.

    Attributes:
        log_bytes: Data of the log's entries, at least.
        unsnapshot_bytes: How much of it comes after the snapshot.
    """

    log_bytes: int
    unsnapshot_bytes: int = 256 << 20
    segment_bytes: int = 64 << 20


def main() -> int:
    """Build, start, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10, help="length of the log (default 10)")
    args = parser.parse_args()
    (machine.ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=machine.ROOT / "build", prefix="bench-restart-"
    ) as scratch:
        report = measure(Path(scratch), LogPlan(log_bytes=int(args.gib * (1 << 30))))
    print(json.dumps(report, indent=2))
    return exit_code(report)


def exit_code(report: Mapping[str, Any]) -> int:
    """Return 0 if the node was in time and had the whole log, 2 if there was none to have."""
    if not report["messages"]:
        print("bench-restart: the log has no message: nothing was measured", file=sys.stderr)
        return 2
    return 0 if report["voting_s"] < BUDGET_S else 1


def measure(scratch: Path, plan: LogPlan) -> dict[str, Any]:
    """Build a directory in *scratch*, start a node on it, and return the figures."""
    (spec,), began_s = allocate(scratch, count=1, prefix="bench-"), time.monotonic()
    built = _build(spec, plan)
    _forget_pages(spec.directory)
    build_s = time.monotonic() - began_s
    started = _start(spec, plan, last_index=built["entries"])
    about = machine.facts()
    about["disk_free_bytes"] = shutil.disk_usage(scratch).free
    return {**built, "build_s": round(build_s, 1), **started, **about}


def _build(spec: NodeSpec, plan: LogPlan) -> dict[str, int]:
    files, data = RealFiles(), spec.directory
    data.mkdir(parents=True)
    identity = join(files, data, load_or_format(files, data, "bench/bench-0"), _GROUP_ID)
    log = CommitLog.open(
        files, data / LOG_DIRECTORY, identity=identity, segment_bytes=plan.segment_bytes
    )
    HardStateFile(files, data).save(HardState(term=1))
    member = Member(id=identity.node_id, name=spec.name, address=spec.own_address)
    founding = BootstrapRecord(_GROUP_ID, Membership.of([member], _GROUP_ID)).entry()
    state = BrokerState()
    snapshots = Snapshots(
        SnapshotFiles(files, data / SNAPSHOT_DIRECTORY, reserve_bytes=0),
        group_id=_GROUP_ID,
        log=log,
        state=state,
    )
    _write(log, state, [founding])
    snapshot_at = plan.log_bytes - plan.unsnapshot_bytes
    written = 0
    for entries in _batches(plan.log_bytes):
        _write(log, state, entries)
        before, written = written, written + sum(entry.size_bytes for entry in entries)
        if before < snapshot_at <= written:
            asyncio.run(_snapshot(snapshots, log.last_index))
    newest = snapshots.newest()
    built = {
        "log_bytes": log.size_bytes,
        "entries": log.last_index,
        "messages": state.topics.messages("t"),
        "segments": len(log.sealed()) + 1,
        "snapshot_bytes": newest.size_bytes if newest else _snapshot_bytes(data),
    }
    log.close()
    return built


def _snapshot_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in (data / SNAPSHOT_DIRECTORY).glob("*.snap"))


async def _snapshot(snapshots: Snapshots, applied_index: int) -> None:
    snapshots.attach(
        applied_index=lambda: applied_index, on_loaded=lambda: None, on_error=lambda _: None
    )
    await snapshots.take()


def _write(log: CommitLog, state: BrokerState, entries: list[Entry]) -> None:
    log.append(entries)
    log.sync()
    for entry in entries:
        if entry.kind is EntryKind.DATA:
            state.apply(entry)


def _batches(log_bytes: int) -> Iterator[list[Entry]]:
    """Yield entries from index 2 on: a topic, then PRODUCE commands of 64 messages of 1 KiB."""
    topic = CreateTopic(name="t", type="NORMAL", queues=8).encode()
    yield [_entry(2, topic, crc32c(topic))]
    columns = Columns(message_ids=[""] * _BATCH, bodies=[_BODY] * _BATCH, born_at_ms=[0] * _BATCH)
    data = encode_produce(columns, client_id="bench", topic="t")
    crc, index = crc32c(data), 3
    while log_bytes > 0:
        yield [_entry(index + row, data, crc) for row in range(_ENTRIES_A_WRITE)]
        index += _ENTRIES_A_WRITE
        log_bytes -= _ENTRIES_A_WRITE * len(data)


def _entry(index: int, data: bytes, crc: int) -> Entry:
    return Entry(
        term=1,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=time.time_ns() // 1_000_000,
        crc32c=crc,
        data=data,
    )


def _forget_pages(directory: Path) -> None:
    """Let the next reads come from the disk, as after a reboot."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _start(spec: NodeSpec, plan: LogPlan, *, last_index: int) -> dict[str, float]:
    """Run a node; return the seconds from its start to each step, all of the log applied.

    Raises:
        HarnessError: It ended, or did not get there.
    """
    settings = {
        "group": "bench",
        "data_dir": spec.directory,
        "segment_bytes": plan.segment_bytes,
        "retention_hours": 0,
        "disk_watermark_percent": 0,
    }
    began_s = time.monotonic()
    process = ChildProcess(node_command(spec, settings), spec.directory.with_suffix(".log"))
    try:
        steps = asyncio.run(_steps(spec.own_address, process, began_s, last_index))
    finally:
        process.stop()
    if process.exit_code != 0:
        raise HarnessError(f"the node ended with {process.exit_code} when it was told to stop")
    return steps


async def _steps(
    address: str, process: ChildProcess, began_s: float, last_index: int
) -> dict[str, float]:
    steps: dict[str, float] = {}
    async with AdminClient(address, timeout_s=2.0) as admin:
        for name, is_reached in _steps_to(last_index).items():

            async def reached(is_reached: Callable[[NodeStatus], bool] = is_reached) -> bool:
                if not process.is_running():
                    raise HarnessError(f"the node ended with exit code {process.exit_code}")
                status = await status_of(admin)
                return status is not None and is_reached(status)

            await eventually_async(f"the node is {name[:-2]}", reached, _DEADLINE_S, 0.02)
            steps[name] = round(time.monotonic() - began_s, 2)
    return steps


def _steps_to(last_index: int) -> dict[str, Callable[[NodeStatus], bool]]:
    """Return what a node reaches one after the other, the last one with the whole log.

    It answers Status in a term from when its core runs: then it takes votes and gives them.
    """
    return {
        "voting_s": lambda status: bool(status.group_id) and status.term >= 1,
        "leading_s": lambda status: status.role == "leader",
        "applied_s": lambda status: status.ready and status.applied_index >= last_index,
    }


if __name__ == "__main__":
    sys.exit(main())
