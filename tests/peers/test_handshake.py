"""Handshakes: which disk may talk to which."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dledger.common.features import LOWEST_LEVEL
from dledger.errors import InvalidArgument, MemberRemoved, NotTheGroup, Refused, WrongGroup
from dledger.peers.handshake import ClientAddress, Handshake, PeerAddress, check
from dledger.peers.replication_port import ConnectToken
from dledger.types import Member, Membership, NodeId

A, B = NodeId("uuid-a"), NodeId("uuid-b")
MEMBERS = Membership.of(Member(id=i, name=i, address=f"{i}:1") for i in (A, B))
HELLO = Handshake(
    group_id="g",
    sender_id=A,
    sender_name="orders-0",
    recipient_id=B,
    endpoint=PeerAddress(host="10.1.0.1", port=3),
)
CLIENTS = ClientAddress(host="10.0.0.1", port=1, tls_port=0)


def test_a_handshake_comes_out_as_it_went_in() -> None:
    """Through gRPC metadata."""
    assert Handshake.decode(HELLO.encode()) == HELLO


def test_a_handshake_of_a_newer_version_is_understood() -> None:
    """What it says more is passed over, at both depths; else no rollout would get far."""
    said = json.loads(replace(HELLO, feature_level=7).encode())
    said |= {"motto": "forward", "endpoint": said["endpoint"] | {"quic_port": 4}}

    assert Handshake.decode(json.dumps(said)) == replace(HELLO, feature_level=7)


def test_a_handshake_without_a_level_is_of_the_lowest() -> None:
    """As those of the version before levels were."""
    said = json.loads(replace(HELLO, feature_level=7).encode())
    del said["feature_level"]

    assert Handshake.decode(json.dumps(said)).feature_level == LOWEST_LEVEL


@pytest.mark.parametrize("level", [0, -1, "2", True, 1.5, None])
def test_a_level_that_is_none_is_refused(level: object) -> None:
    """It decides what goes into the log."""
    said = json.loads(HELLO.encode()) | {"feature_level": level}

    with pytest.raises(InvalidArgument):
        Handshake.decode(json.dumps(said))


@pytest.mark.parametrize(
    ("text", "level"),
    [("7:" + "ab" * 16, 1), ("7:" + "ab" * 16 + ":3", 3)],
)
def test_a_ticket_of_another_version_is_understood(text: str, level: int) -> None:
    """It lets its holder in at the byte streams."""
    assert ConnectToken.decode(text) == ConnectToken(7, bytes.fromhex("ab" * 16), level)


def test_a_ticket_says_where_clients_reach_its_node() -> None:
    """More than this version knows is passed over."""
    connect_token = ConnectToken(7, bytes.fromhex("ab" * 16), 3, CLIENTS)

    assert (
        ConnectToken.decode(connect_token.encode())
        == ConnectToken.decode(connect_token.encode() + ":more:x")
        == connect_token
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "7:ab",
        ":" + "ab" * 16,
        "7:" + "ab" * 16 + ":0",
        "7:" + "ab" * 16 + ":70000",
        "7:" + "ab" * 16 + ":1:evil.example:1:0",
        "7:" + "ab" * 16 + ":1:10.0.0.1:1",
        "7:" + "ab" * 16 + ":1:10.0.0.1:0:0",
        "7:" + "ab" * 16 + ":1:10.0.0.1:1:x",
        "7:" + "ab" * 16 + ":1" + ":x" * 200,
    ],
)
def test_other_text_is_no_ticket(text: str) -> None:
    """It is input."""
    with pytest.raises(InvalidArgument):
        ConnectToken.decode(text)


@pytest.mark.parametrize(
    "text",
    ["", "x", "{}", "[]", '{"endpoint": {}}', "null", "3", '"x"', "[" * 4000, "[" * 99_999],
)
def test_other_text_is_refused(text: str) -> None:
    """It is input."""
    with pytest.raises(InvalidArgument):
        Handshake.decode(text)


@pytest.mark.found
@pytest.mark.parametrize("value", [12345, None, ["x"], {}, True, "", "x" * 4000, "a\nb", "\x1b[2J"])
@pytest.mark.parametrize("field", ["sender_id", "recipient_id", "sender_name"])
def test_a_word_of_another_type_or_length_is_refused(field: str, value: object) -> None:
    """It went into routes, sets and log lines as it was (found: S8)."""
    said = json.loads(HELLO.encode()) | {field: value}

    with pytest.raises(InvalidArgument, match=f"not a peer handshake.*{field}"):
        Handshake.decode(json.dumps(said))


@pytest.mark.found
@pytest.mark.parametrize("value", [0, 70_000, "1", True, 1.5, None, 2**70])
def test_a_port_that_is_none_is_refused(value: object) -> None:
    """As is one of another type (found: S8)."""
    said = json.loads(HELLO.encode())
    said["endpoint"]["port"] = value

    with pytest.raises(InvalidArgument, match="must be a port"):
        Handshake.decode(json.dumps(said))


@pytest.mark.found
@pytest.mark.parametrize("value", [12345, None, "evil.example", "::1", "10.0.0.1.", "1" * 5000])
def test_a_host_that_is_no_address_is_refused(value: object) -> None:
    """A name would be looked up in whatever the caller controls (found: S8)."""
    said = json.loads(HELLO.encode())
    said["endpoint"]["host"] = value

    with pytest.raises(InvalidArgument, match="not a peer handshake"):
        Handshake.decode(json.dumps(said))


def test_a_member_is_accepted() -> None:
    """And joins nothing, since both are of the group."""
    assert check(HELLO, node_id=B, group_id="g", told_group="", membership=MEMBERS) is False


def test_an_unjoined_node_joins_the_group_that_it_was_told_to() -> None:
    """Being named by UUID is the invitation."""
    joins = check(HELLO, node_id=B, group_id="", told_group="g", membership=Membership())

    assert joins is True


@pytest.mark.found
@pytest.mark.parametrize(
    ("told", "why"), [("", "was not told which"), ("another", "may only join group 'another'")]
)
def test_an_unjoined_node_joins_no_other_group(told: str, why: str) -> None:
    """The first node to connect had the disk, for good (found: S8e)."""
    with pytest.raises(NotTheGroup, match=f"{why}.*not 'g'"):
        check(HELLO, node_id=B, group_id="", told_group=told, membership=Membership())


def test_a_replaced_disk_is_refused_under_its_old_name() -> None:
    """P6: the group knows the old UUID; the new disk must be added."""
    with pytest.raises(Refused, match="uuid-new"):
        check(
            HELLO,
            node_id=NodeId("uuid-new"),
            group_id="",
            told_group="g",
            membership=Membership(),
        )


def test_a_sender_that_is_no_member_is_refused() -> None:
    """Its disk was replaced, or it never was one."""
    unknown = replace(HELLO, sender_id=NodeId("uuid-x"))

    with pytest.raises(Refused, match="uuid-x"):
        check(unknown, node_id=B, group_id="g", told_group="g", membership=MEMBERS)


def test_a_removed_sender_is_refused_for_good_by_followers_too() -> None:
    """They pass no membership, since they may lag; a committed removal they know is certain."""
    with pytest.raises(MemberRemoved, match="by entry 9"):
        check(
            HELLO,
            node_id=B,
            group_id="g",
            told_group="g",
            membership=Membership(),
            removal_index=9,
        )


def test_another_group_is_refused_naming_both() -> None:
    """A foreign disk must not vote."""
    with pytest.raises(WrongGroup, match=r"other.*g"):
        check(HELLO, node_id=B, group_id="other", told_group="g", membership=MEMBERS)


def test_a_sender_without_a_group_is_refused() -> None:
    """An Unjoined node has nothing to say."""
    with pytest.raises(InvalidArgument):
        check(
            replace(HELLO, group_id=""),
            node_id=B,
            group_id="",
            told_group="",
            membership=Membership(),
        )


def test_a_handshake_without_an_epoch_is_of_a_group_that_was_never_forced() -> None:
    """As those of nodes that have joined nothing yet, and of versions before epochs."""
    said = json.loads(replace(HELLO, epoch=2, epoch_index=9).encode())
    both = Handshake.decode(json.dumps(said))
    del said["epoch"], said["epoch_index"]

    assert (both.epoch, both.epoch_index) == (2, 9)
    assert Handshake.decode(json.dumps(said)) == HELLO


@pytest.mark.parametrize("field", ["epoch", "epoch_index"])
@pytest.mark.parametrize("value", [-1, "2", True, 1.5, None, 1 << 62])
def test_an_epoch_that_is_none_is_refused(field: str, value: object) -> None:
    """A node may stop for good because of it."""
    said = json.loads(HELLO.encode()) | {field: value}

    with pytest.raises(InvalidArgument):
        Handshake.decode(json.dumps(said))
