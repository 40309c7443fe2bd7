"""What a server of the client ports is asked for: the handlers it calls, and its life.

`dledger.door.server` is the one implementation. Whoever builds handlers imports this module alone,
so that the library below can be changed.
"""

from __future__ import annotations

import base64
import binascii
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

Pairs: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Metadata as it is on the wire: lower-case names, values of ``-bin`` names in base64."""
DEFAULT_REQUEST_BYTES: Final = 256 << 10
KEPT: Final = frozenset((b"x-mq-", b"autho", b":path"))
"""How the names of fields begin that are kept: ``x-mq-``, ``authorization`` and ``:path``."""
KEPT_BYTES: Final = 5
REPLAY_FIELD: Final = b"x-dledger-replay"
"""The one field of ours that clients send (`checks.replays`). Its whole name counts: those that
nodes add when they pass a call on are not to come from a client."""


class Code(enum.IntEnum):
    """How a call ends. Source: gRPC, doc/statuscodes.md."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Failed(Exception):
    """Ends a call with a code, a message, and trailing metadata; handlers may raise it."""

    def __init__(self, code: Code, message: str, trailers: Pairs = ()) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code, self.message, self.trailers = code, message, trailers


class TooLarge(Failed):
    """A message is larger than its method takes."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.RESOURCE_EXHAUSTED, message)


class Headers:
    """What came with a call before its messages.

    A server of clients keeps no more of a call that waits than somebody reads (`kept_of`): it may
    be under way for long, and a field takes a byte on the wire and 100 in memory. To sort fields
    takes longer than to count the call everywhere, so that one which comes whole, with no more
    fields than any client sends, is served with all of them.

    Args:
        pairs: All fields in their order, of one that never waits with them; None: *fields* are all.
        fields: By name, the last value of each.
        peer: As below.
        connection: As below.
        deadline_s: As below.
        size_bytes: As below.

    Attributes:
        fields: As above, at least those that somebody reads; not to be changed.
        peer: The client's address as gRPC names it: ``ipv4:127.0.0.1:40001``.
        connection: Tells the client's connection from all others of this process.
        deadline_s: Event-loop time at which the call is cancelled; None: the client set no timeout.
        size_bytes: What the fields count for the port's bounds.
    """

    __slots__ = ("_pairs", "connection", "deadline_s", "fields", "peer", "size_bytes")

    def __init__(
        self,
        pairs: Pairs | None,
        fields: Mapping[bytes, bytes],
        *,
        peer: str,
        connection: int,
        deadline_s: float | None,
        size_bytes: int = 0,
    ) -> None:
        self._pairs, self.fields = pairs, fields
        self.peer, self.connection, self.deadline_s = peer, connection, deadline_s
        self.size_bytes = size_bytes

    @property
    def pairs(self) -> Pairs:
        """The fields that go on with the call; among them is ``:path``."""
        return tuple(self.to_keep.items()) if self._pairs is None else self._pairs

    @property
    def to_keep(self) -> Mapping[bytes, bytes]:
        """Those that somebody reads; not to be changed."""
        return kept_of(self.fields.items() if self._pairs is None else self._pairs)

    def shed(self) -> None:
        """Let go of what nobody reads: the call waits."""
        if self._pairs is None:
            self.fields = self.to_keep

    def get(self, name: bytes, default: str = "") -> str:
        """Return the last value of a field as text; what is not ASCII in it is replaced."""
        value = self.fields.get(name)
        return default if value is None else value.decode("ascii", "replace")

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a field as text that may be passed on: what is ASCII in it."""
        value = self.fields.get(name.encode())
        return default if value is None else value.decode("ascii", "ignore")

    def raw(self, name: bytes) -> bytes | None:
        """Return the last value of a field as it came; None if it is missing."""
        return self.fields.get(name)

    def binary(self, name: bytes) -> bytes | None:
        """Return the last value of a ``-bin`` field, decoded; None if it is missing or no base64.

        Source: PROTOCOL-HTTP2, Binary-Header; padding may be left out.
        """
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
        except binascii.Error:
            return None


def kept_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the fields that are kept as long as a call: somebody reads them, or the leader.

    Of what clients send: RocketMQ's, whose further names users of its SDKs may choose, who calls,
    and for the log of what. Known by their first five bytes, which no other field has; and what a
    spool says of a replay.
    """
    return {
        name: value for name, value in pairs if name[:KEPT_BYTES] in KEPT or name == REPLAY_FIELD
    }


Answer: TypeAlias = Callable[[bytes], None]
Cancel: TypeAlias = Callable[[], object]
"""Gives something up; what it returns says nothing."""


class Fail(Protocol):
    """Ends a call without an answer."""

    def __call__(self, code: Code, message: str, trailers: Pairs = ()) -> None:
        """End it, with further *trailers*."""
        ...


class Arrival(Protocol):
    """What its server tells of a call's answers on their way to the client (`Stream.prove`)."""

    def proved(self) -> None:
        """The client has all of them, and the call's end: nothing more is told."""

    def moves(self) -> None:
        """Not yet; but some were taken on their way since this was told last. In a few seconds."""

    def lost(self) -> None:
        """It will never be known: nothing more is told."""


class Rest(Protocol):
    """What a handler leaves that has nothing to do for long, in place of itself.

    A coroutine that waits takes its task, its frames and those of all that called it.

    Attributes:
        reads: Whether a message of the client, or its end, is something to do.
    """

    @property
    def reads(self) -> bool:
        """As above."""
        ...

    def wait(self) -> None:
        """Begin to wait: the handler has gone. `Stream.go_on` may be called from now on."""

    def serve(self) -> Awaitable[Rest | None]:
        """Go on; as `BidiStream.serve`."""
        ...

    def drop(self) -> None:
        """Give up: the call is over. It comes instead of `serve`."""


class Stream(Protocol):
    """The two directions of a call with many messages.

    Attributes:
        may_leave: Whether its handler may return a `Rest`; else it has to await what it waits for,
            and nobody asks for what belongs to that: `read_now`, `is_readable`, `go_on`.
    """

    @property
    def may_leave(self) -> bool:
        """As above."""
        ...

    def read_now(self) -> bytes | None:
        """Return the client's next message, as `read`; None: that has to be awaited."""

    @property
    def is_readable(self) -> bool:
        """Whether there is a message, or the client's end, so that `read` does not wait."""
        ...

    def go_on(self) -> None:
        """Have the `Rest` serve that waits; without one it does nothing."""

    async def read(self) -> bytes | None:
        """Return the client's next message; None: it has sent all. One reader at a time."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def send(self, message: bytes) -> None:
        """Send a message, and return once there is room for the next: the client takes them.

        So whoever counts what he is sending counts what is here, and not with the client.

        Raises:
            Failed: The call is over. It says nothing more to anyone.
        """
        ...

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting; a client that is too far behind loses the call.

        Raises:
            Failed: As `send`.
        """
        ...

    def prove(self, arrival: Arrival) -> None:
        """Have *arrival* told what becomes of all answers to this call, until its last word.

        To be asked before the call ends, once. That they were sent proves nothing: see `proofs`.
        """
        ...


class AwaitedStream:
    """What a `Stream` has whose handler stays until the end."""

    may_leave: Final = False
    is_readable: Final = False

    def read_now(self) -> bytes | None:
        """Return nothing: messages are awaited."""
        return None

    def go_on(self) -> None:
        """Do nothing: nobody has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What the handlers of both forms have.

    Attributes:
        max_request_bytes: A larger message is refused by its declared size, unread.
        refusal: Returns the answer to a message that the door refuses: because it is `TooLarge`, or
            for what the port already holds. It is for protocols that have codes of their own in
            their answers, or raises another `Failed`; None: the call ends with RESOURCE_EXHAUSTED.
    """

    max_request_bytes: int = DEFAULT_REQUEST_BYTES
    refusal: Callable[[Failed], bytes] | None = None


@dataclass(frozen=True, slots=True)
class Unary(Method):
    """One message for one, by callbacks; the cheapest form.

    Attributes:
        serve: Gets headers, body, and the functions *answer* and *fail*: one of the two must be
            called, once, in the event loop's thread, now or later; what comes after is ignored. It
            returns what to call if the client gives up first, or None. May raise `Failed`.
    """

    serve: Callable[[Headers, bytes, Answer, Fail], Cancel | None]


@dataclass(frozen=True, slots=True)
class BidiStream(Method):
    """Many messages for many, by a coroutine, which may raise `Failed`.

    *serve* starts with the headers, before the first message; the call ends when it returns None.
    It is cancelled if the client gives up. A `Rest` is what goes on with the call later.
    """

    serve: Callable[[Headers, Stream], Awaitable[Rest | None]]


Handler: TypeAlias = Unary | BidiStream
Handlers: TypeAlias = Mapping[str, Handler]
"""By path: ``/package.Service/Method``."""


class ClientServer(Protocol):
    """The server of one client port."""

    @property
    def address(self) -> str:
        """``HOST:PORT`` as it is bound; the port is never 0."""
        ...

    async def start(self) -> None:
        """Accept connections, on the running event loop."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give running ones *grace_s* seconds to finish, then cancel them."""
        ...
