"""A group of two nodes in this process that answers `Admin.Compact` as its contract says.

The log, the state, Export and Erase are the shipped ones; of Compact the leader is a model of sixty
lines: it asks for proofs of what would go, checks them, and copies the rest by REKEEP. It may fail
at any call. Since when it has been told that a tombstone is alone, it remembers; a group's log does
that.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc.aio
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from dledger.broker.commands import CreateTopic, DeleteTopic, Leap, Retain, SetRetention
from dledger.broker.message import Message
from dledger.broker.produce import ProduceFrame
from dledger.broker.state import BrokerState
from dledger.common.metrics import NodeMetrics
from dledger.common.status import NodeStatus
from dledger.errors import (
    DledgerError,
    EntryDropped,
    InvalidArgument,
    NotLeader,
    Refused,
    TopicMadeAnew,
    Unavailable,
    UnknownTopic,
)
from dledger.files.files import RealFiles
from dledger.replica.rolling import Due, next_roll, rekeep_of
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.services.admin import AdminServicer
from dledger.services.admin_port import admin_service
from dledger.services.export import CommittedLog
from dledger.services.topic_admin import TopicAdminServicer
from dledger.store.commit_log import CommitLog
from dledger.store.format import Base
from dledger.store.identity import LOG_DIRECTORY, join, load_or_format
from dledger.store.snapshot_file import Snapshot, encode_snapshot
from dledger.types import Entry, EntryKind
from dledger_pipeline.jobs.backup import BackupRequest, backup
from dledger_pipeline.jobs.compact import CompactRequest, compact
from dledger_pipeline.jobs.progress import Progress
from dledger_pipeline.jobs.runner import RunnerName
from dledger_pipeline.object_store.store import Store
from tests.pipeline.entry_batches import produced
from tests.pipeline.export_server import LogBackend
from tests.pipeline.logs import GROUP_ID
from tests.requests.part_of_engine import PartOfEngine

HOUR_MS = 3_600_000
_FOR_EVER = 1 << 40


@dataclass(frozen=True)
class Told:
    """A message: its key, and whether it is a tombstone."""

    key: str
    tombstone: bool


@dataclass
class CompactingGroup:
    """Two nodes with one log; the first of *addresses* leads until told.

    Attributes:
        fail: Asked before each call of Compact, and each command of an Erase, with its number from
            1 on: what to raise, if anything.
        after: Asked the same once its work is done.
        calls: What was asked, proofs included.
        alone: By generation, queue and offset: since when a tombstone is known to be alone.
        erases: How many commands of Erase there were.
        secret: Of the leader; another one asks for other proofs.
    """

    directory: Path
    now_ms: int = 1_000 * HOUR_MS
    leading: int = 0
    secret: int = 1
    compacted: dict[str, pb.Compaction] = field(default_factory=dict)
    fail: Callable[[int], DledgerError | None] = lambda _: None
    after: Callable[[int], DledgerError | None] = lambda _: None
    calls: list[pb.CompactRequest] = field(default_factory=list)
    alone: dict[tuple[int, int, int], int] = field(default_factory=dict)
    erases: int = 0
    addresses: tuple[str, ...] = ()
    state: BrokerState = field(default_factory=BrokerState)
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        files = RealFiles()
        named = load_or_format(files, self.directory, "orders/orders-0")
        self.log = CommitLog.open(
            files,
            self.directory / LOG_DIRECTORY,
            identity=join(files, self.directory, named, GROUP_ID),
            segment_bytes=4 << 10,
            reserve_bytes=0,
        )

    # -- what users and nodes do ---------------------------------------------------------------

    def commit(self, *commands: bytes) -> list[object]:
        """Append an entry, and apply it."""
        data = b"".join(commands)
        entry = Entry(
            term=1,
            index=self.log.last_index + 1,
            kind=EntryKind.DATA,
            timestamp_ms=self.now_ms,
            crc32c=crc32c(data),
            data=data,
        )
        self.log.append([entry])
        self.log.sync()
        self.entries.append(entry)
        return self.state.apply(entry)

    def create(self, name: str, queues: int = 2, *, tombstone_ms: int = 24 * HOUR_MS) -> None:
        """Make a compacted topic."""
        self.commit(CreateTopic(name=name, type="NORMAL", queues=queues).encode())
        self.commit(SetRetention(name=name, hours=0).encode())
        self.compacted[name] = pb.Compaction(min_lag_ms=0, tombstone_ms=tombstone_ms)

    def delete(self, name: str) -> None:
        """Delete a topic."""
        topic = self.state.topics.named(name)
        self.commit(DeleteTopic(name=name, generation=topic.generation).encode())

    def send(self, topic: str, queue_id: int, *keys: str) -> None:
        """Store a batch of messages; a key that begins with ``-`` is that of a tombstone."""
        messages = [
            Message(
                message_id=f"{len(self.entries)}-{row}",
                body=f"{each} {len(self.entries)} {row}".encode(),
                keys=(each.removeprefix("-"),),
                properties={"dledger.tombstone": "true"} if each.startswith("-") else {"a": "b"},
            )
            for row, each in enumerate(keys)
        ]
        self.commit(produced(*messages, topic=topic, queue_id=queue_id))
        self.now_ms += 1000

    def sleep(self, hours: int) -> None:
        """Let the whole group be away for some hours, which nobody lives through."""
        before, self.now_ms = self.now_ms, self.now_ms + hours * HOUR_MS
        self.commit(Leap(from_ms=before, to_ms=self.now_ms).encode())

    def live(self, hours: int) -> None:
        """Let some hours pass under a leader."""
        self.now_ms += hours * HOUR_MS
        self.commit()

    def copy(self, before: int) -> None:
        """Copy what is to be kept of the entries before one."""
        for topic in self.state.topics.keeping_longer():
            for queue_id in range(topic.queues):
                while True:
                    queue = self.state.topics.queue(topic.name, queue_id)
                    roll = next_roll(topic, queue_id, queue, Due.below(before))
                    if roll is None:
                        break
                    self.commit(rekeep_of(roll, self.entry, lambda *_: True)[0])

    def retain(self, before: int) -> None:
        """Drop the entries before one, after copying what is to be kept of them."""
        self.copy(before)
        self.commit(Retain(before_index=before).encode())
        self.log.drop_before(self.state.first_index)

    def overtake(self) -> None:
        """Drop all entries that there are, as soon as newer ones fill their segment."""
        last = self.log.last_index
        while self.log.first_index <= last + 1:
            self.send("prices", 1, *(f"{n}/1" for n in range(4)))
            self.retain(self.log.last_index)

    def entry(self, index: int) -> Entry:
        """Return an entry."""
        return self.entries[index - 1]

    def visible(self, topic: str, queue_id: int) -> dict[int, Told]:
        """Return the messages that a consumer of the queue gets, by offset."""
        queue, found = self.state.topics.queue(topic, queue_id), dict[int, Told]()
        for each in queue.stretches(queue.first):
            entry = self.entry(each.entry)
            frame = ProduceFrame(entry.data, each.start, each.end)
            for number in range(each.length):
                message = frame.message(each.row + number)
                is_tombstone = dict(message.properties).get("dledger.tombstone") == "true"
                key = message.keys[0] if len(message.keys) == 1 else ""
                found[each.first + number] = Told(key, is_tombstone)
        return found

    def table(self, topic: str) -> dict[tuple[int, str], int]:
        """Return the offset of the newest message of each key, without deleted keys."""
        rows = [
            (queue_id, offset, told)
            for queue_id in range(self.state.topics.named(topic).queues)
            for offset, told in sorted(self.visible(topic, queue_id).items())
        ]
        newest = {(queue_id, told.key): (offset, told) for queue_id, offset, told in rows}
        return {key: offset for key, (offset, told) in newest.items() if not told.tombstone}

    # -- the leader ----------------------------------------------------------------------------

    async def compact(self, node: int, request: pb.CompactRequest, _: float) -> pb.CompactResponse:
        """Do what a leader does, or fail."""
        if node != self.leading:
            raise NotLeader(None)
        self.calls.append(request)
        if error := self.fail(len(self.calls)):
            raise error
        answer = self._compacted(request)
        if error := self.after(len(self.calls)):
            raise error
        return answer

    def _compacted(self, request: pb.CompactRequest) -> pb.CompactResponse:
        self._check(request)
        queue = self.state.topics.queue(request.topic, request.queue_id)
        there = self.visible(request.topic, request.queue_id)
        stays, alone = _bits(request.stays), _bits(request.alone)
        named = {
            offset: bool(alone[offset - request.first])
            for offset in there
            if request.first <= offset < request.to and not stays[offset - request.first]
        }
        goes = [
            offset
            for offset, is_alone in named.items()
            if not is_alone or self._is_over(request, offset)
        ]
        sample = goes[self.secret % len(goes) :: 3] if goes else []
        proofs = {each.offset: each.by for each in request.proofs}
        if not set(sample) <= set(proofs):
            return pb.CompactResponse(ask=sample)
        for offset in sample:
            self._check_proof(there, offset, proofs[offset], is_alone=named[offset])
        if not goes:
            return pb.CompactResponse()
        roll = next_roll(
            self.state.topics.named(request.topic),
            request.queue_id,
            queue,
            Due.below(len(self.entries) + 1),
        )
        assert roll is not None
        to = max(request.to, queue.log_first)
        stretches = tuple(
            each._replace(first=at, length=1, row=each.row + at - each.first)
            for each in queue.stretches(queue.first)
            for at in range(each.first, each.first + each.length)
            if at < to and at not in goes
        )
        whole = replace(roll, first=0, to=to, stretches=stretches)
        command, kept = rekeep_of(whole, self.entry, lambda *_: True)
        (result,) = self.commit(command)
        assert not isinstance(result, DledgerError), result
        return pb.CompactResponse(kept=kept, let_go=len(goes), written_bytes=len(command))

    def _is_over(self, request: pb.CompactRequest, offset: int) -> bool:
        """Note that a tombstone is alone; return whether that was known for long enough."""
        place = request.generation, request.queue_id, offset
        since_ms = self.alone.setdefault(place, self.now_ms)
        lived = self.state.time
        age_ms = lived.lived_at(self.now_ms) - lived.lived_at(since_ms)
        return age_ms >= self.compacted[request.topic].tombstone_ms

    def _check(self, request: pb.CompactRequest) -> None:
        if request.topic not in {topic.name for topic in self.state.topics.all()}:
            raise UnknownTopic(request.topic)
        topic = self.state.topics.named(request.topic)
        if topic.generation != request.generation:
            raise TopicMadeAnew(request.topic)
        if request.as_of_index < self.log.first_index - 1:
            raise EntryDropped(f"entry {request.as_of_index} is not in the log any more")
        if request.group_id != GROUP_ID or self.log.chain(request.as_of_index) != (
            request.as_of_chain
        ):
            raise Refused(f"entry {request.as_of_index} is not what the caller has read")
        queue = self.state.topics.queue(request.topic, request.queue_id)
        if not 0 <= request.first < request.to <= queue.end:
            raise InvalidArgument(f"[{request.first}, {request.to}) was not assigned")

    def _check_proof(self, there: dict[int, Told], offset: int, by: int, *, is_alone: bool) -> None:
        told, newer = there[offset], there.get(by)
        if by == offset or is_alone:
            if by != offset or not is_alone or not told.tombstone:
                raise InvalidArgument(f"offset {offset} is no tombstone that may go")
        elif by < offset or newer is None or newer.key != told.key:
            raise InvalidArgument(f"offset {offset} is not beaten by {by}: keys differ")

    # -- its services --------------------------------------------------------------------------

    def topics(self) -> pb.ListTopicsResponse:
        """Return what ListTopics answers."""
        return pb.ListTopicsResponse(topics=[self._topic(t.name) for t in self.state.topics.all()])

    def _topic(self, name: str) -> pb.Topic:
        return pb.Topic(name=name, type="NORMAL", queues=2, compaction=self.compacted.get(name))

    async def describe(
        self, request: pb.DescribeTopicRequest, _: float
    ) -> pb.DescribeTopicResponse:
        """Return what DescribeTopic answers."""
        generation = self.state.topics.named(request.name).generation
        return pb.DescribeTopicResponse(topic=self._topic(request.name), generation=generation)


def _bits(packed: bytes) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(zlib.decompress(packed), np.uint8), bitorder="little")


class _Node(LogBackend):
    """One of the nodes."""

    def __init__(self, group: CompactingGroup, number: int) -> None:
        super().__init__(group.log, GROUP_ID, committed=0, role="", state=group.state)
        self.group, self.number = group, number

    def committed_log(self) -> CommittedLog:
        self.committed = self.group.log.last_index
        return replace(super().committed_log(), snapshot=self._snapshot)

    async def snapshot(self) -> int:
        return self.group.state.applied_index

    async def _snapshot(self) -> AsyncGenerator[bytes, None]:
        at = Base(index=self.group.state.applied_index, term=1, chain=0)
        head = Snapshot(group_id=GROUP_ID, applied=at, base=at, memberships=(), body=b"")
        yield b"".join(encode_snapshot(head, self.group.state.freeze().pieces()))

    def status(self) -> NodeStatus:
        self.committed = self.group.log.last_index
        leads = self.number == self.group.leading
        self.role = "leader" if leads else "follower"
        return replace(super().status(), now_ms=self.group.now_ms if leads else 0)


class _Engine(PartOfEngine):
    """What `Admin.Erase` needs of a node."""

    def __init__(self, group: CompactingGroup, number: int) -> None:
        self.log, self.number = group, number
        self.state = group.state

    def is_leader(self) -> bool:
        return self.number == self.log.leading

    def leader(self) -> None:
        return None

    async def read_index(self) -> int:
        return self.log.log.last_index

    async def wait_applied(self, index: int, timeout_s: float) -> None:
        """It is."""

    def read_ahead(self, indexes: Sequence[int]) -> None:
        """Nothing is slow here."""

    async def read_entry(self, index: int) -> Entry:
        return self.log.entry(index)

    async def propose(self, command: bytes) -> object:
        self.log.erases += 1
        if error := self.log.fail(self.log.erases):
            raise error
        (result,) = self.log.commit(command)
        if error := self.log.after(self.log.erases):
            raise error
        if isinstance(result, DledgerError):
            raise result
        return result


@contextmanager
def compacting_group(directory: Path) -> Iterator[CompactingGroup]:
    """Serve a group of two nodes until the block ends."""
    group = CompactingGroup(directory)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers: list[grpc.aio.Server] = []
    try:
        started = asyncio.run_coroutine_threadsafe(_serve(group, servers), loop)
        group.addresses = started.result(10)
        yield group
    finally:
        for server in servers:
            asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
        group.log.close()


async def _serve(group: CompactingGroup, servers: list[grpc.aio.Server]) -> tuple[str, ...]:
    addresses = []
    for number in range(2):
        server = grpc.aio.server()
        erasing = TopicAdminServicer(
            _Engine(group, number), cast("Any", None), NodeMetrics("orders", f"{number}")
        ).handler()
        calls = admin_service(
            {
                "Compact": (pb.CompactRequest, partial(group.compact, number)),
                "DescribeTopic": (pb.DescribeTopicRequest, group.describe),
            }
        )
        listing = grpc.method_handlers_generic_handler(
            "dledger.v1.Topics",
            {"ListTopics": grpc.unary_unary_rpc_method_handler(_listing(group))},
        )
        admin = AdminServicer(_Node(group, number)).handler()
        server.add_generic_rpc_handlers((_First(calls, erasing, admin), listing))
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    return tuple(addresses)


def _listing(group: CompactingGroup) -> Any:
    async def listed(request: bytes, context: object) -> bytes:
        return group.topics().SerializeToString()

    return listed


class _First(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """One service out of two handlers, of which the first has some methods."""

    def __init__(self, *handlers: grpc.GenericRpcHandler) -> None:
        self._handlers = handlers

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the first handler's that there is."""
        found = (each.service(details) for each in self._handlers)
        return next((each for each in found if each is not None), None)


def tables(group: CompactingGroup) -> None:
    """Fill two tables, of prices and of stock, whose tombstones go once they are alone."""
    group.create("prices", tombstone_ms=0)
    group.create("stock", tombstone_ms=0)
    for round_ in range(12):
        for queue_id in range(2):
            group.send("prices", queue_id, *(f"{n}/{queue_id}" for n in range(1 + round_ % 4)))
    group.send("prices", 0, "-0/0", "-once")
    group.send("stock", 1, "s", "s", "t")


def request_of(group: CompactingGroup, **more: Any) -> CompactRequest:
    plain = {"endpoints": group.addresses, "runner": RunnerName.PLAIN, "patience_s": 5.0}
    return CompactRequest(**{**plain, **more})


def compacted(group: CompactingGroup, **more: Any) -> dict[str, Any]:
    return compact(request_of(group, **more), Progress("compact"))


def backed_up(group: CompactingGroup, directory: Path) -> Store:
    store = Store.open(f"file://{directory}/store")
    request = BackupRequest(
        endpoints=group.addresses,
        store=store,
        base_every_hours=1e9,
        target_bytes=1000,
        runner=RunnerName.PLAIN,
    )
    backup(request, Progress("backup"))
    return store


def left_in(group: CompactingGroup) -> list[int]:
    """Return how many messages of the topics are left."""
    return [len(group.visible(name, queue)) for name in ("prices", "stock") for queue in range(2)]


def dropped(_: int) -> DledgerError:
    """Return what a connection that is lost looks like."""
    return Unavailable("the connection was lost")
