"""Bugs in what counts as received: answers that die on their way, and connections that end."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PROOFS = "tests/door/test_proofs.py"
_LEAVING = "tests/door/test_leaving.py"
_MODEL = "tests/rocketmq/test_arrivals_model.py"
_ANSWERS = "tests/rocketmq/test_proved_answers.py"
_LOST = "tests/rocketmq/test_lost_answers.py"

ANSWER_MUTANTS = (
    Mutant(
        name="an answer that has left is received",
        file="door/proofs.py",
        old="        self._awaited[stream_id] = answer\n        if not self.due:\n",
        new="        answer.arrival.proved()\n        if not self.due:\n",
        why="what dies with its connection is kept for a consumer that never had it",
        checks=(_PROOFS,),
    ),
    Mutant(
        name="a PING proves what left behind it",
        file="door/proofs.py",
        old="            if answer.ping > number:\n                return\n",
        new="",
        why="an answer that follows the PING of another is believed to be there",
        checks=(_PROOFS,),
    ),
    Mutant(
        name="any acknowledgement proves",
        file="door/proofs.py",
        old="        if number > self._asked:  # another's, or made up\n            return\n",
        new="",
        why="a keepalive that comes back proves what nobody asked for",
        checks=(_PROOFS,),
    ),
    Mutant(
        name="a reset after the end is not looked at",
        file="door/calls.py",
        old="        self._proofs.lose(event.stream_id)  # also of one that is closed already\n",
        new="",
        why="a client that gave its call up acknowledges the PING all the same",
        checks=(_PROOFS,),
    ),
    Mutant(
        name="a call that failed arrives",
        file="door/calls.py",
        old="        self._proofs.lose(call.stream_id)\n        if not self.gone:\n",
        new="        if not self.gone:\n",
        why="a client throws away what came before an error, and never gets it again",
        checks=(_PROOFS,),
    ),
    Mutant(
        name="a connection's end is told to nobody",
        file="door/calls.py",
        old="        self._proofs.lose_all()\n",
        new="",
        why="who waits for the fate of its answers keeps what it knows of them",
        checks=(_PROOFS,),
    ),
    Mutant(
        name="what the other kernel has still moves",
        file="door/proofs.py",
        old="            on_its_way = answer.end is None or answer.end > before\n",
        new="            on_its_way = True\n",
        why="an answer that a proxy swallowed is withheld while others follow it",
        checks=(_PROOFS,),
    ),
    Mutant(
        name="GOAWAY is sent to who has said it",
        file="door/connection.py",
        old="            with contextlib.suppress(ngh2.ConnectionStateError):"
        "  # the client has ended it before\n"
        "                self._h2.send_goaway(",
        new="            if self._drained:\n                self._h2.send_goaway(",
        why="each graceful stop has a traceback for each client that answers GOAWAY",
        checks=(_LEAVING,),
    ),
    Mutant(
        name="a written answer is received",
        file="rocketmq/client_registry.py",
        old="        return partial(arrivals.written, parts)\n",
        new="        return partial(_believe, arrivals, parts)\n",
        why="its messages are renewed for ever while their consumer lives elsewhere",
        checks=(_MODEL, _ANSWERS),
    ),
    Mutant(
        name="what moves has arrived",
        file="rocketmq/client_registry.py",
        old="FIRST_INVISIBLE_MS, arrived=False)\n",
        new="FIRST_INVISIBLE_MS, arrived=True)\n",
        why="an answer that breaks in its middle is kept for who has half of it",
        checks=(_MODEL,),
    ),
    Mutant(
        name="what moves is not prolonged",
        file="rocketmq/client_registry.py",
        old="        if known.moving:\n",
        new="        if known is None:\n",
        why="each large answer on a slow line is given away again while it is under way",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a handle proves what is still being written",
        file="rocketmq/arrivals.py",
        old="            if (key, lease.receive_id) not in self._unfinished:\n",
        new="            if lease.receive_id:\n",
        why="a client that works on the first of an answer never gets the rest",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a handle proves nothing",
        file="rocketmq/arrivals.py",
        old="                self._arrived[key].add(lease.receive_id)\n",
        new="                pass\n",
        why="whose connection broke before its PING came back gets twice what it has",
        checks=(_MODEL,),
    ),
    Mutant(
        name="a follower's word of what moves is one of what arrived",
        file="requests/passing_on.py",
        old="            [each for each in numbers if each < _MOVES],\n",
        new="            [each % _MOVES for each in numbers],\n",
        why="a slow line of a follower's client that breaks loses what was on it",
        checks=(_LOST,),
    ),
    Mutant(
        name="a follower reports what it wrote",
        file="requests/forward.py",
        old="caller.prove(Passage(self._answers, leader.address, number))",
        new="self._answers.arrived(leader.address, number)",
        why="an answer that dies behind a follower is kept for ever",
        checks=(_ANSWERS,),
    ),
    Mutant(
        name="what a door lost has arrived",
        file="door_process/node_end.py",
        old="            if arrives is Arrives.PROVED:\n",
        new="            if arrival is not None:\n",
        why="behind door processes an answer that dies is kept for ever",
        checks=(_ANSWERS,),
    ),
    Mutant(
        name="a longer lease is cut by a late word that it moves",
        file="broker/held_leases.py",
        old=" or (lease.arrived and not arrived):\n",
        new=":\n",
        why="what a consumer works on is given to another",
        checks=("tests/broker/test_deliveries.py",),
    ),
    Mutant(
        name="nothing was done, says who does not know it",
        file="errors.py",
        old='            "the group has no leader at the moment: try again"\n',
        new='            "the group has no leader at the moment: try again; nothing was done"\n',
        why="who believes it sends again what is stored, under a new id",
        checks=("tests/requests/test_forward.py",),
    ),
)
