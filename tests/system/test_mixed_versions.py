"""A group during a rollout: nodes of this version and of a made-up next one, under load."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from crc32c import crc32c

from dledger.broker import snapshot_codec
from dledger.broker import state as broker_state
from dledger.broker.command_frame import split
from dledger.broker.results import TopicCreated
from dledger.broker.state import BrokerState
from dledger.cli import node_command
from dledger.cli.main import main
from dledger.errors import (
    CorruptFile,
    FeatureNotReady,
    NewerCommand,
    NewerFormat,
    NodeRemoved,
    NotLeader,
    Unavailable,
)
from dledger.store.format import FORMAT_VERSION
from dledger.types import EntryKind, NodeId
from tests.broker.next_version import CLONE_TOPIC, CloneTopic
from tests.system.live_nodes import LiveNodes
from tests.waiting import eventually, eventually_works

_CLONE = CloneTopic(topic="orders", copy="orders-2")
_OLD, _NEW = 1, 2


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet."""
    return unfounded


class _Load:
    """Producers that go on whatever happens; *acked* are the messages that are stored."""

    def __init__(self, live: LiveNodes, *numbers: int) -> None:
        self._live, self._numbers = live, numbers
        self.acked = 0

    async def __aenter__(self) -> _Load:
        self._tasks = [asyncio.create_task(self._produce(number)) for number in self._numbers]
        await self.goes_on()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def goes_on(self, more: int = 20) -> None:
        """Wait until so many more messages are stored."""
        wanted = self.acked + more
        await eventually(lambda: self.acked >= wanted)

    async def _produce(self, number: int) -> None:
        async with self._live.client(number) as client:
            while True:
                await eventually_works(lambda: client.append("orders", [b"x"]))
                self.acked += 1


async def _found(live: LiveNodes, *numbers: int) -> int:
    leader = await live.found(*numbers)
    async with live.client(leader) as client:
        await client.create_topic("orders", "NORMAL", 4)
    return leader


async def _lead(live: LiveNodes, number: int) -> None:
    """Have node *number* lead; a hand-over may come to nothing, then it is asked for again."""

    async def hand_over() -> None:
        leader = await live.leader()
        if leader != number:
            live.nodes[leader].transfer_leadership(live.nodes[number].node_id)
            raise Unavailable("under way")

    await eventually_works(hand_over)


async def _restart(live: LiveNodes, number: int, *, newer: bool) -> None:
    await live.stop(number)
    (live.newer.add if newer else live.newer.discard)(number)
    await live.start(number)


async def _clone(live: LiveNodes, number: int) -> object:
    """Have node *number* propose it; if its disk was so slow that it stepped down, it leads first.

    Raises:
        FeatureNotReady: A member is too old.
    """
    while True:
        try:
            return await live.nodes[number].engine.propose(_CLONE.encode())
        except NotLeader:
            await _lead(live, number)


def _topics(live: LiveNodes, number: int) -> list[str]:
    return [topic.name for topic in live.nodes[number].engine.state.topics.all()]


def _levels(live: LiveNodes, asked: int) -> dict[str, int]:
    return {row.member.name: row.feature_level for row in live.status(asked).members}


def _is_newer(live: LiveNodes, number: int) -> bool:
    return _levels(live, 2)[f"orders-{number}"] == 2


async def _agree(live: LiveNodes, *numbers: int) -> None:
    """Wait until these nodes have applied all there is; they come to one state."""
    states = [live.nodes[number].engine.state for number in numbers]
    await eventually(lambda: len({state.applied_index for state in states}) == 1)
    assert len({state.digest() for state in states}) == 1


def _prefix(live: LiveNodes, of: int, applied_index: int) -> BrokerState:
    """Return what this version makes of a node's log up to an entry."""
    state, log = BrokerState(), live.nodes[of]._log
    assert log is not None
    for entry in log.read(1, applied_index, 1 << 30):
        if entry.kind is EntryKind.DATA:
            state.apply(entry)
    return state


def _index_of_clone(live: LiveNodes, number: int) -> int:
    """Return the first entry that only the next version knows."""
    log = live.nodes[number]._log
    assert log is not None
    return next(
        entry.index
        for entry in log.read(1, log.last_index, 1 << 30)
        if entry.kind is EntryKind.DATA
        and any(kind == CLONE_TOPIC for kind, _, _ in split(entry.data))
    )


async def test_a_newer_leader_proposes_nothing_that_an_older_member_does_not_know(
    live: LiveNodes,
) -> None:
    """FeatureNotReady names who holds it back; the load goes on; the last upgrade frees it."""
    live.newer.add(2)
    await _found(live, 0, 1, 2)
    await _lead(live, 2)
    await eventually(lambda: _levels(live, 2) == {"orders-0": 1, "orders-1": 1, "orders-2": 2})

    async with _Load(live, 0, 1, 2) as load:
        for number in (0, 1):
            with pytest.raises(FeatureNotReady, match=rf"level 2, and member orders-{number} is"):
                await _clone(live, 2)
            await load.goes_on()
            await _restart(live, number, newer=True)
            await eventually(partial(_is_newer, live, number))
            await _lead(live, 2)
        result = await eventually_works(lambda: _clone(live, 2))
        await load.goes_on()

    assert isinstance(result, TopicCreated)
    await eventually(lambda: all("orders-2" in _topics(live, number) for number in range(3)))
    await _agree(live, 0, 1, 2)
    assert live.nodes[2].engine.state.topics.messages("orders") >= load.acked
    assert not live.ended


async def test_a_learner_that_is_older_holds_a_feature_back(live: LiveNodes) -> None:
    """It gets every entry, though it has no vote; before it was heard it counts as the lowest."""
    live.newer |= {0, 1, 2}
    leader = await _found(live, 0, 1, 2)
    await eventually(lambda: set(_levels(live, leader).values()) == {2})
    await live.start(3)

    async with live.admin(leader) as admin:
        await admin.add_learner(live.member(3))
    with pytest.raises(FeatureNotReady, match="member orders-3"):
        await _clone(live, leader)

    await eventually(lambda: "orders" in _topics(live, 3))
    assert 3 not in live.ended


async def test_a_member_that_is_down_holds_back_nothing_that_the_log_has_had(
    live: LiveNodes,
) -> None:
    """A leader that is younger than the outage has not heard it: its state says what it must know.

    From the log, and from a snapshot alone.
    """
    live.newer |= {0, 1, 2}
    leader = await _found(live, 0, 1, 2)
    await eventually(lambda: set(_levels(live, leader).values()) == {2})
    await _clone(live, leader)
    await eventually(lambda: all("orders-2" in _topics(live, number) for number in range(3)))
    down = next(number for number in range(3) if number != leader)
    up = [number for number in range(3) if number != down]
    await live.stop(down)

    for number in up:
        await _restart(live, number, newer=True)
    leader = await live.leader()
    assert _levels(live, leader)[f"orders-{down}"] == 0
    await live.nodes[leader].engine.propose(CloneTopic(topic="orders", copy="orders-3").encode())
    async with live.admin(leader) as admin:
        await admin.snapshot()
    await _restart(live, leader, newer=True)
    leader = await live.leader()
    await live.nodes[leader].engine.propose(CloneTopic(topic="orders", copy="orders-4").encode())

    await live.start(down)
    await eventually(lambda: "orders-4" in _topics(live, down))
    await _agree(live, 0, 1, 2)
    assert not live.ended


async def test_an_older_node_that_is_put_back_stops_by_name_and_others_go_on(
    live: LiveNodes,
) -> None:
    """It applies nothing of what it does not know; with the newer version it catches up."""
    live.newer |= {0, 1, 2}
    await _found(live, 0, 1, 2)
    await _lead(live, 2)
    await eventually(lambda: set(_levels(live, 2).values()) == {2})
    async with _Load(live, 1, 2) as load:
        await live.stop(0)
        await load.goes_on()
        await _clone(live, 2)
        live.newer.discard(0)
        await live.start(0)

        stopped_by = await eventually(lambda: live.ended.get(0))
        await load.goes_on()
        index = _index_of_clone(live, 2)
        older = live.nodes[0].engine.state
        assert isinstance(stopped_by, NewerCommand)
        assert (stopped_by.index, stopped_by.what) == (index, f"a command of type {CLONE_TOPIC}")
        assert older.applied_index < index
        assert older.digest() == _prefix(live, 2, index - 1).digest()
        live.ended.clear()
        await _restart(live, 0, newer=True)
        await eventually(lambda: "orders-2" in _topics(live, 0))
        await load.goes_on()

    await _agree(live, 0, 1, 2)
    assert not live.ended


async def test_a_node_that_went_back_stops_at_what_it_had_applied_before(live: LiveNodes) -> None:
    """Its own log holds it: at each start it comes so far and no further, and harms nothing."""
    live.newer |= {0, 1, 2}
    leader = await _found(live, 0, 1, 2)
    await eventually(lambda: set(_levels(live, leader).values()) == {2})
    await _clone(live, leader)
    back = next(number for number in range(3) if number != leader)
    await eventually(lambda: "orders-2" in _topics(live, back))

    for _ in range(2):
        await _restart(live, back, newer=False)
        stopped_by = await eventually(lambda: live.ended.pop(back, None))
        assert isinstance(stopped_by, NewerCommand)
        assert "orders-2" not in _topics(live, back)
    await _restart(live, back, newer=True)

    await eventually(lambda: "orders-2" in _topics(live, back))
    await _agree(live, 0, 1, 2)


async def test_a_snapshot_of_a_newer_format_from_the_leader_stops_a_node_by_name(
    live: LiveNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not taken for damage, which would be sent again and again; the leader is not harmed."""
    newer = b"DLGRBRK%d" % (snapshot_codec.FORMAT + 1)
    monkeypatch.setattr(broker_state, "_MAGIC", newer)  # of what is written; read is as before
    live = live.where(segment_bytes=1 << 20, storage_bytes=64 << 20, disk_watermark_percent=1)
    leader = await _found(live, 0, 1, 2)
    async with live.client(leader) as client:
        for _ in range(40):
            await client.append("orders", [b"x" * (64 << 10)], queue_id=0)
        log = live.nodes[leader]._log
        assert log is not None
        await eventually(lambda: log.first_index > 1)
        await live.start(3)

        async with live.admin(leader) as admin:
            await admin.add_learner(live.member(3))
        stopped_by = await eventually(lambda: live.ended.get(3))
        await client.append("orders", [b"x"], queue_id=0)

    assert isinstance(stopped_by, NewerFormat)
    assert f"format {snapshot_codec.FORMAT + 1}" in str(stopped_by)
    assert live.nodes[3].engine.state.applied_index == 0
    assert set(live.ended) == {3}


async def test_dledger_status_shows_each_members_level(
    live: LiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """To people and to programs; of a member that was not heard from it is not known."""
    live.newer.add(2)
    await live.found(0, 1, 2)
    await eventually(lambda: set(_levels(live, 0).values()) == {1, 2})
    endpoint = ["status", "--endpoint", live.peer_address(0)]

    assert await asyncio.to_thread(main, endpoint) == 0
    told = capsys.readouterr().out
    assert await asyncio.to_thread(main, [*endpoint, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)

    assert re.search(r"^  version \S+, feature level 1$", told, re.MULTILINE)
    assert re.findall(r"(orders-\d) .* level (\S+)$", told, re.MULTILINE) == [
        ("orders-0", "1"),
        ("orders-1", "1"),
        ("orders-2", "2"),
    ]
    assert status["feature_level"] == 1
    assert [row["feature_level"] for row in status["members"]] == [1, 1, 2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NewerCommand(3, what="a command of type 9", level=1), 5),
        (NewerFormat.number("segment", found=2, known=1), 5),
        (NodeRemoved(NodeId("n"), group_id="g", index=3, path="p"), 3),
        (CorruptFile("hard_state", "torn"), 1),
        (RuntimeError("a bug"), 1),
    ],
)
def test_the_exit_code_says_who_has_to_act(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """5: upgrade this node; and the last line says why, for the termination message."""
    assert node_command._last_word(error, node_command.EXIT_FATAL) == code
    assert capsys.readouterr().err == (f"dledger node: {error}\n" if code == 5 else "")


@pytest.mark.slow
async def test_a_process_that_is_too_old_ends_with_5_and_says_why(live: LiveNodes) -> None:
    """As its pod would: from a log with a command to come, and then from a disk to come."""
    live.newer.add(0)
    await _found(live, 0)
    await _clone(live, 0)
    await live.stop(0)

    ended = await asyncio.to_thread(_run, live)
    assert ended.returncode == node_command.EXIT_TOO_OLD
    assert f"a command of type {CLONE_TOPIC} is unknown" in ended.stderr.splitlines()[-1]

    _make_newer(next((live.data(0) / "log").glob("*.seg")))
    ended = await asyncio.to_thread(_run, live)
    assert ended.returncode == node_command.EXIT_TOO_OLD
    assert "format 4, and this one reads up to format 3" in ended.stderr.splitlines()[-1]


def _make_newer(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[8] = FORMAT_VERSION + 1
    data[220:224] = crc32c(bytes(data[:220])).to_bytes(4, "little")
    segment.write_bytes(data)


def _run(live: LiveNodes) -> subprocess.CompletedProcess[str]:
    settings = live.settings(0)
    given = {
        f"DLEDGER_{key.upper()}": str(getattr(settings, key)).lower()
        if isinstance(getattr(settings, key), bool)
        else str(getattr(settings, key))
        for key in settings.__slots__
        if getattr(settings, key) != ""
    }
    return subprocess.run(
        [sys.executable, "-m", "dledger", "node"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **given},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
