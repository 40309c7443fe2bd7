"""A leader dies between storing a replay and its answer: the next one knows what is stored."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from dledger.broker.commands import CreateTopic
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import NOWHERE, Produced
from dledger.common.replay_mark import ReplayMark, lane_key
from tests.replica.group import DriverGroup, DriverNode
from tests.waiting import eventually

_KEY = lane_key(bytes(range(16)), client_id="c", topic="t", lane=0)


def _replay(first: int, count: int) -> bytes:
    """Return a call without ids, so that nothing but the sequence can tell its messages."""
    numbers = range(first, first + count)
    batch = Columns(
        message_ids=[""] * count, bodies=[b"%d" % n for n in numbers], born_at_ms=[0] * count
    )
    return encode_produce(
        batch, client_id="c", topic="t", queue_id=0, replay=ReplayMark(_KEY, first)
    )


def _messages(node: DriverNode) -> int:
    assert node.broker is not None
    found = node.broker.topics.get("t")
    return node.broker.topics.messages("t") if found is not None else 0


@pytest.mark.asyncio
async def test_a_replay_whose_leader_died_before_its_answer_is_stored_once(
    tmp_path: Path,
) -> None:
    """Also where one of the nodes was started again meanwhile, and continues from a snapshot."""
    group = DriverGroup(tmp_path, brokers=True)
    group.start()
    leader = await group.leader()
    create = CreateTopic(name="t", type="NORMAL", queues=1)
    await leader.driver.propose(create.encode(), grows=True)
    unanswered = asyncio.ensure_future(leader.driver.propose(_replay(1, 5), grows=True))
    other = group.followers()[0]
    await eventually(lambda: _messages(other) == 5)

    group.cut.add(leader.id)
    await group.stop(leader.id)
    unanswered.cancel()
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await unanswered
    await other.snapshots.take()
    await group.stop(other.id)
    group.cut.clear()
    group.start(leader.id, other.id)
    again = await (await group.leader()).driver.propose(_replay(1, 8), grows=True)

    assert isinstance(again, Produced)
    assert (list(again.repeats), again.stored) == ([0, 1, 2, 3, 4], 3)
    assert again.offsets == (*[NOWHERE] * 5, 5, 6, 7)
    await eventually(lambda: {_messages(node) for node in group.nodes.values()} == {8})
    digests = {node.broker.digest() for node in group.nodes.values() if node.broker is not None}
    assert len(digests) == 1
    await group.stop()
