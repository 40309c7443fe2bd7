"""Bugs in how a node that has grown takes its snapshots, and in what it says of its event loop."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CARE = "tests/replica/test_snapshot_backoff.py"
_FILES = "tests/store/test_snapshot_files.py"
_WATCHDOG = "tests/common/test_watchdog.py"

GROWTH_MUTANTS = (
    Mutant(
        name="no mark of a snapshot that is being taken",
        file="replica/snapshots.py",
        old="                await self._run_or_fail(self._files.begin)\n",
        new="",
        why="what ended the process ends it again at each start",
        checks=(_CARE,),
    ),
    Mutant(
        name="a mark that does not count",
        file="store/snapshot_files.py",
        old='b"%d" % (self._unfinished + 1)',
        new='b"1"',
        why="no try waits longer or is borne with for longer than the one before",
        checks=(_FILES,),
    ),
    Mutant(
        name="a whole snapshot leaves its mark",
        file="store/snapshot_files.py",
        old="        self._remove([_TAKING])\n        self._unfinished = 0\n",
        new="        self._unfinished = 0\n",
        why="each start waits with its snapshots, and the log grows",
        checks=(_FILES,),
    ),
    Mutant(
        name="a snapshot is due at once after a death in one",
        file="replica/maintenance.py",
        old="        return self._now_s() - self._started_s < wait_s or self._hands_over()\n",
        new="        return self._hands_over()\n",
        why="all nodes of a group die in it together",
        checks=(_CARE,),
    ),
    Mutant(
        name="a leader that died in a snapshot keeps the lead",
        file="replica/maintenance.py",
        old="self._started_s < wait_s or self._hands_over()",
        new="self._started_s < wait_s",
        why="the group waits for a loop that stands still",
        checks=(_CARE,),
    ),
    Mutant(
        name="a full disk waits for its snapshot as any other",
        file="replica/snapshot_backoff.py",
        old="    if for_room and unfinished == 1:\n",
        new="    if False:\n",
        why="who was killed in a snapshot refuses sends for a minute or two",
        checks=(_CARE,),
    ),
    Mutant(
        name="a full disk takes a snapshot that kills at once, for ever",
        file="replica/snapshot_backoff.py",
        old="    if for_room and unfinished == 1:\n",
        new="    if for_room:\n",
        why="all nodes of a group die in it together",
        checks=(_CARE,),
    ),
    Mutant(
        name="a watchdog that bears with nothing",
        file="common/watchdog.py",
        old='f", while it was to {work}", max(looks, before)',
        new='f", while it was to {work}", before',
        why="a snapshot of much state ends the process, however often it is tried",
        checks=(_WATCHDOG,),
    ),
    Mutant(
        name="a watchdog that judges work when it ends",
        file="common/watchdog.py",
        old="            self._beat += 1  # the loop has moved",
        new="            # the loop has moved",
        why="it ends the process just as the work is done",
        checks=(_WATCHDOG,),
    ),
    Mutant(
        name="a long turn that is not seen whole",
        file="server/loop_profile.py",
        old="        taken_s, self._seen_s = now_s - self._seen_s, now_s\n",
        new="        taken_s, self._seen_s = min(now_s - self._seen_s, BEAT_S), now_s\n",
        why="nobody sees what holds the loop up",
        checks=("tests/server/test_loop_profile.py",),
    ),
)
