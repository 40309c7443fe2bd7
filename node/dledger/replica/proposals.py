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


@dataclass(frozen=True, slots=True)
class Proposal:
    """A framed command, the future of its result, and when it was proposed (monotonic seconds).

    Attributes:
        line: The line it waits in; empty: the node's own, for small commands.
        producer: The producer, whose commands keep their order across lines; empty: none.
    """

    command: Command
    result: asyncio.Future[object]
    proposed_s: float = 0.0
    line: str = ""
    producer: str = ""


class _Line:
    """Commands that are served in order."""

    __slots__ = ("name", "queue")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Proposal] = deque()


class ProposalQueue:
    """Commands waiting to become part of an entry; bounded in bytes and in number.

    Each line has a virtual time, in bytes: it starts at that of the other lines and grows by what
    is taken from the line; the lowest is served next. An emptied line is kept until the others
    have caught up with it, so that it gains nothing by emptying.

    Attributes:
        count: The number of queued commands.
    """

    def __init__(
        self,
        max_bytes: int,
        max_commands: int = MAX_QUEUED_COMMANDS,
        max_entry_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._max_bytes, self._max_entry_bytes = max_bytes, max_entry_bytes
        self._max_commands = max_commands
        self._lines: dict[str, _Line] = {}
        self._turns: list[tuple[int, int, _Line]] = []  # a heap; the second breaks ties, by age
        self._numbers = itertools.count()
        self._turn = self.count = 0
        self._producers: dict[str, tuple[_Line, int]] = {}
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
        if self.count >= self._max_commands:
            raise Overloaded(f"{self.count} commands are queued; back off and retry")
        if self.count and (held := self.size_bytes) + len(command) > self._max_bytes:
            raise Overloaded(
                f"the proposal queue holds {held} of {self._max_bytes} bytes; back off and retry"
            )
        self._line_of(proposal).queue.append(proposal)
        self.count += 1
        if isinstance(command, bytes):
            self._fixed_bytes += len(command)
        else:
            self._open[command] = None

    def take_batch(self) -> list[Proposal]:
        """Remove and return the proposals for the next entry, without cancelled ones."""
        batch: list[Proposal] = []
        size, most = 0, self._max_entry_bytes
        while self.count:
            turn, _, line = self._turns[0]
            if not line.queue:
                heappop(self._turns)
                del self._lines[line.name]
                continue
            taken = len(line.queue[0].command)
            if batch and size + taken > most:
                break
            proposal = self._taken(line)
            if proposal.result.cancelled():
                continue
            batch.append(proposal)
            size += taken
            self._turn = turn
            heapreplace(self._turns, (turn + taken, next(self._numbers), line))
        if not self.count:
            self._forget_lines()
        return batch

    def fail_all(self, error: DledgerError) -> None:
        """Refuse everything that is still queued: none of it reached the log."""
        for line in self._lines.values():
            for proposal in line.queue:
                _fail(proposal, error)
        self._forget_lines()
        self._producers.clear()
        self._open.clear()
        self._fixed_bytes = self.count = 0

    def _line_of(self, proposal: Proposal) -> _Line:
        """Return the line for a command: that of its producer's queued commands, if any."""
        producer = proposal.producer
        standing = self._producers.get(producer) if producer else None
        line = standing[0] if standing is not None else self._lines.get(proposal.line)
        if line is None:
            line = self._lines[proposal.line] = _Line(proposal.line)
            heappush(self._turns, (self._turn, next(self._numbers), line))
        if producer:
            self._producers[producer] = (line, 1 if standing is None else standing[1] + 1)
        return line

    def _taken(self, line: _Line) -> Proposal:
        """Remove and return the first proposal of a line."""
        proposal = line.queue.popleft()
        self.count -= 1
        if isinstance(proposal.command, bytes):
            self._fixed_bytes -= len(proposal.command)
        else:
            del self._open[proposal.command]
        if proposal.producer:
            _, count = self._producers.pop(proposal.producer)
            if count > 1:
                self._producers[proposal.producer] = (line, count - 1)
        return proposal

    def _forget_lines(self) -> None:
        """Reset the virtual times: the queue is empty, so no line is owed anything."""
        self._lines.clear()
        self._turns.clear()
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
