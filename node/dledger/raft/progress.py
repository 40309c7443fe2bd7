"""One follower as its leader sees it: what it has, what to send next, what is in flight.

Bookkeeping only: `leading` decides what to send and builds the messages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from dledger.types import SnapshotInfo


class ProgressState(Enum):
    """How entries are sent to a follower."""

    PROBE = "probe"
    """One message at a time: where the logs agree is not known, or messages may be lost."""

    REPLICATE = "replicate"
    """Pipelined: each message is sent without waiting for the answer to the one before."""

    SNAPSHOT = "snapshot"
    """It lacks or has lost entries that we do not have: it gets a snapshot, piece by piece."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a leader knows of one follower; changed only by the methods.

    Attributes:
        match_index: The highest index known to be durable at the follower and equal to ours.
        owed_index: What it acknowledges counts from here on only: it had that before it started
            anew, perhaps with an older copy of its disk (`witness`).
        next_index: The first index not yet sent; always above match_index.
        state: One at a time, or pipelined.
        inflight: (last index, bytes) of each unanswered message with entries, oldest first.
        inflight_bytes: The sum of their bytes.
        paused: In PROBE, the probe has been sent and its answer is awaited.
        probe_due: Ask with an empty append where we stand: an answer may have been lost.
        snapshot: In SNAPSHOT, the one that is being sent; None while there is none to send.
        snapshot_offset: How much of it the follower has, in bytes.
        snapshot_refused: The follower takes none; it is asked again with each heartbeat.
        snapshot_asked: The follower asked for it, having lost an entry in the midst of its log.
        fetching: The next entries are being read from disk by the driver.
        acked_round: The newest round of heartbeats that the follower answered.
        last_heard_tick: The leader's tick when the follower last answered anything.
    """

    next_index: int
    last_heard_tick: int = 0
    match_index: int = 0
    owed_index: int = 0
    acked_round: int = 0
    state: ProgressState = ProgressState.PROBE
    inflight: deque[tuple[int, int]] = field(default_factory=deque)
    inflight_bytes: int = 0
    paused: bool = False
    probe_due: bool = False
    fetching: bool = False
    snapshot: SnapshotInfo | None = None
    snapshot_offset: int = 0
    snapshot_refused: bool = False
    snapshot_asked: bool = False
    _match_at_heartbeat: int = -1
    _offset_at_heartbeat: int = -1

    def can_send(self, *, max_messages: int, max_bytes: int) -> bool:
        """Whether another message with entries may leave now.

        The bytes bound is checked before a message is built, so it may be exceeded by one.
        """
        if self.fetching:
            return False
        if self.state is not ProgressState.REPLICATE:
            return not self.paused
        return len(self.inflight) < max_messages and self.inflight_bytes < max_bytes

    def sent(self, *, last_index: int, size_bytes: int) -> None:
        """Record a message that carried the entries [next_index, last_index]."""
        self.probe_due = False
        if self.state is ProgressState.PROBE:
            self.paused = True
            return
        self.next_index = last_index + 1
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes

    def acked(self, match_index: int) -> bool:
        """Take a success; returns whether it taught us anything.

        A probe's success at (or beyond) the place we asked about starts the pipeline.
        """
        advanced = match_index > self.match_index
        self.match_index = max(self.match_index, match_index)
        if self.state is ProgressState.PROBE:
            return self._probe_acked(match_index) or advanced
        if self.state is ProgressState.SNAPSHOT:
            if self._ends_snapshot(match_index, advanced=advanced):
                self.probe_from(self.match_index + 1)
        else:
            while self.inflight and self.inflight[0][0] <= self.match_index:
                self.inflight_bytes -= self.inflight.popleft()[1]
        self.next_index = max(self.next_index, self.match_index + 1)
        return advanced

    def rejected(self, previous_index: int, resume_index: int) -> bool:
        """Take a rejection of an append at *previous_index*; returns False if it is stale.

        Args:
            previous_index: The rejected request's previous_index.
            resume_index: The highest index at which the logs may agree.
        """
        if self._is_stale_rejection(previous_index):
            return False
        if previous_index <= self.match_index:  # it has less than it acknowledged, or said so late
            self.match_index = 0
        self.probe_from(min(previous_index, resume_index + 1))
        return True

    def probe_from(self, next_index: int) -> None:
        """Go back to one message at a time, from *next_index* but never below match + 1."""
        self.state, self.snapshot, self.snapshot_asked = ProgressState.PROBE, None, False
        self.next_index = max(next_index, self.match_index + 1)
        self.inflight.clear()
        self.inflight_bytes = 0
        self.paused = self.probe_due = False

    def needs_snapshot(self, newest: SnapshotInfo | None) -> None:
        """Send *newest* from now on; None: there is none yet.

        Entries that are being read for it are waited for no longer: the log may have let go of
        them, and then nobody says that they are there.
        """
        if self.state is not ProgressState.SNAPSHOT:
            self.probe_from(self.next_index)
            self.state, self.fetching = ProgressState.SNAPSHOT, False
        if self.snapshot is None and newest is not None:
            self.snapshot, self.snapshot_offset = newest, 0

    def asks_for_snapshot(self) -> None:
        """Send one, though the follower has the end of our log: it lost an entry before that."""
        self.needs_snapshot(None)
        self.snapshot_asked = True

    def snapshot_answered(self, *, last_index: int, accepted: bool, offset: int) -> bool:
        """Take an answer to a piece; returns whether the next one may leave.

        One that asks for what is under way is late; if that is lost, a heartbeat will show it.
        """
        if self.snapshot is None or self.snapshot.last_index != last_index:
            return False
        self.snapshot_refused = not accepted
        in_range = 0 <= offset <= self.snapshot.size_bytes
        if not accepted or not in_range or offset == self.snapshot_offset:
            return False
        self.snapshot_offset = offset
        self.paused = offset == self.snapshot.size_bytes
        return not self.paused

    def restarted(self, owed_index: int) -> None:
        """Forget what the follower acknowledged: it started anew, and may have less than that.

        That is safe, since a commit never goes back; it is asked where the logs agree.
        """
        self.match_index, self.owed_index = 0, owed_index
        self.disconnected(self.next_index)
        self.probe_due = True

    def disconnected(self, next_index: int = 0) -> None:
        """Expect everything in flight to be lost; ask again once the follower is heard."""
        self.probe_from(next_index)
        self.paused = True
        self._match_at_heartbeat = self.match_index

    def heartbeat_answered(self) -> None:
        """Take a heartbeat's answer: the path works, so unanswered appends may be lost.

        A probe falls due when something is unanswered and nothing was acknowledged since the
        answer before. It carries no entries: a follower with a slow disk costs only that.
        """
        if self.state is ProgressState.SNAPSHOT:
            self.paused = self.paused and self.snapshot_offset != self._offset_at_heartbeat
            self._offset_at_heartbeat = self.snapshot_offset
            return
        unanswered = self.paused if self.state is ProgressState.PROBE else bool(self.inflight)
        self.probe_due = unanswered and self.match_index == self._match_at_heartbeat
        self._match_at_heartbeat = self.match_index

    def _probe_acked(self, match_index: int) -> bool:
        if match_index < self.next_index - 1:
            self.next_index = max(self.next_index, self.match_index + 1)
            return False
        self.probe_from(self.match_index + 1)
        self.state = ProgressState.REPLICATE
        return True

    def _ends_snapshot(self, match_index: int, *, advanced: bool) -> bool:
        """Whether this says that the follower needs a snapshot no more.

        Because it is installed, which may bring nothing but the state; or because the follower's
        log goes on without it. One that asked may just have synced what was under way before.
        """
        installed = self.snapshot is not None and match_index == self.snapshot.last_index
        return installed or (advanced and not self.snapshot_asked)

    def _is_stale_rejection(self, previous_index: int) -> bool:
        if self.state is ProgressState.SNAPSHOT:
            return True
        if self.state is ProgressState.PROBE:
            return previous_index != self.next_index - 1
        return not self.match_index < previous_index < self.next_index
