"""Bugs that simulated worlds with topics of every type find by themselves: no test is named.

Each is small in the state or at a leader; what it breaks is seen in the log, by the plain models of
held messages and of consumer groups (`dledger_sim.fates`, `consumed`, `given`), or in the end.
"""

from __future__ import annotations

from functools import partial

from tests.mutants.mutant import Mutant

_Planted = partial(Mutant, world="types")
_PLACES = "requests/places.py"
_CHECKS = "rocketmq/half_checks.py"
_FIFO = "broker/fifo_deliveries.py"
_GROUPS = "broker/consumer_groups.py"

TYPE_MUTANTS = (
    _Planted(
        name="the newest place is in front of the last message",
        file=_PLACES,
        old="        return queue.end if place.at_end else queue.first\n",
        new="        return max(queue.end - 1, queue.first) if place.at_end else queue.first\n",
        why="who skips a backlog gets a part of it",
    ),
    _Planted(
        name="a place by time is behind what was stored then",
        file=_PLACES,
        old="            if found_ms < stored_ms:\n",
        new="            if found_ms <= stored_ms:\n",
        why="who reads from a time on misses what was stored just then",
    ),
    _Planted(
        name="a seek begins one message late",
        file=_GROUPS,
        old="            group.seek(command.topic, each.queue_id, queue, each.offset)\n",
        new="            group.seek(\n"
        "                command.topic, each.queue_id, queue, min(each.offset + 1, queue.end)\n"
        "            )\n",
        why="one message of each seek is lost to its group",
    ),
    _Planted(
        name="a seek moves all groups",
        file=_GROUPS,
        old="            group.seek(command.topic, each.queue_id, queue, each.offset)\n",
        new="            for name in list(self._groups):\n"
        "                self._own(name).seek(command.topic, each.queue_id, queue, each.offset)\n",
        why="others get what they have acknowledged, or never what they had yet to get",
    ),
    _Planted(
        name="priorities are looked at from the lowest up",
        file=_GROUPS,
        old="            order = [*range(len(queues) - 1, -1, -1)]\n",
        new="            order = [*range(len(queues))]\n",
        why="what is urgent comes last",
    ),
    _Planted(
        name="a grown topic has its new priorities looked at last",
        file=_GROUPS,
        old="            order = [*range(len(queues) - 1, -1, -1)]\n",
        new="            order = [1, 0, *range(len(queues) - 1, 1, -1)][: len(queues)]\n",
        why="what is most urgent since the topic grew comes last",
    ),
    _Planted(
        name="a receive tries what its group has given up",
        file="broker/deliveries.py",
        old="        return lease.attempt >= max_attempts and not lease.is_suspended\n",
        new="        return lease.attempt > max_attempts and not lease.is_suspended\n",
        why="a poison message comes once more than was said",
    ),
    _Planted(
        name="a repeated attempt gets other messages",
        file="broker/attempts.py",
        old="        return (found.receive_id, held) if found is not None and held else None\n",
        new="        return None\n",
        why="who lost an answer has messages that nobody works off, until their leases end",
    ),
    _Planted(
        name="an acknowledged FIFO message leaves its group busy",
        file=_FIFO,
        old="        if code in self._passed_of:\n            self._make_ready(code)\n",
        new="        if code in self._passed_of:\n            pass\n",
        why="what waits of a group is never delivered",
    ),
    _Planted(
        name="what comes again of a FIFO group is its newest",
        file=_FIFO,
        old="            some = offsets[: limit - len(taken)]\n",
        new="            some = offsets[-(limit - len(taken)) :]\n",
        why="the order of a group is lost when its consumer dies",
    ),
    _Planted(
        name="what is due is looked for among halves",
        file="broker/due_slots.py",
        old="        for each in bucket.live_among("
        "bucket.of_kind(range(slot, len(due)), self._kind)):\n",
        new="        for each in bucket.live_among(range(slot, len(due))):\n",
        why="a half is delivered when its producer is to be asked about it",
    ),
    _Planted(
        name="a question comes before the log has it",
        file=_CHECKS,
        old="            result = await self._engine.propose(\n",
        new="            await asyncio.gather(*(self._ask_about(ref, 1) for ref in some))\n"
        "            result = await self._engine.propose(\n",
        why="leaders that come and go ask again and again, and count nothing",
    ),
    _Planted(
        name="a half is asked about once",
        file=_CHECKS,
        old="                if checks:\n                    self._wait(ref, next_ms)\n",
        new="                if checks:\n",
        why="of a producer that was silent once a transaction stays open for ever",
    ),
    _Planted(
        name="a leader asks only who is connected to it",
        file=_CHECKS,
        old="        for node_id in nodes[first:] + nodes[:first]:\n",
        new="        for node_id in nodes[:1]:\n",
        why="a producer at another node is never asked",
    ),
    _Planted(
        name="a word to go on cancels what is held since the pause",
        file="broker/held_messages.py",
        old="            bucket.paused = bucket.count\n        return self.count\n",
        new="            bucket.paused = bucket.count + 9\n        return self.count\n",
        why="what was sent to the restored group is dropped with what the original had",
    ),
)
