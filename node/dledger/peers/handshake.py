"""The handshake that opens every peer stream, and the rules for accepting one.

A stream connects two disks of one group, named by their UUIDs: a node whose disk was replaced has
another UUID and is refused until it is added to the group. Pure values and decisions, called by the
server.

A member's address comes from the group's membership, never from a handshake, since anyone can send
one. The address in a handshake is used only by a node that knows no member yet, to reply.
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
from dledger.types import MAX_NUMBER, Membership, NodeId

METADATA_KEY = "dledger-hello"
_MAX_CHARS: Final = 8192
MAX_LEVEL: Final = 1 << 16
"""An upper bound for feature levels, far above that of any version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAddress:
    """Where clients reach a node: an IPv4 address, the plaintext port, and the TLS port or 0."""

    host: str
    port: int
    tls_port: int

    @classmethod
    def checked(cls, *, host: object, port: object, tls_port: object) -> ClientAddress:
        """Return the address that a peer reports, checked. Raises InvalidArgument."""
        return cls(
            host=check_ipv4("host", host),
            port=check_port("the clients' port", port),
            tls_port=check_port("the clients' TLS port", tls_port, off=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """The address at which a node says peers can reach it: an IPv4 address and a port."""

    host: str
    port: int

    @classmethod
    def checked(cls, *, host: object, port: object) -> PeerAddress:
        """Return the address that a peer reports, checked. Raises InvalidArgument."""
        return cls(host=check_ipv4("host", host), port=check_port("the peers' port", port))


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """The caller, the intended recipient, and their group.

    A handshake may have more fields than these, from a newer version; this one ignores them.

    Attributes:
        feature_level: The caller's feature level (`features`); the lowest if it sends none.
        epoch: How often the caller's group was forced, as far as it knows (`raft.force`).
        epoch_index: The entry that forced it last; 0 if none did.
    """

    group_id: str
    sender_id: NodeId
    sender_name: str
    recipient_id: NodeId
    endpoint: PeerAddress
    feature_level: int = LOWEST_LEVEL
    epoch: int = 0
    epoch_index: int = 0

    def encode(self) -> str:
        """Return the metadata value."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Handshake:
        """Parse a metadata value.

        Raises:
            InvalidArgument: It is not a handshake, or a field has the wrong type or is too long.
        """
        try:
            if len(text) > _MAX_CHARS:
                raise InvalidArgument(f"{len(text)} characters are too many")
            return _checked(json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError, InvalidArgument) as error:
            reason = f"{type(error).__name__}: {error!s:.200}"
            raise InvalidArgument(f"not a peer handshake ({reason}): {text[:120]!r}") from error


def _checked(said: Mapping[str, Any]) -> Handshake:
    where, level = said["endpoint"], said.get("feature_level", LOWEST_LEVEL)
    if type(level) is not int or not LOWEST_LEVEL <= level <= MAX_LEVEL:
        raise InvalidArgument(f"invalid feature level {level!r:.120}")
    return Handshake(
        group_id=check_word("group_id", said["group_id"], most=MAX_GROUP_ID_BYTES, empty=True),
        sender_id=NodeId(check_word("sender_id", said["sender_id"], most=MAX_ID_BYTES)),
        sender_name=check_word("sender_name", said["sender_name"], most=MAX_NAME_BYTES),
        recipient_id=NodeId(check_word("recipient_id", said["recipient_id"], most=MAX_ID_BYTES)),
        endpoint=PeerAddress.checked(host=where["host"], port=where["port"]),
        feature_level=level,
        epoch=_count("epoch", said.get("epoch", 0)),
        epoch_index=_count("epoch_index", said.get("epoch_index", 0)),
    )


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise InvalidArgument(f"invalid {name} {value!r:.120}")
    return value


def check(
    handshake: Handshake,
    *,
    node_id: NodeId,
    group_id: str,
    told_group: str,
    membership: Membership,
    removal_index: int | None = None,
) -> bool:
    """Accept or refuse a handshake; return whether an Unjoined node joins the group by it.

    Args:
        handshake: The caller's handshake.
        node_id: This node's UUID.
        group_id: This node's group, empty while Unjoined.
        told_group: The group that an Unjoined node is configured to join; empty if none.
        membership: The members, if this node leads; empty otherwise, since a lagging follower may
            not know a member added since (Raft 6).
        removal_index: The committed entry that removed the sender, if any. Removal is permanent, so
            a lagging follower may rely on it too.

    Raises:
        Refused: The handshake is for another disk.
        NotMember: The sender is not a member.
        MemberRemoved: The sender was removed from the group.
        WrongGroup: The sender belongs to another group.
        NotTheGroup: This node is Unjoined, and is configured to join another group, or none.
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
