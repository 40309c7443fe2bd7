"""Bugs in how a consumer group goes on from elsewhere, and where a new one begins."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SEEKING = "tests/broker/test_seeking.py"
_HISTORIES = "tests/broker/test_filter_histories.py"
_OFFSETS = "tests/rocketmq/test_offsets.py"
_ADMIN = "tests/requests/test_group_admin.py"
_SOUGHT = "        sought = QueueDeliveries(offset, self.edition)\n"

SEEK_MUTANTS = (
    Mutant(
        name="leases stay at a seek",
        file="broker/consumer_group.py",
        old=_SOUGHT,
        new=_SOUGHT + "        sought.leases = {} if before is None else before.leases.copy()\n",
        why="members ack what is delivered again, and what they hold is hidden from the others",
        checks=(_SEEKING, _HISTORIES),
    ),
    Mutant(
        name="attempts go on counting after a seek",
        file="broker/consumer_group.py",
        old=_SOUGHT,
        new=_SOUGHT + "        old = {} if before is None else before.leases\n"
        "        sought.leases = {o: x for o, x in old.items() if o >= offset}\n",
        why="a day that is read again begins with the failures of the first time",
        checks=(_SEEKING,),
    ),
    Mutant(
        name="a handle of before a seek acks what is delivered again",
        file="broker/deliveries.py",
        old="            return 0 <= offset < self.next_offset and not is_kept\n"
        "        if lease.receive_id != receive_id:\n",
        new="            return 0 <= offset < self.next_offset and not is_kept\n"
        "        if lease.receive_id < receive_id:\n",
        why="a message of a replay is lost to whoever still works on its first delivery",
        checks=(_SEEKING, _HISTORIES),
    ),
    Mutant(
        name="what was kept for slower filters counts after a seek",
        file="broker/consumer_group.py",
        old="            before.kept.leave()\n        sought",
        new="            pass\n        sought",
        why="room for filters fills up with each seek, until all of them wait",
        checks=(_SEEKING, _HISTORIES),
    ),
    Mutant(
        name="a seek wakes nobody",
        file="broker/consumer_groups.py",
        old="            group.seek(command.topic, each.queue_id, each.offset)\n"
        "            self._changes.leases.add((group.name, command.topic, each.queue_id))\n",
        new="            group.seek(command.topic, each.queue_id, each.offset)\n",
        why="polls wait beside what the group is to read again",
        checks=(_SEEKING,),
    ),
    Mutant(
        name="a seek moves a topic that was made anew",
        file="broker/consumer_groups.py",
        old="        if topic.generation != command.generation:\n            raise TopicMadeAnew",
        new="        if topic.generation < command.generation:\n            raise TopicMadeAnew",
        why="offsets of a topic that is gone skip messages of the next one of its name",
        checks=(_SEEKING,),
    ),
    Mutant(
        name="a new group begins with the oldest message, whatever was asked for",
        file="broker/consumer_group.py",
        old="            found = QueueDeliveries(self.beginning.in_queue(queue), self.edition)\n",
        new="            found = QueueDeliveries(queue.first, self.edition)\n",
        why="an audit that is to begin now gets three days of messages",
        checks=(_SEEKING, _ADMIN),
    ),
    Mutant(
        name="where a group begins is not in a snapshot",
        file="broker/consumer_group.py",
        old="        begins = self.beginning != OLDEST\n",
        new="        begins = False\n",
        why="a replica that was restored delivers other messages than the others",
        checks=(_SEEKING,),
    ),
    Mutant(
        name="a pull of what is gone begins with the oldest message and says nothing",
        file="rocketmq/pulling.py",
        old="                if not queue.first <= at <= queue.end:\n",
        new="                at = max(at, queue.first)\n"
        "                if not queue.first <= at <= queue.end:\n",
        why="a reader never learns that retention was quicker than it",
        checks=(_OFFSETS,),
    ),
    Mutant(
        name="a pull takes an SQL filter for a list of tags",
        file="rocketmq/pulling.py",
        old="        if request.filter_expression.type == definition.FilterType.SQL:\n",
        new="        if request.filter_expression.expression is None:\n",
        why="a reader is told that there is nothing, where everything matches",
        checks=(_OFFSETS,),
    ),
)
