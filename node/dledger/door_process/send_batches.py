"""SendMessage in a door: parsed, checked and encoded here, and stored by the node in batches.

What a turn of the event loop brings for one connection, client and topic becomes one PRODUCE
command, as `rocketmq.command_batcher` would make it. The node answers with queue offsets, and the
responses are made here. A call that is to be refused, or of a batch that the node cannot carry out
as it is, goes the general way, where it gets its refusal or is tried again.

Messages of one connection keep their order. Once calls of it are passed on instead of their batch,
the node takes no batch of that connection until it is told that they are over. Further calls wait
for the batches that are under way, and then follow on the same way; when the first are over, they
wait for all, and then there are batches again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from dledger.common.limits import SHARED_BYTES, SHARED_ROWS
from dledger.door.contract import Answer, Cancel, Fail, Handler, Headers, Unary
from dledger.door_process import frames
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import DoorKind, SendBatch
from dledger.errors import DledgerError
from dledger.link.frames import Kind, Resumes, packed
from dledger.rocketmq.send_requests import Origin, Sending, checked, encoded, response_of
from dledger.rpc.requests import parsed
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service

logger = logging.getLogger(__name__)

SEND_PATH: Final = f"/{SERVICE_NAME}/SendMessage"
CLIENT_ID: Final = b"x-mq-client-id"
LEAST_ROOM_BYTES: Final = 8 << 10
"""What the least request counts for admission, as in a node."""

PassOn: TypeAlias = Callable[..., Cancel]
"""`DoorEnd.begin` of a method."""


class BatchedCall:
    """One call that may be in a batch."""

    __slots__ = ("answer", "body", "cancel", "fail", "headers", "over", "pass_on")

    def __init__(
        self, pass_on: PassOn, headers: Headers, body: bytes, answer: Answer, fail: Fail
    ) -> None:
        self.pass_on, self.headers, self.body = pass_on, headers, body
        self.answer, self.fail = answer, fail
        self.cancel: Cancel | None = None
        self.over = False

    def give_up(self) -> None:
        """Do what its client's leaving asks for."""
        self.over = True
        if self.cancel is not None:
            self.cancel()

    def go_on(self, resumes: Resumes, over: Callable[[], None] | None = None) -> None:
        """Let it go the general way; *over* is called when it has ended."""
        self.cancel = self.pass_on(
            self.headers, self.body, self.answer, self.fail, resumes=resumes, over=over
        )


class _Send(BatchedCall):
    """One call."""

    __slots__ = ("sending",)
    sending: Sending


class _Lane:
    """What a connection has under way; kept only as long as there is any.

    Attributes:
        batches: How many the node has not replied to.
        refused: Whether the node takes no more batches of it until it is told.
        resumed: Calls that are passed on instead of their batch, and are not over.
        passed_on: Those, and calls that are passed on behind them.
        waiting: Calls that follow once no batch is under way, or nothing is that was passed on.
    """

    __slots__ = ("batches", "connection", "passed_on", "refused", "resumed", "waiting")

    def __init__(self, connection: int) -> None:
        self.connection = connection
        self.batches = self.resumed = self.passed_on = 0
        self.refused = False
        self.waiting: deque[_Send] = deque()


class _Batch:
    """What becomes one PRODUCE command."""

    __slots__ = ("awaited", "lane", "number", "origin", "room_bytes", "rows", "sends", "size_bytes")

    def __init__(self, lane: _Lane, origin: Origin) -> None:
        self.lane, self.origin = lane, origin
        self.sends: list[_Send] = []
        self.rows = self.size_bytes = self.room_bytes = self.awaited = self.number = 0

    def has_room(self, sending: Sending) -> bool:
        return (
            self.rows + len(sending.messages) <= SHARED_ROWS
            and self.size_bytes + sending.size_bytes <= SHARED_BYTES
        )

    def add(self, send: _Send, sending: Sending) -> None:
        send.sending = sending
        self.sends.append(send)
        self.awaited += 1
        self.rows += len(sending.messages)
        self.size_bytes += sending.size_bytes
        self.room_bytes += max(len(send.body), LEAST_ROOM_BYTES)


class SendBatches:
    """Of one door process.

    Args:
        door: The end of the link.
    """

    def __init__(self, door: DoorEnd) -> None:
        self._door = door
        self._lanes: dict[int, _Lane] = {}
        self._open: dict[tuple[int, Origin], _Batch] = {}
        self._queued: list[_Batch] = []
        self._sent: dict[int, _Batch] = {}
        self._waiting: dict[_Lane, None] = {}

    def before(self, general: Handler, port: int, method: int) -> Handler:
        """Return the handler that tries a batch first.

        Args:
            general: The method's general handler.
            port: The port's number.
            method: The method's number.
        """
        return Unary(
            partial(self._serve, partial(self._door.begin, (port, method))),
            max_request_bytes=general.max_request_bytes,
            refusal=general.refusal,
        )

    def _serve(
        self, pass_on: PassOn, headers: Headers, body: bytes, answer: Answer, fail: Fail
    ) -> Cancel:
        send = _Send(pass_on, headers, body, answer, fail)
        lane = self._lanes.get(headers.connection)
        if lane is None or not (lane.refused or lane.waiting):
            self._try(send, lane)
        elif lane.batches or (self._door.leads and not lane.resumed):
            self._wait(lane, send)
        else:
            self._follow(lane, send)
        return send.give_up

    def _try(self, send: _Send, lane: _Lane | None) -> None:
        """Let a call join a batch, if there may be any."""
        if not self._door.leads:
            if lane is not None and lane.batches:
                self._wait(lane, send)
            else:
                send.go_on(Resumes.NO)
            return
        sending = _checked(send.headers, send.body)
        if sending is not None:
            self._join(send, sending, lane)
        else:
            send.go_on(Resumes.NO)  # to be refused there

    def _wait(self, lane: _Lane, send: _Send) -> None:
        lane.waiting.append(send)
        self._waiting[lane] = None

    def _follow(self, lane: _Lane, send: _Send) -> None:
        """Pass a call on behind others of its connection, in the same way: so it stays there."""
        lane.passed_on += 1
        send.go_on(Resumes.NOTHING_DONE, partial(self._over, lane))

    def _join(self, send: _Send, sending: Sending, lane: _Lane | None) -> None:
        connection = send.headers.connection
        if lane is None:
            lane = self._lanes[connection] = _Lane(connection)
        key = (connection, sending.origin)
        batch = self._open.get(key)
        if batch is None or not batch.has_room(sending):
            batch = self._open[key] = _Batch(lane, sending.origin)
            lane.batches += 1
            self._queued.append(batch)
            self._door.link.turn()
        batch.add(send, sending)
        send.cancel = partial(self._leave, batch)

    def _leave(self, batch: _Batch) -> None:
        """Give up a batch that nobody awaits any more; its messages may be stored all the same."""
        batch.awaited -= 1
        if batch.awaited or self._sent.pop(batch.number, None) is None:
            return
        batch.sends.clear()
        self._door.link.send(packed(Kind.CANCEL, batch.number))
        self._replied(batch.lane)

    def flush(self) -> None:
        """Send the batches of this turn, in the order in which they began."""
        if self._waiting and not self._door.leads:  # then there is no going back
            for lane in [each for each in self._waiting if not each.batches]:
                self._release(lane)
        queued, self._queued = self._queued, []
        self._open.clear()
        for batch in queued:
            number = batch.number = self._door.number()
            self._sent[number] = batch
            messages = [each for send in batch.sends for each in send.sending.messages]
            frame = frames.sending(
                number,
                SendBatch(
                    connection=batch.lane.connection,
                    room_bytes=batch.room_bytes,
                    calls=len(batch.sends),
                    peer=batch.sends[0].headers.peer,
                    client_id=batch.origin.client_id,
                    command=encoded(batch.origin, messages),
                ),
            )
            self._door.link.send(frame)

    def reply(self, kind: int, number: int, payload: bytes) -> bool:
        """Answer the calls of a batch; see `door_end.Replies`."""
        batch = self._sent.pop(number, None)
        if batch is None:
            return False
        match kind:
            case DoorKind.PLACES:
                _answer(batch.sends, frames.offsets_of(payload))
            case DoorKind.SAME:
                for send in batch.sends:
                    send.answer(payload)
            case _:
                self._resume(batch, Resumes(payload[0]))
        batch.sends.clear()  # else each is in a cycle with it, and its request stays
        self._replied(batch.lane)
        return True

    def _replied(self, lane: _Lane) -> None:
        lane.batches -= 1
        if not lane.batches:
            if lane.refused:
                self._release(lane)
            self._look(lane)

    def _resume(self, batch: _Batch, resumes: Resumes) -> None:
        """Pass the calls of a batch on one by one."""
        lane = batch.lane
        lane.refused = True
        for send in batch.sends:
            if not send.over:
                lane.resumed += 1
                lane.passed_on += 1
                send.go_on(resumes, partial(self._resumed, lane))

    def _resumed(self, lane: _Lane) -> None:
        lane.resumed -= 1
        self._over(lane)

    def _over(self, lane: _Lane) -> None:
        lane.passed_on -= 1
        self._look(lane)

    def _release(self, lane: _Lane) -> None:
        """Pass on the calls that wait."""
        self._waiting.pop(lane, None)
        while lane.waiting:
            send = lane.waiting.popleft()
            if not send.over:
                self._follow(lane, send)

    def _look(self, lane: _Lane) -> None:
        """Go back to batches, once nothing of a connection is under way; the node is told first."""
        if lane.batches or lane.passed_on or self._lanes.get(lane.connection) is not lane:
            return
        del self._lanes[lane.connection]
        self._waiting.pop(lane, None)
        if lane.refused:
            self._door.link.send(packed(DoorKind.SETTLED, lane.connection))
        for send in lane.waiting:
            if not send.over:
                self._try(send, self._lanes.get(lane.connection))


def _checked(headers: Headers, body: bytes) -> Sending | None:
    """Return a request's messages; None if it is to be refused, which the node does."""
    try:
        client_id = (headers.raw(CLIENT_ID) or b"").decode("ascii")
        return checked(parsed(service.SendMessageRequest, body), client_id, headers.peer)
    except (DledgerError, UnicodeDecodeError):
        return None
    except Exception:
        logger.exception("a request was not to be checked; the node has it")
        return None


def _answer(sends: Sequence[_Send], offsets: Sequence[int]) -> None:
    first = 0
    for send in sends:
        messages = send.sending.messages
        end = first + len(messages)
        if not send.over:
            send.answer(response_of(messages, offsets[first:end]).SerializeToString())
        first = end
