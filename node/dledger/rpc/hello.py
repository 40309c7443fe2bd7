"""The greeting that opens every peer stream, and the rules for accepting one.

A stream is for two disks of one group, named by their UUIDs: a node whose disk was replaced
has another UUID and is refused until it is added to the group. Pure values and decisions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dledger.errors import InvalidArgument, MemberRemoved, Refused, WrongGroup
from dledger.features import LOWEST_LEVEL
from dledger.types import Membership, NodeId

METADATA_KEY = "dledger-hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Where a node is reached: IPv4 addresses for clients and for peers, and the ports."""

    host: str
    peer_host: str
    client_port: int
    client_tls_port: int
    peer_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who calls whom, for which group.

    A greeting may have more fields than these: those of a newer version, which this one ignores.

    Attributes:
        feature_level: What the caller knows (`features`); who does not say it is of the lowest.
    """

    group_id: str
    sender_id: NodeId
    sender_name: str
    recipient_id: NodeId
    endpoint: NodeAddress
    feature_level: int = LOWEST_LEVEL

    def encode(self) -> str:
        """Return the metadata value."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Hello:
        """Parse a metadata value.

        Raises:
            InvalidArgument: It is not a greeting.
        """
        try:
            said = json.loads(text)
            endpoint = NodeAddress(**_known(NodeAddress, said["endpoint"]))
            hello = cls(**_known(cls, said) | {"endpoint": endpoint})
            if type(hello.feature_level) is not int or hello.feature_level < LOWEST_LEVEL:
                raise ValueError(f"feature level {hello.feature_level!r}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidArgument(f"not a peer greeting: {text[:120]!r}") from error
        return hello


def _known(kind: type[Hello] | type[NodeAddress], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the fields that this version knows."""
    return {each.name: said[each.name] for each in fields(kind) if each.name in said}


def check(
    hello: Hello,
    *,
    node_id: NodeId,
    group_id: str,
    membership: Membership,
    removal_index: int | None = None,
) -> bool:
    """Decide on a greeting; return whether an Unjoined node joins the caller's group by it.

    Args:
        hello: What the caller said.
        node_id: This node's UUID.
        group_id: This node's group, empty while Unjoined.
        membership: The members, if this node leads; empty otherwise: a follower that lags may not
            know a member that was added since (Raft 6).
        removal_index: The committed entry that removed the sender, if one did: removed is for good,
            and even a follower that lags knows that.

    Raises:
        Refused: It means another disk, or the sender is no member.
        MemberRemoved: The sender was one.
        WrongGroup: It comes from another group.
    """
    if hello.recipient_id != node_id:
        raise Refused(
            f"{hello.sender_name} wants node {hello.recipient_id}, but this disk is {node_id}: "
            "a replaced disk must be added to the group as a new member"
        )
    if not hello.group_id:
        raise InvalidArgument(f"{hello.sender_name} belongs to no group")
    if group_id and hello.group_id != group_id:
        raise WrongGroup(ours=group_id, theirs=hello.group_id)
    if removal_index is not None:
        raise MemberRemoved(hello.sender_id, group_id=group_id, index=removal_index)
    if membership.voters and membership.get(hello.sender_id) is None:
        raise Refused(
            f"{hello.sender_name} ({hello.sender_id}) is not a member of group {group_id}: "
            "a replaced disk must be added to the group as a new member"
        )
    return not group_id
