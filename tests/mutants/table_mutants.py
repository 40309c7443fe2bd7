"""Bugs in how messages with gaps between them are read, and in tables made of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_READS = "tests/services/test_kept_reads.py"
_TABLES = "tests/client/test_table_reader.py"

TABLE_MUTANTS = (
    Mutant(
        name="a block counts for each of its messages",
        file="services/reading.py",
        old="            size_bytes += block.size_bytes\n",
        new="            size_bytes += block.size_bytes * block.length\n",
        why="blocks come one by one, each in an answer of its own",
        checks=(_READS,),
    ),
    Mutant(
        name="gaps are sent to who does not know of them",
        file="services/reading.py",
        old="[(0, len(offsets))] if with_gaps else",
        new="[(0, len(offsets))] if offsets else",
        why="an older client gives messages the offsets of others",
        checks=(_READS,),
    ),
    Mutant(
        name="a part cuts out as many rows as there are",
        file="services/reading.py",
        old="length = min(length, _CUT_ROWS - cut_rows)",
        new="length = min(length, block.length - cut_rows)",
        why="heartbeats wait while an older client's answer is made",
        checks=(_READS,),
    ),
    Mutant(
        name="what was copied meanwhile is out of range",
        file="services/reading.py",
        old="            if lowest is not None and lowest <= index:\n",
        new="            if lowest is not None:\n",
        why="a slow reader is refused messages that are there",
        checks=(_READS,),
    ),
    Mutant(
        name="an offset behind a gap is counted from the first",
        file="client/stored_batch.py",
        old="return self.gapped or range(",
        new="return range(",
        why="who keeps the offset comes back to another message",
        checks=(_READS, _TABLES),
    ),
    Mutant(
        name="offsets are believed, whatever they are",
        file="client/stored_batch.py",
        old="        if gapped and not (\n",
        new="        if not gapped and not (\n",
        why="a message is told a place that was made up",
        checks=(_READS,),
    ),
    Mutant(
        name="a reader reads again what lies before a gap",
        file="client/batch_reader.py",
        old="                            offset = batch.end_offset\n",
        new="                            offset = batch.first_offset\n",
        why="after each failure of a node messages come twice",
        checks=(_TABLES,),
    ),
    Mutant(
        name="a table is caught up with what its node knows",
        file="client/batch_reader.py",
        old="linearizable=to_end or doubted,",
        new="linearizable=doubted,",
        why="what was acknowledged before is missing",
        checks=(_TABLES,),
    ),
    Mutant(
        name="a tombstone is a row",
        file="client/table.py",
        old="        if change.deleted:\n",
        new="        if change.deleted and change.key not in self:\n",
        why="a key that was deleted is in the table",
        checks=(_TABLES,),
    ),
    Mutant(
        name="any value of the property makes a tombstone",
        file="broker/message.py",
        old="    return properties.get(TOMBSTONE) == DELETES\n",
        new="    return TOMBSTONE in properties\n",
        why="`false` deletes a key",
        checks=(_TABLES,),
    ),
    Mutant(
        name="a position is behind what is being worked on",
        file="client/table_reader.py",
        old="            deleted = is_tombstone",
        new="            self._offsets[queue_id] = stored.offset + 1\n"
        "            deleted = is_tombstone",
        why="a change is lost to who dies before it is in his table",
        checks=(_TABLES,),
    ),
    Mutant(
        name="a position is of whichever topic has the name",
        file="client/table_reader.py",
        old="        if self._generation not in {0, generation}:\n",
        new="        if not generation:\n",
        why="the beginning of a topic that was made anew is skipped, without a word",
        checks=(_TABLES,),
    ),
    Mutant(
        name="a position holds for ever",
        file="client/table_reader.py",
        old="        if _now_ms() - as_of_ms > certain_ms:\n",
        new="        if as_of_ms > _now_ms():\n",
        why="keys that were deleted in the meantime stay in the table",
        checks=(_TABLES,),
    ),
    Mutant(
        name="a follower never makes sure",
        file="client/table_reader.py",
        old="until_s = asyncio.get_running_loop().time() + round_s",
        new="until_s = asyncio.get_running_loop().time() + round_s * 1e9",
        why="its position grows too old while nothing happens",
        checks=(_TABLES,),
    ),
)
