"""Carries out the batches of door processes on the leader: the node's part of one call a message.

What `rocketmq.callbacks` does for a call it does for a batch: admission by connection, the command,
its outcome. A batch that cannot be carried out as it is goes back, and its calls come one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from dledger.broker.command_frame import CommandType, MalformedCommandError, split
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import Acked as AckResult
from dledger.broker.results import Produced
from dledger.checks.names import is_client_id
from dledger.door.contract import Cancel
from dledger.door_process.frames import (
    AckBatch,
    Acked,
    SendBatch,
)
from dledger.door_process.node_end import Outcome, Settle
from dledger.errors import DledgerError, Unavailable
from dledger.link.frames import MalformedFrame, Resumes
from dledger.requests.admission import Request
from dledger.requests.caller import Caller
from dledger.requests.forward import NOTHING_HAPPENED
from dledger.rocketmq.command_batcher import Place
from dledger.rocketmq.refused import refused_response
from dledger.rpc.status import bug, code_name
from dledger.server.gateway import Gateway

logger = logging.getLogger(__name__)

_SEND: Final = "SendMessage"
_ACK: Final = "AckMessage"


class _Work(NamedTuple):
    """A batch on its way.

    Attributes:
        method: Its method.
        calls: How many calls it has.
        read: Returns the outcome by the command's result.
        settle: Gets the outcome.
    """

    method: str
    calls: int
    read: Callable[[Any], Outcome]
    settle: Settle


class DoorBatches:
    """Of one node, for all of its door processes.

    Args:
        gateway: The parts that serve the methods.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._engine = gateway, gateway.engine
        self._admission = gateway.context.admission

    def leads(self) -> bool:
        """Whether batches make sense now."""
        return self._engine.is_leader()

    def send(self, batch: SendBatch, settle: Settle) -> Cancel:
        """Store messages; see `node_end.Batches`."""
        produce = _checked(batch)
        if self._engine.state.topics.get(produce.topic) is None:
            settle(Resumes.NOTHING_DONE)
            return _nothing

        def submit() -> asyncio.Future[object]:
            return self._engine.submit(batch.command, line=batch.peer, producer=produce.client_id)

        work = _Work(_SEND, batch.calls, partial(self._stored, batch.calls), settle)
        return self._begin(work, batch, submit)

    def ack(self, batch: AckBatch, settle: Settle) -> Cancel:
        """Acknowledge messages; see `node_end.Batches`."""
        counts: list[int | None] = []

        def submit() -> asyncio.Future[Any] | None:
            submitted, each = self._gateway.acker.begin_handles(
                batch.group, batch.topic, batch.handles
            )
            counts.extend(each)
            return submitted

        work = _Work(_ACK, len(batch.handles), partial(self._acked, batch, counts), settle)
        return self._begin(work, batch, submit)

    def _begin(
        self,
        work: _Work,
        batch: SendBatch | AckBatch,
        submit: Callable[[], asyncio.Future[Any] | None],
    ) -> Cancel:
        settle = work.settle
        leads = self._engine.is_leader()
        room = self._admission.room_now(batch.peer, batch.room_bytes) if leads else None
        if room is None:
            settle(Resumes.NOTHING_DONE)
            return _nothing
        try:
            self._note(batch, work.calls)
            submitted = submit()
        except Unavailable:
            self._admission.leave(room)
            settle(Resumes.NOTHING_DONE)
            return _nothing
        except DledgerError as error:
            self._admission.leave(room)
            settle(self._failed(work, error))
            return _nothing
        except Exception as error:
            logger.exception("group %s: %s failed", self._engine.group, work.method)
            self._admission.leave(room)
            settle(self._failed(work, bug(error)))
            return _nothing
        if submitted is None:
            self._admission.leave(room)
            settle(work.read(None))
            return _nothing
        submitted.add_done_callback(partial(self._done, work, room))
        return partial(_cancel, submitted)

    def _note(self, batch: SendBatch | AckBatch, calls: int) -> None:
        """Note who is alive, and through which node requests come."""
        caller = Caller(
            client_id=batch.client_id,
            tls=False,
            forwarded=False,
            deadline_s=0.0,
            given={},
            host=batch.peer.rpartition(":")[0],
            has_telemetry=self._gateway.telemetry.runs_on(batch.client_id, batch.peer),
            connection=batch.peer,
            line=batch.peer,
        )
        self._gateway.clients.seen(caller)
        self._gateway.locality.note(None, calls)

    def _done(self, work: _Work, room: Request, submitted: asyncio.Future[Any]) -> None:
        self._admission.leave(room)
        if submitted.cancelled():  # the door is gone
            return
        error = submitted.exception()
        work.settle(
            self._read(work, submitted.result()) if error is None else self._not(work, error)
        )

    def _read(self, work: _Work, result: Any) -> Outcome:
        try:
            return work.read(result)
        except Exception as error:
            logger.exception("group %s: %s failed", self._engine.group, work.method)
            return self._failed(work, bug(error))

    def _not(self, work: _Work, error: BaseException) -> Outcome:
        """Return the outcome of a command that failed."""
        if isinstance(error, Unavailable):
            done = isinstance(error, NOTHING_HAPPENED)
            return Resumes.NOTHING_DONE if done else Resumes.UNKNOWN
        if isinstance(error, DledgerError):
            return self._failed(work, error)
        logger.error("group %s: %s failed", self._engine.group, work.method, exc_info=error)
        return self._failed(work, bug(error))

    def _stored(self, calls: int, stored: Any) -> Outcome:
        if not isinstance(stored, Produced):
            raise TypeError(f"PRODUCE answered {stored!r}")
        if stored.repeats or stored.conflicts:  # somebody has to look by whom
            return Resumes.NOTHING_DONE
        self._count(_SEND, "OK", calls)
        return stored.offsets

    def _acked(self, batch: AckBatch, counts: list[int | None], place: Place | None) -> Outcome:
        result, first = place if place is not None else (AckResult(outcomes=()), 0)
        if not isinstance(result, AckResult):
            raise TypeError(f"ACK answered {result!r}")
        told: list[int] = []
        for handles, count in zip(batch.handles, counts, strict=True):
            if count is None:
                told += [Acked.RESUMED] * len(handles)
                continue
            held = result.outcomes[first : first + count]
            first += count
            told += [Acked.DONE if each else Acked.STALE for each in held]
            self._count(_ACK, _ack_code(held), 1)
        return told

    def _failed(self, work: _Work, error: DledgerError) -> bytes:
        response = refused_response(work.method, error)
        self._count(work.method, code_name(response.status.code), work.calls)
        return bytes(response.SerializeToString())

    def _count(self, method: str, code: str, calls: int) -> None:
        self._gateway.requests.answered(method, code, calls)


def _checked(batch: SendBatch) -> ProduceFrame:
    """Return the command of a batch, so far as a node must be sure of it.

    A command that cannot be read would be refused on every node alike, but in the log by then; one
    of a newer version would end them.

    Raises:
        MalformedFrame: It is not one PRODUCE of this client, who may be one.
    """
    try:
        ((kind, start, end),) = split(batch.command)
        if kind != CommandType.PRODUCE:
            raise MalformedFrame(f"a batch with a command of type {kind}")
        produce = ProduceFrame(batch.command, start, end)
        produce.check_texts()
    except (MalformedCommandError, ValueError) as error:
        raise MalformedFrame(f"a batch with a bad command: {error}") from error
    client_id = produce.client_id
    if client_id != batch.client_id or not is_client_id(client_id):
        raise MalformedFrame(f"a batch of {batch.client_id!r} in the name of {client_id!r}")
    if produce.count < batch.calls:
        raise MalformedFrame(f"{batch.calls} calls with {produce.count} messages")
    return produce


def _ack_code(held: tuple[bool, ...]) -> str:
    if all(held):
        return "OK"
    return "MULTIPLE_RESULTS" if any(held) else "INVALID_RECEIPT_HANDLE"


def _nothing() -> None:
    """Give up what is over."""


def _cancel(submitted: asyncio.Future[Any]) -> None:
    submitted.cancel()
