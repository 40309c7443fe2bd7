"""AckMessage and ChangeInvisibleDuration, for messages that a consumer holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from dledger.broker.command_frame import CommandType
from dledger.broker.commands import Ack, ChangeInvisible, LeaseRef
from dledger.broker.results import Acked, LeaseChanged
from dledger.calls.caller import Caller
from dledger.calls.method import Submitted
from dledger.checks.resources import client_id, group_name, topic_name
from dledger.errors import InvalidReceiptHandle
from dledger.requests.engine import Engine
from dledger.rocketmq.ack_requests import checked, response_of, status_if
from dledger.rocketmq.arrivals import Arrivals
from dledger.rocketmq.command_batcher import CommandBatcher, Place
from dledger.rocketmq.receipts import Receipts
from dledger.rocketmq.receiving import checked_invisible
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import ok, status_of

_LEASE_BYTES: Final = 32
"""Approximate size of one message's lease in an ACK command."""
_NOTHING_ACKED: Final = Acked(outcomes=())


class Acker:
    """Serves AckMessage and ChangeInvisibleDuration on the leader."""

    def __init__(self, engine: Engine, arrivals: Arrivals) -> None:
        self._engine, self._arrivals = engine, arrivals
        self._acks: CommandBatcher[tuple[str, str], LeaseRef] = CommandBatcher(
            engine, CommandType.ACK, _encoded
        )

    def begin_ack(
        self, request: service.AckMessageRequest, caller: Caller
    ) -> Submitted[service.AckMessageResponse]:
        """Mark messages as consumed; each handle gets its own status."""
        group, topic = checked(request, caller.client_id)
        receipts = self._receipts(group, topic)
        leases = [_lease(entry.receipt_handle, receipts) for entry in request.entries]
        good = [lease for lease in leases if isinstance(lease, LeaseRef)]
        submitted: asyncio.Future[Place]
        if good:
            self._arrivals.handled(group, topic, good)
            submitted = self._acks.submit((group, topic), good, _LEASE_BYTES * len(good))
        else:
            submitted = asyncio.get_running_loop().create_future()
            submitted.set_result((_NOTHING_ACKED, 0))
        return Submitted(submitted, partial(_acked, request.entries, leases))

    def begin_handles(
        self, group: str, topic: str, calls: Sequence[Sequence[str]]
    ) -> tuple[asyncio.Future[Place] | None, list[int | None]]:
        """Submit what several calls acknowledge, given by the receipt handles of each.

        Returns:
            The outcome, None if there is nothing to submit; and of each call how many leases it has
            in it, in order. None: one of its handles is none, and it is left out.
        """
        receipts = self._receipts(group, topic)
        leases: list[LeaseRef] = []
        counts: list[int | None] = []
        for handles in calls:
            try:
                leases += [receipts.decode(handle) for handle in handles]
            except InvalidReceiptHandle:
                counts.append(None)
            else:
                counts.append(len(handles))
        if not leases:
            return None, counts
        self._arrivals.handled(group, topic, leases)
        return self._acks.submit((group, topic), leases, _LEASE_BYTES * len(leases)), counts

    def begin_change(
        self, request: service.ChangeInvisibleDurationRequest, caller: Caller
    ) -> Submitted[service.ChangeInvisibleDurationResponse]:
        """Change when a message is delivered again; it has another receipt handle then."""
        client_id(caller)
        group, topic = group_name(request.group), topic_name(request.topic)
        receipts = self._receipts(group, topic)
        lease = receipts.decode(request.receipt_handle)
        invisible_ms = checked_invisible(request.invisible_duration, least_ms=0)
        self._arrivals.handled(group, topic, (lease,))
        command = ChangeInvisible(
            group=group,
            topic=topic,
            lease=lease,
            invisible_ms=invisible_ms or self._soonest_ms(group, topic, lease),
            suspend=request.suspend,
        )
        return Submitted(
            self._engine.submit(command.encode()), partial(_response_to_change, receipts, lease)
        )

    def _soonest_ms(self, group: str, topic: str, ref: LeaseRef) -> int:
        """Return after how many milliseconds a message released "now" is delivered again.

        For a simple consumer that is at once. The Node.js push consumer ignores the delays in its
        Settings and sends 0 whenever its listener fails, so the delay is applied here: otherwise a
        message that always fails would be redelivered in a tight loop.
        """
        lease = self._engine.state.groups.lease(group, topic, ref)
        if lease is None or not lease.client_id:
            return 0
        return self._engine.state.groups.retries(group, topic).delay_ms(lease.attempt)

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


def _response_to_change(
    receipts: Receipts, lease: LeaseRef, result: object
) -> service.ChangeInvisibleDurationResponse:
    if not isinstance(result, LeaseChanged):
        raise TypeError(f"CHANGE_INVISIBLE answered {result!r}")
    later = LeaseRef(lease.queue_id, lease.offset, result.receive_id)
    return service.ChangeInvisibleDurationResponse(
        status=ok(), receipt_handle=receipts.encode(later)
    )


def _acked(
    asked: Sequence[service.AckMessageEntry],
    leases: Sequence[LeaseRef | InvalidReceiptHandle],
    place: Place,
) -> service.AckMessageResponse:
    """Return the response: each lease's status, by the result of the command with the good ones."""
    result, first = place
    if not isinstance(result, Acked):
        raise TypeError(f"ACK answered {result!r}")
    outcomes = iter(result.outcomes[first : first + len(leases)])
    statuses = [
        status_of(lease) if isinstance(lease, InvalidReceiptHandle) else status_if(next(outcomes))
        for lease in leases
    ]
    return response_of(asked, statuses)


def _lease(handle: str, receipts: Receipts) -> LeaseRef | InvalidReceiptHandle:
    try:
        return receipts.decode(handle)
    except InvalidReceiptHandle as error:
        return error
