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
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

from dledger.broker.topics import NORMAL
from dledger.door.contract import REPLAY_FIELD, Answer, Cancel, Fail, Handler, Headers
from dledger.door_process import frames
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import DoorKind, SendBatch
from dledger.door_process.joiner import CLIENT_ID, Batch, BatchedCall, Joiner, PassOn
from dledger.errors import DledgerError
from dledger.link.frames import Resumes, packed
from dledger.rocketmq.send_requests import Origin, Sending, checked, encoded, response_of
from dledger.rpc.requests import parsed
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service

logger = logging.getLogger(__name__)

SEND_PATH: Final = f"/{SERVICE_NAME}/SendMessage"

_Key: TypeAlias = tuple[int, Origin]
"""Connection, and what the messages of one command have in common."""


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


_Batch: TypeAlias = Batch[_Key, _Send]
"""What becomes one PRODUCE command."""


class SendBatches:
    """Of one door process.

    Args:
        door: The end of the link.
    """

    def __init__(self, door: DoorEnd) -> None:
        self._door = door
        self._lanes: dict[int, _Lane] = {}
        self._joiner: Joiner[_Key, _Send] = Joiner(door, self._begin, self._end)
        self._waiting: dict[_Lane, None] = {}

    def before(self, general: Handler, port: int, method: int) -> Handler:
        """Return the handler that tries a batch first; see `Joiner.handler`."""
        return self._joiner.handler(general, port, method, self._serve)

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
        if sending is not None and not sending.unchecked and sending.kind == NORMAL.name:
            self._join(send, sending, lane)
        else:
            # To be refused there, or looked into, or with a mark, or of a type that goes singly.
            send.go_on(Resumes.NO)

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
            self._lanes[connection] = _Lane(connection)
        send.sending = sending
        rows = len(sending.messages)
        key = connection, sending.origin
        self._joiner.join(key, send, rows=rows, size_bytes=sending.size_bytes)

    def _begin(self, batch: _Batch) -> None:
        self._lane_of(batch).batches += 1

    def _lane_of(self, batch: _Batch) -> _Lane:
        """Return the lane of a batch; while it has one, its connection keeps it."""
        return self._lanes[batch.key[0]]

    def flush(self) -> None:
        """Send the batches of this turn, in the order in which they began."""
        if self._waiting and not self._door.leads:  # then there is no going back
            for lane in [each for each in self._waiting if not each.batches]:
                self._release(lane)
        self._joiner.flush(_frame)

    def reply(self, kind: int, number: int, payload: bytes) -> bool:
        """Answer the calls of a batch; see `door_end.Replies`."""
        batch = self._joiner.take(number)
        if batch is None:
            return False
        match kind:
            case DoorKind.PLACES:
                _answer(batch.calls, frames.offsets_of(payload))
            case DoorKind.SAME:
                for send in batch.calls:
                    send.answer(payload)
            case _:
                self._resume(batch, Resumes(payload[0]))
        batch.calls.clear()  # else each is in a cycle with it, and its request stays
        self._end(batch)
        return True

    def _end(self, batch: _Batch) -> None:
        lane = self._lane_of(batch)
        lane.batches -= 1
        if not lane.batches:
            if lane.refused:
                self._release(lane)
            self._look(lane)

    def _resume(self, batch: _Batch, resumes: Resumes) -> None:
        """Pass the calls of a batch on one by one."""
        lane = self._lane_of(batch)
        lane.refused = True
        for send in batch.calls:
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
    """Return a request's messages; None if it is to be refused, which the node does, or a replay.

    Such a call has a command of its own, which says which messages it has.
    """
    if headers.raw(REPLAY_FIELD) is not None:
        return None
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


def _frame(batch: _Batch) -> bytes:
    connection, origin = batch.key  # what its messages share, of which whose they are is a part
    messages = [each for send in batch.calls for each in send.sending.messages]
    return frames.sending(
        batch.number,
        SendBatch(
            connection=connection,
            room_bytes=batch.room_bytes,
            calls=len(batch.calls),
            client=batch.client(origin.client_id),
            command=encoded(origin, messages),
        ),
    )
