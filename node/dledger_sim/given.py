"""What one RECEIVE may give of a queue, by a plain model of what a group has done with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from dledger.broker.commands import Receive
from dledger.broker.fifo_deliveries import MAX_GROUPS_AT_ONCE
from dledger.broker.held_leases import MOVE_AGAIN_MS
from dledger.broker.results import Received, Spent
from dledger.broker.topics import TYPES
from dledger_sim.checkers import ViolationError

if TYPE_CHECKING:
    from dledger_sim.consumed import PlainTopic

_NOBODY: Final = 0


class Stored(NamedTuple):
    """A message: its id and message group, and the entry that stored it, and when."""

    id: str
    group: str
    entry: int
    stored_ms: int


@dataclass(slots=True)
class Held:
    """A lease. *before* is its receive id before the last change of its end."""

    receive_id: int
    until_ms: int
    attempt: int
    is_suspended: bool = False
    before: int = -1


@dataclass(slots=True)
class Reading:
    """What a group has done with one queue, from *start* on."""

    start: int = 0
    done: set[int] = field(default_factory=set)
    leases: dict[int, Held] = field(default_factory=dict)

    def is_open(self, offset: int) -> bool:
        """Whether a message is still to be consumed."""
        return offset >= self.start and offset not in self.done

    def is_visible(self, offset: int, lived_ms: int) -> bool:
        """Whether it may be given to somebody, if it is there."""
        held = self.leases.get(offset)
        return self.is_open(offset) and (held is None or held.until_ms <= lived_ms)

    def end(self, offset: int) -> None:
        """Note that a message is consumed."""
        self.done.add(offset)
        self.leases.pop(offset, None)

    def check_spent(self, each: Spent, lived_ms: int, most: int) -> None:
        """Check a message that is not delivered any more; it is told again after a while."""
        held = self.leases.get(each.lease.offset)
        if (
            held is None
            or held.until_ms > lived_ms
            or held.is_suspended
            or not 0 < most <= held.attempt == each.attempts
            or held.receive_id != each.lease.receive_id
        ):
            raise ViolationError(f"{each} is told as spent, and the lease is {held}")
        held.until_ms = lived_ms + MOVE_AGAIN_MS

    def grant(self, offset: int, lease: Held, *, most: int) -> None:
        """Note a delivery. Raises ViolationError: it is one too many."""
        before = self.leases.get(offset)
        if before is not None and before.attempt < lease.attempt and 0 < most < lease.attempt:
            raise ViolationError(f"{offset} is delivered for the {lease.attempt}. time, of {most}")
        self.leases[offset] = lease

    def put_back(self, queue: Sequence[Stored], names: Collection[str], receive_id: int) -> None:
        """Take leases of message groups from earlier holders: others were given what is before."""
        for offset, held in self.leases.items():
            if queue[offset].group in names and held.receive_id != receive_id:
                held.receive_id, held.before = _NOBODY, -1


class Before(NamedTuple):
    """What there was before a RECEIVE: the topic, how far its group was, and which queues it asks.

    And when that was, in lived time.
    """

    plain: PlainTopic
    readings: Mapping[int, Reading]
    queue_ids: Sequence[int]
    lived_ms: int


def check_free(command: Receive, got: Received, before: Before) -> None:
    """Check what is given of a topic whose messages do not wait for each other."""
    plain, readings, queue_ids, lived_ms = before
    visible = {each: _visible(plain, readings[each], each, lived_ms) for each in queue_ids}
    for queue_id in queue_ids:
        reading = readings[queue_id]
        fresh = [each for each in visible[queue_id] if each not in reading.leases]
        for each in (one for one in got.deliveries if one.queue_id == queue_id):
            if each.offset not in visible[queue_id]:
                raise ViolationError(f"{each} is given to {command.group}, and is not to be had")
            held = reading.leases.get(each.offset)
            if held is None and each.offset != fresh.pop(0):
                raise ViolationError(f"{each} is given before what is older")
            if each.attempt != (1 if held is None else held.attempt + (not held.is_suspended)):
                raise ViolationError(f"{each} is delivered, and the lease was {held}")
            visible[queue_id].remove(each.offset)
    given = [each.queue_id for each in got.deliveries]
    if TYPES[plain.topic.type].highest_first and command.any_queue:
        if given != sorted(given, reverse=True):
            raise ViolationError(f"priorities are given as {given}")
        lowest = given[-1] if len(given) == command.limit else -1
    else:
        lowest = -1 if len(given) < command.limit else max(queue_ids)
    left = {each: some for each, some in visible.items() if some and each > lowest}
    if left and not got.spent:
        raise ViolationError(f"{command} gives {given}, and leaves {left} of {plain.topic.name}")


def check_fifo(command: Receive, got: Received, before: Before) -> None:
    """Check what is given of a FIFO topic: of one queue, and of each group its oldest."""
    plain, readings, queue_ids, lived_ms = before
    given = {each.queue_id for each in got.deliveries}
    if len(given) > 1:
        raise ViolationError(f"{command} of a FIFO topic gives messages of the queues {given}")
    for queue_id in given or queue_ids:
        groups = _groups(plain, readings[queue_id], queue_id)
        taken: dict[str, list[int]] = {}
        for each in got.deliveries:
            taken.setdefault(plain.queues[queue_id][each.offset].group, []).append(each.offset)
        for name, offsets in taken.items():
            if offsets != groups.get(name, [])[: len(offsets)]:
                raise ViolationError(f"of group {name} {offsets} are given: {groups.get(name)}")
        idle = {n for n, some in groups.items() if _is_idle(readings[queue_id], some, lived_ms)}
        if busy := taken.keys() - idle:
            raise ViolationError(f"{command} gives messages of {busy}, which others have")
        _check_attempts(got, readings[queue_id], {offsets[0] for offsets in taken.values()})
        has_room = len(got.deliveries) < command.limit and len(taken) < MAX_GROUPS_AT_ONCE
        if has_room and not got.spent and (left := idle - taken.keys()):
            raise ViolationError(f"{command} gives {taken}, and leaves the groups {left}")


def _check_attempts(got: Received, reading: Reading, heads: Collection[int]) -> None:
    for each in got.deliveries:
        held = reading.leases.get(each.offset)
        counts = held is not None and each.offset in heads and not held.is_suspended
        if each.attempt != (1 if held is None else held.attempt + counts):
            raise ViolationError(f"{each} is delivered, and the lease was {held}")


def _visible(plain: PlainTopic, reading: Reading, queue_id: int, lived_ms: int) -> list[int]:
    there = range(plain.firsts[queue_id], len(plain.queues[queue_id]))
    return [offset for offset in there if reading.is_visible(offset, lived_ms)]


def _groups(plain: PlainTopic, reading: Reading, queue_id: int) -> dict[str, list[int]]:
    """Return the messages of each message group that are to be consumed, the oldest first."""
    queue, found = plain.queues[queue_id], dict[str, list[int]]()
    for offset in range(plain.firsts[queue_id], len(queue)):
        if reading.is_open(offset):
            found.setdefault(queue[offset].group, []).append(offset)
    return found


def _is_idle(reading: Reading, offsets: Sequence[int], lived_ms: int) -> bool:
    return all(reading.is_visible(each, lived_ms) for each in offsets)
