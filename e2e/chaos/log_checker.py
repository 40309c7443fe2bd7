"""The log checker: what producers were told, what readers saw, and what every node holds.

Pure: histories in, findings out. `check_messages` looks at queues as clients read them,
`check_entries` at the commit logs themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

from e2e.chaos.history import Outcome, Seen, Write


class LogFault(Enum):
    """What can be wrong with a log."""

    LOSS = "loss"
    """An acknowledged message is not where it was acknowledged, nor anywhere else."""
    MOVED = "moved"
    """An acknowledged message is at another place than was acknowledged."""
    DUPLICATE = "duplicate"
    """A message is there more than once."""
    PHANTOM = "phantom"
    """A message is there, or was read, that nobody wrote or that was refused."""
    CHANGED = "changed"
    """A message has another body than its producer gave it."""
    RETRACTED = "retracted"
    """A reader saw a message at a place where the log has another one, or none."""
    ORDER = "order"
    """A message stands before one that was acknowledged before it was sent."""
    HOLE = "hole"
    """Offsets or indexes are not consecutive."""
    TIME = "time"
    """An entry is older, by its timestamp, than one in front of it."""
    DIVERGENCE = "divergence"
    """Two nodes differ at the same place."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and on which node (empty: whichever)."""

    fault: LogFault
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One message as a node holds it."""

    offset: int
    message_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One committed entry as a node holds it; *chain* covers all before it."""

    index: int
    term: int
    timestamp_ms: int
    crc32c: str
    chain: str


Queues: TypeAlias = Mapping[int, Sequence[Stored]]
"""Queue id to its messages in order."""


def check_messages(
    writes: Sequence[Write], seen: Iterable[Seen], nodes: Mapping[str, Queues]
) -> list[Finding]:
    """Compare what clients were told with what every node holds once all have caught up."""
    by_id = {write.message_id: write for write in writes}
    findings: list[Finding] = []
    for node, queues in nodes.items():
        findings += _holes(node, queues)
        findings += _duplicates(node, queues)
        findings += _foreign(node, queues, by_id)
        findings += _losses(node, queues, writes)
        findings += _disorder(node, queues, by_id)
    findings += _retractions(seen, nodes)
    findings += _divergence(nodes)
    return findings


def check_entries(nodes: Mapping[str, Sequence[LogEntry]]) -> list[Finding]:
    """Compare the committed entries of all nodes, where they have the same indexes.

    A node whose log begins later, behind a snapshot, is compared from there on.
    """
    findings: list[Finding] = []
    reference: dict[int, tuple[str, LogEntry]] = {}
    for node, entries in nodes.items():
        for before, entry in pairwise(entries):
            if entry.index != before.index + 1:
                text = f"entry {entry.index} follows entry {before.index}"
                findings.append(Finding(LogFault.HOLE, node, text))
        findings += _times(node, entries)
        for entry in entries:
            other, known = reference.setdefault(entry.index, (node, entry))
            if known != entry:
                text = f"{entry} differs from {known} of {other}"
                findings.append(Finding(LogFault.DIVERGENCE, node, text))
                break
    return findings


def _times(node: str, entries: Sequence[LogEntry]) -> Iterator[Finding]:
    """Find timestamps that go back; entries of the core itself have none."""
    timed = [entry for entry in entries if entry.timestamp_ms]
    for before, entry in pairwise(timed):
        if entry.timestamp_ms < before.timestamp_ms:
            text = f"entry {entry.index} is {before.timestamp_ms - entry.timestamp_ms} ms older"
            yield Finding(LogFault.TIME, node, f"{text} than entry {before.index}")


def _holes(node: str, queues: Queues) -> Iterator[Finding]:
    for queue, messages in queues.items():
        for expected, message in enumerate(messages, messages[0].offset if messages else 0):
            if message.offset != expected:
                text = f"queue {queue} has offset {message.offset} where {expected} should be"
                yield Finding(LogFault.HOLE, node, text)
                break


def _duplicates(node: str, queues: Queues) -> Iterator[Finding]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for queue, messages in queues.items():
        for message in messages:
            places[message.message_id].append(f"{queue}/{message.offset}")
    for message_id, found in places.items():
        if len(found) > 1:
            yield Finding(LogFault.DUPLICATE, node, f"{message_id} is at {', '.join(found)}")


def _foreign(node: str, queues: Queues, by_id: Mapping[str, Write]) -> Iterator[Finding]:
    """Find messages that nobody may have stored, or not so."""
    for queue, messages in queues.items():
        for message in messages:
            place = f"{message.message_id} at {queue}/{message.offset}"
            write = by_id.get(message.message_id)
            if write is None:
                yield Finding(LogFault.PHANTOM, node, f"{place} was written by nobody")
            elif write.outcome is Outcome.REFUSED:
                yield Finding(LogFault.PHANTOM, node, f"{place} was refused")
            elif write.queue != queue:
                yield Finding(LogFault.MOVED, node, f"{place} was for queue {write.queue}")
            elif write.digest != message.digest:
                yield Finding(LogFault.CHANGED, node, f"{place} has another body")


def _losses(node: str, queues: Queues, writes: Sequence[Write]) -> Iterator[Finding]:
    places = {
        message.message_id: (queue, message.offset)
        for queue, messages in queues.items()
        for message in messages
    }
    for write in writes:
        if write.outcome is not Outcome.OK:
            continue
        acknowledged = (write.queue, write.offset)
        found = places.get(write.message_id)
        text = f"{write.message_id}, acknowledged at {write.queue}/{write.offset}"
        if found is None:
            yield Finding(LogFault.LOSS, node, f"{text} at {write.ended_s:.3f} s, is gone")
        elif found != acknowledged:
            yield Finding(LogFault.MOVED, node, f"{text}, is at {found[0]}/{found[1]}")


def _disorder(node: str, queues: Queues, by_id: Mapping[str, Write]) -> Iterator[Finding]:
    """Find messages that were acknowledged before one in front of them was sent at all."""
    for queue, messages in queues.items():
        latest: Write | None = None
        for message in messages:
            write = by_id.get(message.message_id)
            if write is None:
                continue
            if latest is not None and write.ended_s < latest.invoked_s:
                text = (
                    f"queue {queue}: {write.message_id} was acknowledged at {write.ended_s:.3f} s "
                    f"and stands behind {latest.message_id}, sent at {latest.invoked_s:.3f} s"
                )
                yield Finding(LogFault.ORDER, node, text)
            if latest is None or write.invoked_s > latest.invoked_s:
                latest = write


def _retractions(seen: Iterable[Seen], nodes: Mapping[str, Queues]) -> Iterator[Finding]:
    """Find what a reader saw and one of the nodes has no more: it was never committed."""
    places = {
        node: {
            (queue, message.offset): message for queue, messages in queues.items()
            for message in messages
        }
        for node, queues in nodes.items()
    }  # fmt: skip
    for one in seen:
        what = Stored(one.offset, one.message_id, one.digest)
        for node, stored in places.items():
            if stored.get((one.queue, one.offset)) != what:
                text = (
                    f"{one.message_id} was read from {one.node} at {one.queue}/{one.offset} "
                    f"({one.at_s:.3f} s), where this node has something else"
                )
                yield Finding(LogFault.RETRACTED, node, text)


def _divergence(nodes: Mapping[str, Queues]) -> Iterator[Finding]:
    """Find the first place of each queue where a node differs from what most nodes hold."""
    for queue in sorted({queue for queues in nodes.values() for queue in queues}):
        rows = {
            node: {message.offset: message for message in queues.get(queue, ())}
            for node, queues in nodes.items()
        }
        for node, offset in _differing(rows):
            here = rows[node].get(offset)
            text = f"queue {queue} differs from offset {offset} on, where it has {here}"
            yield Finding(LogFault.DIVERGENCE, node, text)


def _differing(rows: Mapping[str, Mapping[int, Stored]]) -> Iterator[tuple[str, int]]:
    """Yield each node that differs, with the first offset at which it does."""
    differ: set[str] = set()
    for offset in sorted({offset for row in rows.values() for offset in row}):
        here = {node: row.get(offset) for node, row in rows.items()}
        usual, count = Counter(here.values()).most_common(1)[0]
        if count == len(here):
            continue
        for node, message in here.items():
            if message != usual and node not in differ:
                differ.add(node)
                yield node, offset
