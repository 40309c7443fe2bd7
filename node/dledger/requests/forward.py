"""Forwards requests to the leader, and holds them while there is none.

A follower does not parse a request: it sends the same bytes to the same method on the leader, with
the caller's ``x-mq-*`` metadata, and returns the response: over the link to the leader if there is
one (`link.leader_link`), else by a gRPC call to its peer port. `Relay.run` holds a request
through an election for most of its deadline; repeating it is safe because sends carry an
idempotency key and receives an attempt id. A forwarded request is never forwarded again; it is held
only if this node has won the election and is about to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from dledger.calls.caller import PASSING_ON_KEY, THROUGH_KEY, WAITED_KEY, Caller
from dledger.common.backoff import Backoff
from dledger.common.limits import MAX_HELD_BYTES
from dledger.common.metrics import BY_CALL, BY_LINK
from dledger.errors import (
    DiskFull,
    DledgerError,
    LeadershipLost,
    NotJoined,
    NotLeader,
    NotTaken,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    Unavailable,
)
from dledger.link.leader_link import LeaderLink, LeaderLinks, Settle
from dledger.requests.engine import Engine
from dledger.requests.passing_on import Passage, PassingOn
from dledger.requests.turnstile import Turnstile
from dledger.rpc.peer_tls import PeerChannel, PeerTls
from dledger.rpc.status import from_rpc
from dledger.types import Member

_RETRY_S: Final = 0.05
_RETRY_MAX_S: Final = 0.4
_WATCH_S: Final = 1.0
_TELL_S: Final = 1.0
_CALL_S: Final = 0.05
"""When a call with many answers counts as read: a gRPC call does not tell."""
_T = TypeVar("_T")
Dial: TypeAlias = Callable[[str, str, PeerTls | None], PeerChannel]


class Relay:
    """Runs requests on this node while it leads, and forwards them to the leader otherwise."""

    def __init__(
        self,
        engine: Engine,
        links: LeaderLinks,
        tls: PeerTls | None = None,
        count: Callable[[str], None] = lambda _: None,
        *,
        dial: Dial = PeerChannel,
    ) -> None:
        """Forward no request yet.

        Args:
            engine: The node.
            links: The links to leaders; without one, requests are forwarded by gRPC calls.
            tls: The certificates for these; None: plain text.
            count: Called with `BY_LINK` or `BY_CALL` for each request that is forwarded.
            dial: Returns the channel to a peer's address and name, with these certificates.
        """
        self._engine = engine
        self._tls, self._dial = tls, dial
        self._links, self._count = links, count
        self._channels: dict[str, PeerChannel] = {}
        self._calls: dict[str, set[Any]] = {}
        self._streams: set[Any] = set()
        self._held_bytes = 0
        self._superseded: set[int] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._answers = PassingOn(self._tell)
        self._turnstile, self._by_call = Turnstile(), Turnstile()
        self._is_draining = False

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
        await self._links.close()
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
        backoff, unknown = Backoff(_RETRY_S, _RETRY_MAX_S), False
        try:
            while True:
                try:
                    return await attempt()
                except (Unavailable, DiskFull, RateLimited) as error:
                    if not self._may_retry(caller, error):
                        if unknown and isinstance(error, NOTHING_HAPPENED):
                            raise _unknown(error) from error
                        raise
                    unknown = unknown or not isinstance(error, NOTHING_HAPPENED)
                leader = self._engine.leader()
                await self.pause(caller, backoff.next_s())
                if self._engine.leader() != leader:
                    backoff.reset()
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

    def begin(
        self, path: str, request: bytes, caller: Caller, settle: Settle
    ) -> Callable[[], None] | None:
        """Forward a unary call without awaiting anything.

        Args:
            path: The method.
            request: Its request.
            caller: Who asks.
            settle: Gets the leader's answer, or the error that `unary` raises, once.

        Returns:
            What gives it up; None: nothing was done, and `unary` is to be awaited.
        """
        leader = self._leader_elsewhere(caller)
        link = self._links.to(leader) if leader is not None else None
        if link is None:
            return None
        timeout_s = max(caller.remaining_s(), 0.001)
        begun = link.begin(path, request, self._metadata(caller), timeout_s, settle)
        if begun is not None:
            self._count(BY_LINK)
        return begun

    async def unary(self, path: str, request: bytes, caller: Caller) -> bytes:
        """Return the leader's answer to a unary call.

        Raises:
            Unavailable: No leader is known, or it could not answer.
            Relayed: The leader refused, with a gRPC status for the caller.
        """
        answered = await self._by_link(path, request, caller)
        if answered is not None:
            return answered
        with await self._by_call.enter(caller.remaining_s()):
            answered = await self._by_link(path, request, caller)  # there may be one by now
            return await self._call(path, request, caller) if answered is None else answered

    async def _by_link(self, path: str, request: bytes, caller: Caller) -> bytes | None:
        """Return what `unary` does; None: there is no link that takes it now. Raises as it does."""
        outcome: asyncio.Future[bytes | DledgerError] = asyncio.get_running_loop().create_future()
        give_up = self.begin(path, request, caller, partial(_settle, outcome))
        if give_up is None:
            return None
        try:
            answered = await outcome
        finally:
            give_up()
        if isinstance(answered, DledgerError):
            raise answered
        return answered

    async def _call(self, path: str, request: bytes, caller: Caller) -> bytes:
        channel, leader = self._to_leader(caller)
        self._count(BY_CALL)
        call = channel.unary_unary(path)(
            request, metadata=self._metadata(caller), timeout=max(caller.remaining_s(), 0.001)
        )
        with self._watched(leader, call):
            response: bytes = await call
            return response

    async def stream(self, path: str, request: bytes, caller: Caller) -> AsyncGenerator[bytes]:
        """Yield the leader's responses to a streaming call. Raises as `unary` does.

        Small responses are collected and sent together: if the leader dies halfway, none has been
        sent, and the caller may ask the next leader again. The leader is told when all have arrived
        at the client, unless there was only one: it says that there is nothing.
        """
        with await self._turnstile.enter(caller.remaining_s()) as turn:
            leader, link = await self._way(caller)
            number = self._answers.next_number()
            answers = self._begin_stream(
                path, request, caller, number=number, leader=leader, link=link, on_taken=turn.end
            )
            async with (
                contextlib.aclosing(answers),
                contextlib.aclosing(self._answers.whole(answers)) as responses,
            ):
                count = 0
                async for response in responses:
                    count += 1
                    if count == 2 and caller.prove is not None:
                        caller.prove(Passage(self._answers, leader.address, number))
                    yield response

    async def _way(self, caller: Caller) -> tuple[Member, LeaderLink | None]:
        """Return the leader, and the link to it, for which this waits; None: it is to be called.

        Raises as `unary` does.
        """
        while True:
            _, leader = self._to_leader(caller)
            link = self._links.to(leader)
            if link is not None or self._links.needs_calls(leader):
                return leader, link
            if caller.remaining_s() <= 0 or self._is_draining:
                raise NotTaken(f"there is no link to {leader.name} yet")
            await self._links.wait_change(min(caller.remaining_s(), _WATCH_S))

    def _begin_stream(
        self,
        path: str,
        request: bytes,
        caller: Caller,
        *,
        number: int,
        leader: Member,
        link: LeaderLink | None,
        on_taken: Callable[[], None],
    ) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        waited_ms = max(round((loop.time() - caller.since_s) * 1000), 0)
        metadata = (
            *self._metadata(caller),
            (PASSING_ON_KEY, str(number)),
            (WAITED_KEY, str(waited_ms)),
        )
        timeout_s = max(caller.remaining_s(), 0.001)
        if link is not None:
            answers = link.answers(path, request, metadata, timeout_s, on_taken)
            if answers is not None:
                self._count(BY_LINK)
                return answers
        self._count(BY_CALL)
        loop.call_later(_CALL_S, on_taken)
        call = self._channel(leader).unary_stream(path)(
            request, metadata=metadata, timeout=timeout_s
        )
        return self._answers_of(leader, call)

    async def _answers_of(self, leader: Member, call: Any) -> AsyncGenerator[bytes]:
        """Yield the responses to a gRPC call."""
        with self._watched(leader, call):
            self._streams.add(call)
            try:
                async for response in call:
                    yield response
            finally:
                self._streams.discard(call)
                call.cancel()

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
        self._is_draining = True
        self._links.cancel_streams()
        for call in tuple(self._streams):
            self._supersede(call)

    def _to_leader(self, caller: Caller) -> tuple[PeerChannel, Member]:
        leader = self._leader_elsewhere(caller)
        if leader is None:
            known = self._engine.leader()
            raise NotLeader(known.id if known else None)
        return self._channel(leader), leader

    def _leader_elsewhere(self, caller: Caller) -> Member | None:
        """Return the leader to ask; None: there is none, or nobody may be asked."""
        leader = self._engine.leader()
        if leader is None or leader.id == self._engine.node_id or caller.forwarded:
            return None
        return leader

    def _channel(self, leader: Member) -> PeerChannel:
        channel = self._channels.get(leader.address)
        if channel is None or channel.name != leader.name:
            if channel is not None:
                channel.retire()
            channel = self._dial(leader.address, leader.name, self._tls)
            self._channels[leader.address] = channel
        return channel

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
        followed = ("", "")
        while True:
            leader = self._engine.leader()
            if leader is not None:
                self._cancel_calls_except(leader.address)
            if leader is not None and followed != (leader.address, leader.name):
                followed = leader.address, leader.name
                leads_here = leader.id == self._engine.node_id
                self._links.follow(None if leads_here else (leader, self._channel(leader)))
            await self._engine.wait_leader_change(_WATCH_S)

    def _cancel_calls_except(self, address: str) -> None:
        """Cancel calls to a former leader: it may be frozen, and they would hang until timeout."""
        for former, calls in self._calls.items():
            if former != address:
                for call in tuple(calls):
                    self._supersede(call)

    def _supersede(self, call: Any) -> None:
        self._superseded.add(id(call))
        call.cancel()


def _settle(outcome: asyncio.Future[bytes | DledgerError], answered: bytes | DledgerError) -> None:
    if not outcome.done():
        outcome.set_result(answered)


NOTHING_HAPPENED: Final = (NotLeader, NotJoined, NotTaken, Overloaded, RateLimited, DiskFull)
"""Errors that tell a caller that nothing was stored, so that it may send again."""


def _unknown(error: DledgerError) -> OutcomeUnknown:
    """Return the error to raise instead if an earlier attempt may have been carried out."""
    return OutcomeUnknown(f"{error}; whether an earlier attempt was carried out is not known")
