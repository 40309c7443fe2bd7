"""Forwards requests to the leader, and holds them while there is none.

A follower does not parse a request: it sends the same bytes to the same method on the leader's peer
port, with the caller's ``x-mq-*`` metadata, and returns the response. `Relay.run` holds a request
through an election for most of its deadline; repeating it is safe because sends carry an
idempotency key and receives an attempt id. A forwarded request is never forwarded again; it is held
only if this node has won the election and is about to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from dledger.common.limits import MAX_HELD_BYTES
from dledger.errors import (
    NOTHING_DONE,
    DiskFull,
    DledgerError,
    LeadershipLost,
    NotJoined,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    Unavailable,
)
from dledger.requests.engine import Engine
from dledger.requests.passing_on import PassingOn
from dledger.rpc.channel import error_of
from dledger.rpc.metadata import by_key
from dledger.rpc.peer_tls import PeerChannel, PeerTls
from dledger.rpc.status import Relayed, from_rpc
from dledger.types import Member, NodeId

FORWARDED_KEY: Final = "x-dledger-forwarded"
_TELEMETRY_KEY: Final = "x-dledger-telemetry"
_HOST_KEY: Final = "x-dledger-host"
_LINE_KEY: Final = "x-dledger-line"
THROUGH_KEY: Final = "x-dledger-through"
_PASSING_ON_KEY: Final = "x-dledger-passing-on"
_CLIENT_ID_KEY: Final = "x-mq-client-id"
_LANGUAGE_KEY: Final = "x-mq-language"
_REQUEST_ID_KEY: Final = "x-mq-request-id"
_PASSED_ON: Final = ("x-mq-", "authorization")
_NO_DEADLINE_S: Final = 10.0
_RETRY_S: Final = 0.05
_RETRY_MAX_S: Final = 0.4
_WATCH_S: Final = 1.0
_TELL_S: Final = 1.0
_NUMBER_DIGITS: Final = 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request, the port it used, and its deadline.

    Attributes:
        client_id: The client id that the SDK chose; empty if it sent none.
        tls: Whether the client used a TLS port (of this node or of a follower).
        forwarded: Whether a follower forwarded the request; then it is not forwarded again.
        deadline_s: Event-loop time by which the response should leave, a margin before the
            client's own deadline.
        given: The call's metadata.
        host: The client's address as gRPC names it, without the port.
        has_telemetry: Whether the client's Telemetry stream uses the same connection.
        connection: The client's connection to this node, as gRPC names it; empty if forwarded.
        line: The client's connection, to this node or to a follower: the line in which its commands
            wait. The follower's own if the follower does not name one.
    """

    client_id: str
    tls: bool
    forwarded: bool
    deadline_s: float
    given: Mapping[str, str]
    host: str = ""
    has_telemetry: bool = False
    connection: str = ""
    line: str = ""

    @classmethod
    def of(
        cls,
        context: Any,
        *,
        tls: bool,
        peer_port: bool,
        runs_telemetry: Callable[[str, str], bool] = lambda _, __: False,
    ) -> Caller:
        """Return the caller of the gRPC call *context*, received on a port of this kind.

        *runs_telemetry*(client id, peer) says whether the client's Telemetry stream uses that
        connection; for a forwarded call the follower's metadata says so.
        """
        given = by_key(context.invocation_metadata())
        client_id, peer = client_id_of(given), context.peer()
        has_telemetry = _TELEMETRY_KEY in given if peer_port else runs_telemetry(client_id, peer)
        return cls(
            client_id=client_id,
            host=given.get(_HOST_KEY, "") if peer_port else peer.rpartition(":")[0],
            has_telemetry=has_telemetry,
            tls=given.get(FORWARDED_KEY) == "tls" if peer_port else tls,
            forwarded=peer_port,
            deadline_s=_deadline_s(context),
            given=given,
            connection="" if peer_port else peer,
            line=given.get(_LINE_KEY, peer) if peer_port else peer,
        )

    @property
    def request_id(self) -> str:
        """The SDK's id for this request; empty if it sent none."""
        return self.given.get(_REQUEST_ID_KEY, "")

    @property
    def language(self) -> str:
        """The SDK's language, such as ``PYTHON``; empty if it did not say."""
        return self.given.get(_LANGUAGE_KEY, "")

    @property
    def through(self) -> NodeId | None:
        """The follower that forwarded the request; None if there was none."""
        node = self.given.get(THROUGH_KEY) if self.forwarded else None
        return NodeId(node) if node is not None else None

    @property
    def passing_on(self) -> int | None:
        """The number with which that follower will confirm that it passed the response on."""
        number = self.given.get(_PASSING_ON_KEY, "") if self.forwarded else ""
        return int(number) if number.isdecimal() and len(number) < _NUMBER_DIGITS else None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata to forward to the leader."""
        passed = (item for item in self.given.items() if item[0].startswith(_PASSED_ON))
        telemetry = ((_TELEMETRY_KEY, "1"),) if self.has_telemetry else ()
        port = "tls" if self.tls else "plain"
        origin = ((_HOST_KEY, self.host), (_LINE_KEY, self.line))
        return (*passed, (FORWARDED_KEY, port), *origin, *telemetry)

    def remaining_s(self) -> float:
        """Return the seconds until `deadline_s`; negative when it has passed."""
        return self.deadline_s - asyncio.get_running_loop().time()


def client_id_of(given: Mapping[str, str]) -> str:
    """Return the client id in a call's metadata; empty if there is none."""
    return given.get(_CLIENT_ID_KEY, "")


class Relay:
    """Runs requests on this node while it leads, and forwards them to the leader otherwise."""

    def __init__(self, engine: Engine, tls: PeerTls | None = None) -> None:
        """Call peers with the certificates of *tls*; the default is plain text."""
        self._engine = engine
        self._tls = tls
        self._channels: dict[str, PeerChannel] = {}
        self._calls: dict[str, set[Any]] = {}
        self._streams: set[Any] = set()
        self._held_bytes = 0
        self._superseded: set[int] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._answers = PassingOn(self._tell)

    def start(self) -> None:
        """Start watching for changes of leader."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        self._answers.start()

    async def close(self) -> None:
        """Stop watching and close the channels; calls in progress fail with UNAVAILABLE."""
        await self._answers.close()
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def run(
        self, caller: Caller, size_bytes: int, attempt: Callable[[], Awaitable[_T]]
    ) -> _T:
        """Return the result of *attempt*, retrying while it raises Unavailable.

        Args:
            caller: The caller, whose deadline applies.
            size_bytes: The memory that the request holds meanwhile; the sum is bounded.
            attempt: Serves the request once.

        Raises:
            Unavailable: The deadline has passed, or a follower forwarded the request and retries.
            Overloaded: Too many requests are held already.
        """
        if self._held_bytes + size_bytes > MAX_HELD_BYTES:
            raise Overloaded(f"requests of {self._held_bytes} bytes are under way at this node")
        self._held_bytes += size_bytes
        wait_s, unknown = _RETRY_S, False
        try:
            while True:
                try:
                    return await attempt()
                except (Unavailable, DiskFull, RateLimited, Relayed) as error:
                    if not self._may_retry(caller, error):
                        if unknown and _says_nothing_happened(error):
                            raise _unknown(error) from error
                        raise
                    unknown = unknown or not isinstance(error, NOTHING_HAPPENED)
                leader = self._engine.leader()
                await self.pause(caller, wait_s)
                changed = self._engine.leader() != leader
                wait_s = _RETRY_S if changed else min(wait_s * 2, _RETRY_MAX_S)
        finally:
            self._held_bytes -= size_bytes

    def _may_retry(self, caller: Caller, error: DledgerError) -> bool:
        awaits = not caller.forwarded or self._is_elect()
        return isinstance(error, Unavailable) and awaits and caller.remaining_s() > 0

    def _is_elect(self) -> bool:
        """Whether this node has won an election and serves once it has applied older entries.

        Followers learn of the election before that; refusing what they forward would only make
        their callers wait longer.
        """
        leader = self._engine.leader()
        elect = leader is not None and leader.id == self._engine.node_id
        return elect and not self._engine.is_leader()

    async def pause(self, caller: Caller, wait_s: float) -> None:
        """Wait up to *wait_s*; less if the leader changes or the caller's deadline comes first."""
        await self._engine.wait_leader_change(max(min(wait_s, caller.remaining_s()), 0.001))

    async def unary(self, path: str, request: bytes, caller: Caller) -> bytes:
        """Return the leader's answer to a unary call.

        Raises:
            Unavailable: No leader is known, or it could not answer.
            Relayed: The leader refused, with a gRPC status for the caller.
        """
        channel, leader = self._to_leader(caller)
        call = channel.unary_unary(path)(
            request, metadata=self._metadata(caller), timeout=max(caller.remaining_s(), 0.001)
        )
        with self._watched(leader, call):
            response: bytes = await call
            return response

    async def stream(self, path: str, request: bytes, caller: Caller) -> AsyncGenerator[bytes]:
        """Yield the leader's responses to a streaming call. Raises as `unary` does.

        Small responses are collected and sent together: if the leader dies halfway, none has been
        sent, and the caller may ask the next leader again. The leader is told when all are sent.
        """
        channel, leader = self._to_leader(caller)
        number = self._answers.next_number()
        call = channel.unary_stream(path)(
            request,
            metadata=(*self._metadata(caller), (_PASSING_ON_KEY, str(number))),
            timeout=max(caller.remaining_s(), 0.001),
        )
        with self._watched(leader, call):
            self._streams.add(call)
            try:
                async with contextlib.aclosing(self._answers.whole(call)) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._streams.discard(call)
                call.cancel()
        self._answers.passed_on(leader.address, number)

    async def _tell(self, address: str, path: str, request: bytes) -> bool:
        """Call a method of a peer that led; return whether it answered."""
        channel = self._channels.get(address)
        if channel is None:
            return False
        me = ((THROUGH_KEY, self._engine.node_id),)
        try:
            await channel.unary_unary(path)(request, metadata=me, timeout=_TELL_S)
        except grpc.aio.AioRpcError:
            return False
        return True

    def cancel_streams(self) -> None:
        """End every relayed stream with UNAVAILABLE: this node is shutting down."""
        for call in tuple(self._streams):
            self._supersede(call)

    def _to_leader(self, caller: Caller) -> tuple[PeerChannel, Member]:
        leader = self._engine.leader()
        if leader is None or leader.id == self._engine.node_id or caller.forwarded:
            raise NotLeader(leader.id if leader else None)
        channel = self._channels.get(leader.address)
        if channel is None or channel.name != leader.name:
            if channel is not None:
                channel.retire()
            channel = PeerChannel(leader.address, leader.name, self._tls)
            self._channels[leader.address] = channel
        return channel, leader

    def _metadata(self, caller: Caller) -> tuple[tuple[str, str], ...]:
        return (*caller.metadata, (THROUGH_KEY, self._engine.node_id))

    @contextlib.contextmanager
    def _watched(self, leader: Member, call: Any) -> Any:
        """Map the call's errors to ours, and let `_watch` cancel it when the leader changes."""
        calls = self._calls.setdefault(leader.address, set())
        calls.add(call)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        except asyncio.CancelledError:
            if id(call) in self._superseded:
                raise LeadershipLost(f"{leader.name} no longer leads") from None
            raise
        finally:
            calls.discard(call)
            self._superseded.discard(id(call))

    async def _watch(self) -> None:
        while True:
            await self._engine.wait_leader_change(_WATCH_S)
            leader = self._engine.leader()
            if leader is not None:
                self._cancel_calls_except(leader.address)

    def _cancel_calls_except(self, address: str) -> None:
        """Cancel calls to a former leader: it may be frozen, and they would hang until timeout."""
        for former, calls in self._calls.items():
            if former != address:
                for call in tuple(calls):
                    self._supersede(call)

    def _supersede(self, call: Any) -> None:
        self._superseded.add(id(call))
        call.cancel()


NOTHING_HAPPENED: Final = (NotLeader, NotJoined, Overloaded, RateLimited, DiskFull)


def _says_nothing_happened(error: DledgerError) -> bool:
    """Whether *error* tells a caller that nothing was stored, so that it may send again."""
    if isinstance(error, Relayed):
        error = error_of(error.error, "the leader")
    return isinstance(error, NOTHING_HAPPENED)


def _unknown(error: DledgerError) -> OutcomeUnknown:
    """Return the error to raise instead if an earlier attempt may have been carried out."""
    sentence = str(error).removesuffix(NOTHING_DONE)
    return OutcomeUnknown(f"{sentence}; whether an earlier attempt was carried out is not known")


def _deadline_s(context: Any) -> float:
    remaining_s = context.time_remaining()
    if remaining_s is None:
        remaining_s = _NO_DEADLINE_S
    margin_s = min(max(0.1 * remaining_s, 0.05), 0.5)
    return float(asyncio.get_running_loop().time() + remaining_s - margin_s)
