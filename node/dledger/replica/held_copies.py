"""Makes RELEASE_HELDs of held messages, from entries that a thread reads: pure.

Used by `held_roller`, for what retention is about to drop, and by whoever delivers what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.held_commands import What, encode_release_held
from dledger.broker.held_refs import HeldMessage, Ref
from dledger.broker.message import Columns, Message, id_of_place
from dledger.broker.produce import ProduceFrame
from dledger.broker.queue_positions import Payload
from dledger.types import Entry

MAX_BYTES: Final = 1 << 20
"""Of the bodies of one command; a single message may be larger."""
MAX_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A framed RELEASE_HELD, and what it names."""

    command: bytes
    refs: tuple[Ref, ...]


@dataclass(slots=True)
class HeldCopies:
    """What was made of some messages.

    Attributes:
        copies: The commands, in the order of their first messages.
        broken: Messages that cannot be decoded: they cannot be copied, and nobody ever gets them.
    """

    copies: list[HeldCopy] = field(default_factory=list)
    broken: list[Ref] = field(default_factory=list)


@dataclass(slots=True)
class _Some:
    """Messages of one topic and host."""

    topic: str
    generation: int
    born_host: str
    refs: list[Ref] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0

    def encode(self, what: What) -> HeldCopy:
        command = encode_release_held(
            what,
            self.refs,
            Columns.of(self.messages),
            topic=self.topic,
            generation=self.generation,
            born_host=self.born_host,
        )
        return HeldCopy(command, tuple(self.refs))


def copies_of(
    what: What,
    held: Sequence[HeldMessage],
    read: Callable[[int], Entry],
    *,
    max_bytes: int = MAX_BYTES,
) -> HeldCopies:
    """Return the commands that deliver or move messages. May be called from any thread.

    A command has messages of one topic and of one host, since a consumer is told that, in the order
    of *held*, and ends with the one with which it has *max_bytes*. Entries are read in their own
    order, each once.

    Raises:
        DledgerError: An entry cannot be read.
    """
    found, open_ones = HeldCopies(), dict[tuple[int, str, str], _Some]()
    messages = dict(_messages(held, read))
    for each in held:
        if each.ref not in messages:
            found.broken.append(each.ref)
            continue
        topic, born_host, message = messages[each.ref]
        key = each.generation, topic, born_host
        some = open_ones.get(key)
        if some is None:
            some = open_ones[key] = _Some(topic, each.generation, born_host)
        some.refs.append(each.ref)
        some.messages.append(message)
        some.size_bytes += len(message.body)
        if some.size_bytes >= max_bytes or len(some.refs) == MAX_ROWS:
            found.copies.append(open_ones.pop(key).encode(what))
    found.copies += [some.encode(what) for some in open_ones.values()]
    return found


def _messages(
    held: Sequence[HeldMessage], read: Callable[[int], Entry]
) -> Iterator[tuple[Ref, tuple[str, str, Message]]]:
    """Yield topic, host and message of those that can be decoded; each has an id."""
    by_payload: dict[Payload, list[HeldMessage]] = {}
    for each in held:
        by_payload.setdefault(each.payload, []).append(each)
    entry = None
    for payload in sorted(by_payload, key=lambda each: (each.index, each.start)):
        if entry is None or entry.index != payload.index:
            entry = read(payload.index)
        frame = ProduceFrame(entry.data, payload.start, payload.end)
        for each in by_payload[payload]:
            try:
                message = frame.message(each.row)
            except MalformedCommandError:
                continue
            told = message.message_id or id_of_place(payload.index, payload.start, each.row)
            yield each.ref, (frame.topic, frame.born_host, replace(message, message_id=told))
