"""Writes a node's log and hard state, and sends messages only once what they rest on is durable.

One thread writes and syncs the log, another the hard state, so that a vote never waits behind data.
Entries that arrive during a sync are written with the next one (group commit). Owned by the driver;
everything but the writes themselves runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from dledger.common.metrics import NodeMetrics
from dledger.common.work_thread import Worker, WorkThread
from dledger.errors import DiskFull
from dledger.raft.messages import AppendResponse, Message
from dledger.raft.ready import Ready
from dledger.types import Entry, HardState

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
MAX_HELD: Final = 1024
"""Sets of messages (one per Ready) that may wait for a write. The oldest are dropped beyond that:
Raft tolerates lost messages."""
_SMALL_BYTES: Final = 16 << 10
"""What is sent or applied in less time than two threads need to hand Python's lock to each other. A
writer that was woken before would only wait for it (ADR 38)."""
_M = TypeVar("_M", bound=Message)


class WritableLog(Protocol):
    """What is written here of the log; see `store.commit_log.CommitLog`."""

    @property
    def last_index(self) -> int:
        """The newest index that is written."""

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries that follow each other."""

    def cut_behind(self, last: int) -> None:
        """Let go of what is behind it."""

    def sync(self) -> None:
        """Return once all of it is on the disk."""


class KeptState(Protocol):
    """Where term and vote are kept; see `store.hard_state.HardStateFile`."""

    def save(self, state: HardState) -> None:
        """Return once they are on the disk."""


class PersisterEvents(Protocol):
    """What the persister reports to the driver, on the event loop."""

    def hard_state_durable(self, hard_state: HardState) -> None:
        """Called when a hard state is on disk."""

    def entries_durable(self, term: int, index: int) -> None:
        """Called when all entries written up to this one are on disk."""

    def cut_durable(self) -> None:
        """Called when the log on disk is truncated as far as the core's."""

    def disk_full(self, error: DiskFull) -> None:
        """Called when entries wait for free space; the write is retried automatically."""

    def disk_failed(self, error: BaseException) -> None:
        """Called when a write failed; the node must stop, since what the disk holds is unknown."""


class _Batch(NamedTuple):
    """What one Ready asks of the log: the index to truncate after, if any, and what to append."""

    sequence: int
    cut_behind: int | None
    entries: tuple[Entry, ...]


class Persister:
    """Makes each Ready durable, then sends its messages: persist before you send."""

    def __init__(
        self,
        *,
        log: WritableLog,
        hard_state_file: KeptState,
        send: Callable[[Message], None],
        events: PersisterEvents,
        now_s: Callable[[], float],
        metrics: NodeMetrics,
        thread: Callable[[str], Worker] = WorkThread,
    ) -> None:
        self._log = log
        self._hard_state_file = hard_state_file
        self._send = send
        self._events = events
        self._now_s = now_s
        self._metrics = metrics
        self._log_writer = thread("log-writer")
        self._hard_state_writer = thread("hard-state-writer")
        self._open = True
        self._sequence = 0
        self._hard_states: deque[tuple[int, HardState]] = deque(maxlen=1)  # the newest covers all
        self._hard_state_busy = False
        self._hard_state_durable = 0
        self._batches: list[_Batch] = []
        self._log_durable = self._newest_cut = 0
        self._next_index: int | None = None
        self._newest_jump = 0
        self._votes: deque[tuple[int, tuple[Message, ...]]] = deque(maxlen=MAX_HELD)
        self._acks: deque[tuple[int, tuple[AppendResponse, ...]]] = deque(maxlen=MAX_HELD)
        self._drained: asyncio.Future[None] | None = None
        self.retrying = False
        self.busy_since_s: float | None = None

    @property
    def idle(self) -> bool:
        """Whether no log write is running or waiting."""
        return self.busy_since_s is None and not self._batches

    async def drained(self) -> bool:
        """Return True once no write is running or waiting; False if stopped before that."""
        while self._open:
            if self.idle and not self._hard_state_busy and not self._hard_states:
                return True
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        return False

    def submit(self, ready: Ready) -> None:
        """Take one Ready; its messages leave in the order and at the time it requires."""
        self._sequence += 1
        if ready.hard_state is not None:
            self._hard_states.append((self._sequence, ready.hard_state))
            self._write_hard_state()
        if ready.cut_behind is not None:
            self._withdraw_acks(ready.cut_behind + 1)
            self._newest_cut = self._newest_jump = self._sequence
            self._next_index = ready.cut_behind + 1
        if ready.entries:
            self._withdraw_acks(ready.entries[0].index)
            self._note_jump(ready.entries)
        if ready.entries or ready.cut_behind is not None:
            self._batches.append(_Batch(self._sequence, ready.cut_behind, ready.entries))
            if not is_small(ready.entries):
                self._write_log()
        for message in ready.messages:
            self._send(message)
        if self._batches:
            self._write_log()
        if ready.after_hard_state or ready.after_entries:
            self._hold(ready)
            self._release()

    def _note_jump(self, entries: Sequence[Entry]) -> None:
        """Take note of entries that take the place of others."""
        if self._next_index is None:
            self._next_index = self._log.last_index + 1
        if entries[0].index != self._next_index:
            self._newest_jump = self._sequence
        self._next_index = entries[-1].index + 1

    def stop(self) -> None:
        """Start no more writes and send nothing more; running writes finish."""
        self._open = False
        self._tell_drained()

    async def close(self) -> None:
        """Stop, and wait for the running writes."""
        self.stop()
        for thread in (self._log_writer, self._hard_state_writer):
            await thread.close()

    # -- hard state -----------------------------------------------------------------------------

    def _write_hard_state(self) -> None:
        if self._hard_state_busy or not self._hard_states or not self._open:
            return
        sequence, hard_state = self._hard_states.pop()
        self._hard_state_busy = True
        self._hard_state_writer.run(
            partial(self._hard_state_file.save, hard_state),
            lambda error: self._hard_state_done(error, sequence, hard_state),
        )

    def _hard_state_done(
        self, error: BaseException | None, sequence: int, hard_state: HardState
    ) -> None:
        self._hard_state_busy = False
        if isinstance(error, DiskFull):
            logger.error("disk full while writing the hard state: %s", error)
            if not self._hard_states:
                self._hard_states.append((sequence, hard_state))
            asyncio.get_running_loop().call_later(_RETRY_S, self._write_hard_state)
        elif error is not None:
            self._fail(error)
        else:
            self._hard_state_durable = sequence
            self._events.hard_state_durable(hard_state)
            self._write_hard_state()
            self._write_log()
            self._release()
            self._tell_drained()

    # -- log ------------------------------------------------------------------------------------

    def _write_log(self) -> None:
        if self.busy_since_s is not None or not self._batches or not self._open:
            return
        if self._newest_jump > self._votes_up_to():
            return  # what goes was promised in an earlier term: the disk must show that it ended
        batches, self._batches = self._batches, []
        self.busy_since_s = self._now_s()
        self._log_writer.run(
            partial(_write_and_sync, self._log, batches),
            partial(self._log_done, batches),
        )

    def _log_done(self, batches: list[_Batch], error: BaseException | None) -> None:
        if isinstance(error, DiskFull):
            self._keep_for_retry(error, batches)
            return
        if error is not None:
            self._fail(error)
            return
        started_s, self.busy_since_s = self.busy_since_s, None
        self._metrics.sync_seconds.observe(self._now_s() - (started_s or 0.0))
        self._log_durable = batches[-1].sequence
        size_bytes = 0
        for one in batches:  # one at a time: the same entry may be in two of them
            if one.cut_behind is not None:
                self._events.cut_durable()
            for entry in one.entries:
                size_bytes += len(entry.data)
            if one.entries:
                self._events.entries_durable(one.entries[-1].term, one.entries[-1].index)
        self._metrics.sync_bytes.inc(size_bytes)
        if self._batches:
            self._write_log()
        self._release()
        if self._drained is not None:
            self._tell_drained()

    def _tell_drained(self) -> None:
        done, self._drained = self._drained, None
        if done is not None and not done.done():
            done.set_result(None)

    def _keep_for_retry(self, error: DiskFull, batches: list[_Batch]) -> None:
        """Count none of the batches as written; retry all of them until there is room."""
        self._batches[:0] = batches
        self.retrying = True
        self._events.disk_full(error)
        asyncio.get_running_loop().call_later(_RETRY_S, self._retry)

    def _retry(self) -> None:
        self.retrying = False
        self.busy_since_s = None
        self._write_log()

    # -- sending --------------------------------------------------------------------------------

    def _hold(self, ready: Ready) -> None:
        if ready.after_hard_state:
            self._votes.append((self._sequence, ready.after_hard_state))
        if ready.after_entries:
            self._acks.append((self._sequence, ready.after_entries))

    def _release(self) -> None:
        """Send the messages whose writes are durable by now.

        A vote depends on the hard state alone. But a vote given after a truncation was given for
        the truncated log, so it waits until the removed entries cannot come back.
        """
        if not self._votes and not self._acks:
            return  # as on a leader, nearly always
        votes_up_to = self._votes_up_to()
        log_up_to = self._sequence if self.idle else self._log_durable
        acks_up_to = min(votes_up_to, log_up_to)
        is_cut = log_up_to >= self._newest_cut
        if self._votes:
            self._send_held(self._votes, votes_up_to if is_cut else acks_up_to)
        if self._acks:
            self._send_held(self._acks, acks_up_to)

    def _votes_up_to(self) -> int:
        """Return the newest Ready whose hard state, and those before it, are durable."""
        voting = self._hard_state_busy or self._hard_states
        return self._hard_state_durable if voting else self._sequence

    def _withdraw_acks(self, first: int) -> None:
        """Drop acks for entries at *first* and above, which are being replaced or removed.

        They may be written in the same sync as their replacements, and so never be on disk.
        """
        if self._acks and any(a.match_index >= first for _, acks in self._acks for a in acks):
            kept = ((n, [a for a in acks if a.match_index < first]) for n, acks in self._acks)
            self._acks = deque(((n, tuple(acks)) for n, acks in kept if acks), MAX_HELD)

    def _send_held(self, held: deque[tuple[int, tuple[_M, ...]]], up_to: int) -> None:
        while held and held[0][0] <= up_to and self._open:
            for message in held.popleft()[1]:
                self._send(message)

    def _fail(self, error: BaseException) -> None:
        if self._open:
            self.stop()
            self._events.disk_failed(error)


def is_small(entries: Sequence[Entry]) -> bool:
    """Whether to send or to apply *entries* takes no longer than to change threads."""
    size_bytes = 0
    for entry in entries:
        size_bytes += len(entry.data)
    return size_bytes <= _SMALL_BYTES


def _write_and_sync(log: WritableLog, batches: Sequence[_Batch]) -> None:
    """Write consecutive batches at once, truncations and overlaps one by one; then sync once."""
    run: list[Entry] = []
    for _, cut_behind, entries in batches:
        if run and (cut_behind is not None or entries[0].index != run[-1].index + 1):
            log.append(run)
            run = []
        if cut_behind is not None:
            log.cut_behind(cut_behind)
        run.extend(entries)
    if run:
        log.append(run)
    log.sync()
