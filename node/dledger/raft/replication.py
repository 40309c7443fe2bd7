"""What a leader sends to one follower: entries, a probe, or a piece of a snapshot.

Owned by `leader.Leader`, which keeps the followers' progress and takes their answers. Sources:
Raft 5.3, 7.
"""

from __future__ import annotations

from dledger.errors import OffsetOutOfRange
from dledger.raft.config import RaftConfig
from dledger.raft.flow_control import FlowControl
from dledger.raft.log import RaftLog
from dledger.raft.messages import AppendRequest, InstallSnapshotRequest
from dledger.raft.progress import Progress, ProgressState
from dledger.raft.ready import Outbox
from dledger.raft.snapshots import SnapshotReader
from dledger.types import Entry, NodeId


class Replication:
    """Builds the messages of one term of leading."""

    def __init__(
        self,
        config: RaftConfig,
        *,
        term: int,
        log: RaftLog,
        outbox: Outbox,
        snapshots: SnapshotReader,
        pace: FlowControl,
    ) -> None:
        self._config = config
        self._term = term
        self._log = log
        self._out = outbox
        self._snapshots = snapshots
        self._pace = pace

    def send(self, peer_id: NodeId, peer: Progress) -> bool:
        """Send what the follower's window allows; returns whether to try again at once."""
        if self.gets_snapshot(peer):
            return self._send_snapshot(peer_id, peer)
        config, last_index = self._config, self._log.last_index
        while peer.next_index <= last_index and peer.can_send(
            max_messages=config.max_inflight_appends, max_bytes=config.max_inflight_bytes
        ):
            is_committed = peer.next_index <= self._log.commit_index
            if is_committed and not self._pace.admits(peer_id):
                break
            entries = self._log.slice(peer.next_index, last_index, config.max_append_bytes)
            if entries is None:
                peer.fetching = True
                break
            self._send_append(peer_id, peer.next_index - 1, entries)
            size_bytes = 0
            for entry in entries:
                size_bytes += len(entry.data)
            peer.sent(last_index=entries[-1].index, size_bytes=size_bytes)
            if is_committed:
                self._pace.sent(peer_id, size_bytes)
        if peer.probe_due:
            peer.probe_due = False
            self._send_append(peer_id, peer.next_index - 1, ())
        return False

    def gets_snapshot(self, peer: Progress) -> bool:
        """Whether the follower is sent a snapshot: our log has not what it needs next (Raft 7)."""
        return peer.state is ProgressState.SNAPSHOT or self._log.has_dropped(peer.next_index)

    def _send_snapshot(self, peer_id: NodeId, peer: Progress) -> bool:
        """Send the next piece; none of it while the follower refuses, or has it all."""
        config = self._config
        newest = self._snapshots.newest()
        usable = newest is not None and newest.last_index >= self._log.first_index - 1
        peer.needs_snapshot(newest if usable else None)
        info, offset = peer.snapshot, peer.snapshot_offset
        if info is None or peer.paused or peer.fetching:
            return False
        wanted = not peer.snapshot_refused and offset < info.size_bytes
        try:
            data = self._snapshots.read(info, offset, config.max_append_bytes) if wanted else b""
        except OffsetOutOfRange:
            peer.snapshot = None
            return newest != info
        if data is None:
            peer.fetching = True
            return False
        peer.paused = True
        self._out.now.append(
            InstallSnapshotRequest(
                sender=config.id,
                recipient=peer_id,
                term=self._term,
                info=info,
                offset=offset,
                data=data,
            )
        )
        return False

    def _send_append(
        self, peer_id: NodeId, previous_index: int, entries: tuple[Entry, ...]
    ) -> None:
        self._out.now.append(
            AppendRequest(
                sender=self._config.id,
                recipient=peer_id,
                term=self._term,
                previous_index=previous_index,
                previous_term=self._log.term(previous_index),
                previous_chain=self._log.chain(previous_index),
                last_chain=self._log.chain(previous_index + len(entries)),
                commit_index=self._log.told_commit,
                entries=entries,
            )
        )
