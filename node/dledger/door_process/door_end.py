"""The door's end of the link: each call of a client goes to the node, and its answers come back.

This is the general path, which every method has. `send_batches` and `ack_batches` spare the node
most of it for what is one call a message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from dledger.door.contract import (
    BidiStream,
    Failed,
    Handler,
    Headers,
    Rest,
    Stream,
    TooLarge,
    Unary,
)
from dledger.door_process import frames
from dledger.door_process.frames import Arrives, DoorKind
from dledger.door_process.refusals import refused_answer
from dledger.link.calls_out import CallsOut, StreamOut, Where
from dledger.link.connection import Link
from dledger.link.frames import Kind, MalformedFrame, packed
from dledger.link.frames import message as message_frame
from dledger.rpc.rocketmq_stubs import SERVICE_NAME


class Replies(Protocol):
    """Takes the node's replies to batches."""

    def reply(self, kind: int, number: int, payload: bytes) -> bool:
        """Answer the calls of a batch; False: it is not one of these."""
        ...


class _Passage:
    """The answers to one call on their way: what becomes of them is told to the node."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number

    def proved(self) -> None:
        """Tell that they arrived."""
        self._tell(Arrives.PROVED)

    def moves(self) -> None:
        """Tell that they are still under way."""
        self._tell(Arrives.MOVES)

    def lost(self) -> None:
        """Tell that nobody will know."""
        self._tell(Arrives.LOST)

    def _tell(self, arrives: Arrives) -> None:
        if not self._link.closed:
            self._link.send(frames.arriving(self._number, arrives))


class _Passing:
    """A stream that is passed on; while neither side says anything, the `contract.Rest` of it.

    There may be very many, each of them a poll or Telemetry. One coroutine has both directions, as
    long as there is something to do. So a client that does not take its answers is not read either,
    which would have come about at the node, some messages later.
    """

    __slots__ = ("_call", "_end", "_is_half_closed", "_number", "_stream")

    def __init__(self, end: DoorEnd, number: int, call: StreamOut, stream: Stream) -> None:
        self._end, self._number, self._call, self._stream = end, number, call, stream
        self._is_half_closed = False

    @property
    def reads(self) -> bool:
        """Whether the node takes something: few of the client's messages are unread there."""
        return self._call.credit_bytes > 0 and not (self._is_half_closed or self._call.over)

    def wait(self) -> None:
        """Wait for either side: `StreamOut.wake` has it go on."""

    async def serve(self) -> Rest | None:
        """Pass on what there is, in both directions. Raises Failed: the node has ended it so."""
        call, ended = self._call, True
        try:
            self._pass_on()
            while (message := call.take()) is not None:
                await self._stream.send(message)
                self._end.note_taken(self._number, call, message)
                self._pass_on()
            ended = call.over
        finally:
            if ended:
                self.drop()
        return None if ended else self

    def drop(self) -> None:
        """Forget it: the call is over."""
        self._end.leave(self._number, self._call)

    def _pass_on(self) -> None:
        """Pass the client's messages on, and its end."""
        while self.reads and self._stream.is_readable:
            message = self._stream.read_now()
            if message is None:
                self._is_half_closed = True
                self._end.link.send(packed(Kind.HALF_CLOSE, self._number))
            else:
                self._call.credit_bytes -= len(message)
                self._end.link.send(message_frame(Kind.MESSAGE, self._number, message))


class DoorEnd(CallsOut):
    """Of one door process.

    Args:
        control: Gets the frames that are about the process itself.
        on_lost: Called once the link is closed, with the reason.

    Attributes:
        leads: Whether the node takes batches.
        replies: Who awaits replies to batches.
        turns: Called before what a turn of the loop has to send is written.
    """

    def __init__(
        self,
        *,
        control: Callable[[int, int, bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        super().__init__(on_lost=on_lost)
        self._control = control
        self.leads = False
        self.replies: list[Replies] = []
        self.turns: list[Callable[[], None]] = []

    def handler(
        self, port: int, method: int, path: str, *, unary: bool, max_request_bytes: int
    ) -> Handler:
        """Return the handler of a method that passes each call on.

        Args:
            port: The number of the client port.
            method: The number of the method.
            path: Its path.
            unary: Whether it takes one message for one.
            max_request_bytes: As in `door.contract.Method`.
        """
        refusal = partial(self._refuse, method, path)
        if unary:
            return Unary(
                partial(self.begin, (port, method)),
                max_request_bytes=max_request_bytes,
                refusal=refusal,
            )
        return BidiStream(
            partial(self._serve, (port, method)),
            max_request_bytes=max_request_bytes,
            refusal=refusal,
        )

    def number(self) -> int:
        """Return a number for a batch."""
        return next(self._numbers)

    def _refuse(self, method: int, path: str, refused: Failed) -> bytes:
        """Answer a request that is refused unread, and let the node count that."""
        why = bytes((isinstance(refused, TooLarge),)) + refused.message.encode()
        self.link.send(packed(DoorKind.REFUSED, method, why))
        service, _, name = path[1:].partition("/")
        return refused_answer(name, refused, is_messaging=service == SERVICE_NAME)

    async def _serve(self, where: Where, headers: Headers, stream: Stream) -> Rest | None:
        number, call = self._opened(where, headers, stream)
        return await _Passing(self, number, call, stream).serve()

    def _turn(self) -> None:
        for turn in self.turns:
            turn()

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        match kind:
            case DoorKind.PLACES | DoorKind.ACKED | DoorKind.RESUME | DoorKind.SAME:
                for each in self.replies:
                    if each.reply(kind, number, payload):
                        break  # if nobody does, all of its clients have left
            case DoorKind.PROVE:
                call = self._streams.get(number)
                if call is not None:  # else its client is gone
                    self._prove(number, call)
            case DoorKind.LEADS:
                self.leads = bool(number)
                self.link.turn()
            case DoorKind.PING:
                self.link.send(packed(DoorKind.PONG, number))
            case DoorKind.SETUP | DoorKind.CERTIFICATE | DoorKind.DRAIN:
                self._control(kind, number, payload)
            case _:
                super()._receive(kind, number, payload)

    def _reject(self, kind: int, number: int, why: MalformedFrame) -> None:
        """End the link: the node is of this very build, so that one of the two is broken."""
        del kind, number
        self.link.close(str(why))

    def _prove(self, number: int, call: StreamOut) -> None:
        """Tell the node what becomes of a call's answers, whose end is behind this."""
        arrival = _Passage(self.link, number)
        if call.client is None:
            arrival.lost()
        else:
            call.client.prove(arrival)
