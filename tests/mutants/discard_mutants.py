"""Bugs in how a damaged end goes, with its members and from the disk (adr 14, adr 17)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOG_DISCARD = "tests/raft/test_log_discard.py"
_DAMAGED = "tests/raft/test_damaged_log.py"
_ENDS = "tests/replica/test_discarded_end.py"
_DISK = "tests/replica/test_persistence.py"
_LOG = "tests/store/test_commit_log.py"
_FAULTY = "tests/store/test_faulty_slots.py"
_TOOL = "tests/server/test_discard_tool.py"

DISCARD_MUTANTS = (
    Mutant(
        name="discard though a membership is unknown",
        file="raft/log_discard.py",
        old="return nobody_leads and is_open and self._knows_who_decided(index)",
        new="return nobody_leads and is_open",
        why="too few are asked, and a committed entry is discarded",
        checks=(_LOG_DISCARD,),
    ),
    Mutant(
        name="discard by the word of those who did not decide",
        file="raft/log_discard.py",
        old="if asked.electorate != self._memberships.electorate_before(asked.index):",
        new="if not asked.electorate:",
        why="a repair between question and answer changes who had a say",
        checks=(_LOG_DISCARD,),
    ),
    Mutant(
        name="leave on the disk what was discarded",
        file="raft/log.py",
        old="        self.cut_behind = first - 1\n",
        new="",
        why="a restart or a snapshot brings a dead membership back into force",
        checks=(_LOG_DISCARD, _ENDS),
    ),
    Mutant(
        name="take a membership beyond the log from a snapshot",
        file="raft/core.py",
        old="self.memberships.replace(pair for pair in memberships if pair[0] <= newest)",
        new="self.memberships.replace(memberships)",
        why="in force is one that no leader appended to this log (6)",
        checks=(_DAMAGED,),
    ),
    Mutant(
        name="keep in the core what a snapshot overruled on the disk",
        file="raft/core.py",
        old="if last_index is not None and last_index < self._log.last_index:",
        new="if last_index == 0:",
        why="the node acknowledges and votes by entries that its disk does not have",
        checks=(_DAMAGED, _ENDS),
    ),
    Mutant(
        name="let a vote leave before the cut that it rests on",
        file="replica/persistence.py",
        old="self._send_held(self._votes, votes_up_to if is_cut else acks_up_to)",
        new="self._send_held(self._votes, votes_up_to)",
        why="what a vote says is not in the log comes back with a restart",
        checks=(_DISK,),
    ),
    Mutant(
        name="acknowledge what is about to be cut",
        file="replica/persistence.py",
        old="            self._withdraw_acks(ready.cut_behind + 1)\n",
        new="",
        why="a leader counts on an entry that is not there",
        checks=(_DISK,),
    ),
    Mutant(
        name="cut before what was to be written first",
        file="replica/persistence.py",
        old="if run and (cut_behind is not None or entries[0].index != run[-1].index + 1):",
        new="if run and entries and entries[0].index != run[-1].index + 1:",
        why="what was cut is written behind it",
        checks=(_DISK,),
    ),
    Mutant(
        name="know no membership of a snapshot that the log should have",
        file="replica/snapshots.py",
        old="for index, one in self._covered.memberships if index <= logged}",
        new="for index, one in self._covered.memberships if index < self._log.first_index}",
        why="two of three are asked where three of five decided",
        checks=(_ENDS,),
    ),
    Mutant(
        name="commit what the log has in place of a snapshot's entries",
        file="replica/snapshots.py",
        old="return applied.index if has_applied else max(base.index, self._log.first_index - 1)",
        new="return min(applied.index, self._log.last_index)",
        why="a restart takes an overruled leader's end for committed",
        checks=(_ENDS,),
    ),
    Mutant(
        name="install a snapshot beside a log that contradicts it",
        file="replica/snapshots.py",
        old="if is_kept and not self._continues(applied):",
        new="if not is_kept and not applied.index:",
        why="the next start takes the disk for damaged, and refuses it",
        checks=(_ENDS,),
    ),
    Mutant(
        name="forget to zero what an earlier cut left",
        file="store/commit_log.py",
        old="for segment in self._index.segments[-1:]:  # zeros an earlier call could not write",
        new="for segment in self._index.segments[:0]:",
        why="records that were cut come back behind the end",
        checks=(_LOG,),
    ),
    Mutant(
        name="take another group's memberships for ours",
        file="store/log_reader.py",
        old="if at > self._identity.recovered_to]",
        new="]",
        why="rot in a restored log keeps a group from discarding anything",
        checks=(_FAULTY,),
    ),
    Mutant(
        name="write no identities behind a snapshot within the old log",
        file="store/commit_log.py",
        old="self._state.rows_index = index\n                dropped = self._index.restart(base)",
        new="dropped = self._index.restart(base)",
        why="M56: one rotten record later the node refuses to start",
        checks=(_FAULTY,),
    ),
    Mutant(
        name="give up what a member that is damaged away may have",
        file="server/discard_tool.py",
        old="    if unknown:\n",
        new="    if unknown and not membership.voters:\n",
        why="another node has the entry, and what was committed is gone for all",
        checks=(_TOOL,),
    ),
    Mutant(
        name="give up without the group's id",
        file="server/discard_tool.py",
        old="if (args.group_id, args.last) != (group_id, plan.last):",
        new="if args.last != plan.last:",
        why="messages go on the wrong disk",
        checks=(_TOOL,),
    ),
)
