"""Nodes that tell what changes: whom to ask nevertheless, and whom not to believe any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from dledger.common.status import NodeStatus
from dledger.common.token_bucket import TokenBucket
from dledger.errors import DledgerError, Unavailable
from dledger_operator.cluster import status_streams
from dledger_operator.cluster.nodes import ASK_ALL_S, Nodes
from dledger_operator.cluster.status_streams import AVOIDED_S, BURST, STEADY_S, WORDS_PER_S
from tests.operator.samples import member, pods
from tests.operator.test_nodes import Net, _address, _net, _said


class Scene:
    """Three nodes that tell what changes, the first of them leading."""

    def __init__(self) -> None:
        self.net = _net()
        rows = tuple(member(f"id-{n}", f"orders-{n}") for n in range(3))
        for address, said in self.net.said.items():
            self.net.said[address] = replace(said, members=rows)
        self.net.words = {_address(n): asyncio.Queue() for n in range(3)}
        self.now_s = 0.0
        self.nodes = Nodes("orders", admin=self.net.admin, monotonic_s=lambda: self.now_s)
        self.news = 0
        self.woken = asyncio.Event()
        self.nodes.on_news = self._count

    def _count(self) -> None:
        self.news += 1
        self.woken.set()

    async def poll(self, *, everyone: bool = False) -> tuple[dict[str, NodeStatus], set[int]]:
        """Return what is known, and who was asked for it."""
        self.net.asked.clear()
        views = await self.nodes.poll(pods(0, 1, 2), everyone=everyone)
        await self.settle()
        asked = {n for n in range(3) if _address(n) in self.net.asked}
        return dict(views), asked

    def all_tell(self) -> bool:
        """Whether every node tells what changes."""
        return self.nodes.tell_changes

    async def settle(self) -> None:
        """Let the streams take what is there."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def tell(self, ordinal: int, word: Any) -> None:
        """Have a node say something over its stream; what it says it answers, too."""
        if isinstance(word, NodeStatus):
            self.net.said[_address(ordinal)] = word
        self.net.words[_address(ordinal)].put_nowait(word)
        await self.settle()

    def said(self, ordinal: int, **changes: Any) -> NodeStatus:
        return replace(self.net.said[_address(ordinal)], **changes)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Everybody has answered once, and tells what changes from now on."""
    made = Scene()
    assert (await made.poll())[1] == {0, 1, 2}
    for ordinal in range(3):
        await made.tell(ordinal, made.said(ordinal))
    yield made
    await made.nodes.close()


async def test_nodes_that_tell_what_changes_are_not_asked(scene: Scene) -> None:
    """However often the group is looked at; each has one stream."""
    assert scene.nodes.tell_changes
    for _ in range(20):
        views, asked = await scene.poll()
        assert (len(views), asked) == (3, set())
    assert sorted(scene.net.streams) == [_address(n) for n in range(3)]


async def test_what_a_node_tells_is_known_at_once_and_wakes(scene: Scene) -> None:
    """Counters and heartbeats do not wake."""
    await scene.tell(0, scene.said(0, commit_index=9))
    await scene.tell(0, None)
    assert scene.news == 0

    await scene.tell(1, scene.said(1, feature_level=7))

    views, asked = await scene.poll()
    assert scene.news == 1
    assert (views["orders-1"].feature_level, asked) == (7, set())


async def test_a_broken_stream_is_noticed_at_once(scene: Scene) -> None:
    """Its node is not believed until it answers; then it may tell again."""
    scene.now_s += STEADY_S
    del scene.net.said[_address(0)]
    await scene.tell(0, Unavailable("broken"))

    assert scene.news == 1
    views, asked = await scene.poll()
    assert (set(views), asked) == ({"orders-1", "orders-2"}, {0, 1, 2})
    assert not scene.nodes.tell_changes
    scene.net.said[_address(0)] = _said(0, 0)
    await scene.poll()
    assert scene.net.streams.count(_address(0)) == 2


async def test_a_leader_that_falls_silent_is_not_believed_to_lead(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says each second that it does; a follower may be silent."""
    monkeypatch.setattr(status_streams, "SILENCE_S", 0.01)
    await scene.tell(0, scene.said(0, feature_level=7))
    await scene.tell(1, scene.said(1, feature_level=7))
    scene.woken.clear()
    async with asyncio.timeout(10):
        await scene.woken.wait()

    assert (await scene.poll())[1] == {0, 1, 2}
    assert scene.net.streams.count(_address(1)) == 1


async def test_a_follower_that_the_leader_does_not_reach_is_asked(scene: Scene) -> None:
    """It may be frozen, and its stream be open."""
    rows = tuple(member(f"id-{n}", f"orders-{n}", connected=n != 2) for n in range(3))
    await scene.tell(0, scene.said(0, members=rows))

    assert (await scene.poll())[1] == {2}
    del scene.net.said[_address(2)]
    views, asked = await scene.poll()

    assert (set(views), asked) == ({"orders-0", "orders-1"}, {0, 1, 2})
    assert not scene.nodes.tell_changes


async def test_each_node_is_asked_about_once_a_minute(scene: Scene) -> None:
    """A stream may hang where nobody notices."""
    scene.now_s = 0.75 * ASK_ALL_S - 1
    assert (await scene.poll())[1] == set()
    scene.now_s = 1.25 * ASK_ALL_S
    assert (await scene.poll())[1] == {0, 1, 2}
    assert (await scene.poll())[1] == set()


async def test_before_a_disruption_everybody_is_asked(scene: Scene) -> None:
    """The word of a follower may be a minute old, and only an answer is fresh."""
    scene.now_s = 30.0
    await scene.tell(0, None)
    assert scene.nodes.oldest_answer_s() == 30.0

    views, asked = await scene.poll(everyone=True)

    assert (len(views), asked) == (3, {0, 1, 2})
    assert scene.nodes.oldest_answer_s() == 0.0


async def test_an_older_node_is_asked_as_before() -> None:
    """Its stream is tried again only after a while: it may have been upgraded in its place."""
    made = Scene()
    del made.net.words[_address(1)]
    await made.poll()
    for ordinal in (0, 2):
        await made.tell(ordinal, made.said(ordinal))

    assert not made.all_tell()
    asked = [(await made.poll())[1] for _ in range(5)]
    assert sorted(map(len, asked)) == [0, 0, 0, 0, 3]
    assert made.news == 0
    made.net.words[_address(1)] = asyncio.Queue()
    await made.poll()
    assert not made.all_tell()
    made.now_s = AVOIDED_S
    await made.poll()
    await made.tell(1, made.said(1))
    assert made.all_tell()
    await made.nodes.close()


async def test_a_node_that_does_not_keep_its_stream_up_is_asked_for_a_while(scene: Scene) -> None:
    """Else it could have the operator open streams as fast as it ends them."""
    await scene.tell(1, Unavailable("again"))

    await scene.poll()
    assert scene.net.streams.count(_address(1)) == 1
    scene.now_s = AVOIDED_S
    await scene.poll()
    assert scene.net.streams.count(_address(1)) == 2


@pytest.mark.parametrize("lie", [{"group_id": "$(SECRET)"}, {"name": "other-0"}, {"group": "x"}])
async def test_a_word_that_cannot_be_the_nodes_ends_its_stream(
    scene: Scene, lie: dict[str, str]
) -> None:
    """What it said before is not believed any more, either."""
    await scene.tell(2, scene.said(2, **lie))

    assert scene.news == 1
    views, asked = await scene.poll()
    assert (set(views), asked) == ({"orders-0", "orders-1"}, {0, 1, 2})
    assert ("orders-2" in scene.nodes.disbelieved) == ("group_id" in lie)


async def test_an_answer_on_its_way_does_not_undo_a_newer_word(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been given before, and the stream would not say the same again."""
    older = scene.said(1)

    async def slow(net: Net, address: str) -> NodeStatus:
        if address != _address(1):
            return net.said[address]
        scene.now_s += 0.1
        await scene.tell(1, scene.said(1, feature_level=7))
        return older

    monkeypatch.setattr(
        "tests.operator.test_nodes._Admin.status", lambda a: slow(a._net, a._address)
    )

    views, _ = await scene.poll(everyone=True)

    assert views["orders-1"].feature_level == 7


async def test_a_pod_that_came_back_elsewhere_has_a_stream_of_its_own(scene: Scene) -> None:
    """The old one is closed with its connection."""
    moved = pods(0, 1, 2) | pods(2, ip="10.9.9.9")
    scene.net.said["10.9.9.9:20911"] = scene.net.said.pop(_address(2))
    scene.net.words["10.9.9.9:20911"] = asyncio.Queue()

    await scene.nodes.poll(moved)
    await scene.settle()
    await scene.tell(2, DledgerError("nobody hears this"))

    assert scene.news == 0
    assert scene.net.closed == [_address(2)]
    assert "10.9.9.9:20911" in scene.net.streams


def test_a_stream_may_say_much_at_once_but_not_for_long() -> None:
    """Each word may cost a round of the group, and all groups share one loop."""
    now_s, taken = 0.0, 0
    allowance = TokenBucket(at_once=BURST, per_s=WORDS_PER_S)
    while now_s < 60:
        now_s += allowance.owe(now_s) + 0.001
        taken += 1

    assert 200 <= taken <= 20 + 60 * 4 + 1
