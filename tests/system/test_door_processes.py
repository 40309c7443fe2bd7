"""Real door processes before real nodes: what happens when one dies, hangs or cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from dledger.door_process import supervisor
from dledger.door_process.supervisor import DoorProcesses
from dledger.server.client_certificate import self_signed
from dledger.server.node_report import load_of
from e2e.harness.ports import free_port_range
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually, eventually_async

RETRY_S = 0.05
_AGAIN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


def doors(live: LiveNodes, number: int = 0) -> DoorProcesses:
    found = live.nodes[number]._servers.doors
    assert found is not None
    return found


def client_of(live: LiveNodes, number: int = 0, client_id: str = "client-1") -> RocketClient:
    return RocketClient(live.settings(number).client_port, client_id)


async def serving(live: LiveNodes, number: int = 0, count: int = 1) -> DoorProcesses:
    found = doors(live, number)
    await eventually(lambda: found.serving == count)
    return found


async def in_the_end(call: Callable[[], Awaitable[Any]]) -> Any:
    """Do as an SDK does: call again while it cannot be known what became of it."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AGAIN:
                    raise
            await asyncio.sleep(RETRY_S)


def is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def metric(live: LiveNodes, name: str, number: int = 0, **labels: str) -> float:
    registry = live.nodes[number]._metrics.registry
    own = {"group": "orders", "node": f"orders-{number}"}
    return registry.get_sample_value(name, own | labels) or 0.0


@pytest.fixture
async def live(unfounded: LiveNodes) -> LiveNodes:
    """Return a group of three whose clients come through one door at each node."""
    live = unfounded.where(door_processes=1)
    await live.found(0, 1, 2)
    return live


async def test_a_door_serves_leader_and_followers(live: LiveNodes) -> None:
    """What is sent through any of them is received through any, acknowledged and counted."""
    leader = await live.leader()
    for number in live.nodes:
        await serving(live, number)
    follower = (leader + 1) % 3
    async with client_of(live, leader) as near, client_of(live, follower) as far:
        sent = [
            await near.send(message(1)),
            await far.send(message(2)),
            await near.send(message(3)),
        ]
        got = await far.receive(batch=10, queue_id=-1, wait_s=5)
        more = await near.receive(batch=10, queue_id=-1, wait_s=0)
        messages = [*got[1], *more[1]]
        acked = await near.ack(*messages)

    assert [*(code(each.status) for each in sent), code(acked.status)] == ["OK"] * 4
    assert sorted(each.system_properties.message_id for each in messages) == sorted(
        each.entries[0].message_id for each in sent
    )
    requests = "dledger_requests_total"
    assert metric(live, requests, leader, method="SendMessage", code="OK") == 3
    assert metric(live, requests, leader, method="AckMessage", code="OK") == 1


async def test_the_native_protocol_goes_through_a_door(live: LiveNodes) -> None:
    """Its streams, in both directions, and bodies of megabytes."""
    leader = await live.leader()
    bodies = [bytes([number]) * (3 << 20) for number in range(4)]
    async with live.client(leader) as client:
        await client.append("big", bodies[:2], queue_id=0)
        await client.append("big", bodies[2:], queue_id=0)
        read = [stored.record.body async for stored in client.read("big", 0)]

    assert read == bodies


async def test_a_killed_door_costs_its_connections_alone(live: LiveNodes) -> None:
    """Clients that repeat their calls lose and double nothing; the node holds nothing of it."""
    leader = await live.leader()
    found = await serving(live, leader)
    killed: list[int] = []
    async with client_of(live, leader) as client:
        await client.send(message(1))

        async def send(number: int) -> Any:
            return await in_the_end(lambda: client.send(message(number), timeout_s=10))

        sends = [asyncio.ensure_future(send(number)) for number in range(2, 202)]
        waiting = asyncio.ensure_future(client.receive("t", queue_id=0, wait_s=30))
        while not all(each.done() for each in sends):
            pid = found.pids[0] if found.pids and found.serving else None
            if len(killed) < 3 and pid and pid not in killed[-1:]:  # or the last one
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            await asyncio.sleep(0.1)
        answers = [await each for each in sends]
        waiting.cancel()

    admission = live.nodes[leader]._parts.context.admission
    assert killed
    assert {code(each.status) for each in answers} == {"OK"}
    async with live.client(leader) as reader:
        stored = [
            one.record.message_id for queue in range(8) async for one in reader.read("t", queue)
        ]
    assert len(stored) == len(set(stored)) == 201
    await eventually(lambda: metric(live, "dledger_door_restarts_total", leader) >= len(killed))
    await eventually(lambda: admission.taken == 0 and found.under_way == 0)
    assert live.nodes[leader].engine.is_leader()


async def test_a_door_that_hangs_is_replaced(
    live: LiveNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed, though it cannot be asked to go."""
    monkeypatch.setattr(supervisor, "TICK_S", 0.5)  # so 4 s: a loaded machine may take two
    leader = await live.leader()
    found = await serving(live, leader)
    (hanging,) = found.pids
    os.kill(hanging, signal.SIGSTOP)

    await eventually(lambda: found.serving == 1 and found.pids != [hanging])
    async with client_of(live, leader) as client:
        sent = await client.send(message(1))

    assert code(sent.status) == "OK"
    assert is_gone(hanging)


async def test_a_node_whose_doors_cannot_start_is_not_ready(
    unfounded: LiveNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so in its log, and tries again; clients are served once one starts."""
    python = sys.executable
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.05)
    live = unfounded.where(door_processes=2)
    await live.found(0)
    node = live.nodes[0]
    await eventually(lambda: metric(live, "dledger_door_restarts_total") >= 4)

    assert "no door process serves" in node._ready_problem()
    assert "door process 1 ended" in caplog.text
    monkeypatch.setattr(sys, "executable", python)
    await serving(live, 0, 2)
    assert not node._ready_problem()


async def test_a_stopping_node_drains_through_its_doors(
    unfounded: LiveNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way has its grace; the doors end by themselves, with the node."""
    monkeypatch.setattr("dledger.server.node._CALLS_GRACE_S", 5)
    live = unfounded.where(door_processes=2)
    await live.found(0)
    found = await serving(live, 0, 2)
    pids, exits = found.pids, []
    for door in found._doors:
        assert door.process is not None
        exits.append(door.process)
    async with client_of(live) as client:
        await client.send(message(1))
        await client.receive(batch=1)
        waiting = asyncio.ensure_future(client.receive(queue_id=0, wait_s=20))
        await eventually(lambda: load_of(live.nodes[0]._parts).waiting_polls == 1)
        await live.stop(0)
        status, _, _ = await waiting

    assert code(status) == "MESSAGE_NOT_FOUND"
    assert [each.returncode for each in exits] == [0, 0]
    assert all(map(is_gone, pids))


async def test_doors_show_the_newest_certificate(
    unfounded: LiveNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS a door is as the node is, and follows the files."""
    monkeypatch.setattr(supervisor, "TICK_S", 0.2)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(name: str) -> bytes:
        pair = self_signed(name, "127.0.0.1")
        certificate.write_bytes(pair.chain)
        key.write_bytes(pair.key)
        return pair.chain

    first = write("first")
    live = unfounded.where(door_processes=1, tls_cert_file=str(certificate), tls_key_file=str(key))
    port = live.settings(0).client_port + 100
    live.where(client_tls_port=port)
    await live.found(0)
    await serving(live)

    def shown() -> bytes:
        return ssl.get_server_certificate(("127.0.0.1", port)).encode()

    assert await asyncio.to_thread(shown) == first
    second = write("second")

    async def shows_it() -> bool:
        return await asyncio.to_thread(shown) == second

    await eventually_async(shows_it, "the second certificate")

    credentials = grpc.ssl_channel_credentials(second)
    async with client_of(live) as client:
        await client.channel.close()
        client.channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)
        assert code((await client.send(message(1))).status) == "OK"


async def test_doors_end_with_a_killed_node(tmp_path: Path) -> None:
    """At once, or clients would be kept from the other nodes."""
    port = free_port_range()
    settings = {
        "name": "orders-0",
        "group": "orders",
        "data_dir": str(tmp_path),
        "advertise_host": "127.0.0.1",
        "listen_host": "127.0.0.1",
        "client_port": str(port),
        "client_tls_port": "0",
        "peer_port": str(port + 200),
        "replication_port": "0",
        "http_port": str(port + 300),
        "door_processes": "2",
    }
    given = os.environ | {f"DLEDGER_{key.upper()}": value for key, value in settings.items()}
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dledger", "node", env=given, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        pids = await eventually(lambda: _children(node.pid))
        await eventually(lambda: all(map(_listens, pids)))
    finally:
        node.kill()
        await node.wait()

    await eventually(lambda: all(map(is_gone, pids)), deadline_s=5)


def _children(pid: int) -> list[int]:
    """Return its two doors, once both are there."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return list(map(int, found)) if len(found) == 2 else []


def _listens(pid: int) -> bool:
    """Whether a door is past its imports: until then only the system ends it with its node."""
    return "dledger.door_process" in Path(f"/proc/{pid}/cmdline").read_text("ascii")
