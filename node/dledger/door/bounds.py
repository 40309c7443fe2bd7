"""Every limit of a port, with its unit, and the counters that some of them are held by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNFINISHED_BYTES: Final = 2 << 10
"""What a call without a byte of its request takes, here and in libnghttp2, beside its headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of one port. Times are in seconds, and are looked at every *tick_s*.

    Those of `connections`, `handshakes`, `calls`, `unfinished_bytes` and `stream_header_bytes` are
    shared by address when they are full (`common.shares`, ADR 56); in a door process, its own part.

    Attributes:
        connections: Open at once, TLS handshakes included.
        arrivals: New connections of one address: at once, and a second; more are closed at once.
        all_arrivals: The same of all addresses together.
        apart_arrivals: Of one address, when these are used up (`addresses`); so with the next two.
        handshakes: Of TLS, under way at once.
        calls: Under way at once, of all connections.
        streams: Calls under way on one connection; announced, and refused beyond.
        handshake_s: For the TLS handshake; then again for preface and acknowledged SETTINGS.
        header_list_bytes: Of one call, by the count of RFC 9113, 6.5.2; announced. A larger one is
            refused, one of more than twice that size ends the connection.
        header_fields: The same, in fields.
        kept_header_bytes: Of those that are kept as long as a call (`contract.kept_of`).
        refusals: Calls of one address that say nothing that is served: at once, and a second.
        all_refusals: The same of all.
        apart_refusals: Of one, beyond that.
        idle_bytes: Of frames of one address that had no effect: at once, and a second; without
            those of a connection that go with its answers.
        all_idle_bytes: The same of all.
        apart_idle_bytes: Of one, beyond that.
        stream_window_bytes: What a client may send on a call before anything of it is consumed. A
            larger message gets as much as it declares, when its turn comes.
        frame_bytes: The largest DATA frame; announced. Each is an event, and few are cheaper.
        wide_window_bytes: Instead of *stream_window_bytes*, of a stream with such a message: others
            come while it is read, where with a small window its client waits for this node's event
            loop several times a message.
        wide_bytes: What the wide windows of one connection may have together.
        promised_bytes: What such messages of one connection may get at once; a larger one gets
            its room alone.
        held_bytes: Of all requests of the port that have arrived and are not consumed; what comes
            beyond is refused.
        unfinished_bytes: Of requests that are not whole, with their headers and `UNFINISHED_BYTES`
            for each. Who serves whole ones counts more than their headers for each.
        stream_header_bytes: Of headers of streams, polls among them, which may be open for long.
        request_s: For a request, or a message of a stream, from its first byte to its last; without
            the time for which it waits for room.
        unsent_stream_bytes: Of a call's answers, not yet taken by the client: with more, `send`
            waits.
        unsent_bytes: A call is reset that has more, even with its next message.
        unsent_connection_bytes: The same for all calls of a connection together.
        stall_s: A call, or a connection, that takes none of its answers for so long is reset.
        resets: Calls that a client gave up: at once, and a second (CVE-2023-44487).
        pings: PING and SETTINGS frames that carry no answer between them: at once, and a second.
        ping_after_s: A silent connection is sent a PING.
        ping_s: And closed, if nothing comes back.
        idle_s: A connection without a call is asked to go.
        tick_s: How exact these times are.
    """

    connections: int = 12_000  # as many as clients' Telemetry streams, and some for their calls
    arrivals: tuple[int, int] = (1_000, 500)  # after a failover a cluster behind one NAT comes back
    all_arrivals: tuple[int, int] = (4_000, 1_000)  # 0.2 ms each
    apart_arrivals: tuple[int, int] = (128, 16)  # an application, anew
    handshakes: int = 32  # a quarter of a millisecond each; with 100 ms on the way, 320 a second
    calls: int = 1 << 15  # long polls of 10,000 consumers with three queues each
    streams: int = 256  # ADR 28: a flood of calls waits at its source
    handshake_s: float = 5.0  # three lost packets, sent again
    header_list_bytes: int = 16 << 10  # twice gRPC's default: tokens grow
    header_fields: int = 128  # SDKs send some 20
    kept_header_bytes: int = 4 << 10  # SDKs send some 500, and a token
    refusals: tuple[int, int] = (1_000, 500)  # who is newer than this node asks once a method
    all_refusals: tuple[int, int] = (2_000, 1_000)  # 0.1 ms each
    apart_refusals: tuple[int, int] = (64, 8)  # the methods that are known
    idle_bytes: tuple[int, int] = (1 << 20, 256 << 10)  # 15,000 frames a second, 1 us each
    all_idle_bytes: tuple[int, int] = (2 << 20, 512 << 10)  # 3 % of a core
    apart_idle_bytes: tuple[int, int] = (64 << 10, 8 << 10)  # windows of a slow reader
    stream_window_bytes: int = 64 << 10  # nearly all requests whole; with all streams 16 MiB
    frame_bytes: int = 256 << 10  # as much as is read at once
    wide_window_bytes: int = 1 << 20  # a batch on its way, one that is read, and two between
    wide_bytes: int = 4 << 20  # a few producers' streams; a program has one
    promised_bytes: int = 8 << 20  # two bodies of 4 MiB, of which a node serves one at a time
    held_bytes: int = 96 << 20  # of twelve clients all that each may; a body is twice in memory
    unfinished_bytes: int = 32 << 20  # the largest request, and 12 MiB beside it
    stream_header_bytes: int = 16 << 20  # of 32,768 streams what an SDK sends
    request_s: float = 30.0  # 20 MiB at 6 Mbit/s
    unsent_stream_bytes: int = 64 << 10  # the window of most clients: more would only wait here
    unsent_bytes: int = 64 << 20  # MAX_ANSWER_BYTES, the largest answer
    unsent_connection_bytes: int = 96 << 20  # that one, and some beside it
    stall_s: float = 60.0  # no link that works is silent for longer
    resets: tuple[int, int] = (2_000, 500)  # all 256 calls of an SDK time out each 3 s: 85 a second
    pings: tuple[int, int] = (
        100,
        2,
    )  # keepalives come each 10 s at most; all else is beside answers
    ping_after_s: float = 10.0  # as gRPC's servers did it here: a lost node's clients soon go
    ping_s: float = 5.0  # three lost packets, as above
    idle_s: float = 300.0  # as with gRPC before; SDKs send a Heartbeat each 10 s
    tick_s: float = 5.0  # all other times here are several of it; each is a timer less

    @property
    def connection_window_bytes(self) -> int:
        """What a client may send on a connection before anything of it is consumed.

        All streams' windows twice, since up to half of it may be consumed and not yet announced:
        no call is held back by others.
        """
        return 2 * (self.streams * self.stream_window_bytes + self.wide_bytes)


class Held:
    """Bytes of requests in this process's memory, of all connections of a port."""

    __slots__ = ("bytes", "limit")

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
