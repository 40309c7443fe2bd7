"""A follower's link to its leader: to the leader, the follower is one more door.

Frames, calls and streams are those of door processes; only the way to the other side differs. The
leader gives a token for one connection to its replication port as the first response to a gRPC call
(`leader`). That call proves who asks, and the link lasts as long as it.
A leader of a version without links has no such method, and one that speaks no format of this
node's (`offer`) refuses; both are called by gRPC. So is a method of which an end has not read a
frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio

from dledger.calls.caller import LINE_KEY
from dledger.common.backoff import Backoff
from dledger.common.dns import host_to_ask
from dledger.common.herd import Herd
from dledger.door.contract import Cancel, Code, Failed, Headers, Pairs
from dledger.errors import DledgerError, Unavailable
from dledger.link.calls_out import CallsOut
from dledger.link.leader import RELAY_PATH
from dledger.link.leader_link import LeaderLink, Metadata, Settle
from dledger.link.offer import FORMATS, Offer, Wish
from dledger.rpc.metadata import pairs
from dledger.rpc.peer_tls import PeerChannel, PeerTls, connecting
from dledger.rpc.status import from_rpc
from dledger.types import Member

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 2.0
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
_OLDER_S: Final = 10.0
"""When a leader that has no links, or none in a format of ours, is asked again: another version may
run there."""
_CALLS_AFTER_S: Final = 3.0
"""Longer than an election and a new link take; a leader that gives none by then can be called."""
_MAY_COME: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_UNDER_WAY_BYTES: Final = 8 << 20
"""Requests beyond that go by gRPC calls, which a leader without room for them does not read."""

Address = Callable[[str, int], tuple[str, int]]


class RelayLinks:
    """The links of one node, of which there is one at a time. Implements `LeaderLinks`.

    Args:
        address: Returns host and port of the replication port of a peer with that address.
        tls: The certificates; None: plain text.
    """

    def __init__(self, address: Address, tls: PeerTls | None) -> None:
        self._address, self._tls = address, tls
        self._leader: Member | None = None
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_error = ""
        self._is_refused, self._without_since_s = False, 0.0
        self._changes: set[asyncio.Future[None]] = set()
        self._herd = Herd()

    def follow(self, leader: tuple[Member, PeerChannel] | None) -> None:
        """Keep a link to *leader*; None: to nobody."""
        if self._task is not None:
            self._task.cancel()  # which loses the link
        self._leader = self._task = self._link = None
        self._is_refused = False
        if leader is not None:
            loop = asyncio.get_running_loop()
            self._leader, self._without_since_s = leader[0], loop.time()
            self._task = loop.create_task(self._keep(*leader))
        self._tell_change()

    def to(self, leader: Member) -> LeaderLink | None:
        """Return the link to *leader* if it is connected."""
        return self._link if leader == self._leader else None

    def needs_calls(self, leader: Member) -> bool:
        """Whether *leader* is called; see `LeaderLinks`."""
        if leader != self._leader or self._link is not None:
            return False
        without_s = asyncio.get_running_loop().time() - self._without_since_s
        return self._is_refused or without_s >= _CALLS_AFTER_S

    async def wait_change(self, timeout_s: float) -> None:
        """Return when there may be another way to the leader; see `LeaderLinks`."""
        loop = asyncio.get_running_loop()
        change: asyncio.Future[None] = loop.create_future()
        self._changes.add(change)
        timer = loop.call_later(timeout_s, _finish, change)
        try:
            await change
        finally:
            timer.cancel()
            self._changes.discard(change)

    def _tell_change(self) -> None:
        changes, self._changes = self._changes, set()
        self._herd.wake([partial(_finish, change) for change in changes])

    def cancel_streams(self) -> None:
        """End the calls with many answers, and let who waits for a link look again."""
        self._tell_change()
        if self._link is not None:
            self._link.end.fail_streams(Failed(Code.UNAVAILABLE, "this node is shutting down"))

    async def close(self) -> None:
        """End the link."""
        task = self._task
        self.follow(None)
        if task is not None:
            await asyncio.wait((task,))

    async def _keep(self, leader: Member, channel: PeerChannel) -> None:
        """Keep a link to *leader* until it is cancelled."""
        loop, backoff = asyncio.get_running_loop(), Backoff(_RETRY_S, _RETRY_MAX_S)
        while True:
            since_s, older = loop.time(), False
            try:
                await self._serve(leader, channel)
            except grpc.aio.AioRpcError as error:
                older = error.code() is grpc.StatusCode.UNIMPLEMENTED
                self._is_refused = error.code() not in _MAY_COME
                self._note(leader, f"{error.code().name}: {error.details()}")
            except (OSError, ValueError) as error:
                self._is_refused = isinstance(error, ValueError)
                self._note(leader, str(error) or type(error).__name__)
            self._tell_change()
            pause_s = backoff.next_s(lasted_s=loop.time() - since_s)
            await asyncio.sleep(_OLDER_S if older else pause_s)

    async def _serve(self, leader: Member, channel: PeerChannel) -> None:
        """Have a link to *leader* until it ends. Raises AioRpcError, OSError, ValueError."""
        call = channel.unary_stream(RELAY_PATH)(Wish(FORMATS).encode())
        link: _Link | None = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                link = await self._connected(leader, await call.read())
            self._link, self._last_error, self._is_refused = link, "", False
            self._tell_change()
            over = asyncio.ensure_future(call.read())
            try:
                await asyncio.wait((over, link.lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
        finally:
            call.cancel()
            if link is not None:
                link.lose(Unavailable(f"the link to {leader.name} has ended"))
                if self._link is link:
                    self._link = None
                    self._without_since_s = asyncio.get_running_loop().time()

    async def _connected(self, leader: Member, offered: Any) -> _Link:
        if not isinstance(offered, bytes):
            raise ConnectionAbortedError("the leader ended the call")
        offer, link = Offer.decode(offered), _Link()
        host, port = self._address(leader.address, offer.port)
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: link.end.link, host_to_ask(host), port, **connecting(self._tls, leader.name)
        )
        transport.write(offer.token)
        link.methods = {path: number for number, path in enumerate(offer.methods)}
        return link

    def _note(self, leader: Member, error: str) -> None:
        if error != self._last_error:
            logger.info("no link to the leader %s, it is called instead: %s", leader.name, error)
            self._last_error = error


class _Link:
    """A connected link. Implements `LeaderLink`.

    Attributes:
        end: This end of it.
        methods: The leader's numbers of the methods, by path.
        lost: Is done once it has ended.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.methods: dict[str, int] = {}
        self.end = CallsOut(on_lost=self._on_lost, on_rejected=self._avoid)
        self._bytes = 0

    def begin(
        self, path: str, request: bytes, metadata: Metadata, timeout_s: float, settle: Settle
    ) -> Callable[[], None] | None:
        """Pass a unary call on; see `LeaderLink`."""
        if not self._takes(path, request):
            return None
        self._bytes += len(request)
        call = _Call(self._over, len(request), settle)
        call.timer = self._loop.call_later(timeout_s, call.expire)
        call.cancel = self.end.begin(
            (0, self.methods[path]),
            _headers(path, metadata, timeout_s),
            request,
            call.answer,
            call.fail,
        )
        return call.give_up

    def answers(
        self,
        path: str,
        request: bytes,
        metadata: Metadata,
        timeout_s: float,
        on_taken: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[bytes] | None:
        """Pass on a call with many answers; see `LeaderLink`."""
        if not self._takes(path, request):
            return None
        return self._answers(path, request, metadata, timeout_s, on_taken)

    async def _answers(
        self,
        path: str,
        request: bytes,
        metadata: Metadata,
        timeout_s: float,
        on_taken: Callable[[], None],
    ) -> AsyncGenerator[bytes]:
        headers, where = _headers(path, metadata, timeout_s), (0, self.methods[path])
        ends_s = self._loop.time() + timeout_s
        received = self.end.answers(where, headers, request, on_taken)
        async with contextlib.aclosing(received) as answers:
            try:
                while True:
                    async with asyncio.timeout_at(ends_s):  # never while the caller has an answer
                        answer = await anext(answers, None)
                    if answer is None:
                        return
                    yield answer
            except Failed as error:
                raise _error_of(error) from None
            except TimeoutError:
                raise _late() from None

    def lose(self, why: DledgerError) -> None:
        """End it: calls under way fail, and whether they were carried out is not known."""
        if not self.end.link.closed:
            self.end.link.abort(str(why))
        self.end.fail_all(Failed(Code.UNAVAILABLE, str(why)))

    def _takes(self, path: str, request: bytes) -> bool:
        link = self.end.link
        fits = self._bytes + len(request) <= _UNDER_WAY_BYTES
        return fits and path in self.methods and not link.full and not link.closed

    def _over(self, size_bytes: int) -> None:
        self._bytes -= size_bytes

    def _avoid(self, method: int) -> None:
        """Take no more calls of a method that the two ends do not say alike."""
        for path in [each for each, number in self.methods.items() if number == method]:
            logger.warning("%s goes by calls, as long as this link to the leader lasts", path)
            del self.methods[path]

    def _on_lost(self, why: str) -> None:
        self.end.fail_all(Failed(Code.UNAVAILABLE, f"the link to the leader has ended: {why}"))
        if not self.lost.done():
            self.lost.set_result(None)


class _Call:
    """A unary call that the leader has."""

    __slots__ = ("_done", "_settle", "_size_bytes", "cancel", "timer")
    timer: asyncio.TimerHandle
    cancel: Cancel

    def __init__(self, done: Callable[[int], None], size_bytes: int, settle: Settle) -> None:
        self._done, self._size_bytes = done, size_bytes
        self._settle: Settle | None = settle

    def answer(self, message: bytes) -> None:
        """Settle it with its answer."""
        self._end(message)

    def fail(self, code: Code, message: str, trailers: Pairs = ()) -> None:
        """Settle it with an error."""
        self._end(_error_of(Failed(code, message, trailers)))

    def expire(self) -> None:
        """Settle it: there was no answer in time."""
        self.cancel()
        self._end(_late())

    def give_up(self) -> None:
        """End it unsettled."""
        if self._settle is not None:
            self.cancel()
            self._settle = None
            self._over()

    def _end(self, outcome: bytes | DledgerError) -> None:
        settle, self._settle = self._settle, None
        if settle is not None:
            self._over()
            settle(outcome)

    def _over(self) -> None:
        self.timer.cancel()
        self._done(self._size_bytes)
        del self.cancel  # which knows the call's answer, and that this


def _finish(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)


def _headers(path: str, metadata: Metadata, timeout_s: float) -> Headers:
    """Return what goes before a request; its deadline is in seconds from now.

    Its peer is the client's connection: the leader's room is shared out among clients.
    """
    fields = (*pairs(metadata), (b":path", path.encode()))
    line = next((value for name, value in metadata if name == LINE_KEY), "")
    return Headers(fields, {}, peer=line, connection=0, deadline_s=timeout_s)


def _error_of(failed: Failed) -> DledgerError:
    """Return what the same end of a gRPC call means to the relay."""
    trailers = grpc.aio.Metadata(
        *((name.decode(), value.decode("ascii", "replace")) for name, value in failed.trailers)
    )
    error = grpc.aio.AioRpcError(
        _STATUS[failed.code], grpc.aio.Metadata(), trailers, details=failed.message
    )
    return from_rpc(error)


def _late() -> DledgerError:
    return _error_of(Failed(Code.DEADLINE_EXCEEDED, "no answer in time"))


_STATUS: Final = {Code(code.value[0]): code for code in grpc.StatusCode}
