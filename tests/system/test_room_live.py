"""Real groups on disks that are small, full, or shared: what is taken, what goes, what is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dledger.client import AppendStream, BatchingProducer, Client
from dledger.errors import DiskFull, DledgerError, OutcomeUnknown
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, code
from tests.waiting import eventually_blocking

MIB = 1 << 20
SMALL_SEGMENTS = "segment_bytes=1048576"
BATCH = [bytes([65]) * 32_768] * 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting small file systems needs root"),
]


@pytest.fixture
def mounted() -> Iterator[Callable[..., Path]]:
    """Return how to mount a file system at a directory until the test ends."""
    with ExitStack() as kept:

        def mount(directory: Path, *command: str) -> Path:
            directory.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", *command, str(directory)], check=True)
            kept.callback(subprocess.run, ["umount", "--lazy", str(directory)], check=True)
            return directory

        yield mount


def _tmpfs(size_mib: int, *options: str) -> tuple[str, ...]:
    return ("-t", "tmpfs", "-o", ",".join((f"size={size_mib}m", *options)), "tmpfs")


def _three(mounted: Callable[..., Path], data: Path, *mount: str) -> list[Path]:
    return [mounted(data / f"node-{number}", *mount) for number in range(3)]


async def _readable(endpoint: str, topic: str = "topic") -> tuple[int, int]:
    """Return the first and the end of a queue as a node has it, by reading all of it."""
    async with Client(endpoint) as client:
        first = 0
        while True:
            try:
                stored = [one async for one in client.read(topic, 0, start_offset=first)]
            except DledgerError:  # before what is kept
                first += 1
                continue
            return first, first + len(stored)


async def _fill(endpoint: str, batches: int) -> int:
    """Append *batches* of 256 KiB one after the other; return how many were acknowledged."""
    async with Client(endpoint, timeout_s=20) as client:
        for done in range(batches):
            try:
                await client.append("topic", BATCH, queue_id=0)
            except (DiskFull, OutcomeUnknown):
                return done
    return batches


def _alive(group: DevGroup) -> bool:
    return all(Path(f"/proc/{pid}").exists() for pid in group.state()["pids"])


def test_a_small_volume_takes_every_send_and_serves_consumers(
    tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    """Three times as much as there is room for; a consumer takes and acknowledges all the while."""
    disk = mounted(tmp_path / "disk", *_tmpfs(64))
    group = DevGroup(disk / "data", free_port_range(), nodes=1)
    endpoint = group.announced()["endpoints"][0]

    async def write() -> int:
        done = await _fill(endpoint, 4)
        async with RocketClient(int(endpoint.rpartition(":")[2])) as rocket:
            for _ in range(20):
                done += await _fill(endpoint, 40)
                await _consume(rocket)
        return done

    try:
        assert asyncio.run(write()) == 804
        state = json.loads((disk / "data" / "dev.json").read_text())
        assert all(Path(f"/proc/{pid}").exists() for pid in state["pids"])
    finally:
        assert group.stop() == 0


def test_a_full_disk_on_which_nothing_may_go_serves_consumers(
    tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    """Sends are refused by name, at once; who takes and acknowledges never waits behind them."""
    disk = mounted(tmp_path / "disk", *_tmpfs(64))
    group = DevGroup(disk / "data", free_port_range(), "disk_watermark_percent=0", nodes=1)
    endpoint = group.announced()["endpoints"][0]

    async def fill_and_consume() -> tuple[int, int]:
        done = await _fill(endpoint, 1000)
        async with RocketClient(int(endpoint.rpartition(":")[2])) as rocket:
            return done, sum([await _consume(rocket) for _ in range(20)])

    try:
        done, taken = asyncio.run(fill_and_consume())
        assert 100 < done < 1000
        assert taken == 20 * 8
    finally:
        assert group.stop() == 0


async def _consume(rocket: RocketClient) -> int:
    """Take eight messages and acknowledge them; return how many that were."""
    _, taken, _ = await rocket.receive("topic", group="readers", batch=8)
    assert taken
    acked = await rocket.ack(*taken, topic="topic", group="readers")
    assert code(acked.status) == "OK"
    return len(taken)


@pytest.mark.found
def test_a_neighbours_files_cost_no_message(tmp_path: Path, mounted: Callable[..., Path]) -> None:
    """Found by hand: 567 of 600 messages went on all nodes for a file that took the leader's disk.

    Dropping could not help. Now the leader hands over when it has no room, and all are kept.
    """
    disks = _three(mounted, tmp_path / "data", *_tmpfs(64))
    group = DevGroup(tmp_path / "data", free_port_range(), SMALL_SEGMENTS)
    group.announced()

    async def send(count: int) -> None:
        async with AppendStream(group.endpoints) as stream:
            for _ in range(count):
                await stream.append("topic", [bytes(16_384)], queue_id=0)

    try:
        asyncio.run(send(600))
        leader = group.leader
        free = os.statvfs(disks[leader])
        neighbour = free.f_bavail * free.f_frsize - 3 * MIB
        (disks[leader] / "neighbour").write_bytes(bytes(neighbour))
        eventually_blocking(
            lambda: group.leader != leader, "leadership goes to a disk with room", 30
        )
        asyncio.run(send(100))
        kept = [asyncio.run(_readable(endpoint)) for endpoint in group.endpoints]
        assert max(kept) == (0, 700)
        assert sum(each == (0, 700) for each in kept) >= 2  # it may be behind, without room
        (disks[leader] / "neighbour").unlink()
        eventually_blocking(
            lambda: asyncio.run(_readable(group.endpoints[leader])) == (0, 700),
            "it has all again",
            60,
        )
        assert group.deaths() == 0
    finally:
        assert group.stop() == 0


@pytest.mark.found
def test_disks_without_inodes_refuse_and_go_on_by_themselves(
    tmp_path: Path, mounted: Callable[..., Path]
) -> None:
    """Found by hand: all three nodes ended within a second, and again after each start."""
    disks = _three(mounted, tmp_path / "data", *_tmpfs(200, "nr_inodes=120"))
    group = DevGroup(tmp_path / "data", free_port_range(), SMALL_SEGMENTS)
    endpoint = group.announced()["endpoints"][0]

    try:
        first = asyncio.run(_fill(endpoint, 2))
        for disk in disks:
            _eat_inodes(disk)
        done = asyncio.run(_fill(endpoint, 30))
        assert done < 30
        assert _alive(group)
        for disk in disks:
            for path in disk.glob("eaten-*"):
                path.unlink()
        eventually_blocking(
            lambda: asyncio.run(_fill(endpoint, 1)) == 1, "writes are taken again", 60
        )
        _, end = asyncio.run(_readable(endpoint))
        assert end >= (first + done + 1) * len(BATCH)
        assert group.deaths() == 0
    finally:
        assert group.stop() == 0


def _eat_inodes(disk: Path) -> None:
    for number in range(1 << 20):
        try:
            (disk / f"eaten-{number}").touch()
        except OSError:
            return


@pytest.mark.long
@pytest.mark.found
@pytest.mark.parametrize(
    ("size_mib", "settings"),
    [(300, ()), (1024, ("disk_watermark_percent=95",)), (1024, ())],
)
def test_volumes_of_ext4_take_every_send(
    tmp_path: Path,
    mounted: Callable[..., Path],
    size_mib: int,
    settings: tuple[str, ...],
) -> None:
    """Found by hand: 300 MiB refused writes for ever; 1 GiB refused 8 to 40 % of a steady load."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(size_mib * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    disk = mounted(tmp_path / "disk", "-o", "loop", str(image))
    group = DevGroup(disk / "data", free_port_range(), *settings, nodes=1)
    endpoint = group.announced()["endpoints"][0]
    body = os.urandom(1 << 16)

    async def write() -> int:
        """Send twice the volume's size, as fast as it goes; return how many were refused."""
        refused = 0
        async with BatchingProducer([endpoint]) as producer:
            for _ in range(2 * size_mib // 16):
                sends = (producer.send("topic", body, queue_id=0) for _ in range(16 * 16))
                answers = await asyncio.gather(*sends, return_exceptions=True)
                refused += sum(isinstance(each, BaseException) for each in answers)
        return refused

    try:
        assert asyncio.run(write()) == 0
    finally:
        assert group.stop() == 0
