"""What an unknown node gets at the peers' ports: whole nodes on real disks and ports.

It reaches both ports and knows every id, as `Admin.Status` tells them to anyone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.peers.framing import prefix
from dledger.peers.handshake import METADATA_KEY
from dledger.peers.peer_codec import encode
from dledger.peers.peer_link import SERVICE
from dledger.peers.replication_port import CONNECT_TOKEN_KEY, ConnectToken
from dledger.raft.messages import HeartbeatRequest, Message, VoteRequest
from dledger.types import NodeId
from tests.system.live_nodes import GROUP_ID, LiveNodes
from tests.waiting import eventually

pytestmark = pytest.mark.found
TRAP = "127.0.0.66"


@pytest.fixture
def live(unfounded: LiveNodes) -> LiveNodes:
    """Return nodes of no group yet."""
    return unfounded


class UnknownNode:
    """Opens a handshake with any fields, and sends frames if it gets a connect token."""

    def __init__(self, live: LiveNodes, number: int, **said: Any) -> None:
        self.address = live.peer_address(number)
        self.handshake = {
            "group_id": GROUP_ID,
            "sender_id": "made-up",
            "sender_name": "unknown",
            "recipient_id": live.nodes[number].node_id,
            "endpoint": {"host": TRAP, "port": 1},
        } | said
        self._ended = asyncio.Event()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[ConnectToken]:
        """Hold a control stream. Raises AioRpcError if it is refused."""

        async def nothing() -> AsyncIterator[bytes]:
            await self._ended.wait()
            for none in list[bytes]():
                yield none

        async with grpc.aio.insecure_channel(self.address) as channel:
            handshake = ((METADATA_KEY, json.dumps(self.handshake)),)
            call = channel.stream_stream(f"/{SERVICE}/Control")(nothing(), metadata=handshake)
            answer = {key: value for key, value in await call.initial_metadata()}  # noqa: C416
            if CONNECT_TOKEN_KEY not in answer:
                async for _ in call:
                    pass
            yield ConnectToken.decode(str(answer[CONNECT_TOKEN_KEY]))
            self._ended.set()
            call.cancel()

    async def refusal(self) -> str:
        """Return why it is refused."""
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async with self.connected():
                pass
        return str(refused.value.details())


async def _send(connect_token: ConnectToken, *messages: Message) -> None:
    """Send frames, and wait until the node has read or refused them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", connect_token.port)
    frames = b"".join(prefix(frame) + frame for frame in map(encode, messages))
    writer.write(connect_token.token + frames + (1 << 31).to_bytes(4, "little"))
    with contextlib.suppress(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_who_is_no_member_is_refused_by_name(live: LiveNodes) -> None:
    """By leader and followers, in its own words quoted; terms stay (found: S5, S8d)."""
    await live.found(0, 1, 2)
    # One that has just joined knows no member yet, and has to hear the first that comes.
    await eventually(lambda: all(len(live.status(number).members) == 3 for number in range(3)))
    terms = [live.status(number).term for number in range(3)]

    refusals = [await UnknownNode(live, number).refusal() for number in range(3)]

    assert all("'unknown' ('made-up') is not a member of group" in why for why in refusals)
    assert [live.status(number).term for number in range(3)] == terms


async def test_a_members_name_gives_an_unknown_node_no_term(live: LiveNodes) -> None:
    """A number that no group comes to ends the connection, a jump is passed over (found: S5)."""
    leader = await live.found(0, 1, 2)
    follower = (leader + 1) % 3
    term = live.status(follower).term
    ids = {"sender": live.nodes[leader].node_id, "recipient": live.nodes[follower].node_id}
    heartbeat = HeartbeatRequest(**ids, term=1, commit_index=0, commit_chain=0, round=1)
    vote = VoteRequest(**ids, term=1, last_index=0, last_term=0, last_chain=0, transfer=True)

    async with UnknownNode(live, follower, sender_id=ids["sender"]).connected() as connect_token:
        for wrong in (2**64 - 1, 2**63 - 1, 2**62):
            await _send(connect_token, replace(heartbeat, term=wrong))
            await _send(connect_token, replace(vote, term=wrong))
        await _send(connect_token, replace(vote, term=2**62 - 1))

    refused = live.nodes[follower]._metrics.registry.get_sample_value
    labels = {"group": "orders", "node": f"orders-{follower}", "reason": "TermJump"}
    await eventually(lambda: refused("dledger_refused_messages_total", labels) == 1)
    assert live.status(follower).term == term
    async with live.client(follower) as client:
        await client.append("topic", [b"goes on"], queue_id=0)


async def test_a_members_name_gives_an_unknown_node_no_traffic(live: LiveNodes) -> None:
    """No route and no forwarded call goes where a handshake pointed (found: S8a)."""
    leader = await live.found(0, 1, 2)
    asked = (leader + 1) % 3
    await eventually(lambda: sum(one.heard for one in live.nodes[asked].engine.endpoints()) == 3)
    before = live.nodes[asked].engine.endpoints()

    for number in {0, 1, 2} - {asked}:
        sender = {"sender_id": live.nodes[number].node_id, "sender_name": f"orders-{number}"}
        async with UnknownNode(live, asked, **sender).connected():
            assert live.nodes[asked].engine.endpoints() == before
            assert live.nodes[asked]._peers._links[NodeId(sender["sender_id"])].connected

    known = live.nodes[asked].engine.leader()
    assert known is not None  # its connection is not taken for broken when the unknown node's ends
    assert known.address == live.peer_address(leader)
    async with live.client(asked) as client:
        await client.append("topic", [b"forwarded"], queue_id=0)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"endpoint": {"host": 12345, "port": 1}}, "host must be printable text"),
        ({"sender_id": ["x"]}, "sender_id must be printable text"),
        ({"sender_name": "evil\n2026-01-01 CRITICAL forged"}, "sender_name must be printable"),
        ({"group_id": "EVIL"}, "this node belongs to group .*, not to 'EVIL'"),
    ],
)
async def test_words_that_are_none_are_refused(
    live: LiveNodes, caplog: pytest.LogCaptureFixture, said: dict[str, object], why: str
) -> None:
    """Nothing of them is kept, and no line of the log is theirs (found: S8b, S8f)."""
    await live.found(0)

    with pytest.raises(grpc.aio.AioRpcError, match=why):
        async with UnknownNode(live, 0, **said).connected():
            pass

    assert not [line for line in caplog.text.splitlines() if line.startswith("2026")]


async def test_an_empty_node_waits_for_its_own_group(live: LiveNodes) -> None:
    """The first to connect in another's name is refused (found: S8e)."""
    await live.start(0)

    why = await UnknownNode(live, 0, group_id="EVIL-group").refusal()

    assert f"may only join group '{GROUP_ID}', not 'EVIL-group'" in why
    assert live.status(0).group_id == ""
    assert GROUP_ID in live.status(0).not_ready_reason


async def test_a_node_that_was_away_hears_a_new_member_that_leads(live: LiveNodes) -> None:
    """By the word of one that it knows: it does not have the entry that added it."""
    await live.found(0, 1, 2)
    await live.stop(2)
    await live.start(3)
    async with live.admin(await live.leader()) as admin:
        await admin.add_learner(live.member(3))
    await live.voters(4)
    live.nodes[await live.leader()].transfer_leadership(live.nodes[3].node_id)
    await eventually(live.nodes[3].engine.is_leader)

    await live.start(2)

    new = live.nodes[3].node_id
    await eventually(lambda: live.role(2, new) == "leader")
    await eventually(lambda: live.status(2).commit_index == live.status(3).commit_index)
