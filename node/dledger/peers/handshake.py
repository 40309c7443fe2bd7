"""The greeting that opens every peer stream, and the rules for accepting one.

A stream is for two disks of one group, named by their UUIDs: a node whose disk was replaced
has another UUID and is refused until it is added to the group. Pure values and decisions.

Where a member is, its membership says, not its greeting: anyone can greet. What a greeting says of
its sender's address is used only by a node that knows no member yet, to answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from dledger.common.features import LOWEST_LEVEL
from dledger.common.words import (
    MAX_GROUP_ID_BYTES,
    MAX_ID_BYTES,
    MAX_NAME_BYTES,
    check_ipv4,
    check_port,
    check_word,
)
from dledger.errors import (
    InvalidArgument,
    MemberRemoved,
    NotMember,
    NotTheGroup,
    Refused,
    WrongGroup,
)
from dledger.types import Membership, NodeId

METADATA_KEY = "dledger-hello"
_MAX_CHARS: Final = 8192
MAX_LEVEL: Final = 1 << 16
"""No version comes to such a feature level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAddress:
    """Where clients reach a node: an IPv4 address, the plain port, and the TLS port or 0."""

    host: str
    port: int
    tls_port: int

    @classmethod
    def checked(cls, *, host: object, port: object, tls_port: object) -> ClientAddress:
        """Return what a peer says of itself. Raises InvalidArgument."""
        return cls(
            host=check_ipv4("host", host),
            port=check_port("the clients' port", port),
            tls_port=check_port("the clients' TLS port", tls_port, off=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """Where a node says that its peers reach it: an IPv4 address and the port."""

    host: str
    port: int

    @classmethod
    def checked(cls, *, host: object, port: object) -> PeerAddress:
        """Return what a peer says of itself. Raises InvalidArgument."""
        return cls(host=check_ipv4("host", host), port=check_port("the peers' port", port))


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """Who calls whom, for which group.

    A greeting may have more fields than these: those of a newer version, which this one ignores.

    Attributes:
        feature_level: What the caller knows (`features`); who does not say it is of the lowest.
    """

    group_id: str
    sender_id: NodeId
    sender_name: str
    recipient_id: NodeId
    endpoint: PeerAddress
    feature_level: int = LOWEST_LEVEL

    def encode(self) -> str:
        """Return the metadata value."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Handshake:
        """Parse a metadata value.

        Raises:
            InvalidArgument: It is not a greeting, or a field of it is of another type or too long.
        """
        try:
            if len(text) > _MAX_CHARS:
                raise InvalidArgument(f"it has {len(text)} characters")
            return _checked(json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError, InvalidArgument) as error:
            reason = f"{type(error).__name__}: {error!s:.200}"
            raise InvalidArgument(f"not a peer greeting ({reason}): {text[:120]!r}") from error


def _checked(said: Mapping[str, Any]) -> Handshake:
    where, level = said["endpoint"], said.get("feature_level", LOWEST_LEVEL)
    if type(level) is not int or not LOWEST_LEVEL <= level <= MAX_LEVEL:
        raise InvalidArgument(f"feature level {level!r:.120}")
    return Handshake(
        group_id=check_word("group_id", said["group_id"], most=MAX_GROUP_ID_BYTES, empty=True),
        sender_id=NodeId(check_word("sender_id", said["sender_id"], most=MAX_ID_BYTES)),
        sender_name=check_word("sender_name", said["sender_name"], most=MAX_NAME_BYTES),
        recipient_id=NodeId(check_word("recipient_id", said["recipient_id"], most=MAX_ID_BYTES)),
        endpoint=PeerAddress.checked(host=where["host"], port=where["port"]),
        feature_level=level,
    )


def check(
    handshake: Handshake,
    *,
    node_id: NodeId,
    group_id: str,
    told_group: str,
    membership: Membership,
    removal_index: int | None = None,
) -> bool:
    """Decide on a greeting; return whether an Unjoined node joins the caller's group by it.

    Args:
        handshake: What the caller said.
        node_id: This node's UUID.
        group_id: This node's group, empty while Unjoined.
        told_group: The one that an Unjoined node was told to join; empty if none.
        membership: The members, if this node leads; empty otherwise: a follower that lags may not
            know a member that was added since (Raft 6).
        removal_index: The committed entry that removed the sender, if one did: removed is for good,
            and even a follower that lags knows that.

    Raises:
        Refused: It means another disk.
        NotMember: The sender is no member.
        MemberRemoved: The sender was one.
        WrongGroup: It comes from another group.
        NotTheGroup: This node is Unjoined, and was told to join another group, or none.
    """
    if handshake.recipient_id != node_id:
        raise Refused(
            f"{handshake.sender_name!r} wants node {handshake.recipient_id!r}, "
            f"but this disk is {node_id}: "
            "a replaced disk must be added to the group as a new member"
        )
    if not handshake.group_id:
        raise InvalidArgument(f"{handshake.sender_name!r} belongs to no group")
    if not group_id and handshake.group_id != told_group:
        raise NotTheGroup(told=told_group, theirs=handshake.group_id)
    if group_id and handshake.group_id != group_id:
        raise WrongGroup(ours=group_id, theirs=handshake.group_id)
    if removal_index is not None:
        raise MemberRemoved(handshake.sender_id, group_id=group_id, index=removal_index)
    if membership.voters and membership.get(handshake.sender_id) is None:
        raise NotMember(handshake.sender_id, name=handshake.sender_name, group_id=group_id)
    return not group_id
