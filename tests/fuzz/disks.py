"""What a node reads from its disk, or from a snapshot that a peer sent: damaged, and sealed again.

A checksum is no secret: whoever writes a disk, a volume's backup or a snapshot makes it right. So
most inputs here have right checksums, and say what nobody should.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Hashable
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from crc32c import crc32c

from dledger.broker import commands
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.rekeep import Kept, Origin
from dledger.broker.snapshot_codec import MalformedStateError
from dledger.broker.state import BrokerState
from dledger.common.replay_mark import ReplayMark
from dledger.errors import NewerCommand, NewerFormat, OlderFormat, StorageError
from dledger.files import checked_json
from dledger.files.files import Mode
from dledger.files.memory_files import MemoryFiles
from dledger.raft.quorum import committed
from dledger.replica.bootstrap_record import FILE_NAME, BootstrapFile, BootstrapRecord
from dledger.store import discards, identity, tombstone
from dledger.store.commit_log import CommitLog
from dledger.store.format import (
    RECORD_HEADER_BYTES,
    Base,
    Mark,
    SegmentHeader,
    SegmentIndex,
    decode_index,
    decode_mark,
    decode_segment_header,
    encode_index,
    encode_mark,
    encode_records,
    encode_segment_header,
)
from dledger.store.hard_state import decode_hard_state, encode_hard_state
from dledger.store.snapshot_file import Snapshot, decode_snapshot, encode_snapshot
from dledger.types import Entry, EntryKind, HardState, Member, Membership, NodeId, Typed
from tests.fuzz.logs import entry, kept
from tests.fuzz.mutation import NUMBERS, any_value, json_bytes, mutated, nested, spoil
from tests.fuzz.target import Broken, Target

_MEMBERS: Final = [Member(id=NodeId(f"id-{n}"), name=f"o-{n}", address=f"h{n}:1") for n in range(3)]
_MEMBERSHIP: Final = Membership.of(_MEMBERS, "g", learners=_MEMBERS[:1])
_CRC: Final = struct.Struct("<I")


def sealed(data: bytes) -> bytes:
    """Return it with a right CRC32C in its last four bytes."""
    return data[:-4] + _CRC.pack(crc32c(data[:-4]))


def _grouped(groups: str) -> bytes:
    return encode_produce(
        Columns(
            message_ids=[""] * len(groups),
            bodies=[b"x"] * len(groups),
            born_at_ms=[1] * len(groups),
            typed=[Typed(message_group=group) for group in groups],
        ),
        client_id="client",
        topic="f",
        queue_id=0,
    )


_IN_ORDER: Final = commands.Receive(
    group="g", topic="f", queue_id=0, any_queue=True, limit=3, invisible_ms=9
).encode()


def a_state() -> BrokerState:
    """Return a broker's state with something in each of its parts."""
    state = BrokerState()
    ids = [f"p{n:012d}" for n in range(5)]
    for index, command in enumerate(
        (
            commands.CreateTopic(name="t", type="NORMAL", queues=2).encode(),
            commands.CreateGroup(name="g").encode(),
            encode_produce(
                Columns(message_ids=ids, bodies=[b"x"] * 5, born_at_ms=[1] * 5, tags=["a"] * 5),
                client_id="client", topic="t", queue_id=0,
            ),
            encode_produce(
                Columns(message_ids=["one", ""], bodies=[b"x", b"y"], born_at_ms=[1, 2]),
                client_id="other", topic="t", queue_id=1, replay=ReplayMark(bytes(16), 7),
            ),
            commands.Receive(
                group="g", topic="t", queue_id=0, any_queue=True, limit=3, invisible_ms=9,
                attempt_id="attempt", client_id="client",
            ).encode(),
            commands.UseFilter(group="g", topic="t", tags=("a",)).encode(),
            commands.UseFilter(group="g", topic="t", sql="a = 1").encode(),
            # What it does not name is put aside and passed over, for the others.
            commands.Receive(
                group="g", topic="t", queue_id=0, any_queue=True, limit=3, invisible_ms=9,
                tags=("b", "c"), client_id="other",
            ).encode(),
            commands.Retain(before_index=2).encode(),
            commands.SetRetention(name="t", hours=9).encode(),
            Kept(
                topic="t", generation=1, queue_id=0, first=0, to=4, offsets=(1, 3),
                origins=[Origin(3, 5, "host")] * 2,
                messages=Columns(message_ids=ids[:2], bodies=[b"x"] * 2, born_at_ms=[1] * 2),
            ).encode(),
            # Of a FIFO topic: some leased, some waiting, some new.
            commands.CreateTopic(name="f", type="FIFO", queues=1).encode(),
            _grouped("abab"),
            _IN_ORDER,
            _grouped("abc"),
            _IN_ORDER,
            _grouped("d"),
        ),
        start=1,
    ):  # fmt: skip
        state.apply(entry(index, command, at_ms=1_700_000_000_000 + 10 * index))
    return state


class States(Target):
    """A broker's state in a snapshot: what is accepted goes on, and comes out again as it is."""

    name = "states"
    refuses = (MalformedStateError, NewerFormat, OlderFormat)

    def __init__(self) -> None:
        self._seed = a_state().encode()

    def draw(self, rng: Random) -> bytes:
        spoilt = mutated(rng, self._seed, 2)
        return spoilt if rng.random() < 0.05 else sealed(spoilt)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return sealed(mutated(rng, data, 2))

    def feed(self, data: bytes) -> Hashable:
        state = BrokerState.decode(data)
        kept(state)
        results = state.apply(
            entry(
                state.applied_index + 1,
                b"".join(
                    (
                        encode_produce(
                            Columns(message_ids=["n"], bodies=[b"x"], born_at_ms=[1]),
                            client_id="client", topic="t", replay=ReplayMark(bytes(16), 8),
                        ),
                        commands.Receive(
                            group="g", topic="t", queue_id=0, any_queue=True, limit=9,
                            invisible_ms=1, tags=("a",),
                        ).encode(),
                        commands.Receive(
                            group="g", topic="t", queue_id=0, any_queue=True, limit=9,
                            invisible_ms=1,
                        ).encode(),
                        _grouped("ad"),
                        _IN_ORDER,
                    )
                ),
            )
        )  # fmt: skip
        return tuple(type(result).__name__ for result in results)


class Snapshots(Target):
    """A snapshot's file: group, places and memberships as they were written."""

    name = "snapshots"
    refuses = (ValueError, NewerFormat)

    def draw(self, rng: Random) -> bytes:
        made = b"".join(
            encode_snapshot(
                Snapshot(
                    group_id="g",
                    applied=Base(index=rng.choice(NUMBERS) % 2**64, term=2, chain=7),
                    base=Base(index=3, term=1, chain=5),
                    memberships=((1, _MEMBERSHIP), (9, _MEMBERSHIP)),
                    body=b"body" * rng.randrange(4),
                )
            )
        )
        way = rng.randrange(4)
        if way == 0:
            return made
        return self._resized(mutated(rng, made, 2), way)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return self._resized(mutated(rng, data, 2), rng.randrange(1, 4))

    def _resized(self, data: bytes, way: int) -> bytes:
        if way > 1 and len(data) > 12:
            data = data[:-12] + struct.pack("<Q", len(data)) + data[-4:]
        return sealed(data)

    def feed(self, data: bytes) -> Hashable:
        found = decode_snapshot(data)
        again = decode_snapshot(b"".join(encode_snapshot(found)))
        if (again.group_id, again.applied, again.base) != (
            found.group_id,
            found.applied,
            found.base,
        ) or bytes(again.body) != bytes(found.body):
            raise Broken("written again it is another snapshot")
        for _, membership in found.memberships:
            usable(membership)
        return len(found.memberships)


def usable(membership: Membership) -> None:
    """Raise Broken unless consensus can count by it, and it says the same when written again."""
    again = Membership.decode(membership.encode())
    if {m.id for m in again.members} != {m.id for m in membership.members}:
        raise Broken("written again it has other members")
    committed(dict.fromkeys(membership.voter_ids, 1), membership.voter_ids)
    for member in membership.members:
        if not all(isinstance(text, str) for text in (member.id, member.name, member.address)):
            raise Broken(f"a member is {member!r:.80}")


class Memberships(Target):
    """A membership in an entry of the log."""

    name = "memberships"
    refuses = (ValueError,)

    def draw(self, rng: Random) -> bytes:
        if rng.random() < 0.03:
            return nested(rng).encode()
        way = rng.randrange(3)
        if way == 0:
            return _MEMBERSHIP.encode()
        if way == 1:
            return mutated(rng, _MEMBERSHIP.encode())
        return json_bytes(spoil(rng, json.loads(_MEMBERSHIP.encode())))

    def feed(self, data: bytes) -> Hashable:
        membership = Membership.decode(data)
        usable(membership)
        return len(membership.members), membership.is_joint


_SMALL: Final[tuple[tuple[bytes, Callable[[bytes], Any], Callable[[Any], bytes]], ...]] = (
    (encode_hard_state(HardState(5, NodeId("abc"))), decode_hard_state, encode_hard_state),
    (
        encode_mark(Mark(sequence=3, base=Base(index=1, term=1, chain=2), index=9, chain=4)),
        decode_mark,
        encode_mark,
    ),
    (
        encode_segment_header(
            SegmentHeader(group_id="g", node_id="n", first_index=1, previous_chain=0)
        )[:512],
        decode_segment_header,
        encode_segment_header,
    ),
)
_SIZES: Final = (None, 508, 220)
"""Where the CRC of each is; None: at its end."""


class StateFiles(Target):
    """Hard state, watermark, segment header, index file: each says the same when written again."""

    name = "state-files"
    refuses = (ValueError, NewerFormat, OlderFormat)

    def draw(self, rng: Random) -> bytes:
        kind = rng.randrange(4)
        if kind == 3:
            return b"\3" + self._an_index(rng)
        spoilt = mutated(rng, _SMALL[kind][0], 2)
        return bytes([kind]) + self._sealed(kind, spoilt)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        kind = data[0] % 4
        spoilt = mutated(rng, data[1:], 2)
        return bytes([kind]) + (spoilt if kind == 3 else self._sealed(kind, spoilt))

    def _sealed(self, kind: int, data: bytes) -> bytes:
        at = _SIZES[kind]
        if at is None:
            return sealed(data)
        return data[:at] + _CRC.pack(crc32c(data[:at])) + data[at + 4 :]

    def _an_index(self, rng: Random) -> bytes:
        count = rng.randrange(4)
        made = encode_index(
            SegmentIndex(
                first_index=1,
                previous_chain=0,
                end=4096,
                positions=array("I", range(count)),
                chains=array("I", range(count)),
                runs=((1, 1),),
                memberships=(1,),
            )
        )
        spoilt = mutated(rng, made, 2)
        columns = spoilt[56:]
        head = spoilt[:44] + _CRC.pack(crc32c(columns)) + spoilt[48:52]
        return head + _CRC.pack(crc32c(head)) + columns

    def feed(self, data: bytes) -> Hashable:
        kind, rest = data[0] % 4, data[1:]
        if kind == 3:
            index = decode_index(rest)
            if decode_index(encode_index(index)) != index:
                raise Broken("an index file says something else when it is written again")
            return kind
        _, decode, encode = _SMALL[kind]
        found = decode(rest)
        if decode(encode(found)) != found:
            raise Broken("it says something else when it is written again")
        return kind


_DIRECTORY: Final = Path("/node")
_IDENTITY: Final = identity.Identity(node_id=NodeId("id-0"), group_id="g", name="o/o-0")


class JsonFiles(Target):
    """The small JSON files of a node's directory: identity, tombstone, discards, founding."""

    name = "json-files"
    refuses = (StorageError,)
    _SEEDS: ClassVar[tuple[tuple[str, dict[str, Any]], ...]] = (
        (
            identity.NAME,
            {"node_id": "n", "group_id": "g", "name": "o", "recovered_from": "",
             "recovered_to": 0},
        ),
        (tombstone.NAME, {"group_id": "g", "node_id": "n", "index": 1, "learned_at_ms": 2}),
        (
            discards.NAME,
            {"discards": [{"group_id": "g", "damaged": [[1, 2]], "messages_below": 3,
                           "log_behind": 0, "lost": ["t/0: 1"], "at_ms": 5}]},
        ),
        (FILE_NAME, {"groupId": "g", "members": json.loads(_MEMBERSHIP.encode())}),
    )  # fmt: skip

    def draw(self, rng: Random) -> bytes:
        number = rng.randrange(len(self._SEEDS))
        name, fields = self._SEEDS[number]
        found = fields if rng.random() < 0.1 else spoil(rng, fields, 2)
        return bytes([number]) + self._written(rng, name, found)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        number = data[0] % len(self._SEEDS)
        try:
            fields = json.loads(data[1:])
            fields.pop("crc32c", None)
            fields.pop("format_version", None)
        except (ValueError, AttributeError, TypeError, RecursionError):
            return bytes([number]) + mutated(rng, data[1:])
        return bytes([number]) + self._written(rng, self._SEEDS[number][0], spoil(rng, fields, 2))

    def _written(self, rng: Random, name: str, fields: Any) -> bytes:
        way = rng.random()
        if way < 0.03:
            return nested(rng).encode()
        if name == FILE_NAME or not isinstance(fields, dict):
            made = json_bytes(fields)
        else:
            own = identity.FORMAT_VERSION if name == identity.NAME else 1
            version = own if way < 0.95 else any_value(rng, 1)
            made = checked_json.encode(version, fields)
        return mutated(rng, made, 1) if way > 0.97 else made

    def feed(self, data: bytes) -> Hashable:
        number = data[0] % len(self._SEEDS)
        name, files = self._SEEDS[number][0], MemoryFiles()
        files.open(_DIRECTORY / name, Mode.CREATE).pwritev([data[1:]], 0)
        if name == identity.NAME:
            found = identity.load_identity(files, _DIRECTORY)
            assert found is not None
            identity.join(files, _DIRECTORY, found, found.group_id or "g")
            _texts(found.node_id, found.group_id, found.name, found.recovered_from)
            _whole(found.recovered_to)
        elif name == tombstone.NAME:
            told = tombstone.load_tombstone(files, _DIRECTORY)
            assert told is not None
            tombstone.save_tombstone(files, _DIRECTORY, told)
            _texts(told.group_id, told.node_id)
            _whole(told.index, told.learned_at_ms)
        elif name == discards.NAME:
            for each in discards.load_discards(files, _DIRECTORY):
                _texts(each.group_id, *each.lost)
                _whole(each.messages_below, each.log_behind, each.at_ms, *sum(each.damaged, ()))
        else:
            founding = BootstrapFile(files, _DIRECTORY).load()
            assert founding is not None
            _texts(founding.group_id)
            usable(founding.membership)
            BootstrapRecord.decode(founding.encode())
            founding.entry()
        return name


def _texts(*values: object) -> None:
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise Broken(f"a text is {wrong[0]!r:.60}")


def _whole(*values: object) -> None:
    if wrong := [value for value in values if type(value) is not int]:
        raise Broken(f"a number is {wrong[0]!r:.60}")


class Segments(Target):
    """A log's segment files with right checksums: a node opens them, or says why it does not."""

    name = "segments"
    refuses = (StorageError, NewerCommand)
    _LOG: ClassVar = Path("/node/log")

    def draw(self, rng: Random) -> bytes:
        """Return the file's records: entries of odd terms, times, kinds and lengths."""
        entries, term = [], 1
        for index in range(1, rng.randint(2, 7)):
            data = rng.choice((b"", b"x" * 9, b"y" * 700, _MEMBERSHIP.encode(), b"{}", b"[]"))
            kind = rng.choice(list(EntryKind))
            term = rng.choice((term, term, term, (term + 1) % 2**64, 0, 2**63, 2**64 - 1))
            entries.append(
                Entry(
                    term=term,
                    index=index if rng.random() < 0.97 else rng.choice(NUMBERS) % 2**64,
                    kind=kind,
                    timestamp_ms=rng.choice((0, 1, -1, 2**63 - 1, -(2**63))),
                    crc32c=crc32c(data) if rng.random() < 0.95 else 7,
                    data=data,
                )
            )
        records = b"".join(encode_records(entries, chain=0, position=0).buffers)
        return mutated(rng, records, 2) if rng.random() < 0.5 else records

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return rechained(mutated(rng, data, 2))

    def feed(self, data: bytes) -> Hashable:
        files = self._disk(data)
        log = CommitLog.open(files, self._LOG, identity=_IDENTITY, segment_bytes=1 << 16)
        found = self._entries(log)
        log.close()
        again = CommitLog.open(files, self._LOG, identity=_IDENTITY, segment_bytes=1 << 16)
        if self._entries(again) != found:
            raise Broken("opened again it is another log")
        last = again.last_index
        again.append([entry(last + 1, b"next")])
        again.sync()
        again.close()
        return len(found), log.first_index

    def _disk(self, records: bytes) -> MemoryFiles:
        files = MemoryFiles()
        header = SegmentHeader(group_id="g", node_id="id-0", first_index=1, previous_chain=0)
        mark = Mark(sequence=1, base=Base(), index=0, chain=0)
        page = encode_mark(mark).ljust(8_192, b"\0")
        files.open(self._LOG / "watermark", Mode.CREATE).pwritev([page], 0)
        segment = files.open(self._LOG / f"{1:020}.seg", Mode.CREATE)
        segment.pwritev([encode_segment_header(header), records, bytes(4_096)], 0)
        return files

    def _entries(self, log: CommitLog) -> list[Entry]:
        found: list[Entry] = []
        for index in range(log.first_index, log.last_index + 1):
            (one,) = log.read(index, index, 1 << 20)
            found.append(one)
            log.term(index)
        return found


def rechained(records: bytes) -> bytes:
    """Return records with right checksums wherever their lengths lead to a whole one."""
    data, at, chain = bytearray(records), 0, 0
    while at + RECORD_HEADER_BYTES <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        body = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
        if len(body) < length:
            break
        data[at + 32 : at + 36] = _CRC.pack(crc32c(bytes(body)))
        chain = crc32c(bytes(data[at + 4 : at + RECORD_HEADER_BYTES]), chain)
        data[at : at + 4] = _CRC.pack(chain)
        at += RECORD_HEADER_BYTES + length + (-length % 8)
    return bytes(data)
