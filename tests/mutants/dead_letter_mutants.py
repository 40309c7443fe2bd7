"""Bugs in what ends messages that nobody can work off, and in the handles that are changed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MODEL = "tests/broker/test_dead_letters.py"
_MOVED = "tests/rocketmq/test_dead_letters_moved.py"

DEAD_LETTER_MUTANTS = (
    Mutant(
        name="a move does not end the lease",
        file="broker/consumer_groups.py",
        old="        if not self._ack(group, topic.name, lease):\n            raise _stale(lease)\n"
        "        return DeadLettered(stored)\n",
        new="        return DeadLettered(stored)\n",
        why="the message comes again, and is a dead letter each time",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a move appends whoever has the lease",
        file="broker/consumer_groups.py",
        old="        if held is not None and held.receive_id == lease.receive_id:\n",
        new="        if True:\n",
        why="two leaders make two dead letters of one message, and a late ack another",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a receive delivers whatever the attempts",
        file="broker/deliveries.py",
        old="        return lease.attempt >= max_attempts and not lease.is_suspended\n",
        new="        return False\n",
        why="a poison message comes without end",
        checks=(_MODEL,),
    ),
    Mutant(
        name="suspended deliveries count",
        file="broker/deliveries.py",
        old="            attempt=earlier.attempt + (not earlier.is_suspended) if earlier else 1,\n",
        new="            attempt=earlier.attempt + 1 if earlier else 1,\n",
        why="a consumer that only waits loses its message among the dead letters",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a changed lease keeps its handle",
        file="broker/lease_columns.py",
        old="        return self._replace(receive_id=receive_id, arrived=suspended)\n",
        new="        return self._replace(arrived=suspended)\n",
        why="who gave a message back may still end it for whoever has it next",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a change that is sent again changes the end again",
        file="broker/held_leases.py",
        old="            return lease.receive_id\n        if not self.give_back",
        new="            receive_id = lease.receive_id\n        if not self.give_back",
        why="a failover makes the first handle that was answered stale",
        checks=(_MODEL,),
    ),
    Mutant(
        name="dead letters have dead letters",
        file="broker/consumer_groups.py",
        old="        is_dead = command.topic[:PREFIX_LENGTH] == DEAD_LETTERS\n",
        new="        is_dead = False\n",
        why="a dead letter that is looked at too often goes where nobody looks",
        checks=(_MODEL,),
    ),
    Mutant(
        name="what a group sets is in no snapshot",
        file="broker/consumer_group.py",
        old="        sets_retries = self.retries != DEFAULT\n",
        new="        sets_retries = False\n",
        why="a restored replica delivers what the others have moved",
        checks=(_MODEL,),
    ),
    Mutant(
        name="spent messages are told to nobody who moves them",
        file="rocketmq/receiving.py",
        old="                if received is not None and received.spent:\n",
        new="                if False:\n",
        why="a poison message is neither delivered nor among the dead letters",
        checks=(_MOVED,),
    ),
)
