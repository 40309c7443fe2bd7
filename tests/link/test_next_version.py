"""A made-up next version at one end of a link: what it says otherwise is refused by itself.

It breaks the rule, that two ends say all in the format that they agreed on; so this is what is left
when somebody makes that mistake. The links of a group in memory are real, and 200 requests are
under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dledger.link import follower as following
from dledger.link import frames, offer
from dledger.link.frames import HEADER, Kind, packed
from dledger.replica.proposals import Command
from dledger.requests.config import RequestConfig
from dledger.server.config import NATIVE
from tests.requests import memory_group as made
from tests.requests.memory_group import MemoryGroup
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

pytestmark = pytest.mark.found

UNDER_WAY = 200
OTHERS = 40
_FIXED = {Kind.OPEN: 28, Kind.ANSWER: 4}
"""Sizes of what comes before a frame's parts."""


def _with(frame: bytes, at: int) -> bytes:
    """Return a frame that has one byte more at that place of its payload."""
    _, kind, number = HEADER.unpack_from(frame)
    payload = frame[HEADER.size :]
    return packed(kind, number, payload[:at], b"\x01", payload[at:])


def _more_fields(frame: bytes) -> bytes:
    return _with(frame, _FIXED[Kind(frame[4])])


def _longer(frame: bytes) -> bytes:
    return _with(frame, len(frame) - HEADER.size)


def _of_another_kind(frame: bytes) -> bytes:
    _, _, number = HEADER.unpack_from(frame)
    return packed(100, number, frame[HEADER.size :])


def _with_a_push(frame: bytes) -> bytes:
    _, _, number = HEADER.unpack_from(frame)
    return packed(Kind.PUSH, number, b"for a client") + frame


SAYS: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "a field more": (_more_fields, True),
    "a byte more": (_longer, True),
    "it by another kind": (_of_another_kind, True),
    "something beside it": (_with_a_push, False),
}
"""How the next version says it, and whether that is refused."""


class Group:
    """A group whose second node follows over a link, and a client there."""

    def __init__(self, group: MemoryGroup, client: RocketClient) -> None:
        self.members, self.client = group, client
        self.gate = asyncio.Event()
        self._commit: Any = group.commit
        group.commit = self._held
        self.link = self.present_link()

    async def _held(self, command: Command) -> object:
        await self.gate.wait()
        return await self._commit(command)

    def present_link(self) -> Any:
        node, member = self.members.nodes[1], self.members.nodes[0].engine.leader()
        assert node.links is not None
        assert member is not None
        return node.links.to(member)

    def sends(self, first: int, count: int) -> list[asyncio.Task[Any]]:
        """Send so many messages at once."""
        numbers = range(first, first + count)
        return [
            asyncio.create_task(self.client.send(message(number, b"%d" % number)))
            for number in numbers
        ]

    def by_call(self) -> int:
        """How many requests went the general way."""
        node = self.members.nodes[1]
        own = {"group": "orders", "node": node.engine.node_id, "way": "call"}
        value = node.parts.context.metrics.registry.get_sample_value(
            "dledger_forwarded_requests_total", own
        )
        return int(value or 0)

    async def all_are_stored(self, sends: list[asyncio.Task[Any]]) -> None:
        """Each is answered with OK and is there once, and the link is the one that was there."""
        codes = {code(answer.status) for answer in await asyncio.gather(*sends)}
        bodies = await self.members.bodies("t")

        assert codes == {"OK"}
        assert len(bodies) == len(set(bodies)) == len(sends)
        assert self.present_link() is self.link


@asynccontextmanager
async def _made() -> AsyncIterator[Group]:
    config = RequestConfig(default_queues=1)
    async with (
        made.memory_group(2, config) as members,
        RocketClient(members.nodes[1].port) as client,
    ):
        yield Group(members, client)


@pytest.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Group]:
    """Node 0 leads; what is sent waits until the gate opens."""
    monkeypatch.setattr(made, "client_server", NATIVE)
    async with _made() as group:
        yield group


@pytest.mark.parametrize("says", SAYS)
async def test_an_older_leader_refuses_what_a_newer_follower_says(
    says: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those calls go the general way; 200 others go on where they are."""
    change, is_refused = SAYS[says]
    opening = frames.opening
    sends = group.sends(0, UNDER_WAY)
    await eventually(lambda: len(group.link.end._calls) == UNDER_WAY)

    monkeypatch.setattr(frames, "opening", lambda *given: change(opening(*given)))
    sends += group.sends(UNDER_WAY, OTHERS)
    others = OTHERS if is_refused else 0
    await eventually(lambda: group.by_call() == others)
    await eventually(lambda: len(group.link.end._calls) == UNDER_WAY + OTHERS - others)
    group.gate.set()

    await group.all_are_stored(sends)
    assert group.by_call() == others


@pytest.mark.parametrize("says", SAYS)
async def test_an_older_follower_refuses_what_a_newer_leader_says(
    says: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 answers every other one: those calls are asked again the general way."""
    change, is_refused = SAYS[says]
    answering, answers = frames.message, 0

    def changed(kind: int, number: int, body: bytes) -> bytes:
        nonlocal answers
        answers += kind == Kind.ANSWER
        frame = answering(kind, number, body)
        return change(frame) if kind == Kind.ANSWER and answers % 2 else frame

    sends = group.sends(0, UNDER_WAY)
    await eventually(lambda: len(group.link.end._calls) == UNDER_WAY)

    monkeypatch.setattr(frames, "message", changed)
    group.gate.set()

    await group.all_are_stored(sends)
    assert group.by_call() == (UNDER_WAY // 2 if is_refused else 0)


@pytest.mark.parametrize(("asks", "offers"), [({2}, {1}), ({1}, {2})])
async def test_two_versions_without_a_common_format_go_the_general_way(
    asks: set[int], offers: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is tried over a link that could be misread."""
    monkeypatch.setattr(made, "client_server", NATIVE)
    monkeypatch.setattr(MemoryGroup, "linked", _at_once)
    monkeypatch.setattr(following, "FORMATS", asks)
    monkeypatch.setattr(offer, "FORMATS", offers)
    async with _made() as group:
        group.gate.set()

        await group.all_are_stored(group.sends(0, OTHERS))
        assert group.link is None
        assert group.by_call() == OTHERS


async def _at_once(_: MemoryGroup) -> None:
    """Nobody will have a link."""
