"""The broker's replicated state: what the committed entries mean, taken together.

`BrokerState` is pure and deterministic: no clock, no I/O, no randomness. The driver applies every
committed entry in order on every node; equal logs give equal states (`digest`). Time is the
entries' own, and never goes backwards even where a new leader's clock is behind.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Final

from crc32c import crc32c

from dledger.broker import commands
from dledger.broker.columns import FORMAT, MalformedStateError, Reader, Writer
from dledger.broker.consume_queue import Payload
from dledger.broker.consumption import Consumption
from dledger.broker.dedupe import DedupeWindow
from dledger.broker.frames import CommandType, MalformedCommandError, split
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import Retained
from dledger.broker.topic_store import TopicStore
from dledger.errors import DledgerError, InvalidArgument
from dledger.types import Entry, EntryKind

_VERSIONS: Final = {b"DLGRBRK%d" % version: version for version in range(1, FORMAT + 1)}
"""The format by the magic word that a state begins with."""
_MAGIC: Final = b"DLGRBRK%d" % FORMAT
_PREFIX: Final = struct.Struct("<8sI")
Pace = Callable[[Iterable[bytes]], Iterable[bytes]]


class FrozenState:
    """A state at one moment, cheap to take; `encode` is for a thread."""

    def __init__(self, columns: Writer) -> None:
        self._columns = columns

    def encode(self, pace: Pace = iter) -> bytes:
        """Return the bytes: a magic word, the CRC32C of the rest, then the rest (`columns`).

        *pace* is given the pieces as they are made, and may take its time between them.
        """
        pieces, crc = list[bytes](), 0
        for piece in pace(self._columns.encoded()):
            pieces.append(piece)
            crc = crc32c(piece, crc)
        return b"".join((_PREFIX.pack(_MAGIC, crc), *pieces))


class BrokerState:
    """Everything the broker knows after some prefix of the log.

    Attributes:
        applied_index: The last applied entry; 0 before the first.
        first_index: The oldest entry whose messages are kept; 1 until a RETAIN raises it.
        topics: Topics, their queues and the dedupe window; to be asked, not changed.
        groups: Consumer groups and their deliveries; to be asked, not changed.
    """

    def __init__(self, dedupe: DedupeWindow | None = None) -> None:
        self._changed: set[tuple[str, int]] = set()
        self.applied_index = 0
        self.first_index = 1
        self.topics = TopicStore(DedupeWindow() if dedupe is None else dedupe, self._changed)
        self.groups = Consumption(self.topics, self._changed)
        self._handlers = self._bound()

    def _bound(self) -> dict[type, Callable[[Any], object]]:
        return {
            commands.CreateTopic: self.topics.create,
            commands.CreateGroup: self.groups.create,
            commands.Receive: self.groups.receive,
            commands.Ack: self.groups.ack,
            commands.ChangeInvisible: self.groups.change_invisible,
            commands.Renew: self.groups.renew,
            commands.Release: self.groups.release,
            commands.Retain: self._retain,
        }

    @property
    def now_ms(self) -> int:
        """The log's time, Unix milliseconds: the highest timestamp so far."""
        return self.groups.now_ms

    def apply(self, entry: Entry) -> list[object]:
        """Apply the next committed entry.

        Returns:
            One result for each command in the entry: a value of `results`, or the DledgerError
            that refused it. A refused command changes nothing.
        """
        if entry.index <= self.applied_index:
            raise AssertionError(f"entry {entry.index} applied after {self.applied_index}")
        self.applied_index = entry.index
        self.groups.now_ms = max(self.groups.now_ms, entry.timestamp_ms)
        if entry.kind is not EntryKind.DATA:
            return []
        results: list[object] = []
        try:
            for kind, start, end in split(entry.data):
                results.append(self._apply(kind, entry, start, end))
        except MalformedCommandError as error:
            results.append(InvalidArgument(str(error)))
        return results

    def _apply(self, kind: int, entry: Entry, start: int, end: int) -> object:
        try:
            if kind == CommandType.PRODUCE:
                batch = ProduceFrame(entry.data, start, end)
                return self.topics.produce(batch, Payload(entry.index, start, end))
            command = commands.decode(kind, entry.data[start:end])
            return self._handlers[type(command)](command)
        except DledgerError as error:
            return error
        except MalformedCommandError as error:
            return InvalidArgument(str(error))

    def _retain(self, command: commands.Retain) -> Retained:
        if command.before_index > self.applied_index:
            raise InvalidArgument(
                f"entries below {command.before_index} are not all committed, only those up to "
                f"{self.applied_index}"
            )
        self.first_index = max(self.first_index, command.before_index)
        dropped = self.topics.drop_before(self.first_index)
        self.groups.drop_before_first_offsets()
        return Retained(first_index=self.first_index, dropped=dropped)

    def freeze(self) -> FrozenState:
        """Return the whole state as it is now; to be encoded while this one goes on."""
        out = Writer()
        out.number(self.applied_index)
        out.number(self.first_index)
        self.topics.write(out)
        self.groups.write(out)
        return FrozenState(out)

    def encode(self) -> bytes:
        """Return the whole state as bytes; equal states give equal bytes."""
        return self.freeze().encode()

    @classmethod
    def decode(cls, data: bytes) -> BrokerState:
        """Return the state that `encode` was asked for.

        Raises:
            MalformedStateError: The bytes are damaged, or are no state.
        """
        magic, crc = _PREFIX.unpack_from(data.ljust(_PREFIX.size, b"\0"))
        body = data[_PREFIX.size :]
        if magic not in _VERSIONS or crc32c(body) != crc:
            raise MalformedStateError(f"{len(data)} bytes are no broker state, or damaged")
        source, state = Reader(body, _VERSIONS[magic]), cls()
        state.applied_index = source.number()
        state.first_index = source.number(1)
        state.topics.read(source)
        state.groups.read(source)
        source.end()
        return state

    def replace(self, other: BrokerState) -> None:
        """Become *other*, which is given up: a snapshot replaces what was applied so far."""
        self.applied_index, self.first_index = other.applied_index, other.first_index
        self.topics, self.groups, self._changed = other.topics, other.groups, other._changed
        self._handlers = self._bound()
        self._changed.update(
            (topic.name, queue_id)
            for topic in self.topics.all()
            for queue_id in range(topic.queues)
        )

    def take_changed(self) -> set[tuple[str, int]]:
        """Return the (topic, queue id) that got messages or whose leases changed since last asked.

        For the one shell that wakes waiting readers; no part of the replicated state.
        """
        changed = set(self._changed)
        self._changed.clear()
        return changed

    def digest(self) -> str:
        """Return a hash of the whole state; equal on all nodes that applied the same entries.

        It visits everything: for tests and comparisons, not for the write path.
        """
        parts = [
            self.applied_index,
            self.first_index,
            self.topics.canonical(),
            self.groups.canonical(),
        ]
        return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
