"""Bugs in what lets go of what newer messages of the same keys have replaced."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COMPACTOR = "tests/replica/test_compactor.py"
_COMPACTING = "tests/replica/test_compacting.py"
_ROLLING = "tests/replica/test_rolling.py"
_OFFSETS = "tests/common/test_offset_set.py"

COMPACTION_MUTANTS = (
    Mutant(
        name="the chain is not compared",
        file="replica/compactor.py",
        old="        if chain != claim.as_of_chain:\n",
        new="        if chain is None:\n",
        why="by what a forced group has lost, its messages are let go",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="the least lag counts for nothing",
        file="replica/compacting.py",
        old="first_young(low, high + 1, read=read, is_old=is_old)",
        new="high + 1",
        why="a message is gone before anybody could read it",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="a copy of a young message is old",
        file="replica/compacting.py",
        old="    if said and not is_old(block.newest_ms):\n",
        new="    if said and block is None:\n",
        why="what the roller has copied loses its lag",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="a value goes with its tombstone",
        file="replica/compacting.py",
        old="by not in stays:\n",
        new="by < 0:\n",
        why="of a round that dies in the middle, a key that was deleted is back",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="the proofs are not looked at",
        file="replica/compacting.py",
        old="        if lie:\n",
        new="        if lie is None:\n",
        why="a fault of the job deletes messages, and nobody hears of it",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="keys are not compared",
        file="replica/compacting.py",
        old="len(mine.keys) != 1 or mine.keys != newer.keys",
        new="len(mine.keys) != 1",
        why="a message goes for one of another key",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="a tombstone goes while its topic keeps it",
        file="replica/compacting.py",
        old="    if not is_tombstone_old(mine.stored_at_ms):\n",
        new="    if is_tombstone_old is None:\n",
        why="readers that were away for an hour never hear that the key is gone",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="what was copied since is the caller's to decide",
        file="replica/compacting.py",
        old="        is_seen = block.entry <= claim.as_of_index\n",
        new="        is_seen = True\n",
        why="a message that the job could not see goes, though it is the newest of its key",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="who wins and is gone counts as a proof",
        file="replica/compacting.py",
        old="            unproved.append(offset)\n",
        new="            continue\n",
        why="a message goes for one that nobody can look at",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="a caller of another secret's sample",
        file="replica/compacting.py",
        old="blake2b(repr(said).encode(), key=secret)",
        new="blake2b(repr(said).encode())",
        why="whoever lies knows before where it will be looked at",
        checks=(_COMPACTING,),
    ),
    Mutant(
        name="roller and compactor write beside each other",
        file="replica/copier.py",
        old="        async with self._writer:\n            while",
        new="        if self._writer:\n            while",
        why="one of them is refused for what the other has done, in the middle of its work",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="rows that are gone are counted once more",
        file="replica/rolling.py",
        old="block.length - self.gone_of.get(block, 0)",
        new="block.length",
        why="what little is left of a block stays in a block of its own",
        checks=(_COMPACTING,),
    ),
    Mutant(
        name="young neighbours go along",
        file="replica/rolling.py",
        old="(left <= _FEW or blocks[at].entry < due.soon)",
        new="left >= 0",
        why="each message is written anew every few hours",
        checks=(_COMPACTING,),
    ),
    Mutant(
        name="a block goes for one row of it",
        file="replica/compacting.py",
        old="if 2 * gone >= block.length or",
        new="if gone or",
        why="a topic is written anew each round",
        checks=(_COMPACTING,),
    ),
    Mutant(
        name="the log's front is copied beyond what goes",
        file="replica/compacting.py",
        old="        to = part.first if last is None else last + 1\n",
        new="        to = end_below(part, reached)\n",
        why="messages are written anew that nothing lets go of yet",
        checks=(_COMPACTING,),
    ),
    Mutant(
        name="whatever a bitmap unpacks to is taken",
        file="common/offset_set.py",
        old="unpacked.decompress(packed, size_bytes + 1)",
        new="unpacked.decompress(packed)[: size_bytes or None]",
        why="a few KiB fill the leader's memory, and a bitmap of another range is believed",
        checks=(_OFFSETS,),
    ),
    Mutant(
        name="offsets that nobody has yet are decided",
        file="replica/compactor.py",
        old="        if claim.to > end:\n",
        new="        if claim.to < 0:\n",
        why="a fault of the job is not told",
        checks=(_COMPACTOR,),
    ),
    Mutant(
        name="a slice of another payload is read as of the one before",
        file="replica/rolling.py",
        old="payload.place != (index, start)",
        new="payload.entry.index != index",
        why="a copy has another message's body",
        checks=(_ROLLING,),
    ),
)
