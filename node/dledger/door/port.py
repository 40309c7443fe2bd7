"""What the connections of one port share, and how it sets the library up for each."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import ngh2

from dledger.common.shares import Share
from dledger.door.addresses import Addresses
from dledger.door.bounds import Bounds, Held
from dledger.door.contract import Handler
from dledger.door.deadlines import Deadlines

_GOAWAY: Final = struct.Struct(">BHBBIII")
_DEBUG_BYTES: Final = 64

End: TypeAlias = Callable[[], None]
"""Ends a call, or a connection, that has to make room for another."""


@dataclass(slots=True, kw_only=True)
class Port:
    """What the connections of one port share.

    Attributes:
        handlers: By path, as it is on the wire.
        bounds: The limits.
        held: What the requests of all connections hold.
        needs_alpn: Whether a connection must have chosen HTTP/2 in its TLS handshake.
        calls: How many calls the connections have together.
        tasks: The handlers that run.
        deadlines: When calls end at the latest.
        addresses: What is known of those who call.
        unfinished: Requests that are not whole, in bytes: each a function that ends its call. Those
            of an address go by who has stood still longest, whatever the connection: of a crowd
            that uploads, some end, where the largest of all would never.
        streams: Other calls of many messages, in bytes of their headers, and one each.
    """

    handlers: Mapping[bytes, Handler]
    bounds: Bounds
    held: Held
    needs_alpn: bool
    calls: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    deadlines: Deadlines = field(default_factory=Deadlines)
    addresses: Addresses = field(init=False)
    unfinished: Share[End] = field(init=False)
    streams: Share[End] = field(init=False)

    def __post_init__(self) -> None:
        self.addresses = Addresses(self.bounds)
        self.unfinished = Share(self.bounds.unfinished_bytes, _end)
        self.streams = Share(self.bounds.stream_header_bytes, _end)

    def make_room_for_a_call(self) -> bool:
        """End a call in place of which another may begin; return False if none may go.

        What costs its client least goes: what nobody serves yet, then what waits for something.
        """
        return self.unfinished.evict() or self.streams.evict()

    def has_room_for_bytes(self) -> bool:
        """Whether the bytes of requests are in their bound, if need be without some other's."""
        while self.held.bytes > self.held.limit:
            if not self.unfinished.evict():
                return False
        return True


def _end(end: End) -> None:
    end()


def configuration(bounds: Bounds) -> ngh2.Configuration:
    """Return the library's own bounds: twice ours, which end a connection with a reason."""
    burst, per_s = bounds.resets
    return ngh2.Configuration(
        auto_window_update=False,
        max_outbound_ack=2 * bounds.pings[0],
        stream_reset_rate_limit=(2 * burst, 2 * per_s),
        max_inbound_header_list_size=2 * bounds.header_list_bytes,
        max_inbound_header_count=2 * bounds.header_fields,
    )


def settings(bounds: Bounds) -> dict[int, int]:
    """Return what the first SETTINGS announce."""
    return {
        ngh2.Setting.MAX_CONCURRENT_STREAMS: bounds.streams,
        ngh2.Setting.INITIAL_WINDOW_SIZE: bounds.stream_window_bytes,
        ngh2.Setting.MAX_FRAME_SIZE: bounds.frame_bytes,
        ngh2.Setting.MAX_HEADER_LIST_SIZE: bounds.header_list_bytes,
    }


def goaway(last_stream_id: int, code: int, why: str) -> bytes:
    """Return a GOAWAY frame (RFC 9113, 6.8): after most faults the library sends none itself."""
    debug = why.encode("ascii", "replace")[:_DEBUG_BYTES]
    size = 8 + len(debug)
    return _GOAWAY.pack(size >> 16, size & 0xFFFF, 7, 0, 0, last_stream_id, code) + debug
