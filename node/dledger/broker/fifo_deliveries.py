"""One consumer group's deliveries of one queue of a FIFO topic: message groups in their order.

Every offset below `next_offset` is leased, *waiting*, or done. A message group (its code, see
`group_codes`) is *busy* while some of its messages are leased: all of them by one RECEIVE. New
messages of a busy group are passed, and wait. When all its leases are acknowledged, those are next,
the group first whose oldest has the lowest offset. When the last of its leases has ended, what is
not acknowledged comes again, in order, in one RECEIVE: the end of a group is its *last* end.

So a message group never is with two consumers, and each RECEIVE gets, of each group, the oldest
messages that are not done. What a RECEIVE has no room for of a group that comes again is nobody's:
its earlier holder cannot acknowledge it before those in front of it.

A message's attempts count while it is the oldest of its group: whoever gave up at that one never
came to those behind it. So a message that nobody can take becomes a dead letter by itself.

A RECEIVE takes from few groups, since its consumer may work through all of it one by one: then a
slow group holds up the others. Waiting messages are bounded: if there are too many, the queue goes
on with the groups it has until some are acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from heapq import heappop, heappush
from itertools import chain, islice, takewhile
from typing import Final

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.group_codes import GroupCodes
from dledger.broker.group_ends import GroupEnds
from dledger.broker.group_filters import TopicFilters
from dledger.broker.groups_ahead import GroupsAhead
from dledger.broker.held_leases import (
    MAX_LEASES,
    MAX_RUNS_SCANNED,
    MOVE_AGAIN_MS,
    HeldLeases,
)
from dledger.broker.kept_messages import Codes
from dledger.broker.lease_columns import Lease, encoded_leases, read_leases
from dledger.broker.redelivery import WITHOUT_END
from dledger.broker.snapshot_codec import Reader, ascends, column, number

MAX_WAITING: Final = 65_536
"""Passed messages of one queue; then new ones wait, of whatever group, until some are delivered."""
MAX_GROUPS_AT_ONCE: Final = 8
"""Message groups that one RECEIVE takes from."""
_SLICE: Final = 256
_MORE: Final = 256
"""Messages that a look goes on to see for more groups, when it has found one."""
_NOBODY: Final = 0
"""The receive id of a lease that nobody holds; those of RECEIVEs count from 1."""
_SKIPPED: Final = -1
"""In the place of a code: the filter does not name the messages up to this offset."""


def groups_in(limit: int) -> int:
    """Return of how many groups a RECEIVE of so many messages may take some."""
    return min(limit, MAX_GROUPS_AT_ONCE)


class FifoDeliveries(HeldLeases):
    """The deliveries of one (group, topic, queue id) of a FIFO topic.

    Of a leased message: which group it is of, and beside by group which are leased, when they end,
    which wait, and whose turn it is; all that follows from leases, passed offsets and the queue.
    """

    __slots__ = (
        "_ahead",
        "_busy",
        "_code_of",
        "_ends",
        "_idle",
        "_max_waiting",
        "_passed_of",
        "_ready",
        "waiting",
    )

    def __init__(self, first: int = 0, edition: int = 0, *, max_waiting: int = MAX_WAITING) -> None:
        super().__init__(first, edition)
        self._max_waiting = max_waiting
        self.waiting: dict[int, int] = {}
        """The group of each waiting message, by offset, ascending; to be read by others."""
        self._code_of: dict[int, int] = {}
        """The group of each leased message."""
        self._busy: dict[int, list[int]] = {}
        """The leased offsets of each busy group, ascending."""
        self._ends = GroupEnds()
        self._passed_of: dict[int, deque[int]] = {}
        """The waiting offsets of each group, ascending."""
        self._idle: set[int] = set()
        """Groups with waiting messages that are not busy."""
        self._ready: list[tuple[int, int]] = []
        """A heap of these, as (oldest waiting offset, group); some are stale."""
        self._ahead = GroupsAhead()

    def copy(self, edition: int) -> FifoDeliveries:
        """Return a copy that may be changed; this object may then only be `encoded`.

        Derived data, which is not encoded, moves to the copy.
        """
        other = copy(self)
        other.edition = edition
        other.leases, other.waiting = self.leases.copy(), self.waiting.copy()
        return other

    @property
    def committed(self) -> int:
        """The lowest offset that is not done: nothing before it is ever delivered again."""
        lowest = min(self.leases, default=self.next_offset)
        return min(lowest, next(iter(self.waiting), self.next_offset))

    @property
    def passed(self) -> int:
        """How many messages wait for their group."""
        return len(self.waiting)

    @property
    def room(self) -> int:
        """How many more messages may wait."""
        return self._max_waiting - len(self.waiting)

    @property
    def waiting_share(self) -> float:
        """How much of the room for waiting messages is taken, 0 to 1."""
        return len(self.waiting) / self._max_waiting

    def lacks_room(self, end: int) -> bool:
        """Whether an ack may make others deliverable: then somebody who waits is to look."""
        return bool(self.waiting) or len(self.leases) > 1 or self.next_offset < end

    def next_expiry(self) -> float:
        """Return when the first group may come again, in lived time; infinity if none is busy."""
        return self._ends.first()

    # -- what a RECEIVE would deliver --------------------------------------------------------------

    def groups_to(self, codes: Codes, queue: ConsumeQueue, now_ms: int, *, enough: int) -> int:
        """Return of how many groups a RECEIVE with a filter could deliver something at *now_ms*.

        Each is one: a RECEIVE takes of a group what it has room for, and nobody gets the rest. So
        it is worth proposing if these are more than others, whose RECEIVEs are not applied yet,
        will take. Where only busy groups are in sight it is 0, but 1 if what is passed over would
        let the next look see further.

        Args:
            codes: The filter; None for all messages.
            queue: The queue of these deliveries.
            now_ms: The timestamp that the RECEIVE would have.
            enough: Counting stops here: a result that reaches this may be too low.
        """
        found = self._ends.count_due(now_ms, enough)
        if len(self.leases) >= MAX_LEASES:
            return found
        found += len(self._idle)
        if found >= enough:
            return found
        self._ahead.follow(self.next_offset, codes)
        is_some = bool(found or self._ahead.idle)
        at_most = min(_MORE if is_some else MAX_RUNS_SCANNED, MAX_RUNS_SCANNED - self._ahead.seen)
        return found + self._look(queue, codes, enough - found, at_most)

    def _look(self, queue: ConsumeQueue, codes: Codes, enough: int, at_most: int) -> int:
        ahead, room, is_open = self._ahead, self.room, True
        if len(ahead.idle) < enough:
            for offset, code in self._from(queue, ahead.stop, codes, at_most):
                if code == _SKIPPED:
                    ahead.skips = True
                elif code not in self._busy and code not in self._passed_of:
                    ahead.idle.add(code)
                elif ahead.passed < room:
                    ahead.passed += 1
                    ahead.busy.add(code)
                else:
                    is_open = False
                    break
                ahead.stop = offset + 1
                ahead.seen += 1
                if len(ahead.idle) >= enough:
                    break
        is_far = is_open and ahead.seen >= MAX_RUNS_SCANNED
        return len(ahead.idle) or int(ahead.skips or is_far)

    @staticmethod
    def _from(
        queue: ConsumeQueue, start: int, codes: Codes, at_most: int
    ) -> Iterator[tuple[int, int]]:
        """Return (offset, group) of the messages from *start* on, or (last offset, `_SKIPPED`)."""
        if queue.groups is None:
            raise AssertionError("FIFO deliveries of a queue without message groups")
        if codes is None and not queue.has_gaps:
            some, stop = queue.groups.some, min(queue.end, start + at_most)
            return chain.from_iterable(
                enumerate(some(at, min(at + _SLICE, stop)), at) for at in range(start, stop, _SLICE)
            )
        return islice(_matching(queue, queue.groups, start, codes), max(at_most, 0))

    # -- RECEIVE -----------------------------------------------------------------------------------

    def take(
        self,
        queue: ConsumeQueue,
        *,
        limit: int,
        codes: Codes,
        now_ms: int,
        lease_until_ms: int,
        receive_id: int,
        client_id: str,
        filters: TopicFilters | None = None,  # noqa: ARG002, a FIFO topic has one
        max_attempts: int = WITHOUT_END,
        spent: list[int] | None = None,
    ) -> list[int]:
        """Deliver up to *limit* messages of few groups; see `HeldLeases.take`.

        First of those whose leases have ended, then of those that wait, then new ones.
        """
        taken: list[int] = []
        mine: set[int] = set()
        grant = Lease(
            receive_id=receive_id, visible_at_ms=lease_until_ms, attempt=1, client_id=client_id
        )
        while len(taken) < limit and len(mine) < MAX_GROUPS_AT_ONCE:
            code = self._ends.pop_due(now_ms)
            if code is None:
                break
            offsets = self._still_there(code, queue, codes)
            if not offsets:
                continue
            head = self.leases[offsets[0]]
            if max_attempts and head.attempt >= max_attempts and not head.is_suspended:
                self.give_back(offsets[0], head.receive_id, now_ms + MOVE_AGAIN_MS)
                if spent is not None:
                    spent.append(offsets[0])
                    if len(spent) >= limit:
                        break
                continue
            some = offsets[: limit - len(taken)]
            self._put_back(offsets[len(some) :])
            self._lease_again(code, some, grant)
            mine.add(code)
            taken += some
        while self._has_room(taken, limit) and len(mine) < MAX_GROUPS_AT_ONCE:
            code = self._pop_ready()
            if code is None:
                break
            room = min(limit - len(taken), MAX_LEASES - len(self.leases))
            some = self._pop_waiting(code, room, queue, codes)
            if some:
                self._lease(code, some, grant)
                mine.add(code)
                taken += some
        return taken + self._take_new(queue, codes, limit - len(taken), mine, grant)

    def _has_room(self, taken: Sequence[int], limit: int) -> bool:
        return len(taken) < limit and len(self.leases) < MAX_LEASES

    def _still_there(self, code: int, queue: ConsumeQueue, codes: Codes) -> list[int]:
        """Return what is left of the leased messages of a group; it is not busy if none is."""
        offsets = self._busy[code]
        if codes is not None or queue.has_gaps:
            for offset in tuple(offsets):
                if not _is_for(offset, queue, codes):
                    self._end(offset)
        return offsets

    def _put_back(self, offsets: Sequence[int]) -> None:
        """Take leases from their holder: a late ack must not overtake what is delivered again."""
        for offset in offsets:
            lease = self.leases[offset]
            self._let_go(offset, lease)
            self.leases[offset] = lease._replace(
                receive_id=_NOBODY, client_id="", arrived=lease.is_suspended
            )

    def _pop_ready(self) -> int | None:
        """Return the group that is not busy and whose oldest waiting message comes first."""
        while self._ready:
            first, code = heappop(self._ready)
            if code in self._idle and self._passed_of[code][0] == first:
                self._idle.remove(code)
                return code
        return None

    def _pop_waiting(self, code: int, room: int, queue: ConsumeQueue, codes: Codes) -> list[int]:
        """Remove and return the oldest waiting messages of a group that a filter names."""
        passed, some = self._passed_of[code], list[int]()
        is_plain = codes is None and not queue.has_gaps
        while passed and len(some) < room:
            offset = passed.popleft()
            del self.waiting[offset]
            if is_plain or _is_for(offset, queue, codes):
                some.append(offset)
        if not passed:
            del self._passed_of[code]
            if not some:
                self._ahead.note_idle(code)
        return some

    def _take_new(
        self, queue: ConsumeQueue, codes: Codes, limit: int, mine: set[int], grant: Lease
    ) -> list[int]:
        """Deliver new messages, of groups in *mine* and of others up to the limit of groups."""
        room, taken = min(limit, MAX_LEASES - len(self.leases)), list[int]()
        if room <= 0:
            return taken
        busy, waiting, new = self._busy, self._passed_of, dict[int, list[int]]()
        for offset, code in self._from(queue, self.next_offset, codes, MAX_RUNS_SCANNED):
            if code != _SKIPPED:
                if code in waiting or (code in busy and code not in mine):
                    if len(self.waiting) >= self._max_waiting:
                        break
                    waiting.setdefault(code, deque()).append(offset)
                    self.waiting[offset] = code
                else:
                    if len(taken) == room:
                        break
                    if code not in mine:
                        if len(mine) == MAX_GROUPS_AT_ONCE:
                            break
                        mine.add(code)
                    new.setdefault(code, []).append(offset)
                    taken.append(offset)
            self.next_offset = offset + 1
        for code, offsets in new.items():
            self._lease(code, offsets, grant)
        return taken

    def _lease(self, code: int, offsets: Sequence[int], grant: Lease) -> None:
        """Lease messages of a group, which were not, to a RECEIVE."""
        self._busy.setdefault(code, []).extend(offsets)
        for offset in offsets:
            self.leases[offset], self._code_of[offset] = grant, code
        self._let_have(code, offsets, grant)

    def _lease_again(self, code: int, offsets: Sequence[int], grant: Lease) -> None:
        """Lease messages of a group, of which one is its oldest, to another RECEIVE."""
        for offset in offsets:
            earlier = self.leases[offset]
            counts = offset == self._busy[code][0] and not earlier.is_suspended
            self._let_go(offset, earlier)
            self.leases[offset] = grant._replace(attempt=earlier.attempt + counts)
        self._let_have(code, offsets, grant)

    def _let_have(self, code: int, offsets: Sequence[int], grant: Lease) -> None:
        if grant.client_id:
            for offset in offsets:
                self._hold(offset, grant.client_id)
        self._ends.set(code, grant.visible_at_ms)

    # -- what becomes of a lease -------------------------------------------------------------------

    def ack(self, offset: int, receive_id: int) -> bool:
        """Mark a message as consumed; return False if the handle is stale or was never issued.

        Acking twice succeeds, because a client whose response was lost acks again.
        """
        lease = self.leases.get(offset)
        if lease is None:
            return 0 <= offset < self.next_offset and offset not in self.waiting
        if lease.receive_id != receive_id:
            return False
        self._end(offset)
        return True

    def _end(self, offset: int) -> None:
        """Remove the lease of a message that is done; its group is not busy if it was the last."""
        lease = self.leases.pop(offset)
        if lease.client_id:
            self._let_go(offset, lease)
        code = self._code_of.pop(offset)
        held = self._busy[code]
        held.remove(offset)
        if held:
            if self.leases[held[-1]].visible_at_ms < lease.visible_at_ms:  # it may be the last end
                self._note_end(code)
            return
        del self._busy[code]
        self._ends.remove(code)
        if code in self._passed_of:
            self._make_ready(code)
        else:
            self._ahead.note_idle(code)

    def _make_ready(self, code: int) -> None:
        self._idle.add(code)
        heappush(self._ready, (self._passed_of[code][0], code))

    def _note_end(self, code: int) -> None:
        """Let a group come again when the last of its leases has ended."""
        leases = self.leases
        self._ends.set(code, max([leases[offset].visible_at_ms for offset in self._busy[code]]))

    def extend(self, offset: int, receive_id: int, visible_at_ms: int) -> bool:
        """Change the end of a lease; return False if the handle is stale."""
        lease = self.leases.get(offset)
        if lease is None or lease.receive_id != receive_id:
            return False
        self.leases[offset] = lease._replace(visible_at_ms=visible_at_ms)
        self._note_end(self._code_of[offset])
        return True

    def drop_before(self, first: int) -> int:
        """Forget offsets below *first*, which the queue has dropped; return how many it knew."""
        self.next_offset = max(self.next_offset, first)
        gone = [*takewhile(lambda offset: offset < first, self.waiting)]
        for offset in gone:
            code = self.waiting.pop(offset)
            passed = self._passed_of[code]
            passed.popleft()
            if not passed:
                del self._passed_of[code]
                self._idle.discard(code)
                if code not in self._busy:
                    self._ahead.note_idle(code)
            elif code in self._idle:
                heappush(self._ready, (passed[0], code))
        dropped = [offset for offset in self.leases if offset < first]
        for offset in dropped:
            self._end(offset)
        return len(gone) + len(dropped)

    # -- as bytes and values -----------------------------------------------------------------------

    def encoded(self) -> Iterator[bytes]:
        """Yield the bytes for a snapshot: the leases, and what waits."""
        yield number(self.next_offset)
        yield from encoded_leases(self.leases)
        yield from column("Q", len(self.waiting), self.waiting)

    @classmethod
    def read(
        cls, source: Reader, queue: ConsumeQueue, *, max_waiting: int = MAX_WAITING
    ) -> FifoDeliveries:
        """Read the deliveries of *queue* from a snapshot. Raises MalformedStateError."""
        groups = queue.groups
        if groups is None:
            raise AssertionError("FIFO deliveries of a queue without message groups")
        found = cls(source.number(queue.first, queue.end), max_waiting=max_waiting)
        for offset, lease in read_leases(source, queue.first, found.next_offset):
            code = groups.at(offset)
            found.leases[offset], found._code_of[offset] = lease, code
            found._busy.setdefault(code, []).append(offset)
            if lease.client_id:
                found._hold(offset, lease.client_id)
        for code in found._busy:
            found._note_end(code)
        passed = source.column("Q")
        is_waiting = ascends(passed, found.next_offset) and len(passed) <= max_waiting
        if not is_waiting or any(o < queue.first for o in passed[:1]):
            raise source.malformed(
                f"{len(passed)} messages wait, too many or outside "
                f"[{queue.first}, {found.next_offset})"
            )
        for offset in passed:
            if offset in found.leases:
                raise source.malformed(f"the message at offset {offset} waits, and has a lease")
            code = groups.at(offset)
            found.waiting[offset] = code
            found._passed_of.setdefault(code, deque()).append(offset)
        for code in found._passed_of.keys() - found._busy.keys():
            found._make_ready(code)
        return found

    def canonical(self) -> list[object]:
        """Return everything as plain values, in one order on every node."""
        return [self.next_offset, self._canonical_leases(), sorted(self.waiting)]


def _is_for(offset: int, queue: ConsumeQueue, codes: Codes) -> bool:
    """Whether a message is still there, and a filter names it."""
    return queue.has(offset) and (codes is None or queue.code(offset) in codes)


def _matching(
    queue: ConsumeQueue, groups: GroupCodes, start: int, codes: Codes
) -> Iterator[tuple[int, int]]:
    """Yield (offset, group) of what a filter names, and (last offset, `_SKIPPED`) of the rest."""
    for run in queue.runs(max(start, queue.first)):
        if codes is not None and run.code not in codes:
            yield run.end - 1, _SKIPPED
        else:
            yield from enumerate(groups.some(run.first, run.end), run.first)
