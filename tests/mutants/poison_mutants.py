"""Bugs in what is believed of a message, and told to those who read it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PACKED = "tests/rocketmq/test_packed_bodies.py"

POISON_MUTANTS = (
    Mutant(
        name="a body that says GZIP is stored as it comes",
        file="rocketmq/send_requests.py",
        old="        unchecked = check_small(unchecked)\n",
        new="        unchecked = []\n",
        why="one message stops every consumer of a topic whose library unpacks it",
        checks=(_PACKED,),
    ),
    Mutant(
        name="a large body that says GZIP is stored as it comes",
        file="rocketmq/sending.py",
        old="        await self._unpacking.check(sending.unchecked, caller.host)\n",
        new="",
        why="four kilobytes are gigabytes at each consumer",
        checks=(_PACKED,),
    ),
    Mutant(
        name="a batch's packed bodies are stored as they come",
        file="services/producing.py",
        old="            await self._unpacking.check(packed, self._host, may_refuse=False)\n",
        new="            pass\n",
        why="the native door lets in what the other refuses",
        checks=(_PACKED,),
    ),
    Mutant(
        name="a door process stores what it has not looked into",
        file="door_process/send_batches.py",
        old="if sending is not None and not sending.unchecked and sending.kind",
        new="if sending is not None and sending.kind",
        why="with door processes a large body is taken at its word",
        checks=(_PACKED,),
    ),
    Mutant(
        name="an old body that is no gzip is told as one",
        file="rocketmq/delivery_form.py",
        old="        return replace(message, encoding=Encoding.IDENTITY)\n",
        new="        return message\n",
        why="logs of versions before stop consumers for ever",
        checks=(_PACKED,),
    ),
    Mutant(
        name="what is too large for a client goes out to it",
        file="rocketmq/receiving.py",
        old="            if not is_taken(response, payload, caller.language):\n",
        new="            if False:\n",
        why="its library drops the answer, and all that came with it",
        checks=(_PACKED,),
    ),
    Mutant(
        name="whoever asked first is looked into first",
        file="requests/unpacking.py",
        old="self._lines.setdefault(address, deque())",
        new='self._lines.setdefault("", deque())',
        why="one client's bodies, made to take long, delay everybody's",
        checks=(_PACKED,),
    ),
)
