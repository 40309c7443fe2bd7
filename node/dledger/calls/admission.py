"""Admission control: a request is read when there is room for it, not when it arrives.

An unread request waits at its client, held back by HTTP/2 flow control. gRPC does not announce its
size, so room is reserved for one as large as the connection's recent requests, and the excess is
released once it has arrived. Room is held until the response. Used by every client service.

Each connection has at most one share of the room; addresses are admitted in turn, and of each its
connections, so that an address can delay only itself. A request that does not arrive promptly gives
up its room and takes one of a few slots for slow requests; when these run out, the address that
holds most of them loses its oldest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, TypeAlias

from dledger.common.shares import NO_ROOM, Entry, Share, address_of
from dledger.errors import InvalidArgument, Overloaded, Unavailable
from dledger.rpc.requests import SMALL_BYTES, check_size, limit_of

Read: TypeAlias = Callable[[], Awaitable[bytes | None]]
"""Returns the next message of a call; None: the client has sent all."""
MAX_BYTES: Final = 32 << 20
"""Requests in progress at one node; each is in memory two or three times while it is served."""
SHARES: Final = 8
"""The room is divided into this many shares, one per connection; a request larger than a share is
served alone."""
PEER_SHARES: Final = 2
"""The same for forwarded requests: another node sends those of all its clients over one
connection."""
MAX_ARRIVING: Final = 32
"""Requests being read at a time; gRPC buffers what has arrived of each, 20 MiB at most."""
MAX_SLOW: Final = 32
"""The same for slow requests, which have not arrived within `_PROMPT_S`."""
MAX_WAITING: Final = 2_048
"""Requests waiting for room, shared by address; HTTP/2 buffers 64 KiB for those of one connection
together."""
_PATIENCE_S: Final = 1.0
"""How long a request waits for room before it is refused with Overloaded."""
_PROMPT_S: Final = 0.1
"""A request that was sent without pause has arrived by then."""
_BEARABLE_S: Final = 1.0
"""How long a slow request may take while others wait for its slot."""
_ARRIVES_S: Final = 10.0
_SMALL_ARRIVES_S: Final = 3.0
"""How long a large and a small request may take to arrive even if nothing waits for its slot."""
_LEAST_BYTES: Final = 8 << 10
"""The least that a request counts: its call and its response take memory, too."""
_AWAITED_BYTES: Final = 16 << 10
"""The same of one that a coroutine serves: 6,000 sends that waited so held 150 MiB."""
_FIRST_BYTES: Final = 1 << 20
_NEXT_BYTES: Final = 256 << 10
"""The size expected of an idle connection's next request, and the least expected of others."""


class _Connection:
    """One connection's requests, in progress and waiting; removed with the last of them."""

    __slots__ = ("address", "expected_bytes", "name", "requests", "taken", "waiting")

    def __init__(self, name: str) -> None:
        self.name, self.address = name, address_of(name.rpartition(":")[0])
        self.expected_bytes = _FIRST_BYTES
        self.requests = self.taken = 0
        self.waiting: deque[Request] = deque()


_Line: TypeAlias = OrderedDict[str, _Connection]
"""The connections of one address that wait, by turns."""


class AdmissionControl:
    """The room for requests at one node.

    Args:
        max_bytes: All of the room.
        shares: The number of equal shares; one share is the most that a connection may hold.
        max_waiting: Requests that wait for it.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, *, shares: int = SHARES, max_waiting: int = MAX_WAITING
    ) -> None:
        self._max, self._share = max_bytes, max_bytes // shares
        self._connections: dict[str, _Connection] = {}
        self._lines: OrderedDict[str, _Line] = OrderedDict()  # by address
        self._waiting: Share[Request] = Share(max_waiting, _turn_away)
        self._arriving: OrderedDict[Request, None] = OrderedDict()
        self._slow: OrderedDict[Request, None] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None
        self.taken = 0

    @property
    def waiting(self) -> int:
        """How many requests wait for room."""
        return self._waiting.taken

    def request(self, name: str, read: Read, method: str) -> Request:
        """Return the one request of a call, to be entered with ``async with``.

        Args:
            name: The call's connection.
            read: Returns the request; it is called once there is room.
            method: The method's name.
        """
        return Request(self, name, read, method)

    def message(
        self, name: str, read: Read, method: str, before_bytes: int | None = None
    ) -> Request:
        """Return the next message of a stream; while the stream is idle it holds no room.

        If the client has ended the stream, entering it returns no bytes, and it is `ended`.

        Args:
            name: The stream's connection.
            read: Returns the next message.
            method: The method's name.
            before_bytes: The size of the previous message; after a small one no room is reserved
                until the next has arrived. None: this is the first.
        """
        return Request(self, name, read, method, patient=True, before_bytes=before_bytes)

    def room_now(self, name: str, size_bytes: int) -> Request | None:
        """Admit a request that has arrived already; the caller gives it to `leave` in the end.

        Args:
            name: Its connection.
            size_bytes: Its size.

        Returns:
            None if it has to wait for its turn: then it is entered as the others are.
        """
        request = Request(self, name, _nothing, "")
        request.room = max(size_bytes, _LEAST_BYTES)
        mine = self._connections.get(name)
        request.connection = mine if mine is not None else _Connection(name)
        waits = self._lines and (request.connection.waiting or self._is_awaited())
        if waits or not self._fits(request):
            return None
        self._connections[name] = request.connection
        request.connection.requests += 1
        request.connection.taken += request.room
        self.taken += request.room
        return request

    async def enter(self, request: Request, name: str) -> None:
        """Reserve room for *request* of the connection *name*, in turn. Raises Overloaded."""
        mine = self._connections.get(name)
        if mine is None:
            mine = self._connections[name] = _Connection(name)
        request.connection = mine
        mine.requests += 1
        if request.before_bytes is not None and request.before_bytes <= _NEXT_BYTES:
            return
        expected_bytes = request.before_bytes or mine.expected_bytes
        request.room = min(expected_bytes, limit_of(request.method), self._share)
        if not mine.waiting and self._fits(request) and not (self._lines and self._is_awaited()):
            self._let_in(request)
        else:
            await self._wait(request)

    def arrived(self, request: Request, size_bytes: int) -> None:
        """Note that *request* has arrived: its real size counts now, whether or not it fits."""
        mine = request.connection
        mine.expected_bytes = max(size_bytes, mine.expected_bytes // 2, _NEXT_BYTES)
        self._keep(request, size_bytes)
        if self._lines:
            self._admit()

    def leave(self, request: Request) -> None:
        """Release the room of *request*: it was answered, or did not arrive."""
        self._keep(request, 0)
        self._forget(request)
        if self._lines:
            self._admit()

    # -- turns -----------------------------------------------------------------------------------

    async def _wait(self, request: Request) -> None:
        mine, turn = request.connection, asyncio.get_running_loop().create_future()
        request.turn = turn
        request.entry = self._waiting.enter(mine.address, request, line=mine.name)
        mine.waiting.append(request)
        self._lines.setdefault(mine.address, OrderedDict())[mine.name] = mine
        try:
            async with asyncio.timeout(None if request.patient else _PATIENCE_S):
                is_admitted = await turn
        except BaseException as error:
            if turn.cancelled() or not turn.result():
                self._stop_waiting(request)
            else:
                self.leave(request)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"requests of {self.taken} bytes are under way, of {mine.taken} on this "
                    "connection; back off and retry"
                ) from None
            raise
        if not is_admitted:
            self._stop_waiting(request)
            raise Overloaded(NO_ROOM)

    def _stop_waiting(self, request: Request) -> None:
        request.connection.waiting.remove(request)
        self._left_line(request)
        self._forget(request)
        self._admit()

    def _admit(self) -> None:
        """Admit waiting requests, one of each address in turn, while there is room."""
        progress = bool(self._lines)
        while progress:
            progress = False
            for address, line in tuple(self._lines.items()):
                request = self._first_of(line)
                if request is None:
                    continue
                if not self._fits(request):
                    return
                mine = request.connection
                mine.waiting.popleft()
                line.move_to_end(mine.name)
                self._lines.move_to_end(address)
                self._left_line(request)
                self._let_in(request)
                request.turn.set_result(True)
                progress = True

    def _first_of(self, line: _Line) -> Request | None:
        """Return whose turn it is of an address: the first in its connection's share.

        One that was told already leaves the line by itself, and calls `_admit` again.
        """
        for mine in line.values():
            request = mine.waiting[0]
            if not request.turn.done() and self._fits_share(request):
                return request
        return None

    def _let_in(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        request.since_s = loop.time()
        request.connection.taken += request.room
        self.taken += request.room
        self._arriving[request] = None
        if self._look is None:
            self._look = loop.call_at(request.since_s + _PROMPT_S, self._look_for_slow, loop)

    def _fits(self, request: Request) -> bool:
        room = not self.taken or self.taken + request.room <= self._max
        return room and len(self._arriving) < MAX_ARRIVING and self._fits_share(request)

    def _fits_share(self, request: Request) -> bool:
        taken = request.connection.taken
        return not taken or taken + request.room <= self._share

    def _is_awaited(self) -> bool:
        """Whether a request waits for room other than its own connection's share."""
        return any(
            self._fits_share(mine.waiting[0])
            for line in self._lines.values()
            for mine in line.values()
        )

    def _left_line(self, request: Request) -> None:
        mine = request.connection
        self._waiting.leave(request.entry)
        if not mine.waiting:
            line = self._lines[mine.address]
            del line[mine.name]
            if not line:
                del self._lines[mine.address]

    def _forget(self, request: Request) -> None:
        mine = request.connection
        mine.requests -= 1
        if not mine.requests:
            del self._connections[mine.name]

    # -- reading --------------------------------------------------------------------------------

    def _keep(self, request: Request, size_bytes: int) -> None:
        """Set what *request*, which is read no longer, counts from now on.

        A slow one counted for its connection only.
        """
        self.taken += size_bytes - (0 if request in self._slow else request.room)
        request.connection.taken += size_bytes - request.room
        request.room = size_bytes
        self._arriving.pop(request, None)
        self._slow.pop(request, None)

    def _look_for_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move requests that do not arrive promptly to the slow ones; repeat while any arrive."""
        due_s, now_s = self._look.when() if self._look is not None else 0.0, loop.time()
        self._look = None
        if now_s - due_s < _PROMPT_S / 2:  # else this loop was late, and has not read what came
            self._part_slow(now_s)
        if self._arriving:
            self._look = loop.call_at(now_s + _PROMPT_S, self._look_for_slow, loop)
        self._admit()

    def _part_slow(self, now_s: float) -> None:
        overdue = [each for each in self._arriving if now_s - each.since_s >= _PROMPT_S]
        if not overdue:
            return
        for request in [each for each in overdue if each.patient]:
            overdue.remove(request)
            self._keep(request, 0)
        for request in overdue[: MAX_SLOW - len(self._slow)]:
            self.taken -= request.room
            del self._arriving[request]
            self._slow[request] = None
        unplaced = sum(each in self._arriving for each in overdue)
        borne = [each for each in self._slow if now_s - each.since_s >= _BEARABLE_S]
        counts = Counter(each.connection.address for each in self._slow)
        borne.sort(key=lambda each: -counts[each.connection.address])
        for request in borne[:unplaced]:
            request.give_up()


class Request:
    """A request that is admitted inside its ``async with``; entering it returns its bytes.

    Raises:
        Overloaded: No room became free in time, or too many requests wait for it already.
        Unavailable: The request did not arrive in time.
        InvalidArgument: The call carries no request.
        Rejected: The request is larger than its method allows.
    """

    __slots__ = (
        "_admission",
        "_name",
        "_patience",
        "_receive",
        "before_bytes",
        "connection",
        "ended",
        "entry",
        "method",
        "patient",
        "room",
        "since_s",
        "turn",
    )
    connection: _Connection
    turn: asyncio.Future[bool]
    entry: Entry[Request]

    def __init__(
        self,
        admission: AdmissionControl,
        name: str,
        read: Read,
        method: str,
        *,
        patient: bool = False,
        before_bytes: int | None = None,
    ) -> None:
        self._admission, self._name, self._receive, self.method = admission, name, read, method
        self.patient, self.before_bytes, self.ended = patient, before_bytes, False
        self._patience: asyncio.Timeout | None = None
        self.room, self.since_s = 0, 0.0

    async def __aenter__(self) -> bytes:
        await self._admission.enter(self, self._name)
        try:
            raw = await self._read()
            least = _LEAST_BYTES if self.patient else _AWAITED_BYTES
            self._admission.arrived(self, max(len(raw), least))
            check_size(self.method, len(raw))
        except BaseException:
            self._admission.leave(self)
            raise
        return raw

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._admission.leave(self)

    async def _read(self) -> bytes:
        if self.patient:
            message = await self._receive()
            self.ended = message is None
            return message or b""
        large = limit_of(self.method) > SMALL_BYTES
        try:
            async with asyncio.timeout(_ARRIVES_S if large else _SMALL_ARRIVES_S) as patience:
                self._patience = patience
                raw = await self._receive()
        except TimeoutError:
            raise Unavailable("the request did not arrive in time") from None
        finally:
            self._patience = None
        if raw is None:
            raise InvalidArgument("the call carries no request")
        return raw

    def give_up(self) -> None:
        """Stop waiting for a request that has not arrived."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())


def _turn_away(request: Request) -> None:
    """Tell one that waits that others need its place.

    Not by an exception, which would know the frame that knows the future: a circle for each.
    """
    if not request.turn.done():
        request.turn.set_result(False)


async def _nothing() -> bytes | None:
    """Read nothing: the request has arrived."""
    return None
