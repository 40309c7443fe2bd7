"""Links from followers to their leader: who gets one, what it carries, and what its end means."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.errors import Overloaded, Unavailable
from dledger.link import follower as links
from dledger.link import leader as port
from dledger.link.leader import RELAY_PATH
from dledger.link.offer import Offer, Wish
from dledger.peers.replication_port import TOKEN_BYTES
from dledger.rpc.peer_tls import PeerChannel
from dledger.rpc.status import Relayed
from tests.link.two_ends import (
    ASK,
    READ,
    SERVICE,
    WISH,
    Follower,
    Leader,
    Outcome,
    all_answers,
    asked,
)
from tests.requests.memory_group import HOST, WAIT_S
from tests.waiting import eventually


async def test_calls_and_their_metadata_reach_the_leader(
    leader: Leader, follower: Follower
) -> None:
    """One answer or many; a deadline is what is left of it, whatever the other clock shows."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)

    began_s = asyncio.get_running_loop().time()
    assert await asked(link, b"hello", 7.0) == b"HELLO"
    assert await all_answers(link, b"n") == [b"n0", b"n1", b"n2"]
    assert leader.asked[0].text("x-mq-client-id") == "c"
    assert leader.asked[0].peer == "ipv4:192.0.2.1:7"
    assert began_s + 5.0 < leader.asked[0].deadline_s


async def test_refusals_mean_what_those_of_a_call_do(leader: Leader, follower: Follower) -> None:
    """Overloaded may be tried again; a status of the leader's goes to the caller unchanged."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)

    full, forbidden = await asked(link, b"full"), await asked(link, b"forbidden")

    assert isinstance(full, Overloaded)
    assert "no room here" in str(full)
    assert isinstance(forbidden, Relayed)
    assert forbidden.error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert forbidden.error.details() == "not you"
    assert ("why", "so") in tuple(forbidden.error.trailing_metadata())


async def test_what_is_not_answered_in_time_ends_here_and_there(
    leader: Leader, follower: Follower
) -> None:
    """A leader that is frozen breaks no connection."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)

    outcome = await asked(link, b"never ever", 0.1)
    with pytest.raises(Unavailable):
        await all_answers(link, b"endless", 0.1)

    assert isinstance(outcome, Unavailable)
    assert not isinstance(outcome, Overloaded)
    await eventually(lambda: sorted(leader.gone) == [b"endless", b"never ever"])


async def test_a_deadline_that_passes_between_answers_cancels_nobody_else(
    leader: Leader, follower: Follower
) -> None:
    """Who takes the answers may be writing one to a client that reads slowly."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    clock, timeout_s = asyncio.get_running_loop().time, 0.1
    answers = link.answers(READ, b"endless", (), timeout_s)
    await anext(answers)
    began_s = clock()

    await eventually(lambda: clock() > began_s + timeout_s)

    with pytest.raises(Unavailable):
        _ = [each async for each in answers]
    await eventually(lambda: leader.gone == [b"endless"])


async def test_what_is_given_up_is_told_nothing_more(leader: Leader, follower: Follower) -> None:
    """And the leader stops working at it."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    told: list[Outcome] = []
    give_up = link.begin(ASK, b"never", (), WAIT_S, told.append)
    await eventually(lambda: bool(leader.asked))

    give_up()
    give_up()

    await eventually(lambda: leader.gone == [b"never"])
    assert await asked(link, b"next") == b"NEXT"
    assert told == []


async def test_a_change_of_leader_fails_what_the_former_has(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hang, and end nothing itself; whether it has done its work is not known."""
    monkeypatch.setattr(leader.port, "_end_of", lambda _: None)
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    waits = asyncio.create_task(asked(link, b"never"))
    reads = asyncio.create_task(all_answers(link, b"endless"))
    await eventually(lambda: len(leader.asked) == 2)

    follower.links.follow(None)

    assert isinstance(await waits, Unavailable)
    with pytest.raises(Unavailable):
        await reads
    assert follower.links.to(leader.member) is None
    assert link.begin(ASK, b"x", (), WAIT_S, lambda _: None) is None
    assert link.answers(READ, b"x", (), WAIT_S) is None
    await eventually(lambda: sorted(leader.gone) == [b"endless", b"never"])


async def test_a_stopping_node_ends_what_has_many_answers_and_nothing_else(
    leader: Leader, follower: Follower
) -> None:
    """What was sent may still be answered."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    waits = asyncio.create_task(asked(link, b"never"))
    reads = asyncio.create_task(all_answers(link, b"endless"))
    await eventually(lambda: len(leader.asked) == 2)

    follower.links.cancel_streams()

    with pytest.raises(Unavailable):
        await reads
    await eventually(lambda: leader.gone == [b"endless"])
    assert not waits.done()
    waits.cancel()


async def test_a_link_that_breaks_is_built_again(leader: Leader, follower: Follower) -> None:
    """What was under way fails, what comes next goes over the new one."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    waits = asyncio.create_task(asked(link, b"never"))
    await eventually(lambda: bool(leader.asked))

    for connection in tuple(leader.port._connections):
        connection.end()

    assert isinstance(await waits, Unavailable)
    await eventually(lambda: follower.links.to(leader.member) not in (None, link))
    assert await asked(follower.links.to(leader.member), b"again") == b"AGAIN"


async def test_beyond_a_bound_calls_go_another_way(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader cannot hold back what comes over a link, so a follower does."""
    monkeypatch.setattr(links, "_UNDER_WAY_BYTES", 100)
    follower.follow(leader.member)
    link = await follower.linked(leader.member)
    give_up = link.begin(ASK, b"never" + bytes(60), (), WAIT_S, lambda _: None)

    assert link.begin(ASK, bytes(60), (), WAIT_S, lambda _: None) is None
    assert link.answers(READ, bytes(60), (), WAIT_S) is None
    give_up()
    assert await asked(link, b"x" * 60) == b"X" * 60


async def test_a_method_that_members_may_not_call_is_not_offered(
    leader: Leader, follower: Follower
) -> None:
    """As at the peer port; nor is one that the leader does not have."""
    follower.follow(leader.member)
    link = await follower.linked(leader.member)

    assert set(link.methods) == {ASK, READ}
    assert link.begin(f"/{SERVICE}/Remember", b"x", (), WAIT_S, lambda _: None) is None


async def test_a_leader_of_an_older_version_is_asked_again_later(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be replaced by one that offers links, at the same address."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float, result: None = None) -> None:
        waits.append(delay_s)
        await sleep(min(delay_s, 0.01), result)

    older = Leader()
    older.is_older = True
    await older.start()
    follower.follow(older.member)
    monkeypatch.setattr("dledger.link.follower.asyncio.sleep", noted)
    await eventually(lambda: links._OLDER_S in waits)

    assert follower.links.to(older.member) is None
    await older.stop()


async def test_a_token_is_good_for_one_connection_of_who_has_asked(leader: Leader) -> None:
    """A second one with it is closed, and so is that of another role."""
    async with grpc.aio.insecure_channel(leader.member.address) as channel:
        call = channel.unary_stream(RELAY_PATH)(WISH)
        offer = Offer.decode(await call.read())
        assert leader.port.other(offer.token, "member/orders-1") is None
        first = await asyncio.open_connection(HOST, offer.port)
        first[1].write(offer.token)
        await eventually(lambda: not leader.port._others)
        reader, writer = await asyncio.open_connection(HOST, offer.port)
        writer.write(offer.token)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        call.cancel()
        async with asyncio.timeout(WAIT_S):
            await first[0].read()  # ends with the call
        for each in (first[1], writer):
            each.close()


async def test_links_beyond_a_number_are_refused(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plain text anyone may ask; who is refused calls the leader, and asks again."""
    monkeypatch.setattr(port, "_MAX_OFFERS", 1)
    async with grpc.aio.insecure_channel(leader.member.address) as channel:
        call = channel.unary_stream(RELAY_PATH)(WISH)
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_stream(RELAY_PATH)(WISH).read()
        follower.follow(leader.member)
        call.cancel()

        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await asked(await follower.linked(leader.member), b"hello") == b"HELLO"


async def test_a_follower_that_sends_no_frames_loses_its_link(leader: Leader) -> None:
    """The end of one that says it is too large cannot be found."""
    async with grpc.aio.insecure_channel(leader.member.address) as channel:
        call = channel.unary_stream(RELAY_PATH)(WISH)
        offer = Offer.decode(await call.read())
        reader, writer = await asyncio.open_connection(HOST, offer.port)
        writer.write(offer.token + b"\xff" * 64)
        async with asyncio.timeout(WAIT_S):
            while await reader.read(100):
                pass
        writer.close()
        call.cancel()


def test_an_offer_comes_back_as_it_was() -> None:
    """With what a later version may add."""
    offer = Offer(format=1, port=7, token=bytes(range(TOKEN_BYTES)), methods=["/a/B", "/a/C"])

    assert Offer.decode(offer.encode()) == offer
    assert Offer.decode(offer.encode()[:-1] + b', "more": 1}') == offer


def _offer(**other: Any) -> bytes:
    fields = {"format": 1, "port": 1, "token": "00" * TOKEN_BYTES, "methods": []}
    return json.dumps(fields | other).encode()


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b"{}",
        _offer(token="0" * 2),
        _offer(token=7),
        _offer(port=0),
        _offer(port="1"),
        _offer(methods=[1]),
        _offer(methods="ab"),
        _offer(format=2),
        _offer(format=None),
        _offer(format=[]),
    ],
)
def test_what_is_no_offer_is_refused(response: bytes) -> None:
    """Whatever it is; fields of later versions are ignored."""
    with pytest.raises(ValueError, match="no offer"):
        Offer.decode(response)


@pytest.mark.parametrize(
    "request_",
    [b"", b"[]", b"{}", b'{"formats": 1}', b'{"formats": [true]}', b'{"formats": []}', b" " * 5000],
)
def test_what_is_no_wish_is_refused(request_: bytes) -> None:
    """So is one for no format."""
    with pytest.raises(ValueError, match="link"):
        Wish.decode(request_).newest_format()


@pytest.mark.parametrize("mine", [{1, 2}, {2}])
async def test_two_versions_speak_the_highest_format_of_both(
    mine: set[int], leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that has none of the follower's offers no link, and is called."""
    monkeypatch.setattr(links, "FORMATS", mine)
    channel = PeerChannel(leader.member.address, leader.member.name, None)
    async with asyncio.timeout(WAIT_S):
        call = channel.unary_stream(RELAY_PATH)(Wish(mine).encode())
        if 1 in mine:
            assert Offer.decode(await call.read()).format == 1
            follower.follow(leader.member)
            assert await asked(await follower.linked(leader.member), b"hello") == b"HELLO"
        else:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert raised.value.details().endswith("formats [2] was asked for, not [1]")
    call.cancel()
    await channel.close()
