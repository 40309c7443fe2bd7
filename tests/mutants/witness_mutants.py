"""Bugs by which a disk that was put back to an older copy of itself is believed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WITNESS = "tests/raft/test_witness.py"
_WALKS = "tests/raft/test_witness_walks.py"
_KEEPER = "tests/replica/test_witness_keeper.py"
_PERSISTENCE = "tests/replica/test_persistence.py"

WITNESS_MUTANTS = (
    Mutant(
        name="what power took from a buffer is forgotten at once",
        file="raft/witness.py",
        old="                furthest = max(furthest, (promised.last_term, promised.last_index))\n",
        new="                pass\n",
        why="one power cut with osBuffer, and a lagging member is voted for",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="a group that acknowledges from the page cache abstains",
        file="raft/witness.py",
        old="            if self._may_lose:\n",
        new="            if False:\n",
        why="after a power cut of all, nobody votes ever again",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="hear and speak while the others are asked",
        file="raft/core.py",
        old="        if self.witness.asks:\n            return\n        if message.recipient",
        new="        if message.recipient",
        why="an older copy acknowledges to a leader that was deposed with its vote",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="an older copy votes",
        file="raft/election.py",
        old="        if not self._may_choose(message.last_term, message.last_index):\n"
        "            return False\n",
        new="",
        why="what it acknowledged is voted away",
        checks=(_WITNESS, _WALKS),
    ),
    Mutant(
        name="an older copy stands for election",
        file="raft/election.py",
        old="        may_stand = allowed and self._may_choose(self._log.last_term, "
        "self._log.last_index)\n",
        new="        may_stand = allowed\n",
        why="it leads without what it acknowledged",
        checks=(_WITNESS, _WALKS),
    ),
    Mutant(
        name="vote in a term that was taken over",
        file="raft/server_state.py",
        old="        if self.vote is None:\n            self._set(HardState(self.term, self.id))\n",
        new="",
        why="two leaders of one term have its vote",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="an older copy says that it never had an entry",
        file="raft/log_discard.py",
        old="        if self._witness.is_silent or self._witness.written is not None:\n",
        new="        if self._witness.asks:\n",
        why="what was committed is discarded by its word",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="compare marks by index alone",
        file="raft/witness.py",
        old="(promised.last_term, promised.last_index) > (own.last_term, own.last_index)",
        new="promised.last_index > own.last_index",
        why="a copy from before a short log's new leader is believed",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="take what a later leader cut for an older copy",
        file="raft/witness.py",
        old="    return shorter and promised.last_term >= own.term\n",
        new="    return shorter\n",
        why="an honest node abstains, and with another one away its group stands still",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="believe a disk whose term fell",
        file="raft/witness.py",
        old="    if promised.term > own.term:\n        return True\n",
        new="",
        why="a copy whose log happens to be as long is not told",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="a forged mark silences for ever",
        file="raft/core.py",
        old="        if witness.heard_ticks >= patience and has_all",
        new="        if witness.heard_ticks < 0 and has_all",
        why="one lie costs the group a member",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="heal before what was lost is durable",
        file="raft/core.py",
        old="        index = self._log.durable_index\n        if witness.pays",
        new="        index = self._log.last_index\n        if witness.pays",
        why="a power cut then takes it once more, and nobody asks",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="a leader that returns stands for what its disk has",
        file="raft/witness.py",
        old="                if stood and end.last_term == own.term\n",
        new="                if not stood and end.last_term == own.term\n",
        why="what it promised just before its disk was put back is lost",
        checks=(_WITNESS, _WALKS),
    ),
    Mutant(
        name="tell as committed what the leader's own disk lacks",
        file="raft/log.py",
        old="        return min(self.commit_index, self.durable_index)\n\n    def commit_to",
        new="        return self.commit_index\n\n    def commit_to",
        why="an honest leader that lost its newest entries is taken for an older copy",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="keep what a member acknowledged before it started anew",
        file="raft/progress.py",
        old="        self.match_index, self.owed_index = 0, owed_index\n",
        new="        self.owed_index = owed_index\n",
        why="what it lacks is never sent to it",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="count an older copy's acknowledgements at once",
        file="raft/leader.py",
        old="            counts = progress.match_index >= progress.owed_index\n",
        new="            counts = True\n",
        why="an entry is committed by a member that may not vote for it",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="forget what was acknowledged when leadership ends",
        file="raft/core.py",
        old="            return False\n        self._remember()\n",
        new="            return False\n",
        why="who knew it best does not tell it",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="keep silent about a contradiction",
        file="raft/follower.py",
        old="            self._contradicted(message.sender, new[0])\n",
        new="",
        why="a node stands still and nobody is told that messages are lost",
        checks=(_WITNESS,),
    ),
    Mutant(
        name="take part with half of the answers",
        file="replica/witness_keeper.py",
        old="get(core.id) is not None and not silent",
        new="get(core.id) is not None and len(silent) < len(voters)",
        why="the one who knows better was only slow",
        checks=(_KEEPER,),
    ),
    Mutant(
        name="wait for who is silent without a bound",
        file="replica/witness_keeper.py",
        old="        if not knows_all and now_s < self._until_s:\n",
        new="        if not knows_all:\n",
        why="with one machine dead no other one comes back",
        checks=(_KEEPER,),
    ),
    Mutant(
        name="cut a log before the term of that is durable",
        file="replica/persistence.py",
        old="        if self._newest_jump > self._votes_up_to():\n",
        new="        if self._newest_jump < 0:\n",
        why="a crash in between makes an honest disk look like an older copy",
        checks=(_PERSISTENCE,),
    ),
)
