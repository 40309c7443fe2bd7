"""Planted bugs in the sidecar: what is away, lanes, places, what is set aside and goes back."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SENDS: Final = "tests/sidecar/test_sends.py"
_REPLAY: Final = "tests/sidecar/test_replay.py"
_DECISIONS: Final = "tests/sidecar/test_decisions.py"
_ROUTES: Final = "tests/sidecar/test_routes.py"
_STATUS: Final = "tests/sidecar/test_status.py"
_SHOWING: Final = "tests/sidecar/test_showing.py"
_BACK: Final = "tests/sidecar/test_putting_back.py"
_PASSING: Final = "tests/sidecar/test_passing.py"
_LANES: Final = "tests/spool/test_spool_lanes.py"
_REQUEUE: Final = "tests/spool/test_requeue.py"
_CRASHES: Final = "tests/spool/test_spool_crashes.py"

SIDECAR_MUTANTS: Final = (
    Mutant(
        name="a send overtakes its spooled lane",
        file="sidecar/sends.py",
        old="        elif lane.is_behind:\n            self._stand_behind",
        new="        elif lane.writing < 0:\n            self._stand_behind",
        why="what was sent later is stored before what was sent first",
        checks=(_SENDS,),
    ),
    Mutant(
        name="a send under way is overtaken by the next one",
        file="sidecar/sends.py",
        old="        while lane.sends and lane.sends[0].stage in (_Stage.DONE, _Stage.SPOOLED):\n"
        "            send = lane.sends.popleft()\n",
        new="        over = (_Stage.DONE, _Stage.SPOOLED)\n"
        "        for send in [each for each in lane.sends if each.stage in over]:\n"
        "            lane.sends.remove(send)\n",
        why="a crowd that is under way at the break is spooled in any order",
        checks=(_SENDS,),
    ),
    Mutant(
        name="a spooled send is OK before it is synced",
        file="spool/spool.py",
        old="            handle.pwritev(records, file.end)\n            handle.fdatasync()\n",
        new="            handle.pwritev(records, file.end)\n",
        why="a power cut loses what was answered OK",
        checks=(_CRASHES,),
    ),
    Mutant(
        name="a spooled send is OK before it is written",
        file="sidecar/sends.py",
        old="        error: DledgerError | None\n        try:\n            kept =",
        new="        error: DledgerError | None\n"
        "        self._end(send, _acceptance_of(messages))\n        try:\n            kept =",
        why="a disk that is full or fails loses it, and nobody is told",
        checks=(_SENDS,),
    ),
    Mutant(
        name="an unknown outcome is not told",
        file="sidecar/sends.py",
        old="                send.tried |= error.sent\n",
        new="",
        why="spool status calls certain what may be there already",
        checks=(_SENDS,),
    ),
    Mutant(
        name="an unknown outcome is forgotten by the disk",
        file="spool/payload.py",
        old="            _TRIED * message.tried | _WENT_BACK * message.went_back,\n",
        new="            _WENT_BACK * message.went_back,\n",
        why="after a restart of the sidecar nobody knows of it",
        checks=(_LANES,),
    ),
    Mutant(
        name="TOO_MANY_REQUESTS is passed on",
        file="sidecar/decisions.py",
        old="_WAITS: Final = frozenset({Code.TOO_MANY_REQUESTS, Code.REQUEST_TIMEOUT})\n",
        new="_WAITS: Final = frozenset({Code.REQUEST_TIMEOUT})\n",
        why="SDKs give the message up at once",
        checks=(_SENDS,),
    ),
    Mutant(
        name="50002 in a body is passed on as an answer",
        file="sidecar/decisions.py",
        old="(code >= _OF_SERVERS and code not in _NEVER)",
        new="(code > 59_999 and code not in _NEVER)",
        why="a node without a majority says it with gRPC's OK, and the message is lost",
        checks=(_DECISIONS, _SENDS),
    ),
    Mutant(
        name="the first entry of an answer stands for all",
        file="sidecar/decisions.py",
        old="    statuses = [response.status, *(entry.status for entry in entries)]\n",
        new="    statuses = [response.status]\n",
        why="what was refused within a request of many is taken for stored",
        checks=(_DECISIONS,),
    ),
    Mutant(
        name="a send may take all of its caller's time",
        file="sidecar/decisions.py",
        old="    return max(0.0, min(ALL_TRIES_S, max(left_s - MARGIN_S, left_s / 2)))\n",
        new="    return max(0.0, left_s)\n",
        why="its caller has given up when it is spooled, and sends it again",
        checks=(_DECISIONS,),
    ),
    Mutant(
        name="tries go on after the budget",
        file="sidecar/sends.py",
        old="        until_s = loop.time() + budget_s(left_s)\n",
        new="        until_s = loop.time() + 60.0\n",
        why="the first sends of an outage wait until their callers give up",
        checks=(_SENDS,),
    ),
    Mutant(
        name="each send of a lane finds out by itself that the group is away",
        file="sidecar/sends.py",
        old="                self._end_tries(lane)\n",
        new="                pass\n",
        why="what comes two seconds after a break waits for two more",
        checks=(_SENDS,),
    ),
    Mutant(
        name="a try that was ended is of known outcome",
        file="sidecar/sends.py",
        old="                send.stage, send.tried = _Stage.SPOOLED, True\n",
        new="                send.stage = _Stage.SPOOLED\n",
        why="what the group may have already is not told as such",
        checks=(_SENDS,),
    ),
    Mutant(
        name="a lane keeps its number when the directory is opened",
        file="spool/lanes.py",
        old="            self._lanes.setdefault((head.client_id, head.topic), Lane()).depth += 1\n",
        new="            key = (head.client_id, head.topic)\n"
        "            found = self._lanes.setdefault(key, Lane(head.lane))\n"
        "            found.depth, found.last = found.depth + 1, head.lane_sequence\n",
        why="in a directory that was put back a place is given twice, and the message is lost",
        checks=(_LANES,),
    ),
    Mutant(
        name="a lane that was empty goes on under its number",
        file="spool/lanes.py",
        old="            if key in self._lanes and not self._lanes[key].depth:\n",
        new="            if key in self._lanes and self._lanes[key].depth < 0:\n",
        why="lanes are kept for ever, and after a lost sync their places are given twice",
        checks=(_LANES,),
    ),
    Mutant(
        name="what went back keeps its place",
        file="spool/lanes.py",
        old="        return replace(message, lane=lane.number, lane_sequence=lane.last)\n",
        new="        place = lane.number, lane.last\n"
        "        number, last = (message.lane, message.lane_sequence) if message.lane else place\n"
        "        return replace(message, lane=number, lane_sequence=last)\n",
        why="the group has passed that place: it takes the message for stored, and it is lost",
        checks=(_REQUEUE,),
    ),
    Mutant(
        name="what goes back leaves rejected/ before it is durable",
        file="spool/spool.py",
        old="        kept = self.append([sent_anew(one.message) for one in asked])\n",
        new="        if asked:\n            self._rejected_file.mark(asked)\n"
        "        kept = self.append([sent_anew(one.message) for one in asked])\n",
        why="a crash between the two loses it",
        checks=(_REQUEUE,),
    ),
    Mutant(
        name="what went back is not marked",
        file="spool/spool.py",
        old="            if kept.messages:\n                self._rejected_file.mark",
        new="            if kept.messages < 0:\n                self._rejected_file.mark",
        why="it is shown as refused, and goes back again and again",
        checks=(_REQUEUE,),
    ),
    Mutant(
        name="an unwritten mark is not written again",
        file="spool/rejected.py",
        old="        if unsure or _contents(data, identity).marks:\n",
        new="        if unsure:\n",
        why="a power cut after a failed sync has it refused again",
        checks=(_REQUEUE,),
    ),
    Mutant(
        name="a file goes while one of its messages is refused",
        file="spool/rejected.py",
        old="                is_due = mine <= marks and all(",
        new="                is_due = bool(mine & marks) and all(",
        why="asked for one, the others are removed and lost",
        checks=(_REQUEUE,),
    ),
    Mutant(
        name="rejected files are read in order alone",
        file="spool/rejected.py",
        old="    scanned = scan(data, stamp=identity.stamp, first=None, start=FILE_HEADER_BYTES)\n",
        new="    scanned = scan(data, stamp=identity.stamp, first=1, start=FILE_HEADER_BYTES)\n",
        why="what lanes refuse beside each other is not shown, and never goes back",
        checks=(_REQUEUE,),
    ),
    Mutant(
        name="sends do not stand behind what went back",
        file="sidecar/sends.py",
        old="            lane.backlog += 1\n            lane.writing += 1\n        done = 0\n",
        new="            lane.writing += 1\n        done = 0\n",
        why="the lane counts below zero, and its later sends overtake its messages",
        checks=(_BACK,),
    ),
    Mutant(
        name="a lane waits for what could not go back",
        file="sidecar/sends.py",
        old="                self.note_stored(lane.key, int(number >= done))\n",
        new="                self.note_stored(lane.key, 0)\n",
        why="its sends go to the disk for ever, or until the sidecar is started again",
        checks=(_BACK,),
    ),
    Mutant(
        name="what is refused blocks its lane",
        file="sidecar/replay.py",
        old="                lane.limit = len(call) // 2  # to find the one that is at fault\n"
        "                continue\n            backoff.reset()\n",
        new="                lane.limit = len(call) // 2\n                continue\n"
        "            elif outcome is _Outcome.REFUSED:\n"
        "                await asyncio.sleep(backoff.next_s())\n                continue\n"
        "            backoff.reset()\n",
        why="one message that the group never takes keeps back all behind it",
        checks=(_REPLAY,),
    ),
    Mutant(
        name="a whole call is set aside for one message",
        file="sidecar/replay.py",
        old="outcome is _Outcome.REFUSED and len(call) > 1 and code",
        new="outcome is _Outcome.REFUSED and len(call) > 1 << 20 and code",
        why="sound messages go to rejected/ with it",
        checks=(_REPLAY,),
    ),
    Mutant(
        name="a replay names the second message of its call",
        file="sidecar/replay.py",
        old="replay_metadata(self._worker.spool.token, messages[0])",
        new="replay_metadata(self._worker.spool.token, messages[-1])",
        why="the group counts from there, and takes what follows for stored",
        checks=(_REPLAY,),
    ),
    Mutant(
        name="a call goes over a hole",
        file="sidecar/replay.py",
        old="            or message.lane_sequence != sequence\n",
        new="            or message.lane_sequence < sequence\n",
        why="the group numbers its messages as if there were none, and takes later ones for stored",
        checks=(_REPLAY,),
    ),
    Mutant(
        name="a topic that nobody named is made up",
        file="sidecar/routes.py",
        old="    kind = named.get(topic.name)\n",
        new='    kind = named.get(topic.name, "NORMAL")\n',
        why="a misspelt topic is accepted for days, and refused then",
        checks=(_ROUTES,),
    ),
    Mutant(
        name="a heartbeat is refused while the group is away",
        file="sidecar/decisions.py",
        old='ANSWERED_HERE: Final = frozenset({"Heartbeat", "NotifyClientTermination"})\n',
        new='ANSWERED_HERE: Final = frozenset({"NotifyClientTermination"})\n',
        why="SDKs count their client as unhealthy, and some end",
        checks=(_PASSING,),
    ),
    Mutant(
        name="an ack is answered OK while the group is away",
        file="sidecar/decisions.py",
        old='ANSWERED_HERE: Final = frozenset({"Heartbeat", ',
        new='ANSWERED_HERE: Final = frozenset({"Heartbeat", "AckMessage", ',
        why="what was consumed is delivered again, and nobody was told",
        checks=(_DECISIONS,),
    ),
    Mutant(
        name="a replayed file is damage",
        file="spool/looking.py",
        old="    return damage.last > passed or damage.last < damage.first\n",
        new="    return damage.last > 0 or damage.last < damage.first\n",
        why="a look beside a replay says that messages were lost",
        checks=(_SHOWING,),
    ),
    Mutant(
        name="what is set aside waits as well",
        file="spool/looking.py",
        old="            if record.sequence <= replayed or record.sequence in aside:\n",
        new="            if record.sequence <= replayed:\n",
        why="a message is shown as waiting that nobody will send",
        checks=(_SHOWING,),
    ),
)
