"""Whole nodes that speak mutual TLS with each other: they serve, and strangers get nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dledger.peers.handshake import Handshake
from dledger.rpc.peer_tls import PeerTls
from dledger.server.node import Node
from dledger_operator.cluster.issuing import Pair
from tests.system.peer_certificates import Mounted, ended_certificate
from tests.system.secure_nodes import (
    NAMES,
    STATUS,
    SecureNodes,
    call,
    control,
    handshake,
    keeps,
    peer_tls,
)
from tests.waiting import eventually


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SecureNodes]:
    """Three nodes with certificates, not started yet."""
    mounted = Mounted(tmp_path / "peer-tls")
    mounted.write({name: mounted.member(name) for name in NAMES})
    group = SecureNodes(tmp_path, mounted)
    yield group
    await group.stop()


async def test_a_group_with_certificates_serves_through_any_node(nodes: SecureNodes) -> None:
    """Requests to followers are forwarded over TLS, and entries go by the TLS port."""
    await nodes.found(0, 1, 2)
    for number in range(3):
        async with nodes.client(number) as client:
            await client.append("t", [b"x"])
    leader = await nodes.leader()
    await eventually(
        lambda: all(
            nodes.status(n).commit_index == nodes.status(leader).commit_index for n in range(3)
        )
    )
    links = [link for node in nodes.nodes.values() for link in node._peers._links.values()]
    await eventually(lambda: all(link.connected and link._control.connected for link in links))


@contextlib.contextmanager
def stranger_authority(mounted: Mounted, path: Path) -> Iterator[Mounted]:
    """Give certificates of another authority, which trusts the group's all the same."""
    other = Mounted(path)
    other.authorities = [mounted.authorities[-1], other.authorities[0]]
    yield other


async def test_strangers_are_refused_on_the_peer_port(nodes: SecureNodes, tmp_path: Path) -> None:
    """No certificate, another authority, plain text, an ended certificate, no role."""
    await nodes.found(0, 1, 2)
    address, mounted = nodes.peer_address(0), nodes.mounted
    with stranger_authority(mounted, tmp_path / "other") as other:
        foreign = other.member("orders-1")
        roleless = mounted.issue("nobody", "orders-1")
        ended = ended_certificate(mounted, "member/orders-1", "orders-1")

        assert await call(grpc.aio.insecure_channel(address)) is grpc.StatusCode.UNAVAILABLE
        for pair in (None, foreign, ended):
            channel = mounted.channel(address, "orders-0", pair)
            assert await call(channel) is grpc.StatusCode.UNAVAILABLE
            said = handshake(nodes, sender=1, name="orders-1")
            assert await control(nodes, pair, said) is grpc.StatusCode.UNAVAILABLE
        channel = mounted.channel(address, "orders-0", roleless)
        assert await call(channel) is grpc.StatusCode.PERMISSION_DENIED


async def test_a_handshake_is_believed_from_that_member_alone(nodes: SecureNodes) -> None:
    """Neither with another role nor with another member's name or disk."""
    await nodes.found(0, 1, 2)
    mounted, mine = nodes.mounted, handshake(nodes, sender=1, name="orders-1")

    assert await control(nodes, mounted.member("orders-1"), mine) is grpc.StatusCode.OK
    for role in ("operator", "admin", "backup", "member/orders-2", "member/orders-1x"):
        pair = mounted.issue(role, "orders-1")
        assert await control(nodes, pair, mine) is grpc.StatusCode.PERMISSION_DENIED, role
    theirs = handshake(nodes, sender=1, name="orders-2")
    denied = await control(nodes, mounted.member("orders-2"), theirs)
    assert denied is grpc.StatusCode.PERMISSION_DENIED


async def test_each_role_may_call_what_it_needs(nodes: SecureNodes) -> None:
    """A backup reads; a member does not change the group."""
    await nodes.found(0, 1, 2)
    admin = "/dledger.v1.Admin/"
    denied = grpc.StatusCode.PERMISSION_DENIED
    for role, path, may in (
        ("backup", STATUS, True),
        ("backup", f"{admin}ExportPlan", True),
        ("backup", f"{admin}RemoveMember", False),
        ("backup", "/dledger.v1.Ledger/Append", False),
        ("member/orders-1", STATUS, True),
        ("member/orders-1", f"{admin}ForceNewGroup", False),
        ("member/orders-1", "/dledger.v1.Ledger/Append", True),
        ("operator", f"{admin}TransferLeader", True),
        ("admin", f"{admin}ListGroups", True),
    ):
        pair = nodes.mounted.issue(role)
        channel = nodes.mounted.channel(nodes.peer_address(0), "orders-0", pair)
        assert (await call(channel, path) is not denied) is may, (role, path)


async def test_a_connect_token_serves_its_own_member_alone(
    nodes: SecureNodes, tmp_path: Path
) -> None:
    """On the replication port a stranger ends before a frame of theirs is read."""
    await nodes.found(0, 1, 2)
    port = nodes.nodes[0]._peers.replication
    said = Handshake.decode(handshake(nodes, sender=1, name="orders-1"))
    foreign = Mounted(tmp_path / "other")
    with port.admitted(said) as given:
        for pair, may in (
            (nodes.mounted.member("orders-1"), True),
            (nodes.mounted.member("orders-2"), False),
            (nodes.mounted.issue("operator"), False),
            (ended_certificate(nodes.mounted, "member/orders-1", "orders-1"), False),
            (foreign.member("orders-1"), False),
            (None, False),
        ):
            assert await keeps(nodes.mounted, port.number, given.token, pair) is may


async def test_authorities_are_replaced_under_writes(nodes: SecureNodes) -> None:
    """Both are trusted, then certificates are the new one's, then it alone is: none is refused."""
    await nodes.found(0, 1, 2)
    mounted, stop = nodes.mounted, asyncio.Event()
    before = {n: peer_tls(nodes, n).state for n in nodes.nodes}

    async def write(number: int) -> int:
        count = 0
        async with nodes.client(number) as client:
            while not stop.is_set():
                await client.append("t", [b"x"])
                count += 1
        return count

    async def taken() -> None:
        await eventually(lambda: all(peer_tls(nodes, n).state is not before[n] for n in before))
        before.update({n: peer_tls(nodes, n).state for n in before})

    writers = [asyncio.create_task(write(number)) for number in range(3)]
    old = {name: mounted.member(name) for name in NAMES}
    mounted.authorities.append(Mounted(mounted.path.parent / "new").authorities[0])
    mounted.write(old)
    await taken()
    fresh = {name: mounted.member(name) for name in NAMES}
    mounted.write(fresh)
    await taken()
    del mounted.authorities[0]
    mounted.write(fresh)
    await taken()
    # A node that comes now is believed by the new authority alone.
    follower = (await nodes.leader() + 1) % 3
    said = handshake(nodes, sender=1, name="orders-1")
    assert await control(nodes, fresh["orders-1"], said) is grpc.StatusCode.OK
    assert await control(nodes, old["orders-1"], said) is grpc.StatusCode.UNAVAILABLE
    stop.set()
    assert all(count > 0 for count in await asyncio.gather(*writers))
    await nodes.stop(follower)
    await nodes.start(follower)
    async with nodes.client(follower) as client:
        await client.append("t", [b"x"])


async def test_a_damaged_pair_does_not_hold_up_a_new_authority(tmp_path: Path) -> None:
    """The last sound pair stays; what is trusted is new all the same."""
    mounted = Mounted(tmp_path / "peer-tls")
    mounted.write({"orders-0": mounted.member("orders-0")})
    tls = PeerTls(mounted.path, "orders-0")
    sound = tls._loaded.identity.pair

    mounted.authorities.append(Mounted(tmp_path / "new").authorities[0])
    damaged = Pair(mounted.member("orders-0").chain, mounted.member("orders-0").key)
    mounted.write({"orders-0": damaged})
    tls.refresh()
    assert tls._loaded.identity.pair == sound
    assert tls._loaded.identity.trusted == mounted.trusted

    mounted.write({})
    tls.refresh()
    assert tls._loaded.identity.pair == sound

    mounted.replace({"ca.crt": b"half", "orders-0.crt": sound.chain, "orders-0.key": sound.key})
    tls.refresh()
    assert tls._loaded.identity.trusted == mounted.trusted

    fresh = mounted.member("orders-0")
    mounted.write({"orders-0": fresh})
    tls.refresh()
    assert tls._loaded.identity.pair.chain == fresh.chain


@pytest.mark.parametrize("fault", ["no files", "mode", "pair"])
async def test_a_node_does_not_start_without_sound_certificates(
    nodes: SecureNodes, fault: str
) -> None:
    """It does not fall back to plain text."""
    mounted, one = nodes.mounted, nodes.mounted.member("orders-0")
    if fault == "no files":
        mounted.replace({"mode": b"required"})
    elif fault == "mode":
        files = {"orders-0.crt": one.chain, "orders-0.key": one.key}
        mounted.replace({"ca.crt": mounted.trusted, "mode": b"some", **files})
    else:
        mounted.write({"orders-0": Pair(one.chain, mounted.member("orders-0").key)})
    with pytest.raises(OSError, match=r"ca\.crt|mode|orders-0\.crt"):
        Node(nodes.settings(0), on_fatal=lambda _: None)
