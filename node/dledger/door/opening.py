"""What the headers of a request say: who serves it, and until when; or why nobody does."""

from __future__ import annotations

from itertools import chain
from typing import Final

from dledger.door.contract import Code, Failed, Handler, Headers, Pairs
from dledger.door.grpc_format import HEAD, http_refusal, status_fields, timeout_s
from dledger.door.port import Port

_FIELD_BYTES: Final = 32
"""What RFC 9113, 6.5.2 counts for each field beside its name and value."""
_NAMED_BYTES: Final = 256


class Refused(Exception):
    """A request is answered by *fields* alone."""

    def __init__(self, fields: Pairs) -> None:
        super().__init__("refused by its headers")
        self.fields = fields


def opened(
    port: Port, pairs: Pairs, peer: str, connection: int, now_s: float
) -> tuple[Headers, Handler]:
    """Return the headers of a request, and the handler of its path.

    Args:
        port: Its handlers and bounds.
        pairs: The fields; libnghttp2 has seen to it that HTTP/2's own are there and are sound.
        peer: For `Headers`.
        connection: The same.
        now_s: Event-loop time.

    Raises:
        Refused: It is not gRPC, has too much metadata, names no method, or no valid timeout; or the
            port has too many calls.
    """
    fields = dict(pairs)
    refusal = http_refusal(fields)
    if refusal is not None:
        raise Refused(refusal)
    path = fields[b":path"]
    try:
        _check_size(port, pairs)
        if port.calls >= port.bounds.calls:
            raise Failed(
                Code.RESOURCE_EXHAUSTED, f"{port.calls} calls are under way; back off and retry"
            )
        handler = port.handlers.get(path)
        if handler is None:
            named = path[:_NAMED_BYTES].decode("ascii", "replace")
            raise Failed(Code.UNIMPLEMENTED, f"there is no method {named}")
        timeout = fields.get(b"grpc-timeout")
        deadline_s = None if timeout is None else now_s + timeout_s(timeout)
    except Failed as error:
        failure = status_fields(error.code, error.message, error.trailers)
        raise Refused((*HEAD, *failure)) from None
    headers = Headers(pairs, fields, peer=peer, connection=connection, deadline_s=deadline_s)
    return headers, handler


def _check_size(port: Port, pairs: Pairs) -> None:
    bounds, count = port.bounds, len(pairs)
    size = len(b"".join(chain.from_iterable(pairs))) + _FIELD_BYTES * count
    if size > bounds.header_list_bytes or count > bounds.header_fields:
        raise Failed(
            Code.RESOURCE_EXHAUSTED,
            f"the headers have {count} fields of {size} bytes; the limits are "
            f"{bounds.header_fields} and {bounds.header_list_bytes}",
        )
