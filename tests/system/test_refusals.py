"""What a node process refuses, with which exit code, and what it says."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AdminClient, Client
from dledger.errors import AlreadyBootstrapped, DiskFull, OutcomeUnknown, UnknownTopic
from dledger.files.files import RealFiles
from dledger.store.format import WATERMARK_BYTES
from dledger.store.tombstone import Tombstone, save_tombstone
from dledger.types import Member, NodeId
from e2e.harness.dev_group import DevGroup
from e2e.harness.ports import free_port_range
from tests.waiting import eventually_blocking

SMALL_SEGMENTS = "segment_bytes=4194304"


def run_node(data: Path, client_port: int, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run one node until it ends by itself."""
    chosen = {
        "name": "node-0",
        "group": "dev",
        "data_dir": str(data),
        "advertise_host": "127.0.0.1",
        "listen_host": "127.0.0.1",
        "client_port": str(client_port),
        "client_tls_port": str(client_port + 100),
        "peer_port": str(client_port + 200),
        "http_port": str(client_port + 300),
        **settings,
    }
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DLEDGER_")}
    environ |= {f"DLEDGER_{key.upper()}": value for key, value in chosen.items() if value}
    return subprocess.run(
        [sys.executable, "-m", "dledger", "node"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data directory of a group of one that holds a few messages; not running."""
    group = DevGroup(tmp_path / "data", free_port_range(), SMALL_SEGMENTS, nodes=1)
    endpoint = group.announced()["endpoints"][0]

    async def write() -> None:
        async with Client(endpoint) as client:
            for number in range(20):
                await client.append("topic", [f"message {number}".encode() * 20])

    asyncio.run(write())
    group.stop()
    return tmp_path / "data" / "node-0"


@pytest.mark.slow
def test_a_missing_setting_is_exit_2_with_the_keys_name(tmp_path: Path) -> None:
    """Nothing is guessed."""
    ended = run_node(tmp_path, free_port_range(), group="")

    assert ended.returncode == 2
    assert "group" in ended.stderr


@pytest.mark.slow
def test_a_config_file_that_is_not_there_is_exit_2(tmp_path: Path) -> None:
    """With its path."""
    missing = tmp_path / "absent.toml"

    ended = subprocess.run(
        [sys.executable, "-m", "dledger", "node", "--config", str(missing)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert str(missing) in ended.stderr


@pytest.mark.slow
def test_the_data_of_another_node_is_exit_3_naming_both(data: Path) -> None:
    """A volume mounted into the wrong pod must not vote under its name."""
    ended = run_node(data, free_port_range(), name="node-1")

    assert ended.returncode == 3
    assert "dev/node-0" in ended.stderr
    assert "dev/node-1" in ended.stderr


@pytest.mark.slow
def test_a_removed_node_is_exit_3_saying_what_to_do(data: Path) -> None:
    """Its group removed it: neither a vote nor a return with this disk."""
    identity = json.loads((data / "identity.json").read_text())
    tombstone = Tombstone(
        group_id=identity["group_id"], node_id=identity["node_id"], index=7, learned_at_ms=0
    )
    save_tombstone(RealFiles(), data, tombstone)

    ended = run_node(data, free_port_range())

    assert ended.returncode == 3
    assert f"was removed from group {identity['group_id']} by entry 7" in ended.stderr
    assert "start with an empty data directory" in ended.stderr


@pytest.mark.slow
def test_a_member_removed_from_a_running_group_ends_and_the_others_go_on(tmp_path: Path) -> None:
    """Real processes, and the command as an administrator types it."""
    group = DevGroup(tmp_path / "data", free_port_range(), SMALL_SEGMENTS)
    state = group.announced()
    removed = (state["leader"] + 1) % 3
    command = ["member", "remove", f"node-{removed}", "--endpoint"]

    said = subprocess.run(
        [sys.executable, "-m", "dledger", *command, state["adminEndpoints"][state["leader"]]],
        capture_output=True,
        text=True,
        check=True,
    )
    eventually_blocking(lambda: group.state()["pids"][removed] is None, "the removed node ends", 20)

    async def write() -> None:
        async with Client(state["endpoints"][state["leader"]]) as client:
            await client.append("topic", [b"after"])

    asyncio.run(write())
    assert group.stop() == 0
    assert said.stdout.startswith(f"node-{removed} removed; members: ")
    assert (tmp_path / "data" / f"node-{removed}" / "removed.json").exists()


@pytest.mark.slow
def test_the_log_of_another_group_is_exit_3_naming_both(data: Path, tmp_path: Path) -> None:
    """A log copied under another identity is refused by its segments' headers."""
    other = DevGroup(tmp_path / "other", free_port_range(), SMALL_SEGMENTS, nodes=1)
    other.announced()
    other.stop()
    ours = json.loads((data / "identity.json").read_text())
    theirs = json.loads((tmp_path / "other/node-0/identity.json").read_text())
    shutil.rmtree(data / "log")
    shutil.copytree(tmp_path / "other/node-0/log", data / "log")

    ended = run_node(data, free_port_range(), segment_bytes="4194304")

    assert ended.returncode == 3
    assert ours["group_id"] in ended.stderr or ours["node_id"] in ended.stderr
    assert theirs["group_id"] in ended.stderr or theirs["node_id"] in ended.stderr


@pytest.mark.slow
def test_rot_of_both_copies_is_exit_3_naming_segment_and_offset(data: Path) -> None:
    """P7: a synced record of which nothing is known any more is not taken for a torn tail."""
    with (data / "log" / "watermark").open("r+b") as file:
        file.truncate(WATERMARK_BYTES)
    (segment,) = (data / "log").glob("*.seg")
    content = bytearray(segment.read_bytes())
    position = content.index(b"message 3")
    content[position] ^= 1
    segment.write_bytes(content)

    ended = run_node(data, free_port_range(), segment_bytes="4194304")

    assert ended.returncode == 3
    assert segment.stem in ended.stderr
    assert "offset" in ended.stderr


@pytest.mark.slow
def test_two_processes_cannot_use_one_directory(tmp_path: Path) -> None:
    """The second is exit 3 and names the directory."""
    group = DevGroup(tmp_path / "data", free_port_range(), nodes=1)
    group.announced()

    ended = run_node(tmp_path / "data/node-0", free_port_range())
    group.stop()

    assert ended.returncode == 3
    assert str(tmp_path / "data/node-0") in ended.stderr


@pytest.mark.slow
def test_a_group_is_founded_once_and_topics_can_be_required(tmp_path: Path) -> None:
    """A second Bootstrap is refused; so is an unknown topic where auto-creation is off."""
    group = DevGroup(tmp_path / "data", free_port_range(), "auto_create_topics=false", nodes=1)
    state = group.announced()

    async def ask() -> None:
        async with AdminClient(state["adminEndpoints"][0]) as admin:
            status = await admin.status()
            member = Member(id=NodeId(status.node_id), name="node-0", address="127.0.0.1:1")
            with pytest.raises(AlreadyBootstrapped, match=status.group_id):
                await admin.bootstrap("another", [member])
        async with Client(state["endpoints"][0], timeout_s=5) as client:
            with pytest.raises(UnknownTopic, match="nowhere"):
                await client.append("nowhere", [b"x"])
            await client.create_topic("somewhere")
            await client.append("somewhere", [b"x"])

    asyncio.run(ask())
    group.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a mounted tmpfs of 160 MiB; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.slow
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(small_disk: Path) -> None:
    """Typed refusal while there is no room, and no restart needed when there is again."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(60 << 20))
    keeps_all = "disk_watermark_percent=0"
    group = DevGroup(small_disk / "data", free_port_range(), SMALL_SEGMENTS, keeps_all)
    state = group.announced()
    batch = [bytes([65]) * 32_768] * 8

    async def fill() -> tuple[int, int]:
        acknowledged = doubtful = 0
        async with Client(state["endpoints"][0], timeout_s=20) as client:
            for _ in range(1000):
                try:
                    await client.append("topic", batch, queue_id=0)
                    acknowledged += len(batch)
                except OutcomeUnknown:  # with which the disk filled: it may be in the log
                    doubtful += len(batch)
                except DiskFull:
                    return acknowledged, doubtful
        raise AssertionError("the disk never filled up")

    async def read_back(endpoint: str) -> int:
        async with Client(endpoint) as client:
            return len([stored async for stored in client.read("topic", 0)])

    def stored() -> list[int]:
        return [asyncio.run(read_back(endpoint)) for endpoint in state["endpoints"]]

    async def write_again() -> bool:
        async with Client(state["endpoints"][0], timeout_s=5) as client:
            try:
                await client.append("topic", batch, queue_id=0)
            except (DiskFull, OutcomeUnknown):
                return False
            return True

    try:
        acknowledged, doubtful = asyncio.run(fill())
        # a follower without room may be behind; what was refused by name is nowhere
        known = range(acknowledged, acknowledged + doubtful + 1, len(batch))
        eventually_blocking(lambda: max(stored()) in known, "all is read", 30)
        ballast.unlink()
        eventually_blocking(lambda: asyncio.run(write_again()), "writes are taken again", 30)
        eventually_blocking(lambda: min(stored()) > acknowledged, "every node has all", 30)
        assert _all_alive(group.state())
    finally:
        assert group.stop() == 0


def _all_alive(state: dict[str, Any]) -> bool:
    return all(Path(f"/proc/{pid}").exists() for pid in state["pids"])
