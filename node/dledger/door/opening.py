"""What the headers of a request say: who serves it, and until when; or why nobody does."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Final

from dledger.door.bounds import Bounds
from dledger.door.contract import Code, Failed, Handler, Headers, Pairs, kept_of
from dledger.door.grpc_format import HEAD, http_refusal, status_fields, timeout_s
from dledger.door.port import Port

_FIELD_BYTES: Final = 32
"""What RFC 9113, 6.5.2 counts for each field beside its name and value."""
_NAMED_BYTES: Final = 256
_UNREAD_BYTES: Final = 2 << 10
"""Of a call's headers beside those that are kept: SDKs send 700, and more with tracing."""


class Refused(Exception):
    """A request is answered by *fields* alone."""

    def __init__(self, fields: Pairs) -> None:
        super().__init__("refused by its headers")
        self.fields = fields


def opened(
    port: Port, pairs: Pairs, peer: str, connection: int, now_s: float
) -> tuple[Headers, Handler, int]:
    """Return the headers of a request, and the handler of its path.

    Of headers beyond any client's custom only what is kept, and how many bytes of the others were
    beyond it.

    Args:
        port: Its handlers and bounds.
        pairs: The fields; libnghttp2 has seen to it that HTTP/2's own are there and are sound.
        peer: For `Headers`.
        connection: The same.
        now_s: Event-loop time.

    Raises:
        Refused: It is not gRPC, has too much metadata, names no method, or no valid timeout; or the
            port has too many calls, of which none may go.
    """
    fields = dict(pairs)
    refusal = http_refusal(fields)
    if refusal is not None:
        raise Refused(refusal)
    path = fields[b":path"]
    try:
        size_bytes, idle_bytes = size_of(pairs), 0
        _check_size(port.bounds, len(pairs), size_bytes)
        handler = port.handlers.get(path)
        if handler is None:
            named = path[:_NAMED_BYTES].decode("ascii", "replace")
            raise Failed(Code.UNIMPLEMENTED, f"there is no method {named}")
        timeout = fields.get(b"grpc-timeout")
        deadline_s = None if timeout is None else now_s + timeout_s(timeout)
        if size_bytes > _UNREAD_BYTES:
            fields = kept_of(pairs)
            all_bytes, size_bytes = size_bytes, size_of(fields.items())
            _check_kept(port.bounds, size_bytes)
            idle_bytes = max(0, all_bytes - size_bytes - _UNREAD_BYTES)
        if port.calls >= port.bounds.calls and not port.make_room_for_a_call():
            raise Failed(
                Code.RESOURCE_EXHAUSTED, f"{port.calls} calls are under way; back off and retry"
            )
    except Failed as error:
        failure = status_fields(error.code, error.message, error.trailers)
        raise Refused((*HEAD, *failure)) from None
    headers = Headers(
        None, fields, peer=peer, connection=connection, deadline_s=deadline_s, size_bytes=size_bytes
    )
    return headers, handler, idle_bytes


def size_of(pairs: Collection[tuple[bytes, bytes]]) -> int:
    """Return the size of fields as RFC 9113, 6.5.2 counts it, in bytes."""
    return sum(map(len, chain.from_iterable(pairs))) + _FIELD_BYTES * len(pairs)


def _check_size(bounds: Bounds, count: int, size_bytes: int) -> None:
    if size_bytes > bounds.header_list_bytes or count > bounds.header_fields:
        raise Failed(
            Code.RESOURCE_EXHAUSTED,
            f"the headers have {count} fields of {size_bytes} bytes; the limits are "
            f"{bounds.header_fields} and {bounds.header_list_bytes}",
        )


def _check_kept(bounds: Bounds, size_bytes: int) -> None:
    if size_bytes > bounds.kept_header_bytes:
        raise Failed(
            Code.RESOURCE_EXHAUSTED,
            f"x-mq-, authorization and the path have {size_bytes} bytes together; the limit is "
            f"{bounds.kept_header_bytes}",
        )
