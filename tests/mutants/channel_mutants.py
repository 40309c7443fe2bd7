"""Bugs in the sidecar's way to the group: messages lost or doubled, or calls that wait for ever."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHANNEL = "tests/sidecar/test_channel.py"
_CHANNEL_FILE = "sidecar/channel.py"
_CALL_FILE = "sidecar/channel_call.py"
_REPLAY = "tests/sidecar/test_replay.py"

CHANNEL_MUTANTS = (
    Mutant(
        name="a lost connection has brought nothing",
        file=_CHANNEL_FILE,
        old='f"the connection was lost (',
        new='f"{NOT_REACHED} (',
        why="what is stored already is no message of unknown outcome, and is not told as one",
        checks=(_CHANNEL,),
    ),
    Mutant(
        name="one of two who wait for a stream is forgotten",
        file=_CALL_FILE,
        old="            self._waiters.append(waiter)\n",
        new="            self._waiters = [waiter]\n",
        why="Telemetry that is written before there is a connection is never read",
        checks=(_CHANNEL,),
    ),
    Mutant(
        name="a slow group makes a lane crawl",
        file="sidecar/replay.py",
        old="        return min(limit, max(least, limit // 2, int(count * CALL_S / lasted_s)))\n",
        new="        return max(1, int(count * CALL_S / lasted_s))\n",
        why="a machine that is busy for a minute is told one message a call",
        checks=(_REPLAY,),
    ),
    Mutant(
        name="a replay is checked in vain first",
        file="calls/call.py",
        old="        if submit is None or self.method.served_with in self.caller.fields:\n",
        new="        if submit is None:\n",
        why="a leader takes one and a half times as long for each message of a replay",
        checks=("tests/calls/test_pipeline.py",),
    ),
)
