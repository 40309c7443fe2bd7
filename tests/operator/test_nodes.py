"""Asking the nodes: whom, how often, and whom not to believe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from dledger.common.status import NodeStatus
from dledger.errors import DledgerError, NotJoined, NotServed, OffsetOutOfRange, Unavailable
from dledger.types import Member
from dledger_operator.cluster.nodes import POLL_ALL_EVERY, Nodes, bounded, log_since
from dledger_operator.observed.observed import Pod
from dledger_operator.resources.log_job import LogRange
from tests.operator.samples import member, node, pods


@dataclass
class Net:
    """The nodes by address: what they say, their oldest entries, and who was asked."""

    said: dict[str, NodeStatus] = field(default_factory=dict)
    logs: dict[str, tuple[int, int] | DledgerError] = field(default_factory=dict)
    kept_from: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    words: dict[str, asyncio.Queue[Any]] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)
    under_way: int = 0
    most_at_once: int = 0

    def admin(self, address: str) -> Any:
        self.opened.append(address)
        return _Admin(self, address)


class _Admin:
    def __init__(self, net: Net, address: str) -> None:
        self._net = net
        self._address = address

    async def status(self) -> NodeStatus:
        self._net.asked.append(self._address)
        self._net.under_way += 1
        self._net.most_at_once = max(self._net.most_at_once, self._net.under_way)
        await asyncio.sleep(0)
        self._net.under_way -= 1
        if self._address not in self._net.said:
            raise Unavailable("no answer")
        return self._net.said[self._address]

    async def watch_status(self) -> AsyncIterator[NodeStatus | None]:
        words = self._net.words.get(self._address)
        if words is None:
            raise NotServed("too old")
        self._net.streams.append(self._address)
        while True:
            word = await words.get()
            if isinstance(word, DledgerError):
                raise word
            yield word

    async def bootstrap(self, group_id: str, members: Sequence[Member]) -> None:
        raise NotImplementedError

    async def export_size(self, first_index: int = 1) -> tuple[int, int]:
        self._net.asked.append(self._address)
        answer = self._net.logs.get(self._address, Unavailable("no answer"))
        if isinstance(answer, DledgerError):
            raise answer
        if 0 < first_index < (kept_from := self._net.kept_from.get(self._address, 1)):
            raise OffsetOutOfRange(first_index, first=kept_from, last=answer[0])
        return answer

    async def close(self) -> None:
        self._net.closed.append(self._address)


def _said(ordinal: int, leader: int, *, term: int = 1, group: str = "orders") -> NodeStatus:
    return node(
        f"id-{ordinal}",
        name=f"orders-{ordinal}",
        group=group,
        group_id="g",
        role="leader" if ordinal == leader else "follower",
        term=term,
        leader_id=f"id-{leader}",
        commit_index=1,
        applied_index=1,
        last_index=1,
        synced_index=1,
    )


def _address(ordinal: int) -> str:
    return f"10.0.0.{ordinal}:20911"


def _net(leader: int = 0) -> Net:
    return Net(said={_address(n): _said(n, leader) for n in range(3)})


def _nodes(net: Net) -> Nodes:
    return Nodes("orders", admin=net.admin)


async def test_everybody_is_asked_first_then_the_leader_alone() -> None:
    """A settled group costs one call a second; now and then everybody is asked again."""
    net = _net()
    nodes = _nodes(net)

    assert len(await nodes.poll(pods(0, 1, 2))) == 3
    net.asked.clear()
    for _ in range(POLL_ALL_EVERY - 2):
        assert len(await nodes.poll(pods(0, 1, 2))) == 3

    assert set(net.asked) == {_address(0)}
    await nodes.poll(pods(0, 1, 2))
    assert set(net.asked) == {_address(n) for n in range(3)}


@pytest.mark.parametrize("bound", [1, 2, 256])
async def test_no_more_nodes_are_asked_at_once_than_may_be(bound: int) -> None:
    """Of all groups together: hundreds of them at once could not answer in time."""
    net = _net()
    asking = asyncio.Semaphore(bound)
    groups = [Nodes("orders", admin=net.admin, asking=asking) for _ in range(3)]

    views = await asyncio.gather(*(nodes.poll(pods(0, 1, 2)) for nodes in groups))

    assert [len(view) for view in views] == [3, 3, 3]
    assert net.most_at_once == min(bound, 9)


async def test_a_silent_leader_makes_everybody_be_asked_at_once() -> None:
    """In the same look: the new leader is seen without waiting."""
    net = _net()
    nodes = _nodes(net)
    await nodes.poll(pods(0, 1, 2))
    net.said = {_address(n): _said(n, 2, term=2) for n in (1, 2)}

    views = await nodes.poll(pods(0, 1, 2))

    assert {name: view.leader_id for name, view in views.items()} == {
        "orders-1": "id-2",
        "orders-2": "id-2",
    }


async def test_a_leader_that_stepped_down_makes_everybody_be_asked_at_once() -> None:
    """It answers, but with another word."""
    net = _net()
    nodes = _nodes(net)
    await nodes.poll(pods(0, 1, 2))
    net.said = {_address(n): _said(n, 1, term=2) for n in range(3)}

    views = await nodes.poll(pods(0, 1, 2))

    assert views["orders-1"].role == "leader"


@pytest.mark.found
async def test_pods_that_merely_carry_the_labels_are_not_asked() -> None:
    """Found: K4. There may be thousands, and each would be a connection of the operator of all."""
    net = _net()
    others = ("orders-x", "orders-100", "orders-01", "other-0", "orders-")
    pretended = {name: replace(pods(0)["orders-0"], name=name) for name in others}

    views = await _nodes(net).poll({**pods(0, 1, 2), **pretended})

    assert sorted(views) == ["orders-0", "orders-1", "orders-2"]
    assert len(net.opened) == 3


async def test_a_node_of_another_group_is_not_believed() -> None:
    """An address may have been given to another pod meanwhile."""
    net = _net()
    net.said[_address(1)] = _said(1, 0, group="other")
    net.said[_address(2)] = _said(1, 0)

    views = await _nodes(net).poll(pods(0, 1, 2))

    assert set(views) == {"orders-0"}


async def test_a_pod_without_address_is_not_asked() -> None:
    """It has not started yet."""
    net = _net()

    views = await _nodes(net).poll({**pods(0), "orders-1": Pod(name="orders-1")})

    assert set(views) == {"orders-0"}
    assert net.opened == [_address(0)]


async def test_a_pod_that_came_back_elsewhere_is_asked_there() -> None:
    """The old connection is closed."""
    net = _net()
    nodes = _nodes(net)
    await nodes.poll(pods(0))
    net.said["10.9.9.9:20911"] = _said(0, 0)

    views = await nodes.poll(pods(0, ip="10.9.9.9"))

    assert set(views) == {"orders-0"}
    assert net.closed == [_address(0)]


async def test_a_pod_that_is_gone_is_forgotten() -> None:
    """Its last answer does not count any more."""
    net = _net()
    nodes = _nodes(net)
    await nodes.poll(pods(0, 1, 2))

    views = await nodes.poll(pods(0, 1))

    assert set(views) == {"orders-0", "orders-1"}
    assert net.closed == [_address(2)]
    await nodes.close()
    assert len(net.closed) == 3


async def test_an_ipv6_address_is_bracketed() -> None:
    """As gRPC wants it."""
    net = _net()

    await _nodes(net).poll({"orders-0": Pod(name="orders-0", ip="fd00::7")})

    assert net.opened == ["[fd00::7]:20911"]


async def test_a_follower_is_asked_first_how_much_log_there_is() -> None:
    """The leader has enough to do."""
    net = Net(logs={f"10.0.0.{n}:20911": (99, 1000 + n) for n in range(3)})

    found = await log_since(pods(0, 1, 2, leader=0).values(), 7, admin=net.admin)

    assert found == LogRange(last_index=99, size_bytes=1001)
    assert net.closed == net.opened == ["10.0.0.1:20911"]


async def test_whoever_answers_is_good_enough() -> None:
    """A node that is down, or not in the group yet, is passed over."""
    net = Net(logs={"10.0.0.0:20911": (99, 1000), "10.0.0.2:20911": NotJoined()})

    found = await log_since(pods(0, 1, 2, leader=0).values(), 7, admin=net.admin)

    assert found == LogRange(last_index=99, size_bytes=1000)


async def test_what_a_node_still_has_counts_where_its_first_entries_are_dropped() -> None:
    """The backup copies all of that, and its size decides about executors."""
    net = Net(logs={"10.0.0.1:20911": (99, 1000)}, kept_from={"10.0.0.1:20911": 9})

    found = await log_since(pods(1).values(), 7, admin=net.admin)

    assert found == LogRange(last_index=99, size_bytes=1000)
    assert net.closed == net.opened == ["10.0.0.1:20911"]


async def test_a_range_that_is_not_there_is_left_to_the_backup() -> None:
    """Its error names it; the operator only wants to know how much work it is."""
    net = Net(logs={"10.0.0.1:20911": OffsetOutOfRange(7, first=9, last=99)})

    assert await log_since(pods(1).values(), 7, admin=net.admin) == LogRange()


async def test_without_an_answer_the_last_words_are_told() -> None:
    """Pods without an address are not asked."""
    net = Net()

    with pytest.raises(Unavailable, match="no answer"):
        await log_since(pods(0, 1).values(), 7, admin=net.admin)
    with pytest.raises(Unavailable, match="no pod of the group has an address"):
        await log_since(pods(0, ip="").values(), 7, admin=net.admin)


async def test_all_nodes_are_asked_on_demand_and_an_answer_has_an_age() -> None:
    """A follower's answer gets old while only the leader is asked."""
    net, now_s = Net(), [0.0]
    ids = ("id-0", "id-1", "id-2")
    for at, node_id in enumerate(ids):
        role = "leader" if at == 0 else "follower"
        net.said[f"10.0.0.{at}:20911"] = node(
            node_id, name=f"orders-{at}", role=role, term=1, leader_id="id-0", group_id="g" * 8
        )
    nodes = Nodes("orders", admin=net.admin, monotonic_s=lambda: now_s[0])
    assert nodes.oldest_answer_s() == float("inf")
    await nodes.poll(pods(0, 1, 2))

    now_s[0] = 3.0
    await nodes.poll(pods(0, 1, 2))
    assert nodes.oldest_answer_s() == 3.0
    await nodes.poll(pods(0, 1, 2), everyone=True)

    assert nodes.oldest_answer_s() == 0.0


def test_one_name_may_belong_to_a_voter_and_a_learner() -> None:
    """So it is while the leader replaces a member: the old node votes until the change is over."""
    both = (member("old", "orders-2"), member("new", "orders-2", voter=False))

    assert bounded(node("id-0", members=both)).members == both
    with pytest.raises(DledgerError, match="twice"):
        bounded(node("id-0", members=(both[0], member("new", "orders-2"))))


@pytest.mark.parametrize(
    ("said_ms", "kept_ms"),
    [
        (0, 0),
        (5_000, 0),
        (5_001, 10_000),
        (29_000, 20_000),
        (75_000, 60_000),
        (3_700_000, 3_660_000),
    ],
)
def test_a_clock_that_drifts_is_no_news_each_second(said_ms: int, kept_ms: int) -> None:
    """The status is written when it has moved by a lot; within 5 s nothing is said of it."""
    ahead = bounded(node("id-0", clock_ahead_ms=said_ms))
    behind = bounded(node("id-0", clock_behind_ms=said_ms, log_ahead_ms=said_ms))

    assert (ahead.clock_ahead_ms, ahead.clock_behind_ms) == (kept_ms, 0)
    assert (behind.clock_ahead_ms, behind.clock_behind_ms) == (0, kept_ms)
    assert behind.log_ahead_ms == 0
