"""What a node lets in: requests are read when there is room for them, not when they come.

A request that is not read yet waits at its client, held back by HTTP/2. gRPC does not say how large
it will be, so room is taken for one as large as its connection's last ones were, and what is left
over given back once it is here. Room is held until the answer.

One connection has a share of the room at most, and takes its turn with the others: what it holds up
is its own. A request that does not come in one go leaves its room to others, for one of a few
places among the slow ones; when these run out, who has most of them loses the oldest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from types import TracebackType
from typing import Any, Final

import grpc.aio

from dledger.errors import InvalidArgument, Overloaded, Unavailable
from dledger.rpc.requests import SMALL_BYTES, check_size, limit_of

MAX_BYTES: Final = 32 << 20
"""Requests under way at one node; each is in memory two or three times while it is served."""
SHARES: Final = 8
"""A connection has one of so many shares; a request that is larger by itself goes alone."""
PEER_SHARES: Final = 2
"""Likewise of what other nodes send on: each sends all that its clients ask over one connection."""
MAX_ARRIVING: Final = 32
"""Requests that are read at once; gRPC keeps what there is of each, 20 MiB at most."""
MAX_SLOW: Final = 32
"""Likewise of those that take longer than it takes to come in one go."""
MAX_WAITING: Final = 2_048
"""Requests that wait for room; of those on one connection, HTTP/2 holds 64 KiB together."""
_PATIENCE_S: Final = 1.0
"""How long one waits for room; then its client is told to come later."""
_PROMPT_S: Final = 0.1
"""What was sent in one go has come by then."""
_BEARABLE_S: Final = 1.0
"""So long a slow one may take although others want its place."""
_ARRIVES_S: Final = 10.0
_SMALL_ARRIVES_S: Final = 3.0
"""How long one may take that may be large, and one that may not, though nobody wants its place."""
_LEAST_BYTES: Final = 8 << 10
"""What a small request counts: its call, its tasks and its answer take memory, too."""
_FIRST_BYTES: Final = 1 << 20
_NEXT_BYTES: Final = 256 << 10
"""What is expected of a connection that has nothing under way, and what at least of others."""


class _Connection:
    """What one connection has under way and waiting; forgotten with the last of its requests."""

    __slots__ = ("expected_bytes", "name", "requests", "taken", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.expected_bytes = _FIRST_BYTES
        self.requests = self.taken = 0
        self.waiting: deque[Request] = deque()


class AdmissionControl:
    """The room for requests at one node.

    Args:
        max_bytes: All of it.
        shares: One of so many equal parts is the most that one connection has.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, *, shares: int = SHARES) -> None:
        self._max, self._share = max_bytes, max_bytes // shares
        self._connections: dict[str, _Connection] = {}
        self._lines: OrderedDict[str, _Connection] = OrderedDict()
        self._arriving: OrderedDict[Request, None] = OrderedDict()
        self._slow: OrderedDict[Request, None] = OrderedDict()
        self._look: asyncio.TimerHandle | None = None
        self.taken = self.waiting = 0

    def request(self, context: Any, method: str) -> Request:
        """Return the one request of the call *context*, to be entered with ``async with``."""
        return Request(self, context, method)

    def message(self, context: Any, method: str, before_bytes: int | None = None) -> Request:
        """Return the next message of a stream, which may be long in coming: it keeps no room then.

        Where the client has ended the stream, entering it returns no bytes, and it is `ended`.

        Args:
            context: The call.
            method: Its name.
            before_bytes: The size of the message before; after a small one no room is taken until
                the next is here. None: there was none.
        """
        return Request(self, context, method, patient=True, before_bytes=before_bytes)

    async def enter(self, request: Request, name: str) -> None:
        """Take room for *request* of the connection *name*, in its turn. Raises Overloaded."""
        mine = self._connections.get(name)
        if mine is None:
            mine = self._connections[name] = _Connection(name)
        request.connection = mine
        mine.requests += 1
        if request.before_bytes is not None and request.before_bytes <= _NEXT_BYTES:
            return
        request.room = min(request.before_bytes or mine.expected_bytes, self._share)
        if not mine.waiting and self._fits(request) and not self._is_awaited():
            self._let_in(request)
        elif self.waiting < MAX_WAITING:
            await self._wait(request)
        else:
            self._forget(request)
            raise Overloaded(f"{self.waiting} requests wait for room; back off and retry")

    def arrived(self, request: Request, size_bytes: int) -> None:
        """Take note that *request* is here: it counts what it is, whether that fits or not."""
        mine = request.connection
        mine.expected_bytes = max(size_bytes, mine.expected_bytes // 2, _NEXT_BYTES)
        self._keep(request, size_bytes)
        self._is_read(request)
        self._admit()

    def leave(self, request: Request) -> None:
        """Give back what *request* has taken: it is answered, or has not arrived."""
        self._keep(request, 0)
        self._is_read(request)
        self._forget(request)
        self._admit()

    # -- turns -----------------------------------------------------------------------------------

    async def _wait(self, request: Request) -> None:
        mine, turn = request.connection, asyncio.get_running_loop().create_future()
        request.turn = turn
        mine.waiting.append(request)
        self._lines[mine.name] = mine
        self.waiting += 1
        try:
            async with asyncio.timeout(None if request.patient else _PATIENCE_S):
                await turn
        except BaseException as error:
            if turn.cancelled():
                mine.waiting.remove(request)
                self._left_line(mine)
                self._forget(request)
                self._admit()
            else:
                self.leave(request)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"requests of {self.taken} bytes are under way, of {mine.taken} on this "
                    "connection; back off and retry"
                ) from None
            raise

    def _admit(self) -> None:
        """Let in who is next: one of each connection in turn, while there is room."""
        progress = bool(self._lines)
        while progress:
            progress = False
            for line in tuple(self._lines.values()):
                request = line.waiting[0]
                if request.turn.cancelled() or not self._fits_share(request):
                    continue  # one that was cancelled leaves the line by itself, and asks again
                if not self._fits(request):
                    return
                line.waiting.popleft()
                self._lines.move_to_end(line.name)
                self._left_line(line)
                self._let_in(request)
                request.turn.set_result(None)
                progress = True

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
        """Whether somebody waits for more than his connection's own share."""
        return any(self._fits_share(line.waiting[0]) for line in self._lines.values())

    def _left_line(self, mine: _Connection) -> None:
        self.waiting -= 1
        if not mine.waiting:
            del self._lines[mine.name]

    def _forget(self, request: Request) -> None:
        mine = request.connection
        mine.requests -= 1
        if not mine.requests:
            del self._connections[mine.name]

    # -- what comes in --------------------------------------------------------------------------

    def _keep(self, request: Request, size_bytes: int) -> None:
        """Let *request* count so much from now on; a slow one counted for its connection only."""
        self.taken += size_bytes - (0 if request in self._slow else request.room)
        request.connection.taken += size_bytes - request.room
        request.room = size_bytes

    def _is_read(self, request: Request) -> None:
        self._arriving.pop(request, None)
        self._slow.pop(request, None)

    def _look_for_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Part what does not come in one go from the rest; come again while anything arrives."""
        due_s, now_s = self._look.when() if self._look is not None else 0.0, loop.time()
        self._look = None
        if now_s - due_s < _PROMPT_S / 2:  # else nothing was read meanwhile, though it has come
            self._part_slow(now_s)
        if self._arriving:
            self._look = loop.call_at(now_s + _PROMPT_S, self._look_for_slow, loop)
        self._admit()

    def _part_slow(self, now_s: float) -> None:
        overdue = [each for each in self._arriving if now_s - each.since_s >= _PROMPT_S]
        for request in [each for each in overdue if each.patient]:
            overdue.remove(request)
            self._keep(request, 0)
            self._is_read(request)
        for request in overdue[: MAX_SLOW - len(self._slow)]:
            self.taken -= request.room
            del self._arriving[request]
            self._slow[request] = None
        unplaced = sum(each in self._arriving for each in overdue)
        borne = [each for each in self._slow if now_s - each.since_s >= _BEARABLE_S]
        counts = Counter(each.connection.name for each in self._slow)
        borne.sort(key=lambda each: -counts[each.connection.name])
        for request in borne[:unplaced]:
            request.give_up()


class Request:
    """A request that is let in while its ``async with`` lasts; entering it returns its bytes.

    Raises:
        Overloaded: There is no room, and too many wait for some already, or there was none in time.
        Unavailable: It did not arrive in time.
        InvalidArgument: The call carries none.
        Rejected: It is larger than any request of its method.
    """

    __slots__ = (
        "_admission",
        "_context",
        "_method",
        "_patience",
        "before_bytes",
        "connection",
        "ended",
        "patient",
        "room",
        "since_s",
        "turn",
    )
    connection: _Connection
    turn: asyncio.Future[None]

    def __init__(
        self,
        admission: AdmissionControl,
        context: Any,
        method: str,
        *,
        patient: bool = False,
        before_bytes: int | None = None,
    ) -> None:
        self._admission, self._context, self._method = admission, context, method
        self.patient, self.before_bytes, self.ended = patient, before_bytes, False
        self._patience: asyncio.Timeout | None = None
        self.room, self.since_s = 0, 0.0

    async def __aenter__(self) -> bytes:
        await self._admission.enter(self, self._context.peer())
        try:
            raw = await self._read()
            self._admission.arrived(self, max(len(raw), _LEAST_BYTES))
            check_size(self._method, len(raw))
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
            message = await self._context.read()
            self.ended = message is grpc.aio.EOF
            return b"" if self.ended else bytes(message)
        large = limit_of(self._method) > SMALL_BYTES
        try:
            async with asyncio.timeout(_ARRIVES_S if large else _SMALL_ARRIVES_S) as patience:
                self._patience = patience
                raw = await self._context.read()
        except TimeoutError:
            raise Unavailable("the request did not arrive in time") from None
        finally:
            self._patience = None
        if raw is grpc.aio.EOF:
            raise InvalidArgument("the call carries no request")
        return bytes(raw)

    def give_up(self) -> None:
        """Wait no longer for what has not arrived."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())
