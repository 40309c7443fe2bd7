"""SendMessage: to the group while it answers, else to the local disk, in each lane's order.

A lane is one client's sends to one topic. While it has messages on the disk, its sends go behind
them; other lanes pass. Called by `passing`; `replay` tells when a lane's messages are stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from dledger.door.contract import Answer, Cancel, Fail, Headers
from dledger.errors import DledgerError, Overloaded, StorageError, Unavailable
from dledger.rocketmq.refused import refused_response
from dledger.rocketmq.send_requests import checked
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import Code, ok
from dledger.sidecar.decisions import Verdict, budget_s, try_s, verdict_of_send
from dledger.sidecar.reach import Reach
from dledger.sidecar.upstream import Clients, UpstreamError, metadata_of, path_of
from dledger.spool.counters import Counts
from dledger.spool.payload import Message
from dledger.spool.worker import Worker
from dledger.types import Record

SEND_PATH: Final = path_of("SendMessage")
_PAUSE_S: Final = 0.02
_LEAST_TRY_S: Final = 0.02
_NEARLY_STORED: Final = 1_024
"""While a lane has so few messages on the disk and the group takes them, its sends wait for it."""
_PATIENCE_S: Final = 0.5
MAX_UNDER_WAY_BYTES: Final = 128 << 20
"""Of requests in memory; a larger crowd is told to come again."""

LaneKey: TypeAlias = tuple[str, str]
"""Client id and topic."""


class _Stage(Enum):
    WAITS = "for the lane's last messages to be stored"
    TRIED = "by the group, which has not answered yet"
    SPOOLED = "as soon as all before it are done"
    DONE = "its answer is on its way"


class _Send:
    """One request under way."""

    __slots__ = ("answer", "body", "headers", "is_gone", "request", "stage", "tried", "trying")

    def __init__(
        self, headers: Headers, body: bytes, request: service.SendMessageRequest, answer: Answer
    ) -> None:
        self.headers, self.body, self.request, self.answer = headers, body, request, answer
        self.stage = _Stage.TRIED
        self.trying: asyncio.Task[None] | None = None
        self.tried = self.is_gone = False


class _Lane:
    """One lane.

    Attributes:
        sends: Those under way, as they came.
        backlog: How many messages it has on the disk, or on their way there.
        writing: How many of these are on their way.
        timer: Ends the patience of those that wait.
    """

    __slots__ = ("backlog", "key", "sends", "timer", "writing")

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        self.sends: deque[_Send] = deque()
        self.backlog = self.writing = 0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_behind(self) -> bool:
        """Whether something of it is on the disk, or has to go there."""
        return self.backlog > 0 or any(send.stage is _Stage.SPOOLED for send in self.sends)


class Sends:
    """All sends of the sidecar.

    Args:
        clients: The ways to the group.
        reach: What is known of the group.
        counts: What is counted.
        on_spooled: Called when there is something to replay.
        on_broken: Called when the disk has failed.

    Attributes:
        worker: The spool; None: there is no disk to write to now, for the reason in `why`.
        why: As above.
    """

    def __init__(
        self,
        clients: Clients,
        reach: Reach,
        counts: Counts,
        *,
        on_spooled: Callable[[], None],
        on_broken: Callable[[StorageError], None],
    ) -> None:
        self._clients, self._reach, self._counts = clients, reach, counts
        self._on_spooled, self._on_broken = on_spooled, on_broken
        self._lanes: dict[LaneKey, _Lane] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._held_bytes = 0
        self.worker: Worker | None = None
        self.why = "the spool is not open yet"

    def attach(self, worker: Worker) -> None:
        """Use an open spool from now on; its lanes have what it found on the disk."""
        self.worker = worker
        if worker.spool.waiting:  # until the replay has found out
            self._reach.note_failure(f"{worker.spool.waiting} messages wait from before")
        for client_id, topic, found in worker.spool.lanes:
            self._lane((client_id, topic)).backlog += found.depth

    # -- a request ------------------------------------------------------------------------------

    def serve(self, headers: Headers, body: bytes, answer: Answer, fail: Fail) -> Cancel | None:
        """Take one SendMessage; `contract.Unary.serve`."""
        del fail
        try:
            request = service.SendMessageRequest.FromString(body)
            topic = request.messages[0].topic.name
        except (DecodeError, IndexError):
            request, topic = service.SendMessageRequest(), ""  # the group says what is wrong
        if self._held_bytes > MAX_UNDER_WAY_BYTES:
            answer(_refusal(Overloaded(f"{self._held_bytes} bytes of sends are under way")))
            return None
        self._held_bytes += len(body)
        send = _Send(headers, body, request, answer)
        lane = self._lane((headers.text("x-mq-client-id"), topic))
        lane.sends.append(send)
        if is_half(request):
            send.trying = self._run(self._try(lane, send))  # it cannot wait on a disk
        elif lane.is_behind:
            self._stand_behind(lane, send)
        elif self._reach.away and self.worker is not None and self.worker.spool.waiting:
            send.stage = _Stage.SPOOLED  # the replay asks whether the group is back
            self._settle(lane)
        else:
            send.trying = self._run(self._try(lane, send))

        def cancel() -> None:
            send.is_gone = True

        return cancel

    def _lane(self, key: LaneKey) -> _Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        return lane

    def _stand_behind(self, lane: _Lane, send: _Send) -> None:
        """Let a send wait for the last of its lane's messages, or go to the disk behind them."""
        nearly = not self._reach.away and 0 < lane.backlog <= _NEARLY_STORED
        if nearly and all(each.stage is not _Stage.SPOOLED for each in lane.sends):
            send.stage = _Stage.WAITS
            if lane.timer is None:
                loop = asyncio.get_running_loop()
                lane.timer = loop.call_later(_PATIENCE_S, self._lose_patience, lane)
            return
        self._lose_patience(lane)
        send.stage = _Stage.SPOOLED
        self._settle(lane)

    def _lose_patience(self, lane: _Lane) -> None:
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        for send in lane.sends:
            if send.stage is _Stage.WAITS:
                send.stage = _Stage.SPOOLED
        self._settle(lane)

    async def _try(self, lane: _Lane, send: _Send) -> None:
        """Send it to the group; else it goes to the disk."""
        try:
            answer = await self._answer_of_group(send)
        except BaseException:
            send.stage = _Stage.SPOOLED
            self._settle(lane)
            raise
        if answer is None:
            send.stage = _Stage.SPOOLED
            if self._reach.away and self.worker is not None:
                self._end_tries(lane)
        else:
            send.stage = _Stage.DONE
            if not send.is_gone:
                send.answer(answer)
        self._settle(lane)

    def _end_tries(self, lane: _Lane) -> None:
        """Let the rest of a lane's tries go to the disk: one has found that the group is away.

        Each would find that in its own time, and what comes now would wait for the last of them.
        """
        for send in lane.sends:
            if send.stage is _Stage.TRIED and send.trying is not None:
                send.stage, send.tried = _Stage.SPOOLED, True
                send.trying.cancel()

    async def _answer_of_group(self, send: _Send) -> bytes | None:
        """Return the group's answer; None: it is away."""
        loop, headers = asyncio.get_running_loop(), send.headers
        left_s = None if headers.deadline_s is None else headers.deadline_s - loop.time()
        until_s = loop.time() + budget_s(left_s)
        upstream, metadata = self._clients.of(headers), metadata_of(headers)
        why = "no time was left for a try"
        for _ in range(self._clients.tries):
            timeout_s = try_s(until_s - loop.time())
            if timeout_s < _LEAST_TRY_S:
                break
            try:
                answer = await upstream.unary(SEND_PATH, send.body, metadata, timeout_s)
            except UpstreamError as error:
                # A node refuses in the body of its answer: gRPC's own codes are the word of a
                # proxy, of another service, or of a node in trouble, whichever they are.
                send.tried |= error.sent
                why = str(error)
            else:
                verdict, code, why = verdict_of_send(answer)
                if verdict is not Verdict.AWAY:
                    self._reach.note_answer()
                    if verdict is Verdict.ANSWER:
                        self._counts.stored += len(send.request.messages)
                    return answer
                send.tried = True
                if code == Code.TOO_MANY_REQUESTS:  # of this topic, or of all: the replay will see
                    return None
                upstream.move()
            await asyncio.sleep(_PAUSE_S)
        self._reach.note_failure(why)
        return None

    # -- the disk -------------------------------------------------------------------------------

    def _settle(self, lane: _Lane) -> None:
        """Spool what is first in line and has to be; the calls to `Worker.append` are in order."""
        while lane.sends and lane.sends[0].stage in (_Stage.DONE, _Stage.SPOOLED):
            send = lane.sends.popleft()
            if send.stage is _Stage.SPOOLED and not send.is_gone:
                self._spool(lane, send)
            else:
                self._held_bytes -= len(send.body)
        if not lane.sends and not lane.backlog:
            self._lanes.pop(lane.key, None)

    def _spool(self, lane: _Lane, send: _Send) -> None:
        client_id, topic = lane.key
        try:
            if self.worker is None:
                raise Unavailable(f"the group is away, and there is no spool: {self.why}")
            if checked(send.request, client_id, "").is_half:
                raise Unavailable(
                    "the group is away, and a message of a transaction waits for nobody: only the "
                    "group can give it a transaction id"
                )
        except DledgerError as error:
            self._end(send, _refusal(error))
            return
        now_ms = time.time_ns() // 1_000_000
        messages = [
            Message(
                topic=topic,
                client_id=client_id,
                tried=send.tried,
                record=Record(
                    body=each.SerializeToString(),
                    message_id=each.system_properties.message_id,
                    born_at_ms=now_ms,
                ),
            )
            for each in send.request.messages
        ]
        lane.backlog += len(messages)
        lane.writing += len(messages)
        self._run(self._append(self.worker, lane, send, messages))

    async def _append(
        self, worker: Worker, lane: _Lane, send: _Send, messages: list[Message]
    ) -> None:
        """Write them, and say so."""
        error: DledgerError | None
        try:
            kept = await worker.append(messages)
        except StorageError as failed:
            why = f"the group is away, and the disk failed: {failed}"
            self._end(send, _refusal(Unavailable(why)))
            self._on_broken(failed)
            return
        except DledgerError as refused:
            done, error = 0, refused
        else:
            done, error = kept.messages, kept.refusal
        lane.writing -= len(messages)
        self._counts.spooled += done
        if done:
            self._on_spooled()
        self._end(send, _acceptance_of(messages) if error is None else _refusal(error))
        self.note_stored(lane.key, len(messages) - done)

    def _end(self, send: _Send, answer: bytes) -> None:
        self._held_bytes -= len(send.body)
        send.answer(answer)

    def note_stored(self, key: LaneKey, count: int) -> None:
        """Note that so many messages of a lane are not on the disk any longer."""
        lane = self._lanes.get(key)
        if lane is None or not count:
            return
        lane.backlog -= count
        if lane.backlog > 0 or lane.is_behind:
            return
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        for send in lane.sends:
            if send.stage is _Stage.WAITS:
                send.stage = _Stage.TRIED
                send.trying = self._run(self._try(lane, send))
        self._settle(lane)

    async def put_back(self, worker: Worker) -> None:
        """Have rejected messages go back into the spool, since somebody asks for it.

        Their lanes' sends go behind them from now on.

        Raises:
            StorageError: The disk failed.
        """
        asked = await worker.run(lambda: worker.spool.asked_back(of_lanes=True))
        lanes = [self._lane((one.message.client_id, one.message.topic)) for one in asked]
        for lane in lanes:
            lane.backlog += 1
            lane.writing += 1
        done = 0
        try:
            done = (await worker.run(lambda: worker.spool.put_back(asked))).messages
        finally:
            for number, lane in enumerate(lanes):
                lane.writing -= 1
                self.note_stored(lane.key, int(number >= done))
        if done:
            self._on_spooled()

    def note_drained(self) -> None:
        """Note that nothing is on the disk: what was lost to damage there is awaited no longer."""
        for lane in tuple(self._lanes.values()):
            if not lane.writing:
                self.note_stored(lane.key, lane.backlog)

    def _run(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def is_half(request: service.SendMessageRequest) -> bool:
    """Whether a request sends a message of a transaction."""
    half = definition.MessageType.TRANSACTION
    return any(each.system_properties.message_type == half for each in request.messages)


def _refusal(error: DledgerError) -> bytes:
    return bytes(refused_response("SendMessage", error).SerializeToString())


def _acceptance_of(messages: list[Message]) -> bytes:
    """Return the answer that the messages are kept; nobody knows their offsets yet."""
    entries = [
        service.SendResultEntry(status=ok(), message_id=each.record.message_id) for each in messages
    ]
    response = service.SendMessageResponse(status=ok(), entries=entries)
    return bytes(response.SerializeToString())
