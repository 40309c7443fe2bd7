"""One call: what has arrived of it, and how it ends; and the form of it that callbacks serve.

A call is *over* once its last word is queued or its client is gone; nothing that its handler does
afterwards has an effect. The connection keeps it until HTTP/2 has closed its stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, ClassVar, Protocol

from dledger.common.shares import Entry, Share
from dledger.door.contract import Arrival, Cancel, Code, Failed, Headers, Method, Pairs, Unary
from dledger.door.deadlines import Moment
from dledger.door.grpc_format import Deframer
from dledger.door.port import End

logger = logging.getLogger(__name__)

BUG = "the handler failed; the server's log has the reason"


class Carrier(Protocol):
    """What a call needs of its connection."""

    def answer(self, call: Call, message: bytes) -> None:
        """Queue the one answer of *call*, which is over then."""

    def send(self, call: Call, message: bytes) -> None:
        """Queue one answer of many."""

    async def room(self, call: Call) -> None:
        """Wait until the client has taken most of what *call* has queued, or the call is over."""

    def finish(self, call: Call) -> None:
        """Queue the end of *call*, which is over then."""

    def fail(self, call: Call, code: Code, message: str, trailers: Pairs = ()) -> None:
        """Queue the end of *call* with a status; it is over then."""

    def consumed(self, call: Call, size_bytes: int) -> None:
        """Let the client send *size_bytes* more."""

    def prove(self, call: Call, arrival: Arrival) -> None:
        """Tell *arrival* what becomes of the answers of *call*."""

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a handler."""
        ...


class Call:
    """What all calls have.

    Attributes:
        is_stream: Whether it is of many messages.
        refusal: See `contract.Method`.
        unconsumed: Bytes that have arrived and count against the windows.
        acknowledged: Of them, those that do not, since room for them was promised.
        promised: Size of the message that room was promised for; 0: of none.
        awaited: Bytes of that message that have not arrived.
        widened: By how much its window is wider than others'.
        moment: When its deadline is; None: it has none.
        waits_since_s: Since when a request is awaited that is not yet whole; None: none is.
        share: The share of the port that it counts in; None: in none.
        entry: What it has of that.
        began: Whether the answer's headers are queued.
        ended: Whether the client has sent all.
        queued: Bytes of answers that were handed to HTTP/2, ever.
        taken: Of them, what HTTP/2 has sent, when it was last looked at.
        taken_at_s: When that grew.
    """

    __slots__ = (
        "acknowledged",
        "awaited",
        "began",
        "carrier",
        "ended",
        "entry",
        "headers",
        "inbox",
        "moment",
        "over",
        "promised",
        "queued",
        "refusal",
        "share",
        "stream_id",
        "taken",
        "taken_at_s",
        "unconsumed",
        "waits_since_s",
        "widened",
    )

    is_stream: ClassVar[bool] = True

    def __init__(
        self, carrier: Carrier, stream_id: int, headers: Headers, method: Method, now_s: float
    ) -> None:
        self.carrier, self.stream_id, self.headers = carrier, stream_id, headers
        self.inbox, self.refusal = Deframer(method.max_request_bytes), method.refusal
        self.over = self.began = self.ended = False
        self.unconsumed = self.acknowledged = self.promised = self.awaited = 0
        self.queued = self.taken = self.widened = 0
        self.moment: Moment | None = None
        self.share: Share[End] | None = None
        self.entry: Entry[End] | None = None
        self.waits_since_s: float | None = now_s
        self.taken_at_s = now_s

    @property
    def is_unfinished(self) -> bool:
        """Whether the client has begun a message, or has to, and not finished it."""
        raise NotImplementedError

    def data(self, data: bytes, now_s: float) -> None:
        """Take in a part of the request. Raises Failed."""
        raise NotImplementedError

    def end(self) -> None:
        """Note that the client has sent all. Raises Failed."""
        raise NotImplementedError

    def drop(self) -> None:
        """Stop the handler: the call ended without it."""
        raise NotImplementedError


class OneMessage(Call):
    """A call whose request is one message; its handler starts once that is whole."""

    __slots__ = ("_body",)
    is_stream = False

    def __init__(
        self, carrier: Carrier, stream_id: int, headers: Headers, method: Method, now_s: float
    ) -> None:
        super().__init__(carrier, stream_id, headers, method, now_s)
        self._body: bytes | None = None

    @property
    def is_unfinished(self) -> bool:
        """Whether its handler cannot start yet."""
        return not self.ended

    def data(self, data: bytes, now_s: float) -> None:
        """Keep it until the message is whole. Raises Failed."""
        del now_s
        for message in self.inbox.feed(data):
            if self._body is not None:
                raise Failed(Code.UNIMPLEMENTED, "the method takes one message, not more")
            self._body = message

    def end(self) -> None:
        """Start the handler. Raises Failed."""
        self.ended = True
        self.waits_since_s = None
        body, self._body = self._body, None
        if self.inbox.missing:
            raise torn()
        if body is None:
            raise Failed(Code.UNIMPLEMENTED, "the method takes one message, not none")
        self.start(body)

    def start(self, body: bytes) -> None:
        """Call the handler."""
        raise NotImplementedError


class UnaryCall(OneMessage):
    """A call that is served by callbacks."""

    __slots__ = ("_cancel", "_serve")

    def __init__(
        self, carrier: Carrier, stream_id: int, headers: Headers, handler: Unary, now_s: float
    ) -> None:
        super().__init__(carrier, stream_id, headers, handler, now_s)
        self._serve = handler.serve
        self._cancel: Cancel | None = None

    def start(self, body: bytes) -> None:
        """Call the handler, which may answer at once. Raises Failed."""
        try:
            cancel = self._serve(self.headers, body, self.answer, self.fail)
        except Failed:
            raise
        except Exception:
            logger.exception("%s failed", self.headers.get(b":path"))
            raise Failed(Code.UNKNOWN, BUG) from None
        if not self.over:
            self._cancel = cancel

    def answer(self, message: bytes) -> None:
        """End the call with its answer."""
        if not self.over:
            self._cancel = None
            self.carrier.answer(self, message)

    def fail(self, code: Code, message: str, trailers: Pairs = ()) -> None:
        """End the call without an answer."""
        if not self.over:
            self._cancel = None
            self.carrier.fail(self, code, message, trailers)

    def drop(self) -> None:
        """Call what the handler returned for this case."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            try:
                cancel()
            except Exception:
                logger.exception("%s failed when it was cancelled", self.headers.get(b":path"))


def torn() -> Failed:
    """Return how a call ends whose request does not."""
    return Failed(Code.INTERNAL, "the request ends inside a message")
