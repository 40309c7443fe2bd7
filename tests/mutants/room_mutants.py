"""Bugs in who may take room on the disks, what goes for it, and who leads."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROOM = "tests/replica/test_room.py"
_KEEPER = "tests/replica/test_room_keeper.py"
_QUEUE = "tests/replica/test_proposals.py"
_DRIVER = "tests/replica/test_driver.py"

ROOM_MUTANTS = (
    Mutant(
        name="an entry is let in by segments",
        file="replica/room.py",
        old="own = max(self.segment_bytes, entry_bytes + ENTRY_OVERHEAD_BYTES)",
        new="own = self.segment_bytes",
        why="a large one gets in, cannot be written, and RETAIN stands behind it",
        checks=(_ROOM,),
    ),
    Mutant(
        name="entries under way take no room",
        file="replica/room.py",
        old="return self.reserve_bytes + self.segment_bytes + own + pending_bytes",
        new="return self.reserve_bytes + self.segment_bytes + own",
        why="several are let in where one has room",
        checks=(_KEEPER, _ROOM),
    ),
    Mutant(
        name="a snapshot counts once",
        file="replica/room_keeper.py",
        old="reserve_bytes=config.small_files_bytes + 2 * snapshot_bytes",
        new="reserve_bytes=config.small_files_bytes + snapshot_bytes",
        why="the next one has no room beside it, so nothing can be dropped any more",
        checks=(_KEEPER,),
    ),
    Mutant(
        name="messages go at the point at which sends are refused",
        file="replica/room.py",
        old="return self.refuse_bytes + 2 * self.segment_bytes",
        new="return self.refuse_bytes",
        why="sends are refused or wait where room could have been made before",
        checks=(_ROOM,),
    ),
    Mutant(
        name="a neighbour's files count at once",
        file="replica/room.py",
        old="short = target - self.free_bytes - self.new_foreign_bytes",
        new="short = target - self.free_bytes",
        why="who comes and goes with files of its own costs messages",
        checks=(_ROOM,),
    ),
    Mutant(
        name="messages go though that makes no room",
        file="replica/room.py",
        old="        if self.free_bytes + min(excess, droppable_bytes) < needed_bytes:\n"
        "            return HOPELESS\n",
        new="",
        why="all of them go for a disk that stays full",
        checks=(_ROOM,),
    ),
    Mutant(
        name="own bytes go against the whole file system",
        file="replica/room.py",
        old="return min(self.budget_bytes or self.total_bytes, self.total_bytes)",
        new="return self.total_bytes",
        why="nodes that share a disk starve each other",
        checks=(_ROOM,),
    ),
    Mutant(
        name="the fullest member decides",
        file="replica/room.py",
        old="for voter in voters)[majority(len(voters)) - 1]",
        new="for voter in voters)[-1]",
        why="one full disk costs everybody's messages",
        checks=(_ROOM,),
    ),
    Mutant(
        name="the leader's disk alone lets sends in",
        file="replica/room.py",
        old="takes = own not in lacking and (not by_group or _has_majority(ready, voter_sets))",
        new="takes = own not in lacking",
        why="entries wait for a majority that has no room, and commands stand behind them",
        checks=(_ROOM,),
    ),
    Mutant(
        name="messages go although another member has room to lead",
        file="replica/room.py",
        old="    if own in lacking and not may_hand_over and drop != HOPELESS:\n",
        new="    if own in lacking and drop != HOPELESS:\n",
        why="the leader's full disk costs messages that a hand-over would keep",
        checks=(_ROOM,),
    ),
    Mutant(
        name="leadership goes to who has hardly more room",
        file="replica/room.py",
        old="spare_bytes[best] >= 2 * segment_bytes else None",
        new="spare_bytes[best] >= 0 else None",
        why="it comes back at once",
        checks=(_ROOM,),
    ),
    Mutant(
        name="leadership goes back at once",
        file="replica/room_keeper.py",
        old="            lately.add(self._led_before)",
        new="            pass",
        why="two full members hand it to each other for ever",
        checks=(_KEEPER,),
    ),
    Mutant(
        name="who handed over once does not hand over to others",
        file="replica/room_keeper.py",
        old="            for member in self._heard_of() - lately\n",
        new="            for member in self._heard_of() - (lately and self._heard_of())\n",
        why="sends are refused for five minutes beside an empty disk",
        checks=(_KEEPER,),
    ),
    Mutant(
        name="segments made since the last look take no room",
        file="replica/room_keeper.py",
        old="        return max(0, self._measured.free_bytes - taken)\n",
        new="        return self._measured.free_bytes\n",
        why="a fast writer passes both thresholds between two looks",
        checks=(_KEEPER,),
    ),
    Mutant(
        name="segments sealed since the last look cannot go",
        file="replica/room_keeper.py",
        old="        return look.droppable_bytes + max(0, sealed_bytes)\n",
        new="        return look.droppable_bytes\n",
        why="a fast writer is refused on a new disk that it filled between two looks",
        checks=(_KEEPER,),
    ),
    Mutant(
        name="acknowledgements stand behind what waits for room",
        file="replica/proposals.py",
        old="            return small or None\n",
        new="            return None\n",
        why="a full disk stops consumers, and the command that would make room",
        checks=(_QUEUE, _DRIVER),
    ),
    Mutant(
        name="what waits for room takes the whole queue",
        file="replica/proposals.py",
        old="else (self._max_bytes * 5 // 4, self._max_commands * 5 // 4)",
        new="else (self._max_bytes, self._max_commands)",
        why="consumers are refused while sends wait",
        checks=(_QUEUE,),
    ),
    Mutant(
        name="one send of a line is refused and the next stored",
        file="replica/proposals.py",
        old="            while line.queue:\n                _fail(self._taken(line), error)\n",
        new="            if line.queue:\n                _fail(self._taken(line), error)\n",
        why="a producer's messages are out of order",
        checks=(_QUEUE,),
    ),
    Mutant(
        name="the snapshot that makes room rests as others do",
        file="replica/maintenance.py",
        old="if self._rounds <= self._policy.rest_rounds and not self._driver.room.is_short:",
        new="if self._rounds <= self._policy.rest_rounds:",
        why="sends wait for longer than they may, and are refused",
        checks=("tests/replica/test_node_snapshots.py",),
    ),
    Mutant(
        name="a batch that waited in vain is of unknown outcome",
        file="services/producing.py",
        old="isinstance(error, Refused | DiskFull) or not self.taken",
        new="isinstance(error, Refused) or not self.taken",
        why="its producer is not told that it is nowhere",
        checks=("tests/services/test_produce_stream.py",),
    ),
)
