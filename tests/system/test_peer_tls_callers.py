"""Who asks whole nodes with certificates: the command line, and the backup."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dledger.client import Record
from dledger.rpc.mutual_tls import DIRECTORY_ENV
from dledger_operator.cluster.issuing import Pair
from dledger_pipeline.errors import NodeUnavailable
from dledger_pipeline.log.export_client import ExportClient, choose_nodes
from tests.system.live_nodes import GROUP_ID
from tests.system.peer_certificates import Mounted
from tests.system.secure_nodes import NAMES, SecureNodes
from tests.waiting import eventually

_REFUSED, _UNAVAILABLE = 1, 4


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SecureNodes]:
    """Three nodes with certificates, not started yet; each is called localhost, too."""
    mounted = Mounted(tmp_path / "peer-tls")
    mounted.write(pairs_of(mounted))
    group = SecureNodes(tmp_path, mounted)
    yield group
    await group.stop()


def pairs_of(mounted: Mounted) -> dict[str, Pair]:
    """Return the nodes' certificates."""
    return {name: mounted.issue(f"member/{name}", name, "localhost") for name in NAMES}


def directory_of(nodes: SecureNodes, role: str, mode: str = "required") -> str:
    """Return a directory like the Secret that the operator makes for others than nodes."""
    directory = nodes.mounted.path.parent / f"{role}-{mode}"
    directory.mkdir(exist_ok=True)
    pair = nodes.mounted.issue(role)
    files = {"ca.crt": nodes.mounted.trusted, "tls.crt": pair.chain, "tls.key": pair.key}
    for name, text in {**files, "mode": mode.encode()}.items():
        (directory / name).write_bytes(text)
    return str(directory)


async def dledger(
    *args: str, given: bytes | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Run a command with ``--json``; return the exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dledger", *args, "--json"),
        stdin=asyncio.subprocess.PIPE if given is not None else None,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    out, _ = await process.communicate(given)
    assert process.returncode is not None
    return process.returncode, json.loads(out)


async def test_a_command_in_the_pod_of_a_node_has_the_nodes_certificate(
    nodes: SecureNodes,
) -> None:
    """It may ask how the node is, and not what is an administrator's."""
    await nodes.found(0, 1, 2)
    in_pod = {DIRECTORY_ENV: str(nodes.mounted.path), "DLEDGER_NAME": "orders-1"}
    at = ("--endpoint", nodes.peer_address(1))

    code, status = await dledger("status", *at, environment=in_pod)
    assert (code, status["name"]) == (0, "orders-1")
    code, members = await dledger("member", "list", *at, environment=in_pod)
    assert (code, len(members)) == (0, 3)

    code, said = await dledger("group", "list", *at, environment=in_pod)
    assert code == _REFUSED
    assert "'member/orders-1' may not call /dledger.v1.Admin/ListGroups" in str(said)
    code, _ = await dledger("status", *at)
    assert code == _UNAVAILABLE


async def test_an_administrators_command_reaches_the_leader_through_any_node(
    nodes: SecureNodes,
) -> None:
    """Each node on the way is known by its own name."""
    leader = await nodes.found(0, 1, 2)
    follower = (leader + 1) % 3
    admin = ("--tls-dir", directory_of(nodes, "admin"))
    at = ("--endpoint", nodes.peer_address(follower), "--tls-name", f"orders-{follower}")

    code, made = await dledger("topic", "create", "t", "--queues", "4", *at, *admin)
    assert (code, made["created"]) == (0, True)
    code, grown = await dledger("topic", "grow", "t", "--queues", "8", *at, *admin)
    assert (code, grown["before"]) == (0, 4)
    code, topics = await dledger("topic", "list", *at, *admin)
    assert (code, [each["queues"] for each in topics]) == (0, [8])
    client = ("--endpoint", nodes.client_address(follower))
    code, topics = await dledger("topic", "list", *client, *admin)
    assert (code, [each["queues"] for each in topics]) == (0, [8])
    code, members = await dledger("member", "list", *at, *admin)
    assert (code, sum(each["role"] == "leader" for each in members)) == (0, 1)

    wrong = ("--endpoint", nodes.peer_address(follower), "--tls-name", f"orders-{leader}")
    code, _ = await dledger("status", *wrong, *admin)
    assert code == _UNAVAILABLE


async def test_an_administrators_secret_can_come_by_the_standard_input(
    nodes: SecureNodes,
) -> None:
    """So in a node's pod a command is an administrator's without a file left there."""
    await nodes.found(0, 1, 2)
    pair = nodes.mounted.issue("admin")
    files = {"ca.crt": nodes.mounted.trusted, "tls.crt": pair.chain, "tls.key": pair.key}
    data = {name: base64.b64encode(text).decode() for name, text in files.items()}
    in_pod = {DIRECTORY_ENV: str(nodes.mounted.path), "DLEDGER_NAME": "orders-1"}
    to = ("group", "list", "--endpoint", nodes.peer_address(1), "--tls-dir", "-")

    code, said = await dledger(*to, given=json.dumps({"data": data}).encode(), environment=in_pod)
    assert (code, said) == (0, [])
    code, said = await dledger(*to, given=b"nothing", environment=in_pod)
    assert code == _REFUSED
    assert "no Secret in JSON" in str(said)


async def test_a_directory_that_lacks_a_file_is_named(nodes: SecureNodes) -> None:
    """It does not fall back to plain text."""
    directory = Path(directory_of(nodes, "admin"))
    (directory / "tls.key").unlink()
    code, said = await dledger(
        "status", "--endpoint", nodes.peer_address(0), "--tls-dir", str(directory)
    )
    assert code == _REFUSED
    assert "tls.key" in str(said)


async def test_a_backup_reads_from_nodes_with_its_own_certificate(
    nodes: SecureNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And while both are accepted, from those that have none yet."""
    nodes.mounted.write(pairs_of(nodes.mounted), mode="both")
    nodes.plain = {2}
    await nodes.found(0, 1, 2)
    async with nodes.client(0) as client:
        done = await client.append("t", [Record(body=b"x")])
    await eventually(lambda: all(nodes.status(n).commit_index >= done.index for n in range(3)))
    addresses = [nodes.peer_address(n).replace("127.0.0.1", "localhost") for n in range(3)]

    def export() -> list[int]:
        chosen = choose_nodes(addresses)
        assert chosen.group_id == GROUP_ID
        assert len(chosen.addresses) == 3
        found = []
        for address in addresses:
            with ExportClient(address) as client:
                one = client.plan().ranges[0]
                read = client.read(GROUP_ID, one.first_index, one.last_index)
                found.append(sum(1 for _ in read))
        return found

    def status(number: int) -> str:
        return choose_nodes([addresses[number]]).group_id

    monkeypatch.setenv(DIRECTORY_ENV, directory_of(nodes, "backup", mode="both"))
    assert all(await asyncio.to_thread(export))

    monkeypatch.setenv(DIRECTORY_ENV, directory_of(nodes, "backup"))
    assert await asyncio.to_thread(status, 0) == GROUP_ID
    with pytest.raises(NodeUnavailable):
        await asyncio.to_thread(status, 2)
