"""The unmodified RocketMQ Python SDK against our nodes (promise P12)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dledger.broker.commands import CreateTopic
from dledger.broker.topics import DELAY
from dledger.client.admin_client import AdminClient
from dledger.common.metrics import NodeMetrics
from dledger.replica.firing import Firing
from dledger.requests.config import RequestConfig
from dledger.server.client_certificate import self_signed
from tests.requests.memory_group import MemoryGroup, memory_group
from tests.waiting import eventually

_PROGRAM = Path(__file__).with_name("sdk_session.py")
_DEADLINE_S = 60


@asynccontextmanager
async def _session(
    story: str, endpoints: str, home: Path, **environment: str
) -> AsyncIterator[Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_PROGRAM),
        story,
        endpoints,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"HOME": str(home)} | environment,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _tell(story: str, endpoints: str, home: Path, **environment: str) -> dict[str, Any]:
    """Run a story of `sdk_session` to its end and return what it reports."""
    async with (
        asyncio.timeout(_DEADLINE_S),
        _session(story, endpoints, home, **environment) as session,
    ):
        report: dict[str, Any] = json.loads(await session.stdout.read())
        return report


def _endpoints(group: MemoryGroup) -> str:
    return ";".join(f"127.0.0.1:{node.port}" for node in group.nodes)


async def test_a_simple_consumer_gets_each_message_of_its_tag_once(tmp_path: Path) -> None:
    """Every second of 40 messages, undamaged, none left after the acks; the node is a follower."""
    async with memory_group(3) as group:
        group.elect(2)
        report = await _tell("simple", f"127.0.0.1:{group.nodes[0].port}", tmp_path)

    assert report == {
        "bodies": list(range(0, 40, 2)),
        "facts": ["even {'key'} {'name': 'value'} False"],
        "left": 0,
    }


async def test_a_simple_consumer_gives_a_message_back(tmp_path: Path) -> None:
    """ChangeInvisibleDuration through the SDK: the second delivery has attempt 2."""
    async with memory_group() as group:
        report = await _tell("change", _endpoints(group), tmp_path)

    assert report == {"attempts": [1, 2]}


@pytest.mark.contract
async def test_a_push_consumer_gets_each_message_once(tmp_path: Path) -> None:
    """Those sent before it started and after; its start does not hang on the first Settings."""
    async with memory_group(3) as group:
        report = await _tell("push", _endpoints(group), tmp_path)

    assert report["complete"]
    assert report["times"] == [1]
    assert report["startup_s"] < 8


async def test_a_push_consumer_that_fails_gets_the_message_again(tmp_path: Path) -> None:
    """The back-off of the Settings makes it a second later."""
    async with memory_group() as group:
        report = await _tell("push_retry", _endpoints(group), tmp_path)

    assert report["complete"]


async def test_a_poison_message_is_a_dead_letter_though_the_leader_changes(tmp_path: Path) -> None:
    """After as many deliveries as its group allows; all others come, those sent later, too."""
    async with (
        memory_group(3) as group,
        asyncio.timeout(_DEADLINE_S),
        AdminClient(f"127.0.0.1:{group.nodes[0].peer_port}") as admin,
    ):
        await admin.create_group("poison")
        await admin.set_group("poison", max_attempts=3, backoff_ms=(300,))
        async with _session("poison", _endpoints(group), tmp_path) as session:
            await session.stdout.readline()
            group.elect(1)
            topics = group.nodes[1].engine.state.topics
            await eventually(lambda: topics.get("%DLQ%poison") is not None, deadline_s=_DEADLINE_S)
            output, _ = await session.communicate(b"go\n")
            report = json.loads(output)

    assert report == {
        "failed": 3,
        "others": list(range(1, 10)),
        "dead": ["0", "even", ["key"], {"name": "value"}],
    }


async def test_a_push_consumer_works_through_message_groups_in_order(tmp_path: Path) -> None:
    """It is told that its topic is FIFO, tries again where it is; the leader changes meanwhile."""
    async with memory_group(3) as group, asyncio.timeout(_DEADLINE_S):
        await group.nodes[0].engine.propose(CreateTopic(name="f", type="FIFO", queues=2).encode())
        async with _session("fifo", _endpoints(group), tmp_path) as session:
            await session.stdout.readline()
            group.elect(1)
            output, _ = await session.communicate(b"go\n")
            report = json.loads(output)

    assert report == {"groups": {name: list(range(10)) for name in "abcd"}, "failed": [*"abcd"]}


@pytest.mark.found
async def test_a_rolling_change_of_a_push_consumers_filter_loses_nothing(tmp_path: Path) -> None:
    """The old version passes over what only the new one names: 100 of 100 come."""
    async with (
        memory_group() as group,
        asyncio.timeout(_DEADLINE_S),
        _session("rolling", _endpoints(group), tmp_path) as session,
    ):
        await session.stdout.readline()
        groups, now_ms = group.nodes[0].engine.state.groups, group.now_ms
        for tags in (("even",), ("even", "odd")):
            await eventually(lambda: groups.is_filter_said("rolling", "t", tags, now_ms()))  # noqa: B023
        output, _ = await session.communicate(b"go\n")
        report = json.loads(output)

    assert report == {"bodies": list(range(100))}


@pytest.mark.found
async def test_two_simple_consumers_of_one_group_get_their_own_tags(tmp_path: Path) -> None:
    """The first takes all that it names before the second asks."""
    async with memory_group() as group:
        report = await _tell("two_tags", _endpoints(group), tmp_path)

    assert report == {"even": list(range(0, 100, 2)), "odd": list(range(1, 100, 2))}


async def test_a_producer_does_not_notice_a_change_of_leader(
    tmp_path: Path, pauses: list[float]
) -> None:
    """For a while there is none, then another: no send fails, nothing is lost or stored twice."""
    async with (
        memory_group(3) as group,
        asyncio.timeout(_DEADLINE_S),
        _session("steady", _endpoints(group), tmp_path) as session,
    ):
        topics = group.nodes[2].engine.state.topics
        await session.stdout.readline()
        await eventually(lambda: topics.messages("t") > 10)
        group.elect(None)
        group.lose_outcomes = 1
        await eventually(lambda: len(pauses) > 2)
        without_leader = topics.messages("t")
        group.elect(1)
        await eventually(lambda: topics.messages("t") > without_leader + 10)
        session.stdin.close()
        report = json.loads(await session.stdout.read())
        stored = topics.messages("t")

    assert report["acked"] == list(range(len(report["acked"])))
    assert len(report["acked"]) == stored


async def test_a_delayed_message_comes_when_it_is_due_or_is_recalled(tmp_path: Path) -> None:
    """By the SDK's own words, also where it comes too late; it asks a follower."""
    async with memory_group(3) as group:
        group.elect(2)
        await group.commit(CreateTopic(name="d", type=DELAY.name, queues=2).encode())
        leader = group.nodes[2].engine
        firing = Firing(leader, NodeMetrics("orders", "orders-2"))
        work = asyncio.create_task(firing.run())
        report = await _tell("delay", _endpoints(group), tmp_path)
        work.cancel()

    assert report["body"] == "delivered"
    assert report["is_told"]
    assert report["is_recalled"]
    assert not report["is_early"]
    assert "was delivered" in report["raised"]


async def test_the_sdk_names_what_was_refused(tmp_path: Path) -> None:
    """A producer is told that its topic does not exist."""
    async with memory_group(config=RequestConfig(auto_create_topics=False)) as group:
        report = await _tell("refused", _endpoints(group), tmp_path)

    assert "nowhere" in report["raised"]


@pytest.mark.contract
async def test_tls_clients_stay_on_tls(tmp_path: Path) -> None:
    """The route asked through the TLS port leads to TLS ports, or sending would fail."""
    pair = self_signed("orders", "127.0.0.1")
    roots = tmp_path / "roots.pem"
    roots.write_bytes(pair.chain)
    async with memory_group(2, tls=(pair.key, pair.chain)) as group:
        report = await _tell(
            "tls",
            f"127.0.0.1:{group.nodes[1].tls_port}",
            tmp_path,
            GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(roots),
        )

    assert report == {"sent": 5}


@pytest.mark.parametrize("sdk_first", [False, True])
async def test_a_node_loads_the_protocol_without_the_sdk(tmp_path: Path, sdk_first: bool) -> None:
    """A node has a read-only file system, and the SDK wants to write logs as soon as it loads."""
    home = tmp_path / "home"
    program = (
        ("import rocketmq;" if sdk_first else "")
        + "import sys; from dledger.rpc.rocketmq_stubs import definition as d;"
        + "print('rocketmq.v5' in sys.modules, d.Code.OK);"
        + "import rocketmq; print(rocketmq.Producer.__name__)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    output, _ = await process.communicate()

    assert output.decode().split() == [str(sdk_first), "20000", "Producer"]
