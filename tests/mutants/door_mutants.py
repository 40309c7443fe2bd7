"""Bugs in the clients' server: its bounds, and what is served there without a coroutine."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CALLBACKS = "tests/rocketmq/test_callbacks.py"
_BOUNDS = "tests/door/test_bounds_of_a_port.py"
_CALLS = "tests/door/test_grpc_calls.py"

DOOR_MUTANTS = (
    Mutant(
        name="a request that ends keeps its room",
        file="rocketmq/callbacks.py",
        old="        self._method.port.admission.leave(self._room)\n",
        new="",
        why="after 32 MiB of messages the node takes none any more",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="a repeated message gets the offset of whatever has its id",
        file="rocketmq/sending.py",
        old="    if stored.repeats or stored.conflicts:\n        return None\n",
        new="",
        why="a message whose id somebody took is acknowledged and not stored",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="an unknown outcome is told at once",
        file="rocketmq/callbacks.py",
        old="            self._otherwise(error)\n            return\n",
        new="            self._answer(self._method.port.failed(self._method.name, error))\n"
        "            return\n",
        why="a client sees each failover",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="a client that gives up is served on",
        file="rocketmq/callbacks.py",
        old="            return submitted.cancel\n",
        new="            return _nothing\n",
        why="what nobody waits for holds room until it is committed",
        checks=(_CALLBACKS,),
    ),
    Mutant(
        name="a message is judged when it has arrived",
        file="door/grpc_format.py",
        old="        if size > self._max:",
        new="        if size > self._max and len(data) - start >= size:",
        why="a client makes a node hold as much as it likes",
        checks=(_CALLS, _BOUNDS),
    ),
    Mutant(
        name="a stopping server forgets the calls without a task",
        file="server/door_calls.py",
        old="    return call.cancel\n\n\nasync def _unary",
        new="    return lambda: None\n\n\nasync def _unary",
        why="what is under way when a node stops holds its room, and is answered to nobody",
        checks=(_CALLBACKS,),
    ),
)
