"""Commands on their way into the log: a bounded queue before, waiters after.

Owned by the driver. Concurrent commands are joined into one entry, so that a disk sync and a
round to the followers are shared by all of them (`proposing` says when it is their turn).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from dledger.errors import DledgerError, LeadershipLost, Overloaded

MAX_ENTRY_BYTES: Final = 1 << 20
"""A single larger command still makes an entry of its own."""
MAX_QUEUED_COMMANDS: Final = 1 << 16


class OpenCommand(Protocol):
    """A command that takes more requests in for as long as it waits; see `rpc.gateway.shared`."""

    @property
    def kind(self) -> int:
        """The type byte of its frame."""

    def __len__(self) -> int:
        """About how many bytes it would have now."""

    def close(self) -> bytes:
        """Return the framed command: it becomes part of an entry and takes nothing in any more."""


Command: TypeAlias = bytes | OpenCommand


@dataclass(frozen=True, slots=True)
class Proposal:
    """A framed command, the future of its result, and when it was proposed (monotonic seconds)."""

    command: Command
    result: asyncio.Future[object]
    proposed_s: float = 0.0


class ProposalQueue:
    """Commands that wait to become part of an entry; bounded in bytes and in number."""

    def __init__(
        self,
        max_bytes: int,
        max_commands: int = MAX_QUEUED_COMMANDS,
        max_entry_bytes: int = MAX_ENTRY_BYTES,
    ) -> None:
        self._max_bytes, self._max_entry_bytes = max_bytes, max_entry_bytes
        self._max_commands = max_commands
        self._queue: deque[Proposal] = deque()
        self._open: deque[OpenCommand] = deque()
        self._fixed_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def size_bytes(self) -> int:
        """Bytes of the queued commands, with what open ones have taken in."""
        return self._fixed_bytes + sum(map(len, self._open))

    def push(self, proposal: Proposal) -> None:
        """Queue one command.

        Raises:
            Overloaded: The queue is full.
        """
        command, held = proposal.command, self.size_bytes
        if len(self._queue) >= self._max_commands:
            raise Overloaded(f"{len(self._queue)} commands are queued; back off and retry")
        if self._queue and held + len(command) > self._max_bytes:
            raise Overloaded(
                f"the proposal queue holds {held} of {self._max_bytes} bytes; back off and retry"
            )
        self._queue.append(proposal)
        if isinstance(command, bytes):
            self._fixed_bytes += len(command)
        else:
            self._open.append(command)

    def take_batch(self) -> list[Proposal]:
        """Remove and return the proposals of the next entry; those nobody awaits are dropped."""
        batch: list[Proposal] = []
        size, most = 0, self._max_entry_bytes
        while self._queue and (not batch or size + len(self._queue[0].command) <= most):
            proposal = self._queue.popleft()
            if isinstance(proposal.command, bytes):
                self._fixed_bytes -= len(proposal.command)
            else:
                self._open.popleft()
            if not proposal.result.cancelled():
                batch.append(proposal)
                size += len(proposal.command)
        return batch

    def fail_all(self, error: DledgerError) -> None:
        """Refuse everything that is still queued: none of it reached the log."""
        while self._queue:
            _fail(self._queue.popleft(), error)
        self._open.clear()
        self._fixed_bytes = 0


def closed(command: Command) -> bytes:
    """Return the bytes of a command whose turn it is."""
    return command if isinstance(command, bytes) else command.close()


class Waiters:
    """Who waits for which entry to be applied.

    *on_applied* is told when each applied command had been proposed.
    """

    def __init__(self, on_applied: Callable[[float], None] = lambda _: None) -> None:
        self._on_applied = on_applied
        self._by_index: dict[int, tuple[int, Sequence[Proposal]]] = {}

    def __len__(self) -> int:
        return len(self._by_index)

    def add(self, term: int, index: int, proposals: Sequence[Proposal]) -> None:
        """Remember whose commands entry (term, index) carries."""
        self._by_index[index] = (term, proposals)

    def applied(self, term: int, index: int, results: Sequence[object]) -> None:
        """Hand out an applied entry's results, one a command."""
        proposed_term, proposals = self._by_index.pop(index, (term, ()))
        if proposed_term != term:
            for proposal in proposals:
                _fail(proposal, _lost(index))
            return
        for proposal, result in zip(proposals, results, strict=bool(proposals)):
            _resolve(proposal, result)
            self._on_applied(proposal.proposed_s)

    def fail_all(self) -> None:
        """Tell everyone that leadership ended before the outcome was known."""
        for index, (_, proposals) in self._by_index.items():
            for proposal in proposals:
                _fail(proposal, _lost(index))
        self._by_index.clear()


def _lost(index: int) -> LeadershipLost:
    return LeadershipLost(
        f"leadership ended before entry {index} was known to be committed; "
        "retry with the same idempotency key"
    )


def _resolve(proposal: Proposal, result: object) -> None:
    if proposal.result.done():
        return
    if isinstance(result, DledgerError):
        proposal.result.set_exception(result)
    else:
        proposal.result.set_result(result)


def _fail(proposal: Proposal, error: DledgerError) -> None:
    if not proposal.result.done():
        proposal.result.set_exception(error)
