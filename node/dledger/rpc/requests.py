"""How large a request of each method may be, in bytes and in fields; and its parsing, after that.

gRPC has one limit for a port, that of the largest request. What is said here is checked where a
request's bytes come, before anything is made of them.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from dledger.common.limits import MAX_CLIENT_FRAME_BYTES
from dledger.errors import InvalidArgument
from dledger.rpc.elements import count_elements
from dledger.rpc.status import Code, Rejected

SMALL_BYTES: Final = 256 << 10
"""The limit of every method that is not named below: it acknowledges, asks or steers."""
TELEMETRY_BYTES: Final = 64 << 10
_LIMITS: Final = {
    "Telemetry": TELEMETRY_BYTES,
    "SendMessage": MAX_CLIENT_FRAME_BYTES,
    "Append": MAX_CLIENT_FRAME_BYTES,
    "Produce": MAX_CLIENT_FRAME_BYTES,
}
MAX_ELEMENTS: Final = 1 << 17
"""Fields of a request together: 32 a message where there are as many messages as may be. Only
counted where bytes are more than `SMALL_BYTES`; within those there is no room for more."""


def limit_of(method: str) -> int:
    """Return the bytes that a request of *method* may have; its name is without the service's."""
    return _LIMITS.get(method, SMALL_BYTES)


def check_size(method: str, size_bytes: int) -> None:
    """Refuse a request that is larger than any of its method is. Raises Rejected."""
    limit = limit_of(method)
    if size_bytes > limit:
        raise Rejected(
            Code.PAYLOAD_TOO_LARGE,
            f"a request of {method} has at most {limit} bytes, not {size_bytes}",
        )


def parsed(kind: Any, raw: bytes) -> Any:
    """Return the message of type *kind* in *raw*.

    Raises:
        Rejected: It has more fields than any request that is meant well.
        InvalidArgument: It is no such message.
    """
    name = kind.DESCRIPTOR.name
    counted = count_elements(raw, kind.DESCRIPTOR, MAX_ELEMENTS) if len(raw) > SMALL_BYTES else 0
    if counted > MAX_ELEMENTS:
        raise Rejected(Code.PAYLOAD_TOO_LARGE, f"this {name} has more than {MAX_ELEMENTS} fields")
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise InvalidArgument(f"this is no {name}: {error}") from error
