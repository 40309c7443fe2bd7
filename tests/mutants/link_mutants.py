"""Bugs in the link between nodes: how two versions agree, and what one of them does not read."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_FRAMES = "tests/link/test_frames.py"
_LINKS = "tests/link/test_links.py"
_NO_FRAMES = "tests/link/test_no_frames.py"
_NEXT = "tests/link/test_next_version.py"

LINK_MUTANTS = (
    Mutant(
        name="what is not read ends the link",
        file="link/connection.py",
        old="                self._on_malformed(kind, number, error)\n",
        new="                self.close(str(error))\n",
        why="one request of a newer follower makes the outcome of all others unknown",
        checks=(_NO_FRAMES, _NEXT),
    ),
    Mutant(
        name="an answer that is not read did nothing",
        file="link/calls_out.py",
        old="self._fail_rejected(kind, number, nothing_done=False)",
        new="self._fail_rejected(kind, number, nothing_done=True)",
        why="a client is told that nothing was stored, and its message is there",
        checks=(_NO_FRAMES,),
    ),
    Mutant(
        name="a stream that is not read waits on",
        file="link/calls_out.py",
        old="            stream.over, stream.failure = True, why\n            stream.wake()\n"
        "\n    def _answer",
        new="            stream.over, stream.failure = True, why\n\n    def _answer",
        why="a consumer behind a newer leader waits until its deadline",
        checks=(_NO_FRAMES,),
    ),
    Mutant(
        name="a kind of no call ends one",
        file="link/calls_in.py",
        old="self._calls.get(number) if kind < OF_NO_CALL else None",
        new="self._calls.get(number)",
        why="what a newer version says beside calls ends those that have its numbers",
        checks=(_NO_FRAMES,),
    ),
    Mutant(
        name="a rejection is rejected",
        file="link/connection.py",
        old="        if kind != Kind.REJECTED and not self.full:",
        new="        if not self.full:",
        why="two ends that do not understand each other never stop",
        checks=(_NO_FRAMES,),
    ),
    Mutant(
        name="a method that is not read is asked for again",
        file="link/follower.py",
        old="            del self.methods[path]\n",
        new="",
        why="each request to a leader of another version takes two ways",
        checks=(_NO_FRAMES,),
    ),
    Mutant(
        name="an opening may have something more",
        file="link/frames.py",
        old="    if rest or flags & ~(_HAS_BODY",
        new="    if flags & ~(_HAS_BODY",
        why="a newer follower's request is carried out without what it says more",
        checks=(_FRAMES,),
    ),
    Mutant(
        name="a message may have something more",
        file="link/frames.py",
        old="    if payload[: _SIZE.size] != _SIZE.pack(len(body)):",
        new="    if len(payload) < _SIZE.size:",
        why="a newer leader's answer reaches a client with a byte that is not its own",
        checks=(_FRAMES, _NEXT),
    ),
    Mutant(
        name="a leader offers what nobody asked for",
        file="link/offer.py",
        old="        if not common:",
        new="        if not self.formats:",
        why="two versions speak different formats on one link",
        checks=(_LINKS, _NEXT),
    ),
    Mutant(
        name="a follower takes any format",
        file="link/offer.py",
        old="        if type(number) is not int or number not in FORMATS:",
        new="        if type(number) is not int:",
        why="it sends a leader of another version what that misreads",
        checks=(_LINKS,),
    ),
)
