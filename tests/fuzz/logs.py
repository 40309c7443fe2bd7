"""Batches and commands as producers, peers and backups bring them: what goes into the log."""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Sequence
from itertools import accumulate
from random import Random
from typing import Any, ClassVar, Final

import pyarrow as pa
from crc32c import crc32c

from dledger.broker import commands
from dledger.broker.command_frame import CommandType, frame, split
from dledger.broker.commands import LeaseRef
from dledger.broker.dead_letter import encode_dead_letter
from dledger.broker.erase import Erase
from dledger.broker.held_commands import What, encode_produce_held, encode_release_held
from dledger.broker.held_refs import Kind, Ref
from dledger.broker.message import Columns, Message
from dledger.broker.produce import NO_QUEUE, encode_produce
from dledger.broker.redelivery import Retries
from dledger.broker.rekeep import Kept, Origin
from dledger.broker.results import Produced, Received
from dledger.broker.state import BrokerState
from dledger.client.stored_batch import StoredBatch
from dledger.errors import DledgerError, FeatureNotReady, NewerCommand, Refused
from dledger.rocketmq.delivery_form import DeliveryForm
from dledger.rocketmq.receipts import Receipts
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.services.batches import checked_batch
from dledger.services.reading import QueueSlice, encoded
from dledger.store.format import encode_records
from dledger.types import Entry, EntryKind, MovedFrom, Typed
from dledger_pipeline.archive.queue_offsets import QueueOffsets
from dledger_pipeline.log.messages import decode
from dledger_pipeline.log.records import RecordBytes, parse
from tests.fuzz.mutation import BYTES, NUMBERS, mutated, spoil
from tests.fuzz.target import Broken, Target

_HEADER: Final = struct.Struct("<BBHBBHiI")
_ENCODINGS, _TAGS, _KEYS, _PROPERTIES, _TRACES, _MARK = 1, 2, 4, 8, 16, 32
_GROUPS, _DELIVERIES, _PRIORITIES, _MOVES = 1, 2, 4, 8
_TIMES: Final = (0, 1, 1_700_000_000_000, 253_402_300_799_999)
_CREATE: Final = commands.CreateTopic(name="t", type="NORMAL", queues=4).encode()


def entry(index: int, data: bytes, *, at_ms: int = 1_700_000_000_000) -> Entry:
    """Return a committed DATA entry."""
    return Entry(
        term=1,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=at_ms,
        crc32c=crc32c(data),
        data=data,
    )


def a_batch(rng: Random) -> bytes:
    """Return a framed PRODUCE command, by the layout of the documents and not by our encoder.

    So its texts need be none, its offsets need not ascend, and its flags may lie.
    """
    count = rng.choice((1, 1, 2, 3, 8, 40))
    client, topic, host = _bytes(rng, b"client"), _bytes(rng, b"t"), _bytes(rng, b"host")
    flags = rng.choice((0, 0, 1, 2, 4, 8, 16, 31, rng.randrange(64), rng.randrange(256)))
    times = [
        rng.choice(_TIMES) if rng.random() < 0.9 else rng.choice(NUMBERS) for _ in range(count)
    ]
    mark = struct.pack("<16sQ", bytes(16), _wrapped(rng.choice(NUMBERS), 64, signed=False))
    parts = [
        mark if flags & _MARK else b"",
        *(client, topic, host),
        struct.pack(f"<{count}q", *(_wrapped(time, 64) for time in times)),
        bytes(rng.choice((*[1, 2] * 20, 0, 255)) for _ in range(count))
        if flags & _ENCODINGS
        else b"",
        _strings(rng, _ids(rng, count)),
    ]
    if flags & _TAGS:
        parts.append(_strings(rng, [_bytes(rng, b"tag") for _ in range(count)]))
    for flag, columns in ((_KEYS, 1), (_PROPERTIES, 2)):
        if flags & flag:
            sizes = [rng.randrange(3) for _ in range(count)]
            parts.append(_offsets(rng, sizes))
            parts += [
                _strings(rng, [_bytes(rng, b"word%d" % n) for n in range(sum(sizes))])
                for _ in range(columns)
            ]
    if flags & _TRACES:
        parts.append(_strings(rng, [_bytes(rng, b"trace") for _ in range(count)]))
    further = rng.choice((*[0] * 12, 1, 2, 4, 8, 15, rng.randrange(16), rng.randrange(256)))
    parts += _typed_columns(rng, further, count)
    parts.append(_strings(rng, [rng.randbytes(rng.choice((1, 1, 5, 60))) for _ in range(count)]))
    queue = rng.choice((-1, 0, 1, 3, 4, -2, 2**31 - 1))
    version, names = rng.choice((*[1] * 20, 2, 0)), (len(client), len(topic) % 256)
    header = _HEADER.pack(version, flags, *names, further, len(host), queue, count)
    return frame(CommandType.PRODUCE, header, *parts)


def _typed_columns(rng: Random, further: int, count: int) -> list[bytes]:
    """Return the columns that only some types of topics know, whatever their numbers say."""

    def numbers(code: str, bits: int) -> bytes:
        signed = code.islower()
        some = (rng.choice((*_TIMES, -1, *NUMBERS)) for _ in range(count))
        packed = (_wrapped(number, bits, signed=signed) for number in some)
        return struct.pack(f"<{count}{code}", *packed)

    parts = []
    if further & _GROUPS:
        parts.append(_strings(rng, [_bytes(rng, b"group") for _ in range(count)]))
    if further & _DELIVERIES:
        parts.append(numbers("q", 64))
    if further & _PRIORITIES:
        parts.append(numbers("i", 32))
    if further & _MOVES:
        parts.append(_strings(rng, [_bytes(rng, rng.choice((b"", b"o"))) for _ in range(count)]))
        parts += [numbers("q", 64), numbers("q", 64), numbers("q", 64)]
        parts += [numbers("i", 32), numbers("I", 32)]
        parts.append(_strings(rng, [_bytes(rng, b"host") for _ in range(count)]))
    return parts


def _ids(rng: Random, count: int) -> Sequence[bytes]:
    kind = rng.randrange(4)
    first = rng.choice((0, 1, 999_999_999_990, 10**12 - 3))
    if kind == 0:
        return [b"p%012d" % ((first + n) % 10**12) for n in range(count)]
    if kind == 1:
        return [b""] * count
    return [_bytes(rng, b"id-%d" % rng.randrange(4)) for _ in range(count)]


def _bytes(rng: Random, usual: bytes) -> bytes:
    return usual if rng.random() < 0.95 else rng.choice(BYTES)


def _strings(rng: Random, items: Sequence[bytes]) -> bytes:
    return _offsets(rng, [len(item) for item in items]) + b"".join(items)


def _offsets(rng: Random, sizes: Sequence[int]) -> bytes:
    offsets = list(accumulate(sizes, initial=0))
    if rng.random() < 0.03:
        offsets[rng.randrange(len(offsets))] = rng.choice(NUMBERS)
    return struct.pack(
        f"<{len(offsets)}I", *(_wrapped(offset, 32, signed=False) for offset in offsets)
    )


def _wrapped(number: int, bits: int, *, signed: bool = True) -> int:
    wrapped = number % (1 << bits)
    return wrapped - (1 << bits) if signed and wrapped >> (bits - 1) else wrapped


class Batches(Target):
    """A producer's batch: what is accepted is delivered, read, read by the pipeline, kept."""

    name = "batches"
    refuses = (Refused, FeatureNotReady)

    def draw(self, rng: Random) -> bytes:
        batch = a_batch(rng)
        return mutated(rng, batch, 2) if rng.random() < 0.3 else batch

    def feed(self, data: bytes) -> Hashable:
        batch = checked_batch(data)
        state = BrokerState()
        state.apply(entry(1, _CREATE))
        stored = entry(2, data)
        (result,) = state.apply(stored)
        if isinstance(result, DledgerError):
            return type(result).__name__
        if not isinstance(result, Produced):
            raise Broken(f"applying it answers {result!r:.80}")
        for use in (_delivered, _read, _read_by_batches, _read_from_an_archive, _kept):
            try:
                use(state, stored, batch.topic, result)
            except Broken:
                raise
            except Exception as error:
                sentence = f"{use.__name__.strip('_')} fails: {type(error).__name__}: {error!s:.90}"
                raise Broken(sentence) from error
        return batch.is_plain, batch.has_ids, batch.tags() is None


def _delivered(state: BrokerState, stored: Entry, topic: str, result: Produced) -> None:
    """A consumer gets every message, in the protocol's form."""
    state.apply(entry(3, commands.CreateGroup(name="g").encode()))
    poll = commands.Receive(
        group="g", topic=topic, queue_id=0, any_queue=True, limit=1_024, invisible_ms=1_000
    )
    (received,) = state.apply(entry(4, poll.encode()))
    if not isinstance(received, Received) or len(received.deliveries) != result.stored:
        raise Broken(f"of {result.stored} messages a consumer gets {received!r:.80}")
    handles = Receipts(b"secret", group="g", topic=topic, generation=1)
    resource = definition.Resource(name=topic)
    form = DeliveryForm(poll, state.topics.named(topic), resource, received.receive_id, handles)
    for delivery in received.deliveries:
        frame_ = QueueSlice(0, 0, 1, stored, delivery.payload.start, delivery.payload.end).frame()
        form.begin(frame_.born_host, stored.timestamp_ms)
        raw = form.response(frame_.message(delivery.row), delivery).SerializeToString()
        system = service.ReceiveMessageResponse.FromString(raw).message.system_properties
        system.born_timestamp.ToDatetime()  # what SDKs do with it


def _read(state: BrokerState, stored: Entry, topic: str, result: Produced) -> None:
    """`Ledger.Read` answers with every message."""
    records = []
    for stretch in _stretches(state, stored, topic, result):
        batch = stretch.frame()
        for row in range(stretch.first_row, stretch.first_row + stretch.count):
            message = batch.message(row)
            record = pb.Record(
                message_id=message.message_id,
                body=message.body,
                tag=message.tag,
                keys=message.keys,
                properties=message.properties,
                born_at_ms=message.born_at_ms,
            )
            records.append(pb.StoredRecord(record=record, stored_at_ms=stored.timestamp_ms))
    if len(records) != result.stored:
        raise Broken(f"of {result.stored} messages Read gives {len(records)}")
    pb.ReadResponse(records=records).SerializeToString()


def _read_by_batches(state: BrokerState, stored: Entry, topic: str, result: Produced) -> None:
    """`dledger.client` makes records of what `Ledger.ReadBatches` answers."""
    stretches = _stretches(state, stored, topic, result)
    answer = pb.ReadBatchesResponse.FromString(encoded(stretches))
    for each in answer.batches:
        batch = StoredBatch(
            first_offset=each.first_offset,
            count=each.count,
            index=each.index,
            stored_at_ms=each.stored_at_ms,
            payload=each.payload,
            first_row=each.first_row,
        )
        if len(batch.bodies()) != len(list(batch.records())):
            raise Broken("its bodies are not its records'")


def _stretches(state: BrokerState, stored: Entry, topic: str, result: Produced) -> list[QueueSlice]:
    found: list[QueueSlice] = []
    for queue_id in sorted(set(result.queue_ids) - {NO_QUEUE}):  # that of a conflict
        queue, at = state.topics.queue(topic, queue_id), 0
        while at < queue.end:
            place, count = queue.stretch(at)
            found.append(
                QueueSlice(at, place.row, count, stored, place.payload.start, place.payload.end)
            )
            at += count
    return found


def _read_from_an_archive(state: BrokerState, stored: Entry, topic: str, result: Produced) -> None:
    """A backup's reader makes columns of it."""
    offsets = QueueOffsets()
    offsets.add(archived([entry(1, _CREATE)]))
    entries = archived([stored], first_index=2)
    rows = decode(entries, offsets.add(entries)).num_rows
    if rows != result.stored:
        raise Broken(f"of {result.stored} messages an archive gives {rows}")


def archived(log: Sequence[Entry], *, first_index: int = 1) -> pa.RecordBatch:
    """Return entries as the pipeline reads them from a node."""
    records = b"".join(encode_records(log, chain=0, position=0).buffers)
    return parse(
        RecordBytes(
            segment="s",
            offset=0,
            data=records,
            positions=None,
            previous_chain=0,
            first_index=first_index,
        )
    )


def _kept(state: BrokerState, stored: Entry, topic: str, result: Produced) -> None:
    """A snapshot holds the state, whoever wrote the ids."""
    del stored, topic, result
    kept(state)


def kept(state: BrokerState) -> None:
    """Raise Broken unless the state comes back from a snapshot as it is."""
    again = BrokerState.decode(state.encode())
    if again.digest() != state.digest():
        raise Broken("a snapshot gives another state back")


class Entries(Target):
    """An entry's data from a peer or a backup: each command has an answer, whatever it says."""

    name = "entries"
    refuses = (NewerCommand,)
    _SEEDS: ClassVar[tuple[bytes, ...]] = (
        _CREATE,
        commands.CreateGroup(name="g").encode(),
        commands.Receive(
            group="g", topic="t", queue_id=0, any_queue=True, limit=32, invisible_ms=1_000,
            tags=("a",), attempt_id="attempt", client_id="client",
        ).encode(),
        commands.Receive(
            group="g", topic="t", queue_id=1, any_queue=False, limit=1, invisible_ms=1
        ).encode(),
        commands.Ack(group="g", topic="t", leases=(LeaseRef(0, 0, 1), LeaseRef(0, 1, 1))).encode(),
        commands.ChangeInvisible(
            group="g", topic="t", lease=LeaseRef(0, 0, 1), invisible_ms=5, suspend=True
        ).encode(),
        commands.SetGroup(name="g", retries=Retries(1, (1, 2))).encode(),
        commands.Renew(
            group="g", topic="t", leases=(LeaseRef(0, 0, 1),), invisible_ms=5, arrived=True
        ).encode(),
        commands.Release(group="g", client_id="client").encode(),
        commands.Retain(before_index=3).encode(),
        commands.ExpireGroups(before_ms=1).encode(),
        commands.GrowTopic(name="t", queues=6).encode(),
        commands.UseFilter(group="g", topic="t", tags=("b", "a")).encode(),
        commands.UseFilter(group="h", topic="t", sql="a = 1").encode(),
        commands.ReceiveAt(
            group="h", topic="t", generation=1, queue_id=0, sql="a = 1", start=0, stop=2, take=(1,),
            again=(0,), done=(2,), invisible_ms=5,
        ).encode(),
        commands.SetRetention(name="t", hours=None).encode(),
        commands.CancelHeld(refs=(Ref(0, 1), Ref(0, 9))).encode(),
        commands.PauseHeld(pause_id="r").encode(),
        commands.ResumeHeld(cancels=True).encode(),
        commands.CheckHeld(refs=(Ref(0, 1), Ref(0, 9)), next_ms=5).encode(),
    )  # fmt: skip
    _PRODUCE_HELD: ClassVar[bytes] = encode_produce_held(
        Kind.TIMER,
        (5, 7),
        encode_produce(
            Columns(message_ids=["d", "e"], bodies=[b"x"] * 2, born_at_ms=[0] * 2),
            client_id="client",
            topic="t",
        ),
    )
    _RELEASE_HELD: ClassVar[bytes] = encode_release_held(
        What.DELIVER,
        (Ref(0, 0), Ref(0, 1)),
        Columns(message_ids=["d", "e"], bodies=[b"x"] * 2, born_at_ms=[0] * 2),
        topic="t",
        generation=1,
    )
    _REKEEP: ClassVar[bytes] = Kept(
        topic="t", generation=1, queue_id=0, first=0, to=3, offsets=(0, 2),
        origins=[Origin(3, 5, "host"), Origin(3, 5, "")],
        messages=Columns(message_ids=["a", "c"], bodies=[b"x"] * 2, born_at_ms=[0] * 2),
        alone={1: 7},
    ).encode()  # fmt: skip
    _ERASE: ClassVar[bytes] = Erase(
        generation=1, queue_id=0, first_entry=3, offsets=(0, 2)
    ).encode()
    _DEAD_LETTER: ClassVar[bytes] = encode_dead_letter(
        "g",
        1,
        Message(
            message_id="m",
            body=b"x",
            typed=Typed(
                moved_from=MovedFrom(topic="t", generation=1, queue_id=0, offset=0, stored_at_ms=1)
            ),
        ),
        born_host="h",
    )
    _BEFORE: ClassVar[tuple[bytes, ...]] = (
        *(_CREATE, commands.CreateGroup(name="g").encode()),
        commands.CreateGroup(name="h").encode(),
        encode_produce(
            Columns(message_ids=["a", "b", "c"], bodies=[b"x"] * 3, born_at_ms=[0] * 3),
            client_id="client", topic="t", queue_id=0,
        ),
        commands.SetRetention(name="t", hours=0).encode(),
        _PRODUCE_HELD,
        _SEEDS[2],
    )  # fmt: skip

    def draw(self, rng: Random) -> bytes:
        parts = [struct.pack("<q", _wrapped(rng.choice((*_TIMES, *NUMBERS)), 64))]
        for _ in range(rng.randint(1, 4)):
            seed = rng.choice(self._SEEDS)
            way = rng.randrange(4)
            if way == 0:
                seed = a_batch(rng)
            elif way == 1:
                columns = self._REKEEP, self._ERASE, self._DEAD_LETTER
                held = self._PRODUCE_HELD, self._RELEASE_HELD
                seed = mutated(rng, rng.choice((seed, *columns, *held)))
            elif way == 2:
                kind, start, end = next(split(seed))
                row = json.dumps(spoil(rng, json.loads(seed[start:end])))
                seed = frame(CommandType(kind), row.encode())
            parts.append(seed)
        return b"".join(parts)

    def feed(self, data: bytes) -> Hashable:
        state = BrokerState()
        for index, command in enumerate(self._BEFORE, start=1):
            state.apply(entry(index, command))
        at_ms = struct.unpack_from("<q", data.ljust(8, b"\0"))[0]
        results = state.apply(entry(len(self._BEFORE) + 1, data[8:], at_ms=at_ms))
        kept(state)
        return tuple(sorted({type(result).__name__ for result in results}))


def doors_agree(command: bytes) -> None:
    """Raise Broken unless a command that one door made would pass at the other."""
    try:
        checked_batch(command)
    except (Refused, FeatureNotReady) as error:
        raise Broken(f"the native protocol's door refuses it: {error!s:.90}") from error


def rows_of(command: bytes) -> list[Any]:
    """Return the messages of a framed PRODUCE command."""
    batch = checked_batch(command)
    return [batch.message(row) for row in range(batch.count)]
