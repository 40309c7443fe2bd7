"""AckMessage in a door: parsed and checked here, and carried out by the node in batches.

What a turn of the event loop brings for one connection, client, consumer group and topic becomes
one batch of receipt handles. The node reads them, since it has the key, and says of each whether
its lease was held; the responses are made here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from dledger.door.contract import Answer, Cancel, Fail, Handler, Headers
from dledger.door_process import frames
from dledger.door_process.door_end import DoorEnd
from dledger.door_process.frames import AckBatch, Acked, DoorKind
from dledger.door_process.joiner import CLIENT_ID, Batch, BatchedCall, Joiner, PassOn
from dledger.errors import DledgerError
from dledger.link.frames import Resumes
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


_Batch: TypeAlias = Batch[_Key, _Ack]


class AckBatches:
    """Of one door process.

    Args:
        door: The end of the link.
    """

    def __init__(self, door: DoorEnd) -> None:
        self._door = door
        self._joiner: Joiner[_Key, _Ack] = Joiner(door)

    def before(self, general: Handler, port: int, method: int) -> Handler:
        """Return the handler that tries a batch first; see `Joiner.handler`."""
        return self._joiner.handler(general, port, method, self._serve)

    def _serve(
        self, pass_on: PassOn, headers: Headers, body: bytes, answer: Answer, fail: Fail
    ) -> Cancel:
        ack = _Ack(pass_on, headers, body, answer, fail)
        key = self._key(ack) if self._door.leads else None
        if key is None:
            ack.go_on(Resumes.NO)
        else:
            self._joiner.join(key, ack, rows=len(ack.request.entries))
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

    def flush(self) -> None:
        """Send the batches of this turn."""
        self._joiner.flush(_frame)

    def reply(self, kind: int, number: int, payload: bytes) -> bool:
        """Answer the calls of a batch; see `door_end.Replies`."""
        batch = self._joiner.take(number)
        if batch is None:
            return False
        match kind:
            case DoorKind.ACKED:
                _answer(batch.calls, payload)
            case DoorKind.SAME:
                for ack in batch.calls:
                    ack.answer(payload)
            case _:
                for ack in batch.calls:
                    if not ack.over:
                        ack.go_on(Resumes(payload[0]))
        batch.calls.clear()  # each is in a cycle with it
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
            ack.go_on(Resumes.ASKED)
            continue
        statuses = [status_if(outcome == Acked.DONE) for outcome in of_this]
        ack.answer(response_of(asked, statuses).SerializeToString())


def _frame(batch: _Batch) -> bytes:
    _, client_id, group, topic = batch.key
    return frames.acking(
        batch.number,
        AckBatch(
            room_bytes=batch.room_bytes,
            client=batch.client(client_id),
            group=group,
            topic=topic,
            handles=[
                [entry.receipt_handle for entry in ack.request.entries] for ack in batch.calls
            ],
        ),
    )
