"""Commands on their way into the log: a bounded queue before it, and waiters after it.

Owned by the driver. Concurrent commands are combined into one entry, so that they share a disk sync
and a round trip to the followers (`proposer` decides when).

Each connection has a line of its own, and the lines share the log fairly by bytes: a small command
waits for at most one command of each other line, however much another client has queued. Source:
Goyal, Vin, Cheng, "Start-time Fair Queuing", 1996. The commands of one producer are never split
over two lines; otherwise a batch resent on a new connection could overtake one queued on the old.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Final, Protocol, TypeAlias

from dledger.errors import DledgerError, LeadershipLost, Overloaded

MAX_ENTRY_BYTES: Final = 1 << 20
"""A single larger command still makes an entry of its own."""
MAX_QUEUED_COMMANDS: Final = 1 << 16


class OpenCommand(Protocol):
    """A command that can take more requests while it waits; see `rocketmq.command_batcher`."""

    @property
    def kind(self) -> int:
        """The type byte of the command's frame."""

    def __len__(self) -> int:
        """Its approximate size in bytes."""

    def close(self) -> bytes:
        """Return the framed command, which becomes part of an entry and takes no more requests."""


Command: TypeAlias = bytes | OpenCommand
_UNBOUNDED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Proposal:
    """A framed command, the future of its result, and when it was proposed (monotonic seconds).

    Attributes:
        line: The line it waits in; empty: the node's own, for small commands.
        producer: The producer, whose commands keep their order across lines; empty: none.
        grows: Whether it stores users' data, and so may have to wait for room.
    """

    command: Command
    result: asyncio.Future[object]
    proposed_s: float = 0.0
    line: str = ""
    producer: str = ""
    grows: bool = False


class _Line:
    """Commands that are served in order. What stores users' data stands in lines of its own."""

    __slots__ = ("key", "queue")

    def __init__(self, key: tuple[str, bool]) -> None:
        self.key = key
        self.queue: deque[Proposal] = deque()


_Turn: TypeAlias = tuple[int, int, _Line]


class ProposalQueue:
    """Commands waiting to become part of an entry; bounded in bytes and in number.

    Each line has a virtual time, in bytes: it starts at that of the other lines and grows by what
    is taken from the line; the lowest is served next. An emptied line is kept until the others
    have caught up with it, so that it gains nothing by emptying.

    Commands that store users' data may have to wait for room on the disks (`room_keeper`). The
    others pass them meanwhile, and a quarter more of them is taken than of those that wait.

    Attributes:
        count: The number of queued commands.
        growing_count: Those of them that store users' data.
        held_bytes: The size of the command that found no room at the last `take_batch`; 0: none.
    """

    def __init__(
        self,
        max_bytes: int,
        max_commands: int = MAX_QUEUED_COMMANDS,
        max_entry_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._max_bytes, self._max_entry_bytes = max_bytes, max_entry_bytes
        self._max_commands = max_commands
        self._lines: dict[tuple[str, bool], _Line] = {}
        # Two heaps, the second of what grows the log; the second field breaks ties, by age.
        self._turns: tuple[list[_Turn], list[_Turn]] = ([], [])
        self._numbers = itertools.count()
        self._turn = self.count = self.growing_count = self.held_bytes = 0
        self._producers: dict[tuple[str, bool], tuple[_Line, int]] = {}
        self._open: dict[OpenCommand, None] = {}
        self._fixed_bytes = 0

    def __len__(self) -> int:
        return self.count

    @property
    def size_bytes(self) -> int:
        """Bytes of the queued commands, open ones at their current size."""
        return self._fixed_bytes + sum(map(len, self._open))

    def push(self, proposal: Proposal) -> None:
        """Queue one command.

        Raises:
            Overloaded: The queue is full.
        """
        command = proposal.command
        # What frees consumers still finds a place behind users' data that waits for room.
        most_bytes, most_commands = (
            (self._max_bytes, self._max_commands)
            if proposal.grows
            else (self._max_bytes * 5 // 4, self._max_commands * 5 // 4)
        )
        if self.count >= most_commands:
            raise Overloaded(f"{self.count} commands are queued; back off and retry")
        if self.count and (held := self.size_bytes) + len(command) > most_bytes:
            raise Overloaded(
                f"the proposal queue holds {held} of {most_bytes} bytes; back off and retry"
            )
        self._line_of(proposal).queue.append(proposal)
        self.count += 1
        self.growing_count += proposal.grows
        if isinstance(command, bytes):
            self._fixed_bytes += len(command)
        else:
            self._open[command] = None

    def take_batch(self, room_bytes: int = _UNBOUNDED) -> list[Proposal]:
        """Remove and return the proposals for the next entry, without cancelled ones.

        *room_bytes*: how large an entry with users' data may be; below 0 there is no room for any.
        """
        batch: list[Proposal] = []
        size, most = 0, self._max_entry_bytes
        self.held_bytes = 0
        while self.count and (turns := self._next_turns()) is not None:
            turn, _, line = turns[0]
            taken = len(line.queue[0].command)
            if batch and size + taken > most:
                break
            if line.key[1] and size + taken > room_bytes:
                self.held_bytes = max(size + taken, 1)
                continue
            proposal = self._taken(line)
            if proposal.result.cancelled():
                continue
            batch.append(proposal)
            size += taken
            self._turn = turn
            heapreplace(turns, (turn + taken, next(self._numbers), line))
        if not self.count:
            self._forget_lines()
        return batch

    def _next_turns(self) -> list[_Turn] | None:
        """Return the heap whose first line is served next; None if nothing may be taken."""
        for turns in self._turns:
            while turns and not turns[0][2].queue:
                del self._lines[heappop(turns)[2].key]
        small, growing = self._turns
        if self.held_bytes or not growing:
            return small or None
        return growing if not small or growing[0] < small[0] else small

    def refuse_growing(self, error: DledgerError, *, proposed_before_s: float) -> int:
        """Refuse the lines of users' data whose first command was proposed before; return how many.

        A whole line is refused: else what comes behind in it could be stored before.
        """
        late = [
            line
            for _, _, line in self._turns[1]
            if line.queue and line.queue[0].proposed_s <= proposed_before_s
        ]
        refused = 0
        for line in late:
            while line.queue:
                _fail(self._taken(line), error)
                refused += 1
        if not self.growing_count:
            self.held_bytes = 0
        if not self.count:
            self._forget_lines()
        return refused

    def fail_all(self, error: DledgerError) -> None:
        """Refuse everything that is still queued: none of it reached the log."""
        for line in self._lines.values():
            for proposal in line.queue:
                _fail(proposal, error)
        self._forget_lines()
        self._producers.clear()
        self._open.clear()
        self._fixed_bytes = self.count = self.growing_count = self.held_bytes = 0

    def _line_of(self, proposal: Proposal) -> _Line:
        """Return the line for a command: that of its producer's queued commands, if any."""
        grows = proposal.grows
        producer = (proposal.producer, grows)
        standing = self._producers.get(producer) if proposal.producer else None
        key = (proposal.line, grows)
        line = standing[0] if standing is not None else self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key)
            heappush(self._turns[grows], (self._turn, next(self._numbers), line))
        if proposal.producer:
            self._producers[producer] = (line, 1 if standing is None else standing[1] + 1)
        return line

    def _taken(self, line: _Line) -> Proposal:
        """Remove and return the first proposal of a line."""
        proposal = line.queue.popleft()
        self.count -= 1
        self.growing_count -= proposal.grows
        if isinstance(proposal.command, bytes):
            self._fixed_bytes -= len(proposal.command)
        else:
            del self._open[proposal.command]
        if proposal.producer:
            producer = (proposal.producer, proposal.grows)
            _, count = self._producers.pop(producer)
            if count > 1:
                self._producers[producer] = (line, count - 1)
        return proposal

    def _forget_lines(self) -> None:
        """Reset the virtual times: the queue is empty, so no line is owed anything."""
        self._lines.clear()
        for turns in self._turns:
            turns.clear()
        self._turn = 0


def closed(command: Command) -> bytes:
    """Return the bytes of a command, closing it if it is open."""
    return command if isinstance(command, bytes) else command.close()


class Waiters:
    """The callers that wait for an entry to be applied.

    *on_applied* is called, for each applied command, with the time at which it was proposed.
    """

    def __init__(self, on_applied: Callable[[float], None] = lambda _: None) -> None:
        self._on_applied = on_applied
        self._by_index: dict[int, tuple[int, Sequence[Proposal]]] = {}

    def __len__(self) -> int:
        return len(self._by_index)

    def add(self, term: int, index: int, proposals: Sequence[Proposal]) -> None:
        """Record the proposals that entry (term, index) carries."""
        self._by_index[index] = (term, proposals)

    def applied(self, term: int, index: int, results: Sequence[object]) -> None:
        """Deliver an applied entry's results, one per command."""
        proposed_term, proposals = self._by_index.pop(index, (term, ()))
        if proposed_term != term:
            for proposal in proposals:
                _fail(proposal, _lost(index))
            return
        for proposal, result in zip(proposals, results, strict=bool(proposals)):
            if not proposal.result.done():
                if isinstance(result, DledgerError):
                    proposal.result.set_exception(result)
                else:
                    proposal.result.set_result(result)
            self._on_applied(proposal.proposed_s)

    def fail_all(self) -> None:
        """Fail all waiters with LeadershipLost: leadership ended before the outcome was known."""
        for index, (_, proposals) in self._by_index.items():
            for proposal in proposals:
                _fail(proposal, _lost(index))
        self._by_index.clear()


def _lost(index: int) -> LeadershipLost:
    return LeadershipLost(
        f"leadership ended before entry {index} was known to be committed; "
        "retry with the same idempotency key"
    )


def _fail(proposal: Proposal, error: DledgerError) -> None:
    if not proposal.result.done():
        proposal.result.set_exception(error)
