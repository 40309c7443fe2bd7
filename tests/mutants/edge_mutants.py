"""Bugs on the way of a call that simulated runs of the edge find, without a test of their own."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

EDGE_MUTANTS = (
    Mutant(
        name="what a lost link had under way was not done",
        file="link/follower.py",
        old='Failed(Code.UNAVAILABLE, f"the link to the leader has ended: {why}")',
        new="Failed(Code.UNAVAILABLE, why, ((b'dledger-error', b'NotTaken'),))",
        why="a client is told that nothing was stored, and its message is there",
        edge=True,
    ),
    Mutant(
        name="the newest attempt alone says whether anything was done",
        file="requests/forward.py",
        old="unknown = unknown or not isinstance(error, NOTHING_HAPPENED)",
        new="unknown = not isinstance(error, NOTHING_HAPPENED)",
        why="a message that a leader took before it died is called undone by the next one",
        edge=True,
    ),
    Mutant(
        name="a leader refuses what a follower has tried before",
        file="calls/pipeline.py",
        old="isinstance(error, (Unavailable, DiskFull, RateLimited))",
        new="isinstance(error, Unavailable)",
        why="a message that is stored is called refused, since the leader cannot know of it",
        checks=("tests/requests/test_forward.py",),
    ),
    Mutant(
        name="what a link has lost is answered, and tried again",
        file="calls/call.py",
        old="                self.resume(outcome)\n            else:\n",
        new="                self.resume(outcome)\n"
        "                self._end(Failed(Code.UNAVAILABLE, str(outcome)))\n            else:\n",
        why="a follower answers one request twice, and stores what it has told to be lost",
        edge=True,
    ),
    Mutant(
        name="a client that gives up keeps its share of a rule",
        file="calls/call.py",
        old="        self.give_up()\n        if self.asked is not None:\n"
        "            self.asked.leave()\n",
        new="        self.give_up()\n",
        why="clients with short deadlines use up all shares, and nobody is served any more",
        edge=True,
    ),
    Mutant(
        name="a stream keeps its share of a rule",
        file="calls/pipeline.py",
        old="            if self._rest is None and self._asked is not None:\n"
        "                self._asked.leave()\n",
        new="            pass\n",
        why="each poll of a consumer takes a share for ever",
        edge=True,
    ),
    Mutant(
        name="a client that gives up at a follower keeps its room",
        file="calls/call.py",
        old="            give_up()\n            admission.leave(room)\n",
        new="            give_up()\n",
        why="a follower whose clients have short deadlines refuses all requests in the end",
        edge=True,
    ),
    Mutant(
        name="a stale handle is acknowledged",
        file="rocketmq/ack_requests.py",
        old="    if acked:\n        return ok()",
        new="    if acked is not None:\n        return ok()",
        why="a consumer is told that a message is done with, and others get it again",
        edge=True,
    ),
    Mutant(
        name="a receive is tried again behind its first answer",
        file="rocketmq/messaging.py",
        old="if started or caller.forwarded or",
        new="if caller.forwarded or",
        why="a consumer has the same messages twice in one answer",
        edge=True,
    ),
    Mutant(
        name="a link opens each call twice",
        file="link/calls_out.py",
        old="        self._open(number, where, headers, body, resumes)\n        return partial",
        new="        self._open(number, where, headers, body, resumes)\n"
        "        self._open(number, where, headers, body, resumes)\n        return partial",
        why="the second is refused as if nothing was done, and the first was carried out",
        edge=True,
    ),
)
