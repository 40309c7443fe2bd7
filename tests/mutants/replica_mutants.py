"""Bugs in what a replica does around its core: disk, snapshots, repair, retention, reads, time."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROOM = "tests/replica/test_disk_without_room.py"
_VIEW = "tests/replica/test_entry_cache.py"
_SNAPSHOTS = "tests/replica/test_node_snapshots.py"
_REFETCH = "tests/replica/test_repair.py"
_RETENTION = "tests/replica/test_retention.py"
_READS = "tests/replica/test_linearizable_reads.py"
_BOUNDS = "tests/replica/test_bounds.py"
_INSTALLATION = "tests/replica/test_installation.py"
_REPORTS = "tests/replica/test_reports.py"
_PACE = "tests/replica/test_apply_pace.py"

REPLICA_MUTANTS = (
    Mutant(
        name="who waits for an entry waits for a heartbeat",
        file="replica/apply_pace.py",
        old="later = follows and not self.is_due and not self._waiters",
        new="later = follows and not self.is_due",
        why="a linearizable read at a follower takes as long as nothing else comes",
        checks=(_PACE,),
    ),
    Mutant(
        name="what found no room goes behind what came later",
        file="replica/persistence.py",
        old="self._batches[:0] = batches",
        new="self._batches += batches",
        why="entries are written out of order, and the log has a hole",
        checks=(_ROOM,),
    ),
    Mutant(
        name="a vote that found no room counts as written",
        file="replica/persistence.py",
        old="            if not self._hard_states:\n"
        "                self._hard_states.append((sequence, hard_state))\n",
        new="",
        why="the vote leaves, and is forgotten by a power cut",
        checks=(_ROOM,),
    ),
    Mutant(
        name="install before the hard state is durable",
        file="replica/persistence.py",
        old="if self.idle and not self._hard_state_busy and not self._hard_states:",
        new="if self.idle:",
        why="after a restart a leader of an earlier term may append where a snapshot decided",
        checks=(_INSTALLATION,),
    ),
    Mutant(
        name="the log clock forgets the snapshot at a start",
        file="replica/driver.py",
        old="self.log_clock.applied(snapshots.now_ms, ",
        new="self.log_clock.applied(0, ",
        why="the log's time begins anew with a leader that started from a snapshot",
        checks=(_SNAPSHOTS,),
    ),
    Mutant(
        name="an answer's age does not matter",
        file="replica/reports.py",
        old="if asked_s is not None and now_s - asked_s <= ANSWER_WITHIN_S:",
        new="if asked_s is not None:",
        why="the clock of a member that was frozen for minutes dates the log as if it were fresh",
        checks=(_REPORTS,),
    ),
    Mutant(
        name="an answer to no question is heard",
        file="replica/reports.py",
        old="        asked_s = self._asked_s.get(message.round)\n",
        new="        asked_s = self._asked_s.get(message.round, self._clock.monotonic_s())\n",
        why="a report of any age counts as one of now",
        checks=(_REPORTS,),
    ),
    Mutant(
        name="a stranger's report is taken",
        file="replica/driver.py",
        old="        is_heard = is_member or not membership.members\n",
        new="        is_heard = True\n",
        why="what is no member has a say in the group's time, room and marks",
        checks=(_REPORTS,),
    ),
    Mutant(
        name="keep a chunk that was read before a truncation",
        file="replica/entry_cache.py",
        old="        if truncations != self._log.truncations:\n            self._on_loaded()",
        new="        if truncations < 0:\n            self._on_loaded()",
        why="a leader sends entries that were overwritten",
        checks=(_VIEW,),
    ),
    Mutant(
        name="a chunk within another one hides what is behind it",
        file="replica/entry_cache.py",
        old="            self._evict(self._starts[at])\n",
        new="            at += 1\n",
        why="a lagging follower's chunk is read again behind each entry that a reader has read",
        checks=(_VIEW,),
    ),
    Mutant(
        name="damage in front of an entry is its own",
        file="replica/entry_cache.py",
        old="with suppress(FaultyEntry, OffsetOutOfRange):",
        new="with suppress(OffsetOutOfRange):",
        why="a reader is refused an entry that is whole",
        checks=(_VIEW,),
    ),
    Mutant(
        name="send what was planned, whether it is there or not",
        file="services/reading.py",
        old="        self._check_is_left(first.first)",
        new="        self._queue()",
        why="a slow reader is told an index of the log where its queue begins",
        checks=("tests/services/test_read_planning.py",),
    ),
    Mutant(
        name="read what is about to be dropped",
        file="replica/entry_cache.py",
        old="max(self._log.first_index, self._log.needed_from)",
        new="self._log.first_index",
        why="a follower is to be sent entries whose files a thread removes",
        checks=(_VIEW,),
    ),
    Mutant(
        name="drop what the snapshot on disk still needs",
        file="replica/maintenance.py",
        old="first_index_without(self._log.sealed(), self._snapshots.first_index)",
        new="first_index_without(self._log.sealed(), self._state.first_index)",
        why="a node that restarts before its next snapshot has neither state nor log",
        checks=(_SNAPSHOTS,),
    ),
    Mutant(
        name="a snapshot forgets memberships that the log dropped",
        file="replica/snapshots.py",
        old="memberships=tuple(pair for pair in self.memberships() if",
        new="memberships=tuple(pair for pair in self._log.memberships() if",
        why="a node that starts from it knows nobody",
        checks=(_SNAPSHOTS,),
    ),
    Mutant(
        name="pieces of a snapshot are never written",
        file="replica/snapshots.py",
        old="        self._backlog_bytes -= size_bytes\n",
        new="",
        why="after 16 MiB in its life a node takes no snapshot any more",
        checks=(_SNAPSHOTS, _BOUNDS, _INSTALLATION),
    ),
    Mutant(
        name="retention takes what is not applied",
        file="replica/retention.py",
        old="if segment.last_index >= applied_index:",
        new="if segment.last_index > applied_index + 1:",
        why="messages go that were never served",
        checks=(_RETENTION,),
    ),
    Mutant(
        name="wake readers one entry late",
        file="replica/reads.py",
        old="self._heap[0][0] <= index:",
        new="self._heap[0][0] < index:",
        why="a read in a quiet group times out",
        checks=(_READS, _BOUNDS),
    ),
    Mutant(
        name="ask about the entry behind the damage",
        file="replica/repair.py",
        old="if each.stop > applied_index + 1)",
        new="if each.stop >= applied_index + 1)",
        why="an entry that is whole is discarded",
        checks=(_REFETCH,),
    ),
    Mutant(
        name="try the same damage for ever",
        file="replica/repair.py",
        old="            self._tried_up_to = damages[-1].stop\n",
        new="",
        why="what is behind 64 ranges that nobody gives is never repaired",
        checks=(_REFETCH,),
    ),
    Mutant(
        name="one line for all",
        file="replica/proposals.py",
        old="else self._lines.get(key)",
        new="else next(iter(self._lines.values()), None)",
        why="a message waits behind the megabytes that another client has queued",
        checks=("tests/replica/test_proposals.py",),
    ),
    Mutant(
        name="a producer has a line for each of its connections",
        file="replica/proposals.py",
        old="self._producers.get(producer) if proposal.producer else None",
        new="None",
        why="what it sends again on a new connection overtakes what stands in the old one's line",
        checks=("tests/replica/test_proposals.py",),
    ),
    Mutant(
        name="a line's turn comes however much it took",
        file="replica/proposals.py",
        old="(turn + taken, next(self._numbers), line)",
        new="(turn, next(self._numbers), line)",
        why="large commands get the log to themselves",
        checks=("tests/replica/test_proposals.py",),
    ),
    Mutant(
        name="a connection takes all the room for batches",
        file="requests/production.py",
        old="(Window(MAX_BYTES_OF_CONNECTION), 0)",
        new="(Window(1 << 40), 0)",
        why="one client's flood fills the queue for everybody",
        checks=("tests/requests/test_production.py",),
    ),
    Mutant(
        name="a lost command takes another's answer",
        file="replica/proposals.py",
        old="        if proposed_term != term:\n",
        new="        if proposed_term > term:\n",
        why="a client is told that its message is stored, and it was overwritten",
        checks=("tests/replica/test_proposals.py",),
    ),
    Mutant(
        name="take user data while a write waits for room",
        file="replica/room_keeper.py",
        old="        if not retrying:\n            self._write_refusal = None\n",
        new="        self._write_refusal = None\n",
        why="what is let in stands behind the write that found none",
        checks=("tests/replica/test_room_keeper.py",),
    ),
    Mutant(
        name="call a change of members done before it is committed",
        file="replica/member_change.py",
        old=" and core.commit_index >= core.membership_index):",
        new="):",
        why="the disk of a removed member is deleted while it still counts",
        checks=("tests/replica/test_member_change.py",),
    ),
    Mutant(
        name="give whole entries only from the first",
        file="peers/records.py",
        old="            first = damaged.stop\n",
        new="            return ()\n",
        why="two nodes with damage at the same place do not help each other with the rest",
        checks=(_REFETCH,),
    ),
)
