"""The commands that let messages go which are due: pure.

Messages of one topic, queue and producer's address share a RELEASE_HELD, in due order, whoever sent
them. Called by `firing`, which reads the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.commands import CancelHeld
from dledger.broker.held_commands import What, encode_release_held
from dledger.broker.held_refs import HeldMessage
from dledger.broker.message import Columns, Message
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Payload
from dledger.types import Entry

MAX_ROWS: Final = 1_024
MAX_BYTES: Final = 1 << 20
"""Of the bodies of one command; a single one may be larger."""


class Release(NamedTuple):
    """A framed command, and which messages it is about: to be delivered, or else to be dropped."""

    command: bytes
    messages: Sequence[HeldMessage]
    delivers: bool


class _Key(NamedTuple):
    """What the messages of one RELEASE_HELD have in common."""

    topic: str
    generation: int
    queue_id: int
    born_host: str


@dataclass(slots=True)
class _Group:
    """The messages of a command that is being gathered, and what they are called."""

    held: list[HeldMessage] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether one more message fits."""
        if not self.held:
            return True
        return len(self.held) < MAX_ROWS and self.size_bytes + size_bytes <= MAX_BYTES

    def add(self, each: HeldMessage, message: Message) -> None:
        """Gather one more."""
        self.held.append(each)
        self.messages.append(message)
        self.size_bytes += len(message.body)


def releases_of(
    due: Sequence[HeldMessage],
    entries: Mapping[int, Entry],
    is_there: Callable[[str, int], bool],
) -> Iterator[Release]:
    """Yield the commands for what is due.

    Args:
        due: In the order of their times.
        entries: Those that they lie in, by index.
        is_there: Whether the topic of this name still is the one with this generation.
    """
    groups, dropped = dict[_Key, _Group](), list[HeldMessage]()
    frames: dict[Payload, ProduceFrame | None] = {}
    for each in due:
        payload = each.payload
        if payload not in frames:
            frames[payload] = _frame(entries[payload.index], payload)
        frame = frames[payload]
        message = None
        if frame is not None and is_there(frame.topic, each.generation):
            message = _message(frame, each.row)
        if frame is None or message is None:
            dropped.append(each)
            continue
        key = _Key(frame.topic, each.generation, frame.queue_id, frame.born_host)
        group = groups.setdefault(key, _Group())
        if not group.has_room(len(message.body)):
            yield _release(key, group)
            group = groups[key] = _Group()
        group.add(each, message)
    for key, group in groups.items():
        yield _release(key, group)
    if dropped:
        refs = tuple(due.ref for due in dropped)
        yield Release(CancelHeld(refs=refs).encode(), dropped, delivers=False)


def _frame(entry: Entry, payload: Payload) -> ProduceFrame | None:
    """Return a payload; None if it is none, so that nobody could ever get its messages."""
    try:
        return ProduceFrame(entry.data, payload.start, payload.end)
    except MalformedCommandError:
        return None


def _message(frame: ProduceFrame, row: int) -> Message | None:
    """Return a message; None if it cannot be decoded: nobody could ever get it."""
    try:
        return frame.message(row)
    except MalformedCommandError:
        return None


def _release(key: _Key, group: _Group) -> Release:
    command = encode_release_held(
        What.DELIVER,
        [due.ref for due in group.held],
        Columns.of(group.messages),
        topic=key.topic,
        generation=key.generation,
        queue_id=key.queue_id,
        born_host=key.born_host,
    )
    return Release(command, group.held, delivers=True)
