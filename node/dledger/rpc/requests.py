"""The size limits of each method's requests, in bytes and fields, and the parsing of requests.

gRPC has only one limit for a whole port. The limits here are checked on the raw bytes, before they
are parsed. Used by the servers of both client protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.errors import InvalidArgument
from dledger.rpc.elements import count_elements
from dledger.rpc.status import Code, Rejected

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_Message = TypeVar("_Message", bound=Message)
SMALL_BYTES: Final = 256 << 10
"""The limit of every method that is not named below; none of these carries message bodies."""
TELEMETRY_BYTES: Final = 64 << 10
_LIMITS: Final = {
    "Telemetry": TELEMETRY_BYTES,
    "SendMessage": MAX_CLIENT_FRAME_BYTES,
    "Append": MAX_CLIENT_FRAME_BYTES,
    "Produce": MAX_CLIENT_FRAME_BYTES,
    "Compact": 3 << 20,  # two bitmaps of 1 MiB that nothing makes smaller, and proofs
}
MAX_ELEMENTS: Final = 1 << 17
"""The limit of fields in a request: 32 for each message of the largest batch. Requests of at most
`SMALL_BYTES` are not counted: they have no room for more."""


def limit_of(method: str) -> int:
    """Return the limit of a request in bytes; *method* is its name without the service."""
    return _LIMITS.get(method, SMALL_BYTES)


def check_size(method: str, size_bytes: int) -> None:
    """Refuse a request that exceeds its method's limit. Raises Rejected."""
    limit = limit_of(method)
    if size_bytes > limit:
        raise Rejected(
            Code.PAYLOAD_TOO_LARGE,
            f"this {method} request has {size_bytes} bytes; the limit is {limit}",
        )


def parsed(kind: type[_Message], raw: bytes) -> _Message:
    """Parse *raw* as a message of type *kind*.

    Raises:
        Rejected: It has more than `MAX_ELEMENTS` fields.
        InvalidArgument: It is malformed.
    """
    fields = cast("Descriptor", kind.DESCRIPTOR)
    name = fields.name
    if len(raw) > SMALL_BYTES and count_elements(raw, fields, MAX_ELEMENTS) > MAX_ELEMENTS:
        raise Rejected(Code.PAYLOAD_TOO_LARGE, f"this {name} has more than {MAX_ELEMENTS} fields")
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise InvalidArgument(f"not a valid {name}: {error}") from error
