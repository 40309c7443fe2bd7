"""Bugs in what is kept for the filters of a consumer group, and for how long."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_FILTERS = "tests/broker/test_group_filters.py"
_HISTORIES = "tests/broker/test_filter_histories.py"
_SNAPSHOTS = "tests/broker/test_broker_snapshots.py"
_TURNS = "tests/rocketmq/test_long_polls.py"
_USES = "tests/rocketmq/test_filter_uses.py"
_AT = "tests/broker/test_receive_at.py"
_SCANS = "tests/rocketmq/test_expression_scans.py"
_EXPRESSIONS = "tests/rocketmq/test_expressions.py"

FILTER_MUTANTS = (
    Mutant(
        name="what one filter passes over is done",
        file="broker/deliveries.py",
        old="                if filters is not None and not self._keep(run, filters):\n"
        "                    break\n",
        new="",
        why="in a rolling change of a service's filter the other version never gets it",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="a redelivery that another filter names is forgotten",
        file="broker/deliveries.py",
        old="if filters is None or filters.key_of(code) is None:",
        new="if True:",
        why="an unacked message is lost when a member with another filter asks first",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="a message that was put aside loses its attempts",
        file="broker/deliveries.py",
        old="        self.leases[offset] = self.leases[offset]._replace(visible_at_ms=_ASIDE_MS)\n",
        new="        self.leases[offset] = self.leases[offset]._replace("
        "visible_at_ms=_ASIDE_MS, attempt=0)\n",
        why="a consumer is told that it is the first to try",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="an acked message that was put aside comes again",
        file="broker/deliveries.py",
        old="        if self.kept is not None:\n            self.kept.take_back(offset)\n",
        new="",
        why="who was late to acknowledge, and was believed, gets it once more",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="an ack of what was never delivered is believed",
        file="broker/deliveries.py",
        old="return 0 <= offset < self.next_offset and not is_kept",
        new="return 0 <= offset < self.next_offset",
        why="the answer says consumed of a message that is kept for another",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="the first lease is the lowest",
        file="broker/deliveries.py",
        old="        if passed and self.leases:\n            self._in_order = False\n",
        new="",
        why="retention and reports go by an offset above one that is still to be consumed",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="what is kept does not hold the committed offset",
        file="broker/deliveries.py",
        old="return lowest if first is None else min(lowest, first)",
        new="return lowest",
        why="a group counts as done with messages that one of its filters has to get",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="retention leaves what is kept",
        file="broker/deliveries.py",
        old="            self.kept.drop_before(first)\n",
        new="",
        why="a RECEIVE hands out a message that its queue does not have",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="nothing bounds what is kept of a queue",
        file="broker/kept_messages.py",
        old="return self.runs < MAX_KEPT_RUNS and not self._room.is_full",
        new="return not self._room.is_full",
        why="a filter that was left behind costs each node memory without end",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="nothing bounds what is kept of all queues",
        file="broker/kept_messages.py",
        old="return self.runs < MAX_KEPT_RUNS and not self._room.is_full",
        new="return self.runs < MAX_KEPT_RUNS",
        why="many groups with two filters cost each node memory without end",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="at the bound the slower filter loses",
        file="broker/deliveries.py",
        old="        if not self._has_room_for(run, filters):\n            return False\n",
        new="        if not self._has_room_for(run, filters):\n            return True\n",
        why="a live, slow member's messages are given up",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="a deleted group keeps its room",
        file="broker/consumer_groups.py",
        old="        self._own(command.name).leave()\n",
        new="",
        why="after some deletions nobody's filters may keep anything",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="a look does not know the filter",
        file="rocketmq/long_polls.py",
        old="            codes=want.codes,\n",
        new="            codes=None,\n",
        why="a member asks in a circle for what is kept for another",
        checks=(_TURNS,),
    ),
    Mutant(
        name="one line for all filters of a group",
        file="rocketmq/long_polls.py",
        old="        line = lines.get(want.codes)\n",
        new="        line = next(iter(lines.values()), None)\n",
        why="a poll sleeps beside its message, since the first in line does not name it",
        checks=(_TURNS,),
    ),
    Mutant(
        name="a look goes past what no more is kept of",
        file="broker/deliveries.py",
        old="            elif not self._has_room_for(run, filters):\n"
        "                return found\n",
        new="",
        why="at the bound the faster member asks in a circle",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="a poll that waits does not say its filter",
        file="rocketmq/receiving.py",
        old="            await self._resolver.use_filter(group, name, tags)\n",
        new="            pass\n",
        why="a quiet member's messages are lost to a busy one with another filter",
        checks=(_USES,),
    ),
    Mutant(
        name="a use is said once",
        file="broker/group_filters.py",
        old="            or now_ms - found.used_ms < USE_IS_SAID_MS\n        )\n\n    def is_expr",
        new="            or True\n        )\n\n    def is_expr",
        why="a member that waits for ten minutes counts as gone",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="the only filter ages",
        file="broker/group_filters.py",
        old="            self._uses[only] = FilterUse(use.text, now_ms)\n",
        new="            pass\n",
        why="the old version of a service is gone in the moment in which the new one comes",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="no filter is ever gone",
        file="broker/group_filters.py",
        old="            if not _is_gone(use, now_ms):\n",
        new="            if True:\n",
        why="what nobody asks for any more fills the room, and the others wait for ever",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="a pause of the group ages filters",
        file="broker/consumer_groups.py",
        old="self._filters_active = ActiveTime(USE_IS_SAID_MS)",
        new="self._filters_active = ActiveTime(MAX_GAP_MS)",
        why="after a restart of all nodes who asks first takes what the others are to get",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="what was put aside ends again on a node that was restored",
        file="broker/deliveries.py",
        old="        if lease.visible_at_ms != _ASIDE_MS:\n            heappush",
        new="        if True:\n            heappush",
        why="a node that took a snapshot hands out other messages than the rest",
        checks=(_HISTORIES, _SNAPSHOTS),
    ),
    Mutant(
        name="the end of a filter wakes nobody",
        file="broker/consumer_groups.py",
        old="            self._changes.leases.update("
        "(group.name, topic, each) for each in ended)\n",
        new="",
        why="who waited for it at the bound goes on only with its next poll",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="what is kept for one filter goes with another",
        file="broker/group_filters.py",
        old="                if not self._named[code]:\n"
        "                    del self._named[code]\n",
        new="                del self._named[code]\n",
        why="the end of one filter takes messages from those that share a tag with it",
        checks=(_FILTERS,),
    ),
    Mutant(
        name="a range that nobody looked at is passed",
        file="broker/deliveries.py",
        old="        if command.start <= self.next_offset < command.stop:\n",
        new="        if self.next_offset < command.stop:\n",
        why="after a lost command, or a seek back, what matches before the range never comes",
        checks=(_AT,),
    ),
    Mutant(
        name="what another scan has handed out comes again",
        file="broker/deliveries.py",
        old="for each in command.take if each >= self.next_offset and queue.has(each)",
        new="for each in command.take if queue.has(each)",
        why="two leaders' commands overlap, and a message goes to two members",
        checks=(_AT,),
    ),
    Mutant(
        name="a lease that lasts is handed out again",
        file="broker/deliveries.py",
        old="return lease is not None and lease.visible_at_ms <= now_ms",
        new="return lease is not None",
        why="of two commands with the same redelivery both deliver it",
        checks=(_AT,),
    ),
    Mutant(
        name="another expression is served beside one in use",
        file="broker/consumer_groups.py",
        old="        if (other := self.filter_beside("
        "command.group, command.topic, command.sql)) is not None:\n"
        "            raise FilterInUse.of(other)\n",
        new="",
        why="what it passes over is lost to the first",
        checks=(_AT,),
    ),
    Mutant(
        name="tags are served beside an expression",
        file="broker/group_filters.py",
        old="if self.expression is not None and not self._uses:",
        new="if False:",
        why="what they pass over is lost to the expression",
        checks=(_AT,),
    ),
    Mutant(
        name="the only filter by tags does not age beside an expression",
        file="broker/group_filters.py",
        old="codes in self._uses and self.expression is None",
        new="codes in self._uses",
        why="an expression is served while members ask for tags",
        checks=(_AT,),
    ),
    Mutant(
        name="messages of a topic that was made anew are passed",
        file="broker/consumer_groups.py",
        old="if command.generation != topic.generation or command.stop > queue.end:",
        new="if command.stop > queue.end:",
        why="the leader has looked at those of the old one",
        checks=(_AT,),
    ),
    Mutant(
        name="each poll looks by itself",
        file="rocketmq/expression_scans.py",
        old="            scan = self._scans[key] = _Scan((key[1], key[3]))\n",
        new="            scan = _Scan((key[1], key[3]))\n",
        why="fifty consumers evaluate each message fifty times",
        checks=(_SCANS,),
    ),
    Mutant(
        name="a range without a match is not passed",
        file="rocketmq/expression_scans.py",
        old="if stop == start and not again and not done:",
        new="if not take and not again and not done:",
        why="a backlog is looked at anew by each leader, and UNREAD never falls",
        checks=(_SCANS,),
    ),
    Mutant(
        name="what is unknown is false",
        file="rocketmq/expressions.py",
        old="return None if found is None else not found",
        new="return not found",
        why="NOT (a = 1) matches messages without a",
        checks=(_EXPRESSIONS,),
    ),
)
