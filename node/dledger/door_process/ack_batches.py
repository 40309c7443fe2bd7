"""AckMessage in a door: parsed and checked here, and carried out by the node in batches.

What a turn of the event loop brings for one connection, client, consumer group and topic becomes
one batch of receipt handles. The node reads them, since it has the key, and says of each whether
its lease was held; the responses are made here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from dledger.common.limits import SHARED_ROWS
from dledger.door.contract import Answer, Cancel, Fail, Handler, Headers, Unary
from dledger.door_process import frames
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import AckBatch, Acked, DoorKind
from dledger.door_process.send_batches import (
    CLIENT_ID,
    LEAST_ROOM_BYTES,
    BatchedCall,
    PassOn,
)
from dledger.errors import DledgerError
from dledger.link.frames import Kind, Resumes, packed
from dledger.rocketmq.ack_requests import checked, response_of, status_if
from dledger.rpc.requests import parsed
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service

logger = logging.getLogger(__name__)

ACK_PATH: Final = f"/{SERVICE_NAME}/AckMessage"

_Key: TypeAlias = tuple[int, str, str, str]
"""Connection, client id, consumer group, topic."""


class _Ack(BatchedCall):
    """One call."""

    __slots__ = ("request",)
    request: Any


class _Batch:
    __slots__ = ("acks", "awaited", "key", "number", "room_bytes", "rows")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.acks: list[_Ack] = []
        self.rows = self.room_bytes = self.awaited = self.number = 0


class AckBatches:
    """Of one door process.

    Args:
        door: The end of the link.
    """

    def __init__(self, door: DoorEnd) -> None:
        self._door = door
        self._open: dict[_Key, _Batch] = {}
        self._queued: list[_Batch] = []
        self._sent: dict[int, _Batch] = {}

    def before(self, general: Handler, port: int, method: int) -> Handler:
        """Return the handler that tries a batch first; see `SendBatches.before`."""
        return Unary(
            partial(self._serve, partial(self._door.begin, (port, method))),
            max_request_bytes=general.max_request_bytes,
            refusal=general.refusal,
        )

    def _serve(
        self, pass_on: PassOn, headers: Headers, body: bytes, answer: Answer, fail: Fail
    ) -> Cancel:
        ack = _Ack(pass_on, headers, body, answer, fail)
        key = self._key(ack) if self._door.leads else None
        if key is None:
            ack.go_on(Resumes.NO)
        else:
            self._join(ack, key)
        return ack.give_up

    def _key(self, ack: _Ack) -> _Key | None:
        """Parse a request; return where it belongs, or None if the node is to refuse it."""
        headers = ack.headers
        try:
            client_id = (headers.raw(CLIENT_ID) or b"").decode("ascii")
            ack.request = request = parsed(service.AckMessageRequest, ack.body)
            group, topic = checked(request, client_id)
        except (DledgerError, UnicodeDecodeError):
            return None
        except Exception:
            logger.exception("a request was not to be checked; the node has it")
            return None
        return headers.connection, client_id, group, topic

    def _join(self, ack: _Ack, key: _Key) -> None:
        rows = len(ack.request.entries)
        batch = self._open.get(key)
        if batch is None or batch.rows + rows > SHARED_ROWS:
            batch = self._open[key] = _Batch(key)
            self._queued.append(batch)
            self._door.link.turn()
        batch.acks.append(ack)
        batch.awaited += 1
        ack.cancel = partial(self._leave, batch)
        batch.rows += rows
        batch.room_bytes += max(len(ack.body), LEAST_ROOM_BYTES)

    def _leave(self, batch: _Batch) -> None:
        """Give up a batch that nobody awaits any more; it may be carried out all the same."""
        batch.awaited -= 1
        if not batch.awaited and self._sent.pop(batch.number, None) is not None:
            batch.acks.clear()
            self._door.link.send(packed(Kind.CANCEL, batch.number))

    def flush(self) -> None:
        """Send the batches of this turn."""
        queued, self._queued = self._queued, []
        self._open.clear()
        for batch in queued:
            number = batch.number = self._door.number()
            self._sent[number] = batch
            _, client_id, group, topic = batch.key
            frame = frames.acking(
                number,
                AckBatch(
                    room_bytes=batch.room_bytes,
                    peer=batch.acks[0].headers.peer,
                    client_id=client_id,
                    group=group,
                    topic=topic,
                    handles=[
                        [entry.receipt_handle for entry in ack.request.entries]
                        for ack in batch.acks
                    ],
                ),
            )
            self._door.link.send(frame)

    def reply(self, kind: int, number: int, payload: bytes) -> bool:
        """Answer the calls of a batch; see `door_end.Replies`."""
        batch = self._sent.pop(number, None)
        if batch is None:
            return False
        match kind:
            case DoorKind.ACKED:
                _answer(batch.acks, payload)
            case DoorKind.SAME:
                for ack in batch.acks:
                    ack.answer(payload)
            case _:
                for ack in batch.acks:
                    if not ack.over:
                        ack.go_on(Resumes(payload[0]))
        batch.acks.clear()  # each is in a cycle with it
        return True


def _answer(acks: Sequence[_Ack], outcomes: Sequence[int]) -> None:
    first = 0
    for ack in acks:
        asked = ack.request.entries
        of_this = outcomes[first : first + len(asked)]
        first += len(asked)
        if ack.over:
            continue
        if of_this[0] == Acked.RESUMED:
            ack.go_on(Resumes.NOTHING_DONE)
            continue
        statuses = [status_if(outcome == Acked.DONE) for outcome in of_this]
        ack.answer(response_of(asked, statuses).SerializeToString())
