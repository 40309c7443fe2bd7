"""Greetings: which disk may talk to which."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dledger.errors import InvalidArgument, MemberRemoved, Refused, WrongGroup
from dledger.features import LOWEST_LEVEL
from dledger.rpc.hello import Hello, NodeAddress, check
from dledger.rpc.replication_port import Ticket
from dledger.types import Member, Membership, NodeId

A, B = NodeId("uuid-a"), NodeId("uuid-b")
MEMBERS = Membership.of(Member(id=i, name=i, address=f"{i}:1") for i in (A, B))
HELLO = Hello(
    group_id="g",
    sender_id=A,
    sender_name="orders-0",
    recipient_id=B,
    endpoint=NodeAddress(
        host="10.0.0.1", peer_host="10.1.0.1", client_port=1, client_tls_port=2, peer_port=3
    ),
)


def test_a_greeting_comes_out_as_it_went_in() -> None:
    """Through gRPC metadata."""
    assert Hello.decode(HELLO.encode()) == HELLO


def test_a_greeting_of_a_newer_version_is_understood() -> None:
    """What it says more is passed over, at both depths; else no rollout would get far."""
    said = json.loads(replace(HELLO, feature_level=7).encode())
    said |= {"motto": "forward", "endpoint": said["endpoint"] | {"quic_port": 4}}

    assert Hello.decode(json.dumps(said)) == replace(HELLO, feature_level=7)


def test_a_greeting_without_a_level_is_of_the_lowest() -> None:
    """As those of the version before levels were."""
    said = json.loads(replace(HELLO, feature_level=7).encode())
    del said["feature_level"]

    assert Hello.decode(json.dumps(said)).feature_level == LOWEST_LEVEL


@pytest.mark.parametrize("level", [0, -1, "2", True, 1.5, None])
def test_a_level_that_is_none_is_refused(level: object) -> None:
    """It decides what goes into the log."""
    said = json.loads(HELLO.encode()) | {"feature_level": level}

    with pytest.raises(InvalidArgument):
        Hello.decode(json.dumps(said))


@pytest.mark.parametrize(
    ("text", "level"),
    [("7:" + "ab" * 16, 1), ("7:" + "ab" * 16 + ":3", 3), ("7:" + "ab" * 16 + ":3:more:x", 3)],
)
def test_a_ticket_of_another_version_is_understood(text: str, level: int) -> None:
    """It lets its holder in at the byte streams; more than this version knows is passed over."""
    assert Ticket.decode(text) == Ticket(7, bytes.fromhex("ab" * 16), level)


@pytest.mark.parametrize("text", ["", "7", "7:ab", ":" + "ab" * 16, "7:" + "ab" * 16 + ":0"])
def test_other_text_is_no_ticket(text: str) -> None:
    """It is input."""
    with pytest.raises(InvalidArgument):
        Ticket.decode(text)


@pytest.mark.parametrize("text", ["", "x", "{}", "[]", '{"endpoint": {}}', "null"])
def test_other_text_is_refused(text: str) -> None:
    """It is input."""
    with pytest.raises(InvalidArgument):
        Hello.decode(text)


def test_a_member_is_accepted() -> None:
    """And joins nothing, since both are of the group."""
    assert check(HELLO, node_id=B, group_id="g", membership=MEMBERS) is False


def test_an_unjoined_node_joins_whoever_knows_its_uuid() -> None:
    """Being named by UUID is the invitation."""
    assert check(HELLO, node_id=B, group_id="", membership=Membership()) is True


def test_a_replaced_disk_is_refused_under_its_old_name() -> None:
    """P6: the group knows the old UUID; the new disk must be added."""
    with pytest.raises(Refused, match="uuid-new"):
        check(HELLO, node_id=NodeId("uuid-new"), group_id="", membership=Membership())


def test_a_sender_that_is_no_member_is_refused() -> None:
    """Its disk was replaced, or it never was one."""
    stranger = replace(HELLO, sender_id=NodeId("uuid-x"))

    with pytest.raises(Refused, match="uuid-x"):
        check(stranger, node_id=B, group_id="g", membership=MEMBERS)


def test_a_removed_sender_is_refused_for_good_by_followers_too() -> None:
    """They pass no membership, since they may lag; a committed removal they know is certain."""
    with pytest.raises(MemberRemoved, match="by entry 9"):
        check(HELLO, node_id=B, group_id="g", membership=Membership(), removal_index=9)


def test_another_group_is_refused_naming_both() -> None:
    """A foreign disk must not vote."""
    with pytest.raises(WrongGroup, match=r"other.*g"):
        check(HELLO, node_id=B, group_id="other", membership=MEMBERS)


def test_a_sender_without_a_group_is_refused() -> None:
    """An Unjoined node has nothing to say."""
    with pytest.raises(InvalidArgument):
        check(replace(HELLO, group_id=""), node_id=B, group_id="", membership=Membership())
