"""What a message costs in calls: entries into our own functions, counted on a simulated group.

    python -m dledger_sim paths [--top 20] [--json]

A leader and two followers with the shipped services, driver, disk, log and peer codec, in virtual
time: no clock, no thread and no socket takes part, so a figure is the same on each machine and in
each run. It leaves out HTTP/2 and the sockets. An entry is a call of a function, or a resumption of
a generator or coroutine, in package ``dledger``. In any thread: the disk's are the simulator's
jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from asyncio.events import _get_running_loop
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import dledger
from dledger.broker.commands import CreateTopic
from dledger.broker.topics import NORMAL
from dledger.calls.service import handlers_of
from dledger.door.contract import Arrival, AwaitedStream, BidiStream, Code, Headers, Pairs, Unary
from dledger.peers.peer_codec import Encoder, decode
from dledger.raft.messages import Message
from dledger.requests.config import RequestConfig
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.server.client_tasks import ClientTasks
from dledger.server.wiring import services_of
from dledger.types import Entry, NodeId
from dledger_sim.cluster import Cluster
from dledger_sim.front import wire_process
from dledger_sim.loop import MS, S
from dledger_sim.no_links import NoLinks
from dledger_sim.options import Options
from dledger_sim.process import Process

_TOPIC: Final = "orders"
_GROUP: Final = "billing"
_CLIENT: Final = "paths-client"
_AT_ONCE: Final = 32
_ROUNDS: Final = 20
"""Calls of each kind that are counted, one after the other; what is rare counts with its part."""
_WARM: Final = 5
_SETTLED_S: Final = 0.05
"""Until followers have applied it, too."""
AT_MOST: Final = {
    "SendMessage alone, at the leader": 385,
    "32 at once, a message": 82,
    "ReceiveMessage of one": 607,
    "AckMessage": 351,
    "one append, at a follower": 223,
    "an idle leader, a second": 2_070,
}
"""What was measured when a line was last changed, rounded up. One call more passes a bound: whoever
adds it says so here, or takes another away. `--top 20` shows where they are."""
_KEPT: Final = argparse.RawDescriptionHelpFormatter
_BODY: Final = bytes(1024)
_SOURCE: Final = f"{Path(dledger.__file__).parent}/"
_NOT_SHIPPED: Final = ("invariants.py", "memory_files.py")
"""Files among ours that serve the simulator only."""

Where: TypeAlias = tuple[NodeId, str]
"""A node, and a function as ``file:qualified name``."""


class QuietCluster(Cluster):
    """A group without faults and without those who watch it, whose calls would be counted."""

    def send(self, message: Message) -> None:
        """Carry a message in the bytes that peers send each other."""
        frame = self._encoders[message.sender].encode(message)
        self.clock.after(MS // 10, lambda: self._arrive(message.sender, message.recipient, frame))

    def _arrive(self, sender: NodeId, recipient: NodeId, frame: bytes) -> None:
        process = self.processes[recipient]

        def take() -> None:
            process.driver.receive(decode(frame, sender=sender, recipient=recipient))

        process.loop.run(take)

    def begin(self) -> None:
        """Start all nodes; the first campaigns."""
        self.calm = True
        self._encoders = {node: Encoder() for node in self.processes}
        super().begin()

    def job_us(self, process: Process) -> tuple[int, int]:
        """Let each job of a disk take a millisecond."""
        del process
        return MS, MS // 2

    def opened(self, process: Process) -> None:
        """Check nothing."""

    def wrote(self, process: Process, entries: Sequence[Entry]) -> None:
        """Check nothing."""

    def applied(self, process: Process, entry: Entry, results: Sequence[object]) -> None:
        """Check nothing."""

    def stepped(self, process: Process) -> None:
        """Check nothing."""


class Entries:
    """Counts entries into our functions, by node, while its block lasts."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = {id(process.loop): process.id for process in cluster.processes.values()}
        self._codes: dict[Any, str] = {}
        self.counts: Counter[Where] = Counter()

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = self._codes.get(code)
        if name is None:
            name = self._codes[code] = _name_of(code)
        if name:
            node = self._nodes.get(id(_get_running_loop()))
            if node is not None:
                self.counts[node, name] += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens within."""
        sys.setprofile(self._seen)
        try:
            yield
        finally:
            sys.setprofile(None)


@contextmanager
def _keep_garbage() -> Iterator[None]:
    """Keep garbage where it is.

    A collection would close coroutines that somebody left, which are entries as well, whenever it
    comes by. One before each block, not before each call in it: it takes longer than the calls.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _name_of(code: Any) -> str:
    path = code.co_filename
    if not path.startswith(_SOURCE) or path.endswith(_NOT_SHIPPED):
        return ""
    return f"{path[len(_SOURCE) :]}:{code.co_qualname}"


_FIELDS: Final = ((b"x-mq-client-id", _CLIENT.encode()), (b"x-mq-language", b"PYTHON"))


class _Stream(AwaitedStream):
    """The two directions of a call with one request."""

    def __init__(self, request: bytes) -> None:
        self._requests = [request]
        self.answers: list[bytes] = []

    async def read(self) -> bytes | None:
        return self._requests.pop() if self._requests else None

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def send(self, message: bytes) -> None:
        self.answers.append(message)

    def send_now(self, message: bytes) -> None:
        self.answers.append(message)

    def prove(self, arrival: Arrival) -> None:
        arrival.proved()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure: entries at *nodes* for each of what was done."""

    what: str
    entries: float
    by_function: Sequence[tuple[str, float]]

    @property
    def is_passed(self) -> bool:
        """Whether that is more than it may be."""
        return self.entries > AT_MOST[self.what]


class Paths:
    """A group that has settled, and what is asked of its leader."""

    def __init__(self) -> None:
        options = replace(Options(), clients=0, segment_bytes=64 << 20, queue_kib=64 << 10)
        self.cluster = QuietCluster(1, options)
        self.cluster.begin()
        if not self.cluster.clock.run_until(10 * S, lambda: bool(self.cluster.serving())):
            raise AssertionError("no leader within 10 s")
        self.leader = self.cluster.serving()[0]
        self.followers = [one.id for one in self.cluster.processes.values() if one != self.leader]
        self.parts = wire_process(self.cluster, self.leader, RequestConfig(), links=NoLinks())
        self._handlers = handlers_of(services_of(self.parts))
        self._sent = 0
        self.leader.loop.run(ClientTasks(self.parts).start)
        self.pass_s(1)
        self._do(self._found())

    async def _found(self) -> None:
        command = CreateTopic(name=_TOPIC, type=NORMAL.name, queues=1).encode()
        await self.leader.driver.propose(command, grows=True)

    def pass_s(self, seconds: float) -> None:
        """Let so much time pass."""
        clock = self.cluster.clock
        clock.run_until(clock.now_us + int(seconds * S))

    def _do(self, *work: Coroutine[Any, Any, Any]) -> list[Any]:
        """Let the leader do all of *work* at once; return what came of it."""
        loop = self.leader.loop
        tasks: list[asyncio.Task[Any]] = []
        for one in work:
            loop.run(lambda one=one: tasks.append(loop.create_task(one)))
        clock = self.cluster.clock
        if not clock.run_until(clock.now_us + 60 * S, lambda: all(t.done() for t in tasks)):
            raise AssertionError("no answer within 60 s")
        return [task.result() for task in tasks]

    # -- what is asked ---------------------------------------------------------------------------

    async def _call(self, method: str, request: Any) -> list[bytes]:
        handler = self._handlers[f"/{SERVICE_NAME}/{method}"]
        loop = asyncio.get_running_loop()
        peer, deadline_s = "ipv4:127.0.0.1:50000", loop.time() + 3
        headers = Headers(_FIELDS, dict(_FIELDS), peer=peer, connection=1, deadline_s=deadline_s)
        raw = request.SerializeToString()
        if isinstance(handler, BidiStream):
            stream = _Stream(raw)
            await handler.serve(headers, stream)
            return stream.answers
        if not isinstance(handler, Unary):
            raise TypeError(f"{method} has no callback")
        answered: asyncio.Future[bytes] = loop.create_future()

        def fail(code: Code, message: str, trailers: Pairs = ()) -> None:
            answered.set_exception(AssertionError(f"{code}: {message} {trailers}"))

        handler.serve(headers, raw, answered.set_result, fail)
        return [await answered]

    def send_request(self) -> service.SendMessageRequest:
        """Return what sends the next message, of 1 KiB."""
        self._sent += 1
        message = definition.Message(
            topic=definition.Resource(name=_TOPIC),
            system_properties=definition.SystemProperties(
                message_id=f"01{self._sent:032X}",
                message_type=definition.MessageType.NORMAL,
                body_encoding=definition.Encoding.IDENTITY,
                born_host="10.0.0.9",
            ),
            body=_BODY,
        )
        return service.SendMessageRequest(messages=[message])

    async def send(self) -> None:
        """Send one message."""
        (raw,) = await self._call("SendMessage", self.send_request())
        _check(service.SendMessageResponse.FromString(raw).status)

    async def receive(self) -> Any:
        """Receive one message that is there."""
        request = receive_request()
        request.invisible_duration.FromSeconds(60)
        return message_in(await self._call("ReceiveMessage", request))

    async def ack(self, message: Any) -> None:
        """Acknowledge a message."""
        (raw,) = await self._call("AckMessage", ack_request(message))
        _check(service.AckMessageResponse.FromString(raw).status)

    # -- what is counted -------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """Return the figures, each without what an idle group does in the same time."""
        idle = self._idle()
        leader, follower = [self.leader.id], self.followers[:1]
        for _ in range(_WARM):
            self._do(*(self.send() for _ in range(_AT_ONCE)))
            self._do(self.send())
        alone = self._counted(lambda: self._do(self.send()))
        at_once = self._counted(lambda: self._do(*(self.send() for _ in range(_AT_ONCE))))
        received: list[Any] = []
        for _ in range(_WARM):
            self._do(self.ack(self._do(self.receive())[0]))
        receiving = self._counted(lambda: received.extend(self._do(self.receive())))
        acking = self._counted(lambda: self._do(self.ack(received.pop())))
        return [
            alone.line("SendMessage alone, at the leader", leader, idle),
            at_once.line(f"{_AT_ONCE} at once, a message", leader, idle, share=_AT_ONCE),
            receiving.line("ReceiveMessage of one", leader, idle),
            acking.line("AckMessage", leader, idle),
            alone.line("one append, at a follower", follower, idle),
            idle.line("an idle leader, a second", leader),
        ]

    def _idle(self) -> _Counted:
        entries, seconds = Entries(self.cluster), 20
        with _keep_garbage(), entries.counted():
            self.pass_s(seconds)
        return _Counted(entries, times=seconds, took_s=1.0)

    def _counted(self, do: Callable[[], object]) -> _Counted:
        entries, took_us = Entries(self.cluster), 0
        with _keep_garbage():
            for _ in range(_ROUNDS):
                began_us = self.cluster.clock.now_us
                with entries.counted():
                    do()
                    self.pass_s(_SETTLED_S)
                took_us += self.cluster.clock.now_us - began_us
        return _Counted(entries, times=_ROUNDS, took_s=took_us / S / _ROUNDS)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Entries within *times* rounds of *took_s* each, in virtual seconds."""

    entries: Entries
    times: int
    took_s: float

    def line(
        self, what: str, nodes: Sequence[NodeId], idle: _Counted | None = None, share: int = 1
    ) -> Line:
        """Return the figure, without what *idle* would have done meanwhile."""
        by_function = self.by_function(nodes)
        for name, count in (idle.by_function(nodes) if idle is not None else {}).items():
            by_function[name] = by_function.get(name, 0.0) - count * self.took_s
        each = {name: count / share for name, count in by_function.items() if count > 0.05 * share}
        ranked = sorted(each.items(), key=lambda pair: -pair[1])
        return Line(what=what, entries=sum(by_function.values()) / share, by_function=ranked)

    def by_function(self, nodes: Sequence[NodeId]) -> dict[str, float]:
        """Return the entries of one round at *nodes*."""
        counts: Counter[str] = Counter()
        for (node, name), count in self.entries.counts.items():
            if node in nodes:
                counts[name] += count
        return {name: count / self.times for name, count in counts.items()}


def receive_request() -> service.ReceiveMessageRequest:
    """Return what asks for one message."""
    request = service.ReceiveMessageRequest(
        group=definition.Resource(name=_GROUP),
        message_queue=definition.MessageQueue(
            topic=definition.Resource(name=_TOPIC),
            id=0,
            accept_message_types=[definition.MessageType.NORMAL],
        ),
        filter_expression=definition.FilterExpression(
            type=definition.FilterType.TAG, expression="*"
        ),
        batch_size=1,
    )
    request.long_polling_timeout.FromSeconds(1)
    return request


def message_in(raw: Iterable[bytes]) -> definition.Message:
    """Return the message in the answers to a ReceiveMessage."""
    answers = [service.ReceiveMessageResponse.FromString(one) for one in raw]
    for answer in answers:
        if answer.HasField("status"):
            _check(answer.status)
    return next(answer.message for answer in answers if answer.HasField("message"))


def ack_request(message: definition.Message) -> service.AckMessageRequest:
    """Return what acknowledges a message."""
    entry = service.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    return service.AckMessageRequest(
        group=definition.Resource(name=_GROUP),
        topic=definition.Resource(name=_TOPIC),
        entries=[entry],
    )


def _check(status: definition.Status) -> None:
    if status.code != definition.Code.OK:
        raise AssertionError(f"{definition.Code.Name(status.code)}: {status.message}")


def main(arguments: Sequence[str]) -> int:
    """Print the figures; return 1 if one of them passes its bound."""
    parser = argparse.ArgumentParser(
        prog="python -m dledger_sim paths", description=__doc__, formatter_class=_KEPT
    )
    parser.add_argument("--top", type=int, default=0, help="functions shown for each figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    lines = Paths().lines()
    passed = int(any(line.is_passed for line in lines))
    if options.json:
        print(json.dumps({line.what: round(line.entries, 1) for line in lines}, indent=2))
        return passed
    for line in lines:
        more = f": at most {AT_MOST[line.what]} is allowed" if line.is_passed else ""
        print(f"{line.entries:9.1f}  {line.what}{more}")
        for name, count in line.by_function[: options.top]:
            print(f"           {count:7.1f}  {name}")
    return passed
