"""AckMessage and ChangeInvisibleDuration, for messages that a consumer holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from dledger.broker.command_frame import CommandType
from dledger.broker.commands import Ack, ChangeInvisible, LeaseRef
from dledger.broker.results import Acked
from dledger.common.limits import CONSUME_BACKOFF_S, MAX_MESSAGES
from dledger.errors import InvalidReceiptHandle
from dledger.requests.engine import Engine
from dledger.requests.forward import Caller
from dledger.rocketmq.command_batcher import Begun, CommandBatcher, Place
from dledger.rocketmq.names import client_id, group_name, topic_name
from dledger.rocketmq.receipts import Receipts
from dledger.rocketmq.receiving import checked_invisible
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, Rejected, ok, status_of

_LEASE_BYTES: Final = 32
"""Approximate size of one message's lease in an ACK command."""
_NOTHING_ACKED: Final = Acked(outcomes=())
_ONE_ACKED: Final[bytes] = service.AckMessageResponse(
    status=ok(), entries=[service.AckMessageResultEntry(status=ok())]
).SerializeToString()
"""The usual response without id and handle: parsing it is faster than building it from parts."""


class Acker:
    """Serves AckMessage and ChangeInvisibleDuration on the leader."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._acks: CommandBatcher[tuple[str, str], LeaseRef] = CommandBatcher(
            engine, CommandType.ACK, _encoded
        )

    async def ack(self, request: Any, caller: Caller) -> Any:
        """Mark messages as consumed; each handle gets its own status."""
        submitted, response = self.begin_ack(request, caller)
        return response(await submitted)

    def begin_ack(self, request: Any, caller: Caller) -> Begun:
        """Submit what `ack` does."""
        client_id(caller)
        group, topic = group_name(request.group), topic_name(request.topic)
        if not 1 <= len(request.entries) <= MAX_MESSAGES:
            count = len(request.entries)
            raise Rejected(Code.BAD_REQUEST, f"acknowledge 1 to {MAX_MESSAGES} messages: {count}")
        receipts = self._receipts(group, topic)
        leases = [_lease(entry.receipt_handle, receipts) for entry in request.entries]
        good = [lease for lease in leases if isinstance(lease, LeaseRef)]
        submitted: asyncio.Future[Place]
        if good:
            submitted = self._acks.submit((group, topic), good, _LEASE_BYTES * len(good))
        else:
            submitted = asyncio.get_running_loop().create_future()
            submitted.set_result((_NOTHING_ACKED, 0))
        return submitted, partial(_acked, request.entries, leases)

    async def change_invisible(self, request: Any, caller: Caller) -> Any:
        """Change when a message is delivered again; its receipt handle stays the same."""
        submitted, response = self.begin_change(request, caller)
        return response(await submitted)

    def begin_change(self, request: Any, caller: Caller) -> Begun:
        """Submit what `change_invisible` does."""
        client_id(caller)
        group, topic = group_name(request.group), topic_name(request.topic)
        lease = self._receipts(group, topic).decode(request.receipt_handle)
        invisible_ms = checked_invisible(request.invisible_duration, least_ms=0)
        command = ChangeInvisible(
            group=group,
            topic=topic,
            lease=lease,
            invisible_ms=invisible_ms or self._soonest_ms(group, topic, lease),
        )
        response = service.ChangeInvisibleDurationResponse(
            status=ok(), receipt_handle=request.receipt_handle
        )
        return self._engine.submit(command.encode()), lambda _: response

    def _soonest_ms(self, group: str, topic: str, ref: LeaseRef) -> int:
        """Return after how many milliseconds a message released "now" is delivered again.

        For a simple consumer that is at once. The Node.js push consumer ignores the delays in its
        Settings and sends 0 whenever its listener fails, so the delay is applied here: otherwise a
        message that always fails would be redelivered in a tight loop.
        """
        lease = self._engine.state.groups.lease(group, topic, ref)
        if lease is None or not lease.client_id:
            return 0
        return 1000 * CONSUME_BACKOFF_S[min(lease.attempt, len(CONSUME_BACKOFF_S)) - 1]

    def _receipts(self, group: str, topic: str) -> Receipts:
        """Return the decoder of receipt handles; for a missing topic it accepts none."""
        state = self._engine.state
        found = state.topics.get(topic)
        return Receipts(
            state.secret, group=group, topic=topic, generation=found.generation if found else 0
        )


def _encoded(key: tuple[str, str], leases: Sequence[LeaseRef]) -> bytes:
    group, topic = key
    return Ack(group=group, topic=topic, leases=tuple(leases)).encode()


def _acked(
    asked: Sequence[Any], leases: Sequence[LeaseRef | InvalidReceiptHandle], place: Place
) -> Any:
    """Return the response: each lease's status, by the result of the command with the good ones."""
    result, first = place
    if not isinstance(result, Acked):
        raise TypeError(f"ACK answered {result!r}")
    outcomes = iter(result.outcomes[first : first + len(leases)])
    statuses = [
        status_of(lease) if isinstance(lease, InvalidReceiptHandle) else _status(next(outcomes))
        for lease in leases
    ]
    return _response(asked, statuses)


def _response(asked: Sequence[Any], statuses: Sequence[Any]) -> Any:
    if len(statuses) == 1 and statuses[0] is ok():
        response = service.AckMessageResponse.FromString(_ONE_ACKED)
        entry = response.entries[0]
        entry.message_id, entry.receipt_handle = asked[0].message_id, asked[0].receipt_handle
        return response
    entries = [
        service.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )
        for entry, status in zip(asked, statuses, strict=True)
    ]
    return service.AckMessageResponse(status=_overall(statuses), entries=entries)


def _lease(handle: str, receipts: Receipts) -> LeaseRef | InvalidReceiptHandle:
    try:
        return receipts.decode(handle)
    except InvalidReceiptHandle as error:
        return error


def _status(acked: bool) -> Any:
    if acked:
        return ok()
    return status_of(
        InvalidReceiptHandle("the receipt handle is stale: the message was delivered again")
    )


def _overall(statuses: Sequence[Any]) -> Any:
    """Return the common status if all are equal, else MULTIPLE_RESULTS."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return definition.Status(code=Code.MULTIPLE_RESULTS, message="see the status of each entry")
