"""The broker's replicated state, built by applying the committed entries in order.

`BrokerState` is pure and deterministic: no clock, no I/O, no randomness. The driver applies every
committed entry in order on every node; equal logs give equal states (`digest`). Time is the
entries' own, and never goes backwards even where a new leader's clock is behind.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, TypeAlias

from crc32c import crc32c

from dledger.broker import commands
from dledger.broker.command_frame import (
    CommandType,
    MalformedCommandError,
    UnknownCommandError,
    split,
)
from dledger.broker.consumer_groups import ConsumerGroups
from dledger.broker.dead_letter import DeadLetter
from dledger.broker.deduplication import DeduplicationWindow
from dledger.broker.editions import Edition
from dledger.broker.erase import Erase
from dledger.broker.erasures import Erasure, Erasures
from dledger.broker.held_commands import ProduceHeld, ReleaseHeld
from dledger.broker.held_messages import HeldMessages
from dledger.broker.holding import Holding
from dledger.broker.lived_time import LivedTime
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Payload
from dledger.broker.rekeep import Rekeep
from dledger.broker.replayed_lanes import ReplayedLanes
from dledger.broker.results import (
    Erased,
    Leapt,
    Rekept,
    Retained,
    RetentionSet,
    SecretSet,
    TopicDeleted,
)
from dledger.broker.snapshot_codec import (
    FORMAT,
    Encoded,
    MalformedStateError,
    Reader,
    gathered,
    number,
)
from dledger.broker.state_changes import StateChanges
from dledger.broker.topic_store import TopicStore
from dledger.common.features import FEATURES, LOWEST_LEVEL, Features
from dledger.errors import (
    DledgerError,
    InvalidArgument,
    NewerCommand,
    NewerFormat,
    OlderFormat,
)
from dledger.types import MAX_NUMBER, Entry, EntryKind

_MAGIC: Final = b"DLGRBRK%d" % FORMAT
"""The first bytes of an encoded state; the last digit is the format version."""
_CRC: Final = struct.Struct("<I")
_HAS_ERASURES: Final = 1 << 8
"""In the length of the secret: erasures follow it."""
_HAS_HELD: Final = 1 << 9
"""Likewise: what is held follows all else."""
Pace = Callable[[Iterable[bytes]], Iterable[bytes]]
_Read: TypeAlias = tuple[int, int, object]
"""Start and end of a command's payload, and the command, or the error if it is malformed."""


class FrozenState:
    """A state at one moment: references to parts that no longer change (`editions`).

    `pieces` and `encode` may be called from any thread.
    """

    def __init__(self, parts: Sequence[Encoded]) -> None:
        self._parts = parts

    def pieces(self, pace: Pace = iter) -> Iterator[bytes]:
        """Yield the bytes as they are encoded: the magic, the parts, the CRC32C of everything.

        *pace* wraps the iterator of small pieces and may sleep between them (`pacing`).
        """
        crc = 0
        parts = chain.from_iterable(part() for part in self._parts)
        for piece in gathered(pace(chain((_MAGIC,), parts))):
            crc = crc32c(piece, crc)
            yield piece
        yield _CRC.pack(crc)

    def encode(self) -> bytes:
        """Return all the bytes."""
        return b"".join(self.pieces())


class BrokerState:
    """Everything the broker knows after some prefix of the log.

    Attributes:
        applied_index: The last applied entry; 0 before the first.
        first_index: The oldest entry whose messages are kept; 1 until a RETAIN raises it.
        level: The highest feature level of all commands that were applied: what each member must
            know, whether it was heard of or not.
        secret: The key that signs receipt handles; empty until a SET_SECRET. Never reported.
        time: The log's time, and how much of it was lived; read-only for callers.
        held: What is in the log and in no queue yet; read-only for callers.
        erasures: What was erased and may still lie in the log; read-only for callers.
        topics: Topics, their queues and what is known of repeats; read-only for callers.
        groups: Consumer groups and their deliveries; read-only for callers.
    """

    def __init__(
        self,
        dedupe: DeduplicationWindow | None = None,
        lanes: ReplayedLanes | None = None,
        *,
        features: Features = FEATURES,
        decoders: commands.Decoders = commands.DECODERS,
    ) -> None:
        """Create the state before the first entry.

        Args:
            dedupe: A deduplication window with other limits, for tests.
            lanes: Lanes with other bounds, likewise.
            features: What this version knows; any other command stops the node.
            decoders: The decoder of each type of command whose payload is JSON.
        """
        self._features, self._decoders = features, decoders
        self._changes = StateChanges()
        self.applied_index = 0
        self.first_index = 1
        self.level = LOWEST_LEVEL
        self.secret = b""
        self.erasures = Erasures()
        self._edition = Edition()
        window = DeduplicationWindow() if dedupe is None else dedupe  # an empty one is false
        replayed = ReplayedLanes() if lanes is None else lanes
        self.topics = TopicStore(window, replayed, self._changes.arrived, self._edition)
        self.time = LivedTime()
        self.groups = ConsumerGroups(self.topics, self._changes, self._edition, self.time)
        self.held = HeldMessages(self._edition)
        self._holding = Holding(self.held, self.topics, window, replayed, self.time)
        self._handlers = self._bound()

    def _bound(self) -> dict[type, Callable[[Any], object]]:
        return {
            commands.CreateTopic: self.topics.create,
            commands.CreateGroup: self.groups.create,
            commands.Receive: self.groups.receive,
            commands.ReceiveAt: self.groups.receive_at,
            commands.Ack: self.groups.ack,
            commands.ChangeInvisible: self.groups.change_invisible,
            commands.Renew: self.groups.renew,
            commands.Release: self.groups.release,
            commands.Retain: self._retain,
            commands.ExpireGroups: self.groups.expire,
            commands.DeleteTopic: self._delete_topic,
            commands.DeleteGroup: self.groups.delete,
            commands.SetSecret: self._set_secret,
            commands.GrowTopic: self.topics.grow,
            commands.Leap: self._leap,
            commands.UseFilter: self.groups.use_filter,
            commands.SetRetention: self._set_retention,
            commands.SeekGroup: self.groups.seek,
            commands.SetGroup: self.groups.set,
            commands.CancelHeld: self._holding.cancel,
            commands.PauseHeld: self._holding.pause,
            commands.ResumeHeld: self._holding.resume,
            commands.CheckHeld: self._holding.check,
            Erase: self._erase,
        }

    @property
    def now_ms(self) -> int:
        """The log's time, Unix milliseconds: the highest timestamp so far."""
        return self.time.log_ms

    @property
    def leapt_ms(self) -> int:
        """How much of the log's time its leaps have skipped, in milliseconds."""
        return self.time.leapt_ms

    def apply(self, entry: Entry) -> list[object]:
        """Apply the next committed entry.

        Returns:
            One result for each command in the entry: a value of `results`, or the DledgerError
            that refused it. A refused command changes nothing.

        Raises:
            NewerCommand: The entry holds a command that this version does not know. The state is
                unchanged, and no later entry may be applied: upgrade this node.
        """
        if entry.index <= self.applied_index:
            raise AssertionError(f"entry {entry.index} applied after {self.applied_index}")
        found = self._read(entry)
        self.applied_index = entry.index
        if self.level < self._features.level and entry.kind is EntryKind.DATA:
            self._note_level(entry.data)
        # No real clock is this late, and a later lease end would not fit a snapshot's i64.
        log_ms = min(entry.timestamp_ms, MAX_NUMBER - 1)
        self.time.advance(log_ms)
        self.groups.advance(log_ms)
        return [self._apply(one, entry.index) for one in found]

    def _read(self, entry: Entry) -> list[_Read]:
        """Decode all commands of an entry, before the first one is applied.

        After a frame that is cut short no more frames can be found, in any version.
        """
        found: list[_Read] = []
        if entry.kind is not EntryKind.DATA:
            return found
        try:
            for kind, start, end in split(entry.data):
                found.append((start, end, self._read_one(kind, entry.data, start, end)))
        except UnknownCommandError as error:
            raise NewerCommand(entry.index, what=str(error), level=self._features.level) from error
        except MalformedCommandError as error:
            found.append((0, 0, error))
        return found

    def _note_level(self, data: bytes) -> None:
        """Note the level of an entry's commands, whatever applying them says: all are known."""
        try:
            for kind, start, end in split(data):
                level = self._features.level_of_payload(kind, data, start, end)
                self.level = max(self.level, level)
        except MalformedCommandError:
            return  # behind a frame that is cut short no version finds more

    def _read_one(self, kind: int, data: bytes, start: int, end: int) -> object:
        try:
            if kind == CommandType.PRODUCE:
                return ProduceFrame(data, start, end)
            if kind in _OF_COLUMNS and kind in self._features.commands:
                return _OF_COLUMNS[kind](data, start, end)
            return commands.decode(
                kind, data[start:end], features=self._features, decoders=self._decoders
            )
        except UnknownCommandError:
            raise
        except MalformedCommandError as error:
            return error

    def _apply(self, found: _Read, index: int) -> object:
        start, end, command = found
        try:
            if isinstance(command, ProduceFrame):
                payload = Payload(index, start, end)
                if command.replay is not None:
                    return self.topics.replay(command, command.replay, payload, self.time)
                return self.topics.produce(command, payload, self.time.log_ms)
            if isinstance(command, (Rekeep, DeadLetter, ProduceHeld, ReleaseHeld)):
                return self._apply_inner(command, index)
            if isinstance(command, MalformedCommandError):
                raise command
            return self._handlers[type(command)](command)
        except DledgerError as error:
            return error
        except MalformedCommandError as error:
            return InvalidArgument(str(error))

    def _apply_inner(
        self, command: Rekeep | DeadLetter | ProduceHeld | ReleaseHeld, index: int
    ) -> object:
        """Apply a command that has the payload of a PRODUCE in it, in entry *index*."""
        if isinstance(command, Rekeep):
            return self._rekeep(command, index)
        if isinstance(command, ProduceHeld):
            return self._holding.produce(command, index)
        if isinstance(command, ReleaseHeld):
            return self._holding.release(command, index)
        return self.groups.dead_letter(command, Payload(index, command.inner, command.end))

    def _delete_topic(self, command: commands.DeleteTopic) -> TopicDeleted:
        deleted = self.topics.delete(command)
        self.groups.forget_topic(deleted.topic.name)
        self._changes.topics_gone.add((deleted.topic.name, deleted.topic.queues))
        return deleted

    def _set_secret(self, command: commands.SetSecret) -> SecretSet:
        is_first = not self.secret
        self.secret = self.secret or command.secret
        return SecretSet(is_first)

    def _leap(self, command: commands.Leap) -> Leapt:
        return Leapt(self.time.leap(command.from_ms, command.to_ms))

    def _retain(self, command: commands.Retain) -> Retained:
        if command.before_index > self.applied_index:
            raise InvalidArgument(
                f"entries below {command.before_index} are not all committed, only those up to "
                f"{self.applied_index}"
            )
        held = self.topics.lowest_held()
        index = command.before_index if held is None else min(command.before_index, held)
        dropped = self.forget_before(min(index, self.held.first_entry))
        return Retained(first_index=self.first_index, dropped=dropped)

    def _set_retention(self, command: commands.SetRetention) -> RetentionSet:
        done = self.topics.set_retention(command)
        if done.dropped:
            self.groups.drop_before_first_offsets()
        return done

    def _rekeep(self, command: Rekeep, index: int) -> Rekept:
        gone = self.topics.rekeep(command, index)
        if gone.from_front:
            self.groups.drop_before_first_offset(gone.topic, command.queue_id)
        return Rekept(gone.messages)

    def _erase(self, command: Erase) -> Erased:
        gone = self.topics.erase(command)
        if gone.messages:
            self.erasures.remember(
                Erasure(
                    entry=self.applied_index,
                    at_ms=self.time.log_ms,
                    topic=gone.topic,
                    messages=gone.messages,
                    first_entry=min(command.first_entry, self.applied_index),
                )
            )
        return Erased(gone.messages, self.applied_index)

    def forget_before(self, index: int) -> int:
        """Drop the messages in entries below *index*, whoever keeps them; return their number.

        For RETAIN, which is held back where a topic keeps them; else for who has lost the entries.
        """
        self.first_index = max(self.first_index, index)
        self.held.drop_before(self.first_index)
        self.erasures.forget_before(self.first_index)
        dropped = self.topics.drop_before(self.first_index)
        self.groups.drop_before_first_offsets()
        return dropped

    def freeze(self) -> FrozenState:
        """Return the present state by reference; from now on this one changes copies only."""
        erasures = self.erasures.freeze() if len(self.erasures) else ()
        marks = (_HAS_ERASURES if erasures else 0) | (_HAS_HELD if self.held.is_used else 0)
        numbers = partial(
            _numbers,
            (self.applied_index, self.first_index, self.level, len(self.secret) | marks),
            self.secret,
            erasures,
        )
        time = tuple(self.time.encoded())
        parts: list[Encoded] = [numbers, partial(iter, time)]
        parts += [self.topics.freeze(), self.groups.freeze()]
        if self.held.is_used:
            parts.append(self.held.freeze())
        frozen = FrozenState(parts)
        self._edition.end()
        return frozen

    def encode(self) -> bytes:
        """Return the whole state as bytes; equal states give equal bytes."""
        return self.freeze().encode()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> BrokerState:
        """Return the state that `encode` wrote.

        Raises:
            NewerFormat, OlderFormat: Another version wrote it.
            MalformedStateError: The bytes are damaged, or are no state.
        """
        view, size = memoryview(data), len(_MAGIC)
        magic, body, end = bytes(view[:size]), view[size : -_CRC.size], view[-_CRC.size :]
        found = int(magic[-1:]) if magic[-1:].isdigit() else 0
        is_whole = magic[:-1] == _MAGIC[:-1] and end == _CRC.pack(crc32c(view[: -_CRC.size]))
        if is_whole and found > FORMAT:
            raise NewerFormat.number("the state in a snapshot", found=found, known=FORMAT)
        if is_whole and 0 < found < FORMAT:
            raise OlderFormat("the state in a snapshot", found=found, known=FORMAT)
        if not is_whole or found != FORMAT:
            raise MalformedStateError(f"{len(data)} bytes are no broker state, or damaged")
        source, state = Reader(body), cls()
        state.applied_index = source.number()
        state.first_index = source.number(1)
        state.level = source.number(LOWEST_LEVEL)
        if state.level > state._features.level:
            raise NewerFormat(
                "the state in a snapshot",
                found=f"feature level {state.level}",
                known=f"feature level {state._features.level}",
            )
        size = source.number(high=commands.SECRET_BYTES | _HAS_ERASURES | _HAS_HELD)
        state.secret = source.raw(size & ~(_HAS_ERASURES | _HAS_HELD))
        if len(state.secret) not in (0, commands.SECRET_BYTES):
            raise source.malformed(f"a secret of {len(state.secret)} bytes")
        if size & _HAS_ERASURES:
            state.erasures.read(
                source, first_index=state.first_index, applied_index=state.applied_index
            )
        state.time.read(source)
        state.topics.read(source)
        state.groups.read(source)
        if size & _HAS_HELD:
            state.held.read(source)
        source.end()
        return state

    def replace(self, other: BrokerState) -> None:
        """Take over the contents of *other*, a snapshot's; *other* must not be used any more."""
        gone = [topic for topic in self.topics.all() if not other.topics.is_there(topic)]
        groups_gone = [name for name in self.groups.names() if not other.groups.exists(name)]
        self.applied_index, self.first_index = other.applied_index, other.first_index
        self.level = other.level
        self.secret, self.erasures = other.secret, other.erasures
        self.time, self.topics = other.time, other.topics
        self.groups, self._changes = other.groups, other._changes
        self.held, self._holding = other.held, other._holding
        self._edition = other._edition
        self._handlers = self._bound()
        self._changes.arrived.update(
            (topic.name, queue_id)
            for topic in self.topics.all()
            for queue_id in range(topic.queues)
        )
        self._changes.topics_gone.update((topic.name, topic.queues) for topic in gone)
        self._changes.groups_gone.update(groups_gone)

    def take_changes(self) -> StateChanges:
        """Return the queues with new messages or changed leases since the last call.

        For the one caller that wakes waiting readers; not part of the replicated state.
        """
        return self._changes.take()

    def digest(self) -> str:
        """Return a hash of the whole state; equal on all nodes that applied the same entries.

        It visits everything: use it in tests and comparisons, not on the write path.
        """
        parts = [
            self.applied_index,
            self.first_index,
            self.level,
            self.secret.hex(),
            self.erasures.canonical(),
            self.time.canonical(),
            self.topics.canonical(),
            self.groups.canonical(),
            self.held.canonical(),
        ]
        return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


_OF_COLUMNS: Final[Mapping[int, Callable[[bytes, int, int], object]]] = {
    CommandType.REKEEP: Rekeep,
    CommandType.ERASE: Erase.decode,
    CommandType.DEAD_LETTER: DeadLetter,
    CommandType.PRODUCE_HELD: ProduceHeld,
    CommandType.RELEASE_HELD: ReleaseHeld,
}
"""What decodes commands whose payload is columns, but for PRODUCE, of which most of a log is."""


def _numbers(numbers: Sequence[int], secret: bytes, erasures: Sequence[bytes]) -> Iterator[bytes]:
    yield b"".join(map(number, numbers))
    yield secret
    yield from erasures
