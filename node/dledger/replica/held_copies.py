"""Makes RELEASE_HELDs of held messages, from entries that a thread reads: pure.

Used by `held_roller`, for what retention is about to drop, and by whoever delivers what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

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
Found: TypeAlias = tuple[str, str, Message]
"""A message, with its topic and its host."""


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

    Entries are read in their own order, each once; for the rest see `commands_of`.

    Raises:
        DledgerError: An entry cannot be read.
    """
    messages = dict[Ref, Found]()
    for index, some in by_entry(held).items():
        messages |= messages_in(read(index), some)
    return HeldCopies(
        copies=[*commands_of(what, held, messages, max_bytes=max_bytes)],
        broken=[each.ref for each in held if each.ref not in messages],
    )


def by_entry(held: Iterable[HeldMessage]) -> dict[int, list[HeldMessage]]:
    """Return messages by the entries that they lie in, ascending."""
    found: dict[int, list[HeldMessage]] = {}
    for each in held:
        found.setdefault(each.payload.index, []).append(each)
    return {index: found[index] for index in sorted(found)}


def messages_in(entry: Entry, held: Iterable[HeldMessage]) -> dict[Ref, Found]:
    """Return topic, host and message of those of an entry that can be decoded; each has an id."""
    by_payload: dict[Payload, list[HeldMessage]] = {}
    for each in held:
        by_payload.setdefault(each.payload, []).append(each)
    found = dict[Ref, Found]()
    for payload, some in by_payload.items():
        frame = ProduceFrame(entry.data, payload.start, payload.end)
        for each in some:
            try:
                message = frame.message(each.row)
            except MalformedCommandError:
                continue
            told = message.message_id or id_of_place(payload.index, payload.start, each.row)
            found[each.ref] = frame.topic, frame.born_host, replace(message, message_id=told)
    return found


def commands_of(
    what: What,
    held: Iterable[HeldMessage],
    messages: Mapping[Ref, Found],
    *,
    max_bytes: int = MAX_BYTES,
) -> Iterator[HeldCopy]:
    """Yield the commands that deliver or move those of *held* that are among *messages*.

    A command has messages of one topic and of one host, since a consumer is told that, in the order
    of *held*, and ends with the one with which it has *max_bytes*.
    """
    open_ones = dict[tuple[int, str, str], _Some]()
    for each in held:
        found = messages.get(each.ref)
        if found is None:
            continue
        topic, born_host, message = found
        key = each.generation, topic, born_host
        some = open_ones.get(key)
        if some is None:
            some = open_ones[key] = _Some(topic, each.generation, born_host)
        some.refs.append(each.ref)
        some.messages.append(message)
        some.size_bytes += len(message.body)
        if some.size_bytes >= max_bytes or len(some.refs) == MAX_ROWS:
            yield open_ones.pop(key).encode(what)
    for some in open_ones.values():
        yield some.encode(what)
