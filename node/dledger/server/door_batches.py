"""Carries out the batches of door processes on the leader: many calls that are one command.

They go the way of every request (`calls.pipeline`), as one piece of work. A batch that cannot be
carried out as it is goes back, and its calls come one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from dledger.broker.command_frame import CommandType, MalformedCommandError, split
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import Acked as AckResult
from dledger.broker.results import Produced
from dledger.broker.topics import NORMAL
from dledger.calls.caller import Caller, answer_by_s
from dledger.calls.method import AnyMethod
from dledger.calls.pipeline import Pipeline
from dledger.calls.rules import Asked
from dledger.checks.names import is_client_id
from dledger.door.contract import Cancel, Failed
from dledger.door_process.frames import AckBatch, Acked, SendBatch
from dledger.door_process.node_end import Outcome, Settle
from dledger.errors import DledgerError
from dledger.link.frames import MalformedFrame, Resumes
from dledger.requests.forward import NOTHING_HAPPENED
from dledger.rocketmq.command_batcher import Place
from dledger.rocketmq.messaging import messaging_method
from dledger.server.wiring import ClientParts, door_pipeline_of

_SEND: Final[AnyMethod] = messaging_method("SendMessage")
_ACK: Final[AnyMethod] = messaging_method("AckMessage")


class _Batch:
    """A batch on its way. Implements `calls.method.Work`.

    Args:
        pipeline: Carries it out.
        method: The method of its calls.
        batch: As it came.
        calls: How many calls it is.
        messages: How many messages of a producer it carries.
        read: Returns the outcome by the command's result.
        settle: Gets the outcome.
        submit: Submits its command.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        method: AnyMethod,
        batch: SendBatch | AckBatch,
        *,
        calls: int,
        messages: int,
        read: Callable[[Any], Outcome],
        settle: Settle,
        submit: Callable[[], asyncio.Future[Any]],
    ) -> None:
        self._pipeline, self.method = pipeline, method
        self.calls, self.messages, self.size_bytes = calls, messages, batch.room_bytes
        self._read, self._settle, self.submit = read, settle, submit
        self.asked: Asked | None = None
        client = batch.client
        self.caller = Caller(
            client_id=client.client_id,
            peer=client.peer,
            tls=False,
            forwarded=False,
            deadline_s=answer_by_s(client.deadline_s),
            host=client.peer.rpartition(":")[0],
            has_telemetry=pipeline.backend.runs_telemetry(client.client_id, client.peer),
            connection=client.peer,
            line=client.peer,
            fields=dict(client.pairs),
        )

    def begin(self) -> Cancel:
        """Begin it; return what gives it up."""
        give_up = self._pipeline.batch(self)
        return partial(self._cancel, give_up) if give_up is not None else _nothing

    def settle(self, result: Any) -> None:
        """Tell the outcome."""
        self._end(self._read(result))

    def refuse(self, error: Exception) -> None:
        """Give all its calls the same answer."""
        refused = self._pipeline.refuse(
            self.method, self.caller, error, self.asked, calls=self.calls
        )
        self._end(Resumes.NOTHING_DONE if isinstance(refused, Failed) else refused)

    def resume(self, tried: DledgerError | None) -> None:
        """Have its calls come singly."""
        known = tried is None or isinstance(tried, NOTHING_HAPPENED)
        self._end(Resumes.NOTHING_DONE if known else Resumes.UNKNOWN)

    def _end(self, outcome: Outcome) -> None:
        if self.asked is not None:
            self.asked.leave()
            if outcome is Resumes.NOTHING_DONE:
                outcome = Resumes.ASKED
        self._settle(outcome)

    def _cancel(self, give_up: Cancel) -> None:
        """Give it up: its door is gone."""
        give_up()
        if self.asked is not None:
            self.asked.leave()


class DoorBatches:
    """Of one node, for all of its door processes.

    Args:
        parts: What serves the methods.
    """

    def __init__(self, parts: ClientParts) -> None:
        self._engine, self._acker = parts.context.engine, parts.messaging.acker
        self._requests = parts.context.metrics.requests
        self._pipeline = door_pipeline_of(parts)

    def leads(self) -> bool:
        """Whether batches make sense now."""
        return self._engine.is_leader()

    def send(self, batch: SendBatch, settle: Settle) -> Cancel:
        """Store messages; see `node_end.Batches`."""
        produce = _checked(batch)
        topics = self._engine.state.topics
        topic = topics.get(produce.topic)
        is_usual = topic is not None and topic.compaction is None and topic.type == NORMAL.name
        if topics.full or not is_usual:
            settle(Resumes.NOTHING_DONE)
            return _nothing

        def submit() -> asyncio.Future[object]:
            line = batch.client.peer
            return self._engine.submit(batch.command, line=line, producer=produce.client_id)

        return _Batch(
            self._pipeline,
            _SEND,
            batch,
            calls=batch.calls,
            messages=produce.count,
            read=partial(self._stored, batch.calls),
            settle=settle,
            submit=submit,
        ).begin()

    def ack(self, batch: AckBatch, settle: Settle) -> Cancel:
        """Acknowledge messages; see `node_end.Batches`."""
        counts: list[int | None] = []

        def submit() -> asyncio.Future[Any]:
            submitted, each = self._acker.begin_handles(batch.group, batch.topic, batch.handles)
            counts.extend(each)
            if submitted is None:  # none of the handles is one
                submitted = asyncio.get_running_loop().create_future()
                submitted.set_result((AckResult(outcomes=()), 0))
            return submitted

        return _Batch(
            self._pipeline,
            _ACK,
            batch,
            calls=len(batch.handles),
            messages=0,
            read=partial(self._acked, batch, counts),
            settle=settle,
            submit=submit,
        ).begin()

    def _stored(self, calls: int, stored: Any) -> Outcome:
        if not isinstance(stored, Produced):
            raise TypeError(f"PRODUCE answered {stored!r}")
        if stored.repeats or stored.conflicts:  # somebody has to look by whom
            return Resumes.NOTHING_DONE
        self._count(_SEND, "OK", calls)
        return stored.offsets

    def _acked(self, batch: AckBatch, counts: list[int | None], place: Place) -> Outcome:
        result, first = place
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

    def _count(self, method: AnyMethod, code: str, calls: int) -> None:
        self._requests.answered(method.label, code, calls)


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
    told = batch.client.client_id
    if client_id != told or not is_client_id(client_id):
        raise MalformedFrame(f"a batch of {told!r} in the name of {client_id!r}")
    if produce.replay is not None:
        raise MalformedFrame("a batch with the mark of a replay, which is a call by itself")
    if produce.typed is not None:
        raise MalformedFrame(f"a batch of messages with {', '.join(produce.typed.fields)}")
    if produce.count < batch.calls:
        raise MalformedFrame(f"{batch.calls} calls with {produce.count} messages")
    return produce


def _ack_code(held: tuple[bool, ...]) -> str:
    if all(held):
        return "OK"
    return "MULTIPLE_RESULTS" if any(held) else "INVALID_RECEIPT_HANDLE"


def _nothing() -> None:
    """Give up what is over."""
