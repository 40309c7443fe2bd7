"""P11: what a node holds while something else does not move on, and what it says then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from dledger.common.metrics import NodeMetrics
from dledger.errors import Overloaded
from dledger.peers import outbox
from dledger.peers.outbox import Outbox
from dledger.raft.messages import AppendRequest, HeartbeatResponse, Message
from dledger.raft.ready import Ready
from dledger.replica.driver import DriverConfig
from dledger.replica.leader_health import StallLimits
from dledger.replica.persistence import MAX_HELD, Persister
from dledger.store.hard_state import HardStateFile
from dledger.types import HardState, NodeId
from tests.replica.gated_files import GatedFiles
from tests.replica.group import IDS, DriverGroup, command
from tests.waiting import eventually


class NoEvents:
    """Hears what the disk says, and does nothing."""

    durable: HardState | None = None

    def hard_state_durable(self, hard_state: HardState) -> None:
        """Note a hard state."""
        self.durable = hard_state

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"not expected: {name}")


def heartbeat_answer(number: int) -> Ready:
    answer = HeartbeatResponse(sender=IDS[0], recipient=IDS[1], term=1, round=number)
    return Ready(after_hard_state=(answer,))


async def test_answers_that_wait_for_a_hanging_disk_are_bounded(tmp_path: Path) -> None:
    """The oldest are lost, as messages may be; the newest leave when the disk is back."""
    files = GatedFiles()
    hard_state_file = HardStateFile(files, tmp_path)
    sent: list[Message] = []
    disk = Persister(
        log=cast("Any", None),
        hard_state_file=hard_state_file,
        send=sent.append,
        events=NoEvents(),
        now_s=lambda: 0.0,
        metrics=NodeMetrics("test", "n1"),
    )
    files.gate.clear()
    disk.submit(Ready(hard_state=HardState(term=1)))

    for number in range(3 * MAX_HELD):
        disk.submit(heartbeat_answer(number))
    assert sent == []
    files.gate.set()
    await eventually(lambda: sent)

    rounds = [cast("HeartbeatResponse", message).round for message in sent]
    assert rounds == list(range(2 * MAX_HELD, 3 * MAX_HELD))
    await disk.close()


async def test_the_newest_vote_is_written_after_a_hanging_one(tmp_path: Path) -> None:
    """Only the newest hard state waits: it covers those before it."""
    files = GatedFiles()
    hard_state_file, events = HardStateFile(files, tmp_path), NoEvents()
    disk = Persister(
        log=cast("Any", None),
        hard_state_file=hard_state_file,
        send=lambda _: None,
        events=events,
        now_s=lambda: 0.0,
        metrics=NodeMetrics("test", "n1"),
    )
    files.gate.clear()
    for term in range(1, 100):
        disk.submit(Ready(hard_state=HardState(term=term)))
    files.gate.set()

    await eventually(lambda: events.durable == HardState(term=99))
    assert hard_state_file.load() == HardState(term=99)
    assert files.syncs < 10
    await disk.close()


async def test_a_follower_whose_disk_hangs_is_sent_no_more_than_a_window(tmp_path: Path) -> None:
    """The leader's window is what bounds the follower's memory: its acks wait for its disk."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    config = DriverConfig(tick_s=0.01, stall=StallLimits(stall_s=60, behind_s=60))
    group = DriverGroup(tmp_path, files=files, config=config)
    group.start()
    leader = await group.leader()
    slow = group.followers()[0]
    await eventually(lambda: slow.driver.core.durable_index == leader.driver.core.last_index)
    files[slow.id].gate.clear()
    durable_index = slow.driver.core.durable_index
    limit = leader.driver.core.config.max_inflight_appends

    for number in range(3 * limit):
        await leader.driver.propose(command(str(number)), grows=True)
    under_way = [
        message
        for message in group.sent
        if isinstance(message, AppendRequest) and message.recipient == slow.id
        if any(entry.index > durable_index for entry in message.entries)
    ]

    assert slow.driver.core.durable_index == durable_index
    assert 0 < len(under_way) <= limit
    files[slow.id].gate.set()
    await eventually(lambda: slow.driver.core.durable_index == leader.driver.core.last_index)
    await group.stop()


async def test_a_proposal_beyond_the_queue_is_dropped_as_overload(tmp_path: Path) -> None:
    """Back-pressure is a typed error at once; what was taken is answered when the disk is back."""
    files: dict[NodeId, GatedFiles] = {node: GatedFiles() for node in IDS}
    config = DriverConfig(
        tick_s=0.01,
        max_queued_bytes=100,
        stall=StallLimits(stall_s=60, behind_s=60),
    )
    group = DriverGroup(tmp_path, files=files, config=config)
    group.start()
    leader = await group.leader()
    files[leader.id].gate.clear()
    taken = [leader.driver.submit(command("x" * 9), grows=True)]
    await eventually(lambda: leader.driver.queued_bytes == 0)

    taken += [leader.driver.submit(command("x" * 9), grows=True) for _ in range(10)]
    with pytest.raises(Overloaded, match="100 of 100 bytes"):
        leader.driver.submit(command("y" * 9), grows=True)
    files[leader.id].gate.set()
    answers = await asyncio.gather(*taken)

    assert answers == ["x" * 9] * 11
    assert not any(b"y" in entry.data for entry in leader.state.applied)
    await group.stop()


def test_frames_for_a_peer_that_does_not_read_are_bounded_in_number_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is beyond is dropped: Raft sends again what matters."""
    monkeypatch.setattr(outbox, "MAX_QUEUED_FRAMES", 3)
    monkeypatch.setattr(outbox, "MAX_QUEUED_BYTES", 100)
    by_bytes, by_number = Outbox(), Outbox()

    for _ in range(10):
        by_bytes.put(bytes(40))
        by_number.put(b"x")

    assert (len(by_bytes), by_bytes.size_bytes) == (2, 80)
    assert len(by_number) == 3


async def test_a_frame_larger_than_the_bound_still_leaves() -> None:
    """Alone: an entry may be larger than any window."""
    box = Outbox()
    large = bytes(outbox.MAX_QUEUED_BYTES + 1)

    box.put(large)
    box.put(b"x")
    first = await anext(box.frames())

    assert (first, len(box), box.size_bytes) == (large, 0, 0)
