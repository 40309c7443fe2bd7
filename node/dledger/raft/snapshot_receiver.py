"""How a follower takes in a snapshot that its leader sends in place of entries it no longer has.

Owned by one Raft, through `following`. Source: Raft 7, figure 13.
"""

from __future__ import annotations

from dledger.raft.log import RaftLog
from dledger.raft.messages import InstallSnapshotRequest, InstallSnapshotResponse
from dledger.raft.ready import Divergence, Outbox, SnapshotChunk
from dledger.raft.responses import stored
from dledger.raft.server_state import ServerState
from dledger.types import SnapshotInfo


class SnapshotReceiver:
    """The follower's part: takes the pieces in order, then waits until the caller installed them.

    What has arrived of a snapshot is kept over a change of leader, and lost with a restart.
    """

    def __init__(self, state: ServerState, *, log: RaftLog, outbox: Outbox) -> None:
        self._state = state
        self._log = log
        self._out = outbox
        self._info: SnapshotInfo | None = None
        self._held_bytes = 0
        self._lost_index = 0

    def on_request(self, message: InstallSnapshotRequest) -> None:
        """Take a piece from the leader of our term, or say from where we want it."""
        info = message.info
        if self._contradicts(info):
            chain = self._log.chain(info.last_index)
            self._out.refused = Divergence(message.sender, info.last_index, chain, info.last_chain)
        elif self._has(info) and not self._replaces_lost(info):
            self._answer_installed(message)
        elif self._state.installing is None:
            self._take(message)
        elif self._state.installing == info:
            self._answer(message, offset=info.size_bytes)

    def ask(self, index: int) -> None:
        """Ask our leader for a snapshot in place of a damaged entry that nobody gives us.

        A leader that has the entry ignores it: then a peer will send it.
        """
        leader = self._state.leader
        if leader in (None, self._state.id) or self._state.installing is not None:
            return
        self._lost_index = index
        self._out.after_hard_state.append(
            InstallSnapshotResponse(
                sender=self._state.id,
                recipient=leader,
                term=self._state.term,
                last_index=index,
                accepted=True,
                offset=0,
            )
        )

    def _has(self, info: SnapshotInfo) -> bool:
        """Whether everything that a snapshot stands for is in our log."""
        if info.last_index <= self._log.commit_index:
            return True
        is_here = self._log.matches(info.last_index, info.last_term)
        return is_here and self._log.chain(info.last_index) == info.last_chain

    def _contradicts(self, info: SnapshotInfo) -> bool:
        """Whether a snapshot stands for another log than the one that we know to be committed."""
        known = self._log.knows(info.last_index) and info.last_index <= self._log.commit_index
        return known and self._log.chain(info.last_index) != info.last_chain

    def _replaces_lost(self, info: SnapshotInfo) -> bool:
        """Whether a snapshot has what we must apply next and have lost."""
        return self._log.applied_index < self._lost_index <= info.last_index

    def finished(self, info: SnapshotInfo, *, installed: bool) -> None:
        """Take the end of an installation; a snapshot that turned out bad is asked for anew."""
        if self._state.installing != info:
            raise ValueError(f"snapshot {info} was not being installed")
        self._state.installing = self._info = None
        self._log.apply_paused = False
        if not installed:
            return
        if info.last_index <= self._log.commit_index:
            self._log.skip_to(info.last_index)
        else:
            self._log.install(info.last_index, info.last_term, info.last_chain)
            self._out.retract_acks(1)

    def _take(self, message: InstallSnapshotRequest) -> None:
        info = message.info
        end = message.offset + len(message.data)
        if info.size_bytes < 1 or end > info.size_bytes:
            return
        if info != self._info:
            self._info, self._held_bytes = info, 0
        if message.offset == self._held_bytes and message.data:
            self._held_bytes = end
            self._out.chunks.append(SnapshotChunk(info, message.offset, message.data))
        if self._held_bytes == info.size_bytes:
            self._state.installing = self._out.install = info
            self._log.apply_paused = True
            if self._has(info):
                self._log.commit_to(info.last_index)
        self._answer(message, offset=self._held_bytes)

    def _answer(self, message: InstallSnapshotRequest, *, offset: int) -> None:
        self._out.after_hard_state.append(
            InstallSnapshotResponse(
                sender=self._state.id,
                recipient=message.sender,
                term=self._state.term,
                last_index=message.info.last_index,
                accepted=True,
                offset=offset,
            )
        )

    def _answer_installed(self, message: InstallSnapshotRequest) -> None:
        """We have all of it: as a success of an append, which leaves when it is durable."""
        self._log.commit_to(message.info.last_index)
        self._out.after_entries.append(
            stored(
                message,
                term=self._state.term,
                match_index=message.info.last_index,
                match_chain=message.info.last_chain,
            )
        )
