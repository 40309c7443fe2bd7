"""Checks names, ids and addresses from outside: they are bounded, printable and one line.

Every such string that a node stores, forwards or logs is checked here first, whether it comes from
a peer, an administrator or an unauthenticated client.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from dledger.errors import InvalidArgument
from dledger.types import Member

MAX_ID_BYTES: Final = 64
"""Of a node; a segment's header has room for this much."""
MAX_GROUP_ID_BYTES: Final = 128
"""Of a group; likewise."""
MAX_NAME_BYTES: Final = 256
"""Of a node's name; a name in Kubernetes has at most 253."""
MAX_ADDRESS_BYTES: Final = 300
"""Of ``host:port``; a name in DNS has at most 253."""
_MAX_PORT: Final = 65_535


def check_word(what: str, said: object, *, most: int, empty: bool = False) -> str:
    """Return *said* if it is printable text of at most *most* bytes; *empty* allows "".

    Raises:
        InvalidArgument: It is not.
    """
    is_text = isinstance(said, str) and (said or empty) and said.isprintable()
    if isinstance(said, str) and is_text and len(said) <= most and len(said.encode()) <= most:
        return said
    raise InvalidArgument(f"{what} must be printable text of at most {most} bytes: {said!r:.120}")


def check_port(what: str, said: object, *, off: bool = False) -> int:
    """Return *said* if it is a port; *off* allows 0, for none. Raises InvalidArgument."""
    if type(said) is int and (0 if off else 1) <= said <= _MAX_PORT:
        return said
    raise InvalidArgument(f"{what} must be a port: {said!r:.120}")


def check_ipv4(what: str, said: object) -> str:
    """Return *said*, unchanged, if it is an IPv4 address. Raises InvalidArgument."""
    word = check_word(what, said, most=15)
    try:
        ipaddress.IPv4Address(word)
    except ValueError as error:
        raise InvalidArgument(f"{what} must be an IPv4 address: {word!r}") from error
    return word


def check_member(member: Member) -> None:
    """Check a member that an administrator describes. Raises InvalidArgument."""
    check_word("a member's id", member.id, most=MAX_ID_BYTES)
    check_word("a member's name", member.name, most=MAX_NAME_BYTES)
    check_word("a member's address", member.address, most=MAX_ADDRESS_BYTES)
    _, colon, port = member.address.rpartition(":")
    is_port = colon and port.isascii() and port.isdecimal() and len(port) <= len(str(_MAX_PORT))
    check_port("the port of a member's address", int(port) if is_port else port)


def check_group_id(said: object) -> str:
    """Return *said* if it can be a group's id. Raises InvalidArgument."""
    return check_word("group_id", said, most=MAX_GROUP_ID_BYTES)
