"""What a follower and its leader say before there is a link: in which format, where, with what.

Both are JSON, whose other fields are ignored, in one gRPC call. Versions differ in what they speak:
a follower names its formats, and the leader takes the highest that both have. Where there is none
the leader refuses, and is called by gRPC, whose messages any two versions have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from dledger.peers.replication_port import TOKEN_BYTES

FORMATS: Final = frozenset({1})
"""The formats of frames that this version speaks. One that was released stays for as long as nodes
that speak no newer one may be in a group; what it says of a kind of frame never changes."""
_MAX_PORT: Final = (1 << 16) - 1
_MAX_WISH_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Wish:
    """What a follower asks for.

    Attributes:
        formats: The formats that it speaks.
    """

    formats: Collection[int]

    def encode(self) -> bytes:
        """Return the request."""
        return json.dumps({"formats": sorted(self.formats)}).encode()

    @classmethod
    def decode(cls, request: bytes) -> Self:
        """Return the wish in a request. Raises ValueError."""
        if len(request) > _MAX_WISH_BYTES:
            raise ValueError(f"a wish for a link of {len(request)} bytes")
        formats = _fields(request, "wish for").get("formats")
        if not isinstance(formats, list) or not all(type(each) is int for each in formats):
            raise ValueError("no wish for a link: it names no formats")
        return cls(frozenset(formats))

    def newest_format(self) -> int:
        """Return the format for both. Raises ValueError: there is none."""
        common = FORMATS.intersection(self.formats)
        if not common:
            asked, spoken = sorted(self.formats), sorted(FORMATS)
            raise ValueError(f"a link in one of the formats {asked} was asked for, not {spoken}")
        return max(common)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a leader offers to a follower.

    Attributes:
        format: The format of the link's frames.
        port: The port to connect to, at the leader's host.
        token: What to send there first; for one connection.
        methods: The paths of the methods, by their numbers.
    """

    format: int
    port: int
    token: bytes
    methods: Sequence[str]

    def encode(self) -> bytes:
        """Return the response."""
        fields = {
            "format": self.format,
            "port": self.port,
            "token": self.token.hex(),
            "methods": list(self.methods),
        }
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, response: bytes) -> Self:
        """Return the offer in a response. Raises ValueError."""
        fields = _fields(response, "offer of")
        try:
            number, port, methods = fields["format"], fields["port"], fields["methods"]
            token = bytes.fromhex(fields["token"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no offer of a link: {error!r}") from error
        if type(number) is not int or number not in FORMATS:
            raise ValueError(f"no offer of a link: in format {number!r}, which nobody asked for")
        whole = isinstance(port, int) and 0 < port <= _MAX_PORT and len(token) == TOKEN_BYTES
        named = isinstance(methods, list) and all(isinstance(each, str) for each in methods)
        if not whole or not named:
            raise ValueError("no offer of a link")
        return cls(format=number, port=port, token=token, methods=methods)


def _fields(data: bytes, what: str) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises ValueError."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no {what} a link: {error!r}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"no {what} a link: {type(fields).__name__}")
    return fields
