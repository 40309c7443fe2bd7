"""Bugs in who a message is: ids that stand for other bodies, who gives way, what cannot be told."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CONFLICTS = "tests/broker/test_message_id_conflicts.py"
_DEDUPE = "tests/broker/test_deduplication.py"
_IDENTITY = "tests/rocketmq/test_message_identity.py"
_BROKEN = "tests/requests/test_broken_messages.py"

IDENTITY_MUTANTS = (
    Mutant(
        name="an id is enough",
        file="broker/retries.py",
        old="        if before.digest != digest:\n",
        new="        if before.digest < 0:\n",
        why="a message whose id another client took is answered with OK and lost",
        checks=(_CONFLICTS, _IDENTITY),
    ),
    Mutant(
        name="an id is enough within a batch",
        file="broker/retries.py",
        old="            elif digests[first] == digest:\n",
        new="            elif digests[first] >= 0:\n",
        why="the second of two messages with one id is answered with OK and lost",
        checks=(_CONFLICTS,),
    ),
    Mutant(
        name="a length is enough",
        file="broker/body_digests.py",
        old='    halves[::2] = array("I", map(crc32c, bodies))\n',
        new='    halves[::2] = array("I", bytes(4 * len(bodies)))\n',
        why="a body of the same length passes for another, and states part by how batches came",
        checks=(_CONFLICTS,),
    ),
    Mutant(
        name="digests move when ids are forgotten",
        file="broker/client_ids.py",
        old="        self._digests_begin += count\n",
        new="        self._digests_begin += count - 1\n",
        why="a retry is compared with another message's body",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="a copy counts its messages anew",
        file="broker/client_ids.py",
        old="        other._digests, other._first_serial = self.digests(), self._first_serial\n",
        new="        other._digests, other._first_serial = self.digests(), 0\n",
        why="after a snapshot a retry is compared with another message's body",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="who was silent longest gives way, however little it holds",
        file="broker/deduplication.py",
        old="        return None if client is None else (-len(client), client.used_ms)\n",
        new="        return None if client is None else (client.used_ms,)\n",
        why="junk pushes out a quiet producer, whose retry is stored twice",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="all topics give way alike",
        file="broker/deduplication.py",
        old="        return None if share is None else (-share.ids,)\n",
        new="        return None if share is None else (0,)\n",
        why="junk under many client ids pushes out the producers of other topics",
        checks=(_DEDUPE,),
    ),
    Mutant(
        name="a heap believes ranks that have risen since",
        file="broker/ranking.py",
        old="            if now == rank:\n",
        new="            if now is not None:\n",
        why="another than the largest gives way, and not the same one on all nodes",
        checks=("tests/broker/test_ranking.py", _DEDUPE),
    ),
    Mutant(
        name="a repetition is believed",
        file="rocketmq/sending.py",
        old="*(row for row in stored.repeats if stored.offsets[row] != NOWHERE)]\n",
        new="]\n",
        why="a body that was made to collide makes a message vanish",
        checks=(_IDENTITY,),
    ),
    Mutant(
        name="one scope for all that conflict",
        file="rocketmq/sending.py",
        old='    return f"{client_id}#{digest.hexdigest()}"\n',
        new='    return f"{client_id}#{len(message.message_id):016x}"\n',
        why="the place where a message finds itself is taken as well",
        checks=(_IDENTITY,),
    ),
    Mutant(
        name="a client may call itself as the group does",
        file="checks/names.py",
        old="    return fits and _SCOPE.search(client_id) is None\n",
        new="    return fits\n",
        why="the place where a message finds itself is taken as well",
        checks=(_IDENTITY,),
    ),
    Mutant(
        name="readers are told who produced",
        file="broker/produce.py",
        old="    return head, payload[HEADER.size + mark + client :]\n",
        new="    return bytes(payload[: HEADER.size]), payload[HEADER.size :]\n",
        why="whoever reads a topic can take the next ids of its producers",
        checks=(_IDENTITY,),
    ),
    Mutant(
        name="a stream says nothing of conflicts",
        file="services/producing.py",
        old="        conflicts=stored.conflicts,\n",
        new="",
        why="a message that is not stored is answered with an offset",
        checks=(_IDENTITY,),
    ),
    Mutant(
        name="an append that conflicts is answered",
        file="services/ledger.py",
        old="        if stored.conflicts:\n",
        new="        if stored.conflicts is None:\n",
        why="a message that is not stored is answered with an offset",
        checks=(_IDENTITY,),
    ),
    Mutant(
        name="ids of any bytes",
        file="broker/produce.py",
        old='        self._ids.check_text("message id")\n',
        new="",
        why="a message comes into the log that no consumer can be given",
        checks=(_BROKEN,),
    ),
    Mutant(
        name="texts are looked at all at once",
        file="broker/string_columns.py",
        old="        if self.joined().isascii():\n",
        new="        if self.joined().isascii() or self.joined().decode():\n",
        why="a character that is cut between two rows comes into the log",
        checks=(_BROKEN,),
    ),
    Mutant(
        name="clocks without an end",
        file="services/batches.py",
        old="    check_times(batch.born_at_ms())\n",
        new="",
        why="a consumer cannot make a date of what it gets",
        checks=(_BROKEN,),
    ),
    Mutant(
        name="a broken message comes again and again",
        file="rocketmq/receiving.py",
        old="        if broken:\n",
        new="        if not broken:\n",
        why="it is leased for ever, and holds back what is behind it",
        checks=(_BROKEN,),
    ),
)
