"""Bugs in what consumers wait for and hold: who is woken, who is not, and what a look costs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TURNS = "tests/rocketmq/test_long_polls.py"
_DELIVERIES = "tests/broker/test_deliveries.py"

CONSUMER_MUTANTS = (
    Mutant(
        name="a woken poll that goes away keeps its turn",
        file="rocketmq/long_polls.py",
        old="            self._hand_on(waiter)\n",
        new="",
        why="a message lies there while polls wait, until another comes or the lease would end",
        checks=(_TURNS,),
    ),
    Mutant(
        name="a turn that ends wakes nobody",
        file="rocketmq/long_polls.py",
        old="        if not line.over:\n            self._due[line] = None\n",
        new="",
        why="polls wait beside what a RECEIVE before theirs left",
        checks=(_TURNS,),
    ),
    Mutant(
        name="one message wakes every poll",
        file="rocketmq/long_polls.py",
        old="want, enough, state = line.want, line.claimed + 1, self._engine.state",
        new="want, enough, state = line.want, 1, self._engine.state",
        why="a thousand idle consumers take the leader's core",
        checks=(_TURNS,),
    ),
    Mutant(
        name="no look when a lease ends",
        file="rocketmq/long_polls.py",
        old="        else:\n            self._set_timer(line)\n",
        new="",
        why="what was not acked is delivered again only when something else happens",
        checks=(_TURNS,),
    ),
    Mutant(
        name="an attempt that asks again waits for its own messages",
        file="rocketmq/long_polls.py",
        old="for attempt in changes.attempts:",
        new="for attempt in changes.attempts - changes.attempts:",
        why="an answer that was lost is hidden until its leases end",
        checks=(_TURNS,),
    ),
    Mutant(
        name="any number of turns at once",
        file="rocketmq/long_polls.py",
        old="while self._due and self._out < MAX_TURNS:",
        new="while self._due:",
        why="a thousand RECEIVEs are applied and answered in one turn of the event loop",
        checks=(_TURNS,),
    ),
    Mutant(
        name="an ack that makes room wakes nobody",
        file="broker/consumer_groups.py",
        old="if deliveries.lacks_room(",
        new="if not deliveries and deliveries.lacks_room(",
        why="a group at its bound of leases goes on only when a lease ends",
        checks=(_TURNS,),
    ),
    Mutant(
        name="count all leases that have ended",
        file="broker/deliveries.py",
        old="while len(self._counted) < enough and self",
        new="while self",
        why="a million leases that end at once stop the event loop for a second",
        checks=(_DELIVERIES,),
    ),
    Mutant(
        name="a lease that goes on is counted as ended",
        file="broker/deliveries.py",
        old="        self._counted.discard(offset)\n        if self.kept",
        new="        if self.kept",
        why="polls ask for messages that are not there, one RECEIVE after the other",
        checks=(_DELIVERIES,),
    ),
    Mutant(
        name="what a leader looked at is handed out first",
        file="broker/deliveries.py",
        old="in_ended = ended and (not expiry or ended[0] <= expiry[0])",
        new="in_ended = bool(ended)",
        why="the leader's state is another than its followers'",
        checks=(_DELIVERIES,),
    ),
    Mutant(
        name="what was given back stays in its client's hands",
        file="broker/deliveries.py",
        old="            self._let_go(offset, lease)\n            self.leases[offset]",
        new="            self.leases[offset]",
        why="a client that parts ends leases that are another's by now",
        checks=(_DELIVERIES,),
    ),
)
