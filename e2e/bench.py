"""``make bench``: first figures of a group on this machine, with what machine it was.

Rows: synchronous sends of the unmodified RocketMQ SDK, batched native appends, and the gap a
client sees when the leader is killed. Prints a table, writes JSON under ``build/bench/``. Figures
from one run may be compared with each other; a machine that does other work makes all of them
smaller.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.model import Message
from rocketmq.v5.producer import Producer

from dledger.client import Client
from e2e.devgroup import DevGroup, eventually

ROOT: Final = Path(__file__).resolve().parent.parent
_SEND_SIZE: Final = 1024
_BATCH: Final = 256
_CLIENT_PORT: Final = 19081
_WRITABLE_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: what was measured, its value and unit, and what else is worth knowing."""

    name: str
    value: float
    unit: str
    details: dict[str, Any]


def main() -> int:
    """Run every row and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="length of a row")
    parser.add_argument("--kills", type=int, default=5, help="leaders killed for the gap")
    parser.add_argument("--data", type=Path, help="where the group's disks are (default: build/)")
    args = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.data or ROOT / "build", prefix="bench-") as scratch:
        machine = machine_facts(Path(scratch))
        print_facts(machine)
        group = DevGroup(Path(scratch, "group"), _CLIENT_PORT)
        try:
            group.announced()
            rows = measure(group, args.seconds, args.kills)
        finally:
            group.stop()
    report(machine, rows)
    return 0


def measure(group: DevGroup, seconds: float, kills: int) -> list[Row]:
    """Return all rows, each printed when it is there."""
    rows: list[Row] = []
    steps: list[Callable[[], Row]] = [
        lambda: sdk_sends(group, seconds, threads=1),
        lambda: sdk_sends(group, seconds, threads=16),
        lambda: asyncio.run(native_appends(group, seconds, window=1)),
        lambda: asyncio.run(native_appends(group, seconds, window=8)),
        lambda: failover_gap(group, kills),
    ]
    for step in steps:
        wait_whole(group)
        rows.append(step())
        print_row(rows[-1])
    return rows


def wait_whole(group: DevGroup) -> dict[str, Any]:
    """Wait until every node is ready and one leads; return the group's state."""
    state: dict[str, Any] = eventually("the group is whole", group.whole, _WRITABLE_S)
    return state


def sdk_sends(group: DevGroup, seconds: float, *, threads: int) -> Row:
    """Synchronous sends of 1 KiB by the RocketMQ Python SDK, over all nodes' addresses."""
    endpoints = ";".join(group.state()["endpoints"])
    producer = Producer(ClientConfiguration(endpoints, Credentials()), ("bench-sdk",))
    producer.startup()
    latencies: list[float] = []
    body = os.urandom(_SEND_SIZE)

    def send_all(until_s: float) -> None:
        while (began_s := time.monotonic()) < until_s:
            message = Message()
            message.topic, message.body = "bench-sdk", body
            producer.send(message)
            latencies.append(time.monotonic() - began_s)

    send_all(time.monotonic() + 1)
    latencies.clear()
    until_s = time.monotonic() + seconds
    workers = [threading.Thread(target=send_all, args=(until_s,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    producer.shutdown()
    return Row(
        name=f"SDK sync sends, 1 KiB, {threads} thread{'s' if threads > 1 else ''}",
        value=round(len(latencies) / seconds),
        unit="messages/s",
        details=percentiles(latencies),
    )


async def native_appends(group: DevGroup, seconds: float, *, window: int) -> Row:
    """Batches of 256 x 1 KiB through `dledger.client`, *window* of them under way at once."""
    state = group.state()
    latencies: list[float] = []
    bodies = [os.urandom(_SEND_SIZE) for _ in range(_BATCH)]
    async with Client(state["endpoints"][state["leader"]]) as client:
        await client.create_topic("bench-native", queues=8)

        async def append_all(until_s: float) -> None:
            while (began_s := time.monotonic()) < until_s:
                await client.append("bench-native", bodies)
                latencies.append(time.monotonic() - began_s)

        await append_all(time.monotonic() + 1)
        latencies.clear()
        until_s = time.monotonic() + seconds
        await asyncio.gather(*(append_all(until_s) for _ in range(window)))
    return Row(
        name=f"native appends, 1 KiB, batch {_BATCH}, window {window}",
        value=round(len(latencies) * _BATCH / seconds),
        unit="messages/s",
        details=percentiles(latencies),
    )


def failover_gap(group: DevGroup, kills: int) -> Row:
    """SIGKILL of the leader, *kills* times: last ack before to first ack after, at one client."""
    gaps_ms = [asyncio.run(one_gap(group)) for _ in range(kills)]
    return Row(
        name=f"failover gap after SIGKILL, {kills} kills",
        value=round(statistics.median(gaps_ms)),
        unit="ms (median)",
        details={"max": round(max(gaps_ms)), "all": [round(gap) for gap in gaps_ms]},
    )


async def one_gap(group: DevGroup) -> float:
    """Kill the leader under a steady writer at another node; return the gap in milliseconds."""
    state = wait_whole(group)
    other = (state["leader"] + 1) % len(state["endpoints"])
    acks: list[float] = []
    async with Client(state["endpoints"][other]) as client:

        async def write(until: Callable[[], bool]) -> None:
            while not until():
                await client.append("bench-failover", [b"x" * 128])
                acks.append(time.monotonic())

        await write(lambda: len(acks) >= 20)
        os.kill(state["pids"][state["leader"]], signal.SIGKILL)
        killed_s = time.monotonic()
        await write(lambda: acks[-1] > killed_s and len(acks) >= 60)
    after = next(at_s for at_s in acks if at_s > killed_s)
    before = max(at_s for at_s in acks if at_s <= killed_s)
    return (after - before) * 1000


def percentiles(latencies_s: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds."""
    if len(latencies_s) < 2:
        return {}
    cuts = statistics.quantiles(latencies_s, n=100)
    return {"p50Ms": round(cuts[49] * 1000, 2), "p99Ms": round(cuts[98] * 1000, 2)}


def machine_facts(directory: Path) -> dict[str, Any]:
    """Return what bounds the figures: processor, memory, versions, and the disk's synced rate."""
    cpuinfo = Path("/proc/cpuinfo").read_text("utf-8")
    model = next((x.split(":")[1].strip() for x in cpuinfo.splitlines() if "model name" in x), "?")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "loadBefore": os.getloadavg()[0],
        "memoryGiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "syncedMBs": {f"{kib}KiB": disk_rate(directory, kib << 10) for kib in (1, 64, 256)},
    }


def disk_rate(directory: Path, size: int, seconds: float = 1.0) -> float:
    """Return MB/s of writes of *size* bytes, each followed by fdatasync, in preallocated space."""
    fd = os.open(directory / "probe", os.O_CREAT | os.O_RDWR)
    try:
        os.pwrite(fd, bytes(16 << 20), 0)
        os.fsync(fd)
        data, written, until_s = os.urandom(size), 0, time.monotonic() + seconds
        while time.monotonic() < until_s:
            os.pwrite(fd, data, written % (16 << 20))
            os.fdatasync(fd)
            written += size
        return round(written / seconds / 1e6, 1)
    finally:
        os.close(fd)


def print_facts(machine: dict[str, Any]) -> None:
    """Print the machine."""
    print(f"{machine['cpu']}, {machine['cores']} cores, {machine['memoryGiB']} GiB, ", end="")
    print(f"Linux {machine['kernel']}, Python {machine['python']}, load {machine['loadBefore']}")
    print(f"disk, write + fdatasync: {machine['syncedMBs']} MB/s")
    print("three nodes and the client share this machine; every ack is synced on a majority\n")


def print_row(row: Row) -> None:
    """Print one row."""
    details = "  ".join(f"{key} {value}" for key, value in row.details.items())
    print(f"{row.name:44} {row.value:>9,.0f} {row.unit:12} {details}", flush=True)


def report(machine: dict[str, Any], rows: list[Row]) -> None:
    """Write the JSON file."""
    directory = ROOT / "build" / "bench"
    directory.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = directory / f"{stamp}.json"
    figures = [
        {"name": row.name, "value": row.value, "unit": row.unit, **row.details} for row in rows
    ]
    path.write_text(json.dumps({"machine": machine, "rows": figures}, indent=2) + "\n", "utf-8")
    print(f"\nas JSON: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
