"""Bugs in the driver, the broker and membership: what is said when, applied how, and to whom."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DISK = "tests/node/test_disk.py"
_DRIVER = "tests/node/test_driver.py"
_STALE = "tests/node/test_stale_completion.py"
_JOINING = "tests/node/test_joining.py"
_EDGE = "tests/sim/test_order_at_the_edge.py"
_DEDUPE = "tests/broker/test_dedupe.py"

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
        old="            self._withdraw_acks(ready.entries[0].index)\n",
        new="",
        why="an ack leaves for an entry that was never on disk",
        checks=(_DISK, _DRIVER, _STALE),
    ),
    Mutant(
        name="one completion for all batches of a sync",
        file="disk.py",
        old="        for _, entries in batches:  # each by itself: "
        "the same entry may be among them twice\n",
        new="        for _, entries in batches[:1]:\n",
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
        name="refuse a batch that has left the queue",
        file="proposing.py",
        old="""        if not self._core.has_room:
            return False""",
        new="""        if not self._core.has_room and self._queue.size_bytes:
            batch = self._queue.take_batch()
            for proposal in batch:
                proposal.result.set_exception(__import__("dledger.errors").errors.Overloaded("full"))
            return False""",
        why="a batch is sent again and stored behind those that stood behind it",
        checks=("tests/node/test_proposing.py", _EDGE),
    ),
    Mutant(
        name="more small messages under way than are remembered",
        file="unanswered.py",
        old="await messages.take(batch.count)",
        new="messages.taken += batch.count",
        why="a failover stores all of them twice",
        checks=("tests/rpc/test_produce_stream.py", _EDGE),
    ),
    Mutant(
        name="take from a stream without a bound in number",
        file="rpc/producing.py",
        old="or self._messages + messages > bounds.max_messages",
        new="or self._messages + messages < 0",
        why="a producer without a bound of its own has its messages stored twice",
        checks=("tests/rpc/test_produce_stream.py",),
    ),
    Mutant(
        name="go on behind a lost batch until its answer is due",
        file="rpc/producing.py",
        old="            self._error = self._reason(error)\n            self._close()\n",
        new="            self._error = self._reason(error)\n",
        why="later batches are stored in front of the one that is sent again",
        checks=("tests/rpc/test_produce_stream.py",),
    ),
    Mutant(
        name="a full disk is told of what may be stored",
        file="unanswered.py",
        old="if self.streams <= harmless:",
        new="if self.streams <= harmless or type(error).__name__ == 'DiskFull':",
        why="its caller appends the batch anew, and it is stored twice",
        checks=("tests/rpc/test_produce_stream.py",),
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
