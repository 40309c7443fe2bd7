"""Bugs in what keeps a topic's messages longer: in REKEEP, in its blocks, in who copies them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_REKEEP = "tests/broker/test_rekeep.py"
_HISTORIES = "tests/broker/test_rekeep_histories.py"

KEEPING_MUTANTS = (
    Mutant(
        name="a REKEEP that cuts a block is taken",
        file="broker/kept_blocks.py",
        old="            if not first <= cut.first <= cut.end <= end:\n",
        new="            if not first <= cut.first <= cut.end:\n",
        why="rows behind the cut are gone, and nobody let them go",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="RETAIN is not held back",
        file="broker/state.py",
        old="min(command.before_index, held)",
        new="command.before_index",
        why="messages that a topic keeps for ever are dropped",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="a row that is gone is taken",
        file="broker/consume_queue.py",
        old="        if at < len(offsets):\n            raise InvalidArgument",
        new="        if at > len(offsets):\n            raise InvalidArgument",
        why="what was let go comes back, on a leader's word that is late",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="the end of one topic's rows is not told from a new topic's",
        file="broker/topic_store.py",
        old="        name = self._longer.get(command.generation)\n",
        new="        name = command.topic or self._longer.get(command.generation)\n",
        why="a topic that was made anew has messages of the one that was deleted",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="a hole in the log's runs",
        file="broker/consume_queue.py",
        old="not (first <= self.log_first and to <= self.end)",
        new="not to <= self.end",
        why="messages that nobody decided about are gone",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="an ended lease on a row that is gone is given",
        file="broker/deliveries.py",
        old="if queue.blocks is not None and not queue.has(offset):\n                self._forget",
        new="if queue.blocks is None and not queue.has(offset):\n                self._forget",
        why="the group receives nothing any more, for ever",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="an attempt gets rows that are gone",
        file="broker/consumer_groups.py",
        old="for queue_id, o in positions if queues[queue_id].has(o)]",
        new="for queue_id, o in positions]",
        why="whoever repeats it gets an error for ever",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="gaps count as messages",
        file="broker/consumer_groups.py",
        old="                    end = position + queue.count_from(position)\n",
        new="                    end = queue.end\n",
        why="a poll proposes RECEIVEs without end",
        checks=(_REKEEP, _HISTORIES),
    ),
    Mutant(
        name="a retry of a row that is gone",
        file="broker/topic_store.py",
        old="payload.index if queue.has(offset) else 0",
        new="payload.index if offset >= queue.first else 0",
        why="an error after the batch was stored",
        checks=(_HISTORIES,),
    ),
    Mutant(
        name="blocks of lost entries stay",
        file="broker/consume_queue.py",
        old="        self._keep(blocks.without_entries_below(index))\n",
        new="        self._keep(blocks)\n",
        why="after `log discard` a topic says that it has messages which lie nowhere",
        checks=(_REKEEP,),
    ),
    Mutant(
        name="a copy has the time of the copying",
        file="replica/rolling.py",
        old="origin = mine if theirs is None else theirs[row + number]",
        new="origin = mine",
        why="a message that is kept seems as young as its last copy, and is never too old",
        checks=(_HISTORIES,),
    ),
    Mutant(
        name="a copy of a message without an id has none",
        file="replica/rolling.py",
        old="    return replace(message, message_id=id_of_place(entry.index, start, row))\n",
        new="    return message\n",
        why="its id changes whenever it is copied",
        checks=(_HISTORIES,),
    ),
)
