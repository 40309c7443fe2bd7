"""Bugs in the driver, the broker and membership: what is said when, applied how, and to whom."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DISK = "tests/node/test_disk.py"
_DRIVER = "tests/node/test_driver.py"
_STALE = "tests/node/test_stale_completion.py"
_JOINING = "tests/node/test_joining.py"
_ATTEMPTS = "tests/broker/test_attempts.py"
_DEDUPE = "tests/broker/test_dedupe.py"
_SNAPSHOTS = "tests/broker/test_broker_snapshots.py"

NODE_MUTANTS = (
    Mutant(
        name="speak before the hard state is durable",
        file="disk.py",
        old="clean=not self._hard_state_busy and not self._hard_states,",
        new="clean=True,",
        why="votes leave before they are on disk",
        checks=(_DISK, _DRIVER),
    ),
    Mutant(
        name="speak before the entries are durable",
        file="disk.py",
        old="clean=self.idle, durable=self._log_durable",
        new="clean=True, durable=self._log_durable",
        why="acks leave before the entries are on disk",
        checks=(_DISK, _DRIVER, _STALE),
    ),
    Mutant(
        name="ack what is about to be replaced",
        file="disk.py",
        old="self._withdraw_acks(ready.entries[0].index)",
        new="pass",
        why="an ack leaves for an entry that was never on disk",
        checks=(_DISK, _DRIVER, _STALE),
    ),
    Mutant(
        name="one completion for all batches of a sync",
        file="disk.py",
        old="for one in batches:  # each by itself:",
        new="for one in batches[:1]:  # each by itself:",
        why="the core waits for ever for writes that are done, or takes one for another",
        checks=(_DISK, _DRIVER, _STALE),
    ),
    Mutant(
        name="go on after the disk failed",
        file="disk.py",
        old="            self.stop()\n            self._events.disk_failed(error)\n",
        new="            self._events.hard_state_durable(HardState())\n",
        why="a node whose disk fails stays in the group and acknowledges",
        checks=(_DISK, _DRIVER),
    ),
    Mutant(
        name="apply out of order",
        file="driver.py",
        old="        for entry in entries:\n            self._apply_one(entry)\n",
        new="        for entry in reversed(entries):\n            self._apply_one(entry)\n",
        why="replicas come to different states",
        checks=(_DRIVER,),
    ),
    Mutant(
        name="serve before the own term is applied",
        file="role_watch.py",
        old="return self._core.role is Role.LEADER and self._term_applied == self._core.term",
        new="return self._core.role is Role.LEADER",
        why="a new leader answers from a state that lacks acknowledged entries",
        checks=(_DRIVER,),
    ),
    Mutant(
        name="reuse a dedupe key",
        file="broker/dedupe.py",
        old="return not has_repeats(ids) and (client is None or not client.knows_any(ids))",
        new="return not has_repeats(ids)",
        why="a retry is stored a second time",
        checks=(_DEDUPE, "tests/broker/test_produce_frame.py", "tests/broker/test_state.py"),
    ),
    Mutant(
        name="only the first id of a run is known",
        file="broker/client_ids.py",
        old="last = runs.last_before(ids.row + ids.length) if runs",
        new="last = runs.last_before(ids.row + 1) if runs",
        why="a retry in batches cut otherwise is stored a second time",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="a dedupe window without bound",
        file="broker/dedupe.py",
        old="while self._total > self._max_ids:",
        new="while self._total < 0:",
        why="memory grows with every client that ever wrote",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="forget a client before its hour is over",
        file="broker/dedupe.py",
        old="if oldest is None or oldest.used_ms + SILENCE_MS > now_ms:",
        new="if oldest is None or oldest.used_ms + SILENCE_MS > now_ms + 1:",
        why="a retry within the hour is stored a second time",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="a retry is no sign of life",
        file="broker/dedupe.py",
        old="            self._use((client_id, topic))\n",
        new="            pass\n",
        why="a client that only retries is forgotten while it does",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="silence is no part of a snapshot",
        file="broker/client_ids.py",
        old="        client.used_ms = at_ms\n",
        new="        client.used_ms = used_ms[-1]\n",
        why="a node that was restarted remembers a client for longer than the others do",
        checks=(_DEDUPE, _SNAPSHOTS),
    ),
    Mutant(
        name="a snapshot shares a client's ids with what goes on",
        file="broker/dedupe.py",
        old="        elif client.edition != self.edition.number:\n",
        new="        elif client.edition > self.edition.number:\n",
        why="a snapshot holds ids from behind its last entry, whose messages then count as stored",
        checks=(_DEDUPE, _SNAPSHOTS),
    ),
    Mutant(
        name="a snapshot shares a queue with what goes on",
        file="broker/topic_store.py",
        old="        if queue.edition != self._edition.number:\n",
        new="        if queue.edition > self._edition.number:\n",
        why="a restart applies messages to a queue that has them already",
        checks=(_SNAPSHOTS,),
    ),
    Mutant(
        name="a snapshot of a queue shows the open runs of its copy",
        file="broker/consume_queue.py",
        old="        return bisect_left(self._open.firsts, self.end)\n",
        new="        return len(self._open)\n",
        why="a snapshot has messages that are not in the queue, and no node can read it",
        checks=("tests/broker/test_consume_queue.py", _SNAPSHOTS),
    ),
    Mutant(
        name="a snapshot shares leases with what goes on",
        file="broker/groups.py",
        old="        if found is not None and found.edition != self.edition:\n",
        new="        if found is not None and found.edition > self.edition:\n",
        why="a message that was acked after the snapshot is acked in it",
        checks=(_SNAPSHOTS,),
    ),
    Mutant(
        name="the next edition begins late",
        file="broker/state.py",
        old="        self._edition.end()\n        return frozen\n",
        new="        return frozen\n",
        why="the thread that writes a snapshot sees what the loop changes",
        checks=(_SNAPSHOTS,),
    ),
    Mutant(
        name="forget an attempt while it holds something",
        file="broker/attempts.py",
        old="            if any(True for _ in _held(topic, attempt, holds)):\n",
        new="            if len([*_held(topic, attempt, holds)]) == len(attempt.places):\n",
        why="a poll whose answer was lost is given other messages than those that wait for it",
        checks=(_ATTEMPTS,),
    ),
    Mutant(
        name="attempts count only while they hold something",
        file="broker/attempts.py",
        old="            self._sweep_at = max(2 * len(self._known), _SWEPT_AT_LEAST)\n",
        new="            self._sweep_at = max(2 * len(self._known), _SWEPT_AT_LEAST)\n"
        "            self._made = len(self._known)\n",
        why="when room is given back decides what is recalled: nodes come to different states",
        checks=(_ATTEMPTS, _SNAPSHOTS),
    ),
    Mutant(
        name="queues of one topic are bounded, those of all are not",
        file="broker/topic_store.py",
        old="            self._queues_in_all += topic.queues\n",
        new="            self._queues_in_all = topic.queues\n",
        why="a client that makes topics fills every node's memory",
        checks=("tests/broker/test_state.py",),
    ),
    Mutant(
        name="start in spite of a tombstone",
        file="joining.py",
        old="        if tombstone is not None:\n",
        new="        if tombstone is not None and not tombstone.node_id:\n",
        why="a removed node votes and answers again",
        checks=(_JOINING,),
    ),
    Mutant(
        name="a disk behind since its sync began",
        file="disk_stall.py",
        old="now_s - max(busy_since_s, self._behind_since_s) >=",
        new="now_s - busy_since_s >=",
        why="disks that hung together cost the group its leader when one of them comes back first",
        checks=("tests/node/test_disk_stall.py",),
    ),
)
