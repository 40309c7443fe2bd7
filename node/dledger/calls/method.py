"""How a method is served, as data: the rows from which `pipeline` serves all of them.

Each service hands its rows in, so nothing here knows a service. Handlers know the door's contract:
who calls, a request and a response, or a `Stream`; no gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from dledger.calls.caller import Caller
from dledger.calls.rules import Asked
from dledger.door.contract import Cancel, Code, Failed, Rest, Stream
from dledger.errors import DledgerError
from dledger.rpc.metadata import pairs
from dledger.rpc.status import ending


class Response(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return its bytes."""
        ...


Q = TypeVar("Q")
A = TypeVar("A", bound=Response)


class Submitted(NamedTuple, Generic[A]):
    """A command on its way.

    Attributes:
        result: Gets the result of applying it.
        response: Returns the response by that result; None: `Method.serve` has to look.
    """

    result: asyncio.Future[Any]
    response: Callable[[Any], A | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Generic[Q, A]):
    """One method of one service at one port.

    Attributes:
        path: Its path: ``/package.Service/Name``.
        label: Its name in metrics, logs and for rules.
        parse: Returns the request. Raises Refused.
        code: Returns the code of a response, for the metrics.
        serve: Serves a request on the leader; None: `submit` does.
        submit: Submits a request's command without awaiting anything; returns None if it cannot.
        served_with: A field of metadata with which `submit` cannot, so nothing is parsed for it.
        here: Whether this node may answer a request although it does not lead. None: it may not.
        stream: Serves a call of many messages, in place of the above; it counts its answers.
        refuse: Returns the response to a refused request. None: the call ends with a status.
        messages: Returns how many messages of a producer a request carries, for rules: asked where
            there are any. Raises Refused.
        never: Why each request is refused, if so; it is not read where that can be helped.
    """

    path: str
    label: str
    parse: Callable[[bytes], Q]
    code: Callable[[A], str]
    serve: Callable[[Q, Caller], Awaitable[A]] | None = None
    submit: Callable[[Q, Caller], Submitted[A] | None] | None = None
    served_with: bytes = b""
    here: Callable[[Q], bool] | None = None
    stream: Callable[[Caller, Stream], Awaitable[Rest | None]] | None = None
    refuse: Callable[[DledgerError], A] | None = None
    messages: Callable[[bytes], int] = lambda _: 0
    never: DledgerError | None = None

    @property
    def name(self) -> str:
        """Its name without the service, by which its size is limited."""
        return self.path.rpartition("/")[2]


AnyMethod: TypeAlias = Method[Any, Any]


class Ended(Exception):
    """Ends a stream by a status, whatever its method says to refused requests.

    Attributes:
        error: Why.
        trailers: Further trailing metadata.
    """

    def __init__(self, error: Exception, trailers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(str(error))
        self.error, self.trailers = error, trailers


def failed_by(error: DledgerError, trailers: tuple[tuple[str, str], ...] = ()) -> Failed:
    """Return how a call ends without a response of its own: our error's name is in the trailers."""
    code, details, metadata = ending(error)
    return Failed(Code(code.value[0]), details, pairs((*metadata, *trailers)))


class Work(Protocol):
    """What waits for a command: a call, or a batch of a door process's calls.

    Attributes:
        asked: What the rules said of it; None: there are none, or they were not asked.
    """

    asked: Asked | None

    @property
    def method(self) -> AnyMethod:
        """The method of its calls."""

    @property
    def caller(self) -> Caller:
        """Whose they are."""

    @property
    def calls(self) -> int:
        """How many calls it is."""

    @property
    def messages(self) -> int:
        """How many messages of a producer it carries."""

    @property
    def size_bytes(self) -> int:
        """Its size, and so the room that it takes."""

    def submit(self) -> asyncio.Future[Any] | None:
        """Submit its command; None: that cannot be done without awaiting something."""

    def settle(self, result: Any) -> None:
        """Answer it by the command's result. What this raises refuses it."""

    def refuse(self, error: Exception) -> None:
        """Answer that it was refused."""

    def resume(self, tried: DledgerError | None) -> None:
        """Have it served in another way; *tried*: its command may have been carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What a pipeline needs of what is behind it: a node, or another way to one.

    Attributes:
        group: Its group, for logs.
        leads: Whether commands are taken here.
        forward: Passes a request on to the leader without awaiting anything: path, request, caller,
            and what gets the answer or the error, once. Returns what gives it up; None: nothing
            was done, and `ask` is to be awaited.
        ask: Returns the leader's answer. Raises Unavailable, and Relayed.
        retry: Returns the outcome of an attempt, which is repeated while it raises Unavailable and
            the caller's deadline allows; the size in bytes is what the request holds meanwhile.
        count: Counts answers: the method's label, the code, how many.
        note: Notes who is alive, with the number of his calls; of requests that are served here.
        runs_telemetry: Whether a client's Telemetry stream uses a connection, both by name.
    """

    group: str
    leads: Callable[[], bool]
    forward: Callable[[str, bytes, Caller, Callable[[bytes | DledgerError], None]], Cancel | None]
    ask: Callable[[str, bytes, Caller], Awaitable[bytes]]
    retry: Callable[[Caller, int, Callable[[], Awaitable[bytes]]], Awaitable[bytes]]
    count: Callable[[str, str, int], None]
    note: Callable[[Caller, int], None] = lambda _, __: None
    runs_telemetry: Callable[[str, str], bool] = lambda _, __: False
