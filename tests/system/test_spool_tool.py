"""`dledger spool drain|show|requeue`, and TLS to the group, over real nodes and a real disk."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client import SpoolingProducer
from dledger.errors import InvalidArgument
from dledger.files.files import RealFiles
from dledger.rpc.status import Code
from dledger.server.client_certificate import self_signed
from dledger.sidecar.draining import Drained, Way, drain
from dledger.sidecar.upstream_tls import Reloading, TlsFiles
from e2e.harness.ports import free_port_range
from tests.sidecar.test_parent import RUN
from tests.system.live_nodes import LiveNodes
from tests.system.test_sidecar_live import TOPIC, Beside, stored
from tests.waiting import eventually

NOBODY = "127.0.0.1:9"
FILES = RealFiles()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[LiveNodes]:
    """Return a group of one node, with a topic of one queue."""
    made = LiveNodes(tmp_path)
    await made.found_with_topic(TOPIC)
    yield made
    await made.stop()


async def tool(*words: str) -> tuple[int, str, str]:
    """Run ``dledger spool``; return exit code, output and complaints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, "spool", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, errors = await process.communicate()
    return process.returncode or 0, out.decode(), errors.decode()


def way(*addresses: str) -> Way:
    """Return a way to the group in plain text."""
    return Way(addresses=addresses, tls=lambda: None, max_bytes=1 << 26)


async def spooled(directory: Path, *numbers: int) -> None:
    """Have a sidecar spool messages, and end."""
    async with Beside([NOBODY], directory) as beside:
        for number in numbers:
            assert await beside.send(number) == Code.OK


@pytest.mark.slow
async def test_a_drain_without_a_sidecar_brings_everything_itself(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """By the same replay; before, the messages are shown."""
    spool = tmp_path / "spool"
    await spooled(spool, *range(1, 21))
    _, shown, _ = await tool("show", "--dir", str(spool), "--json", "--limit", "3")
    at = ("--dir", str(spool), "--json", "--upstream", nodes.client_addresses[0])
    code, out, progress = await tool("drain", *at)
    again, _, _ = await tool("drain", "--dir", str(spool))
    found = await stored(nodes)

    assert [one["message_id"] for one in json.loads(shown)["messages"]] == [
        "000001",
        "000002",
        "000003",
    ]
    assert json.loads(shown)["more"] is True
    assert (code, json.loads(out)) == (0, {"left": 0, "rejected": 0, "by": "here"})
    assert "20 messages wait" in progress
    assert (again, found) == (0, list(range(1, 21)))


@pytest.mark.slow
async def test_a_drain_beside_a_sidecar_waits_for_it(nodes: LiveNodes, tmp_path: Path) -> None:
    """And says so when the time is over first."""
    spool, told = tmp_path / "spool", list[int]()
    await nodes.stop(0)
    async with Beside([nodes.client_address(0)], spool) as beside:
        for number in range(1, 31):
            assert await beside.send(number) == Code.OK
        early = await drain(FILES, spool, way(), timeout_s=0.2, tell=told.append)
        waits = asyncio.create_task(drain(FILES, spool, way(), timeout_s=60, tell=told.append))
        await eventually(lambda: len(told) >= 3, "progress")
        await nodes.start(0)
        late = await waits
        found = await stored(nodes)

    assert early == Drained(left=30, rejected=0, by_sidecar=True)
    assert late == Drained(left=0, rejected=0, by_sidecar=True)
    assert (told[0], found) == (30, list(range(1, 31)))


@pytest.mark.slow
async def test_a_drain_brings_what_a_python_producer_has_left(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """As that would: its own client id, its own ids."""
    spool = tmp_path / "spool"
    async with SpoolingProducer(NOBODY, spool, patience_s=0.1) as producer:
        sent = [await producer.send(TOPIC, b"hello") for _ in range(5)]

    done = await drain(
        FILES, spool, way(nodes.client_address(0)), timeout_s=60, tell=lambda _: None
    )

    async with nodes.client(0) as client:
        found = [one.record.message_id async for one in client.read(TOPIC, 0, linearizable=True)]
    assert done == Drained(left=0, rejected=0, by_sidecar=False)
    assert found == [one.message_id for one in sent]


@pytest.mark.slow
async def test_a_drain_says_what_was_refused_and_requeue_brings_it_after_all(
    nodes: LiveNodes, tmp_path: Path
) -> None:
    """A topic that was deleted, and made again: beside the running sidecar."""
    spool, upstream = tmp_path / "spool", nodes.client_addresses
    await nodes.stop(0)
    await nodes.where(auto_create_topics=False).start(0)
    await nodes.leader()
    async with Beside([NOBODY], spool, ("gone:NORMAL",)) as beside:
        for number in range(1, 4):
            assert await beside.send(number, topic="gone") == Code.OK
    code, out, said = await tool("drain", "--dir", str(spool), "--upstream", *upstream, "--json")
    _, rejected, _ = await tool("show", "--dir", str(spool), "--rejected")
    async with nodes.client(0) as client:
        await client.create_topic("gone", queues=1)
    async with Beside(upstream, spool) as beside:
        one, what, _ = await tool("requeue", "--dir", str(spool), "000002")
        rest, _, _ = await tool("requeue", "--dir", str(spool), "--all", "--json")
        await beside.drained()
        found = await stored(nodes, "gone")

    assert (code, json.loads(out)["rejected"]) == (1, 3), said
    assert rejected.count("refused: ") == 3
    assert (one, rest) == (0, 0), what
    assert found == [2, 1, 3]


@pytest.mark.slow
async def test_wrong_words_are_said_with_what_is_right(tmp_path: Path) -> None:
    """2: the usage; 1: the directory."""
    spool = str(tmp_path / "spool")
    nothing = await tool("drain", "--dir", spool)
    await spooled(tmp_path / "spool", 1)
    nowhere = await tool("drain", "--dir", spool, "--json")
    nobody = await tool("requeue", "--dir", spool, "000007")
    neither = await tool("requeue", "--dir", spool)
    alone = await tool("drain", "--dir", spool, "--upstream", NOBODY, "--upstream-ca-file", "x")
    late = await tool("drain", "--dir", spool, "--upstream", NOBODY, "--timeout", "0.5")

    assert nothing[0] == 1
    assert "it is no spool" in nothing[2]
    assert nowhere[0] == nobody[0] == neither[0] == alone[0] == 2
    assert "start it, or give --upstream" in json.loads(nowhere[1])["error"]["message"]
    assert "000007: not in rejected/" in nobody[2]
    assert "--all: one of the two" in neither[2]
    assert "go with --upstream-tls" in alone[2]
    assert (late[0], late[1]) == (1, "1 messages wait still\n")


# -- TLS to the group --------------------------------------------------------------------------


class Certificate:
    """A node's pair in files, and the one file of authorities that a sidecar believes."""

    def __init__(self, directory: Path) -> None:
        self.chain, self.key = directory / "tls.crt", directory / "tls.key"
        self.authorities = directory / "ca.crt"
        self.renew()
        self.believe()

    def renew(self) -> None:
        """Have another pair, of an authority of its own."""
        pair = self_signed("orders-0", "127.0.0.1")
        self.chain.write_bytes(pair.chain)
        self.key.write_bytes(pair.key)

    def believe(self) -> None:
        """Have the sidecar believe it."""
        self.authorities.write_bytes(self.chain.read_bytes())


@pytest.mark.slow
async def test_sends_and_replays_go_by_tls_and_files_that_are_replaced_count(
    tmp_path: Path,
) -> None:
    """A node with another certificate is away until the sidecar's file of authorities has it."""
    certificate, port = Certificate(tmp_path), free_port_range()
    nodes = LiveNodes(tmp_path).where(
        client_tls_port=port,
        tls_cert_file=str(certificate.chain),
        tls_key_file=str(certificate.key),
    )
    await nodes.found(0)
    async with nodes.client(0) as client:
        await client.create_topic(TOPIC, queues=1)
    tls = Reloading(TlsFiles(authorities=certificate.authorities))
    spool, there = tmp_path / "spool", [f"127.0.0.1:{port}"]
    try:
        async with Beside(there, spool, tls=tls) as beside:
            codes = [await beside.send(1)]
            direct = beside.sidecar.counters().stored
            await nodes.stop(0)
            certificate.renew()
            await nodes.start(0)
            await nodes.leader()
            codes += [await beside.send(2), await beside.send(3)]
            kept = beside.sidecar.counters().depth
            certificate.believe()
            await beside.drained()
            found = await stored(nodes)
        late = Way(addresses=there, tls=tls, max_bytes=1 << 26)
        await spooled(spool, 4)
        await drain(FILES, spool, late, timeout_s=60, tell=lambda _: None)
        drained = await stored(nodes)
    finally:
        await nodes.stop()

    assert codes == [Code.OK] * 3
    assert (direct, kept, found, drained) == (1, 2, [1, 2, 3], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("ca.crt", "no certificate", "ca.crt has no certificates that can be read"),
        ("tls.key", "no key", "are not a pair"),
        ("tls.crt", None, "No such file"),
    ],
)
def test_files_that_are_wrong_are_named(
    tmp_path: Path, name: str, text: str | None, why: str
) -> None:
    """At the start; later ones that are half replaced leave the former ones in use."""
    sound = Certificate(tmp_path)
    files: Any = TlsFiles(authorities=sound.authorities, pair=(sound.chain, sound.key))
    running = Reloading(files)
    before = running()
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)

    assert running() == before
    with pytest.raises(InvalidArgument, match=why):
        Reloading(files)
