"""What is known of a connection's client over time: whether it is there, and whether it floods.

Pure but for the clock that is passed in: `look` says what is to be done, the connection does it.
"""

from __future__ import annotations

import enum

from dledger.door.addresses import bucket
from dledger.door.bounds import Bounds


class Verdict(enum.Enum):
    """What a look at the clock asks for."""

    NOTHING = "nothing"
    PING = "ask whether it is there"
    LEAVE = "it has no calls: ask it to go"
    LATE = "it did not finish its handshake"
    GONE = "it does not answer"
    STUCK = "it does not read"


class Watch:
    """Of one connection.

    Attributes:
        settled: Whether preface and SETTINGS were exchanged.
    """

    __slots__ = (
        "_answers",
        "_began_s",
        "_bounds",
        "_busy_s",
        "_heard_s",
        "_paused_s",
        "_pinged_s",
        "_pings",
        "_resets",
        "settled",
    )

    def __init__(self, bounds: Bounds, now_s: float) -> None:
        self._bounds = bounds
        self._began_s = self._heard_s = self._busy_s = now_s
        self._pinged_s: float | None = None
        self._paused_s: float | None = None
        self._pings, self._resets = bucket(bounds.pings), bucket(bounds.resets)
        self._answers = 0
        self.settled = False

    def heard(self, now_s: float) -> None:
        """Note that something arrived: the client is there."""
        self._heard_s = now_s
        self._pinged_s = None

    def paused(self, now_s: float | None) -> None:
        """Note since when the client's socket takes nothing more; None: it does."""
        self._paused_s = now_s

    def may_ping(self, answers: int, now_s: float) -> bool:
        """Count a frame that asks for an acknowledgement; return False if it is one of a flood.

        gRPC clients measure a connection by a PING for each piece of an answer, so *answers*, the
        number of all so far, allows more of them (gRPC, proposal A8: strikes are reset by data).
        """
        if answers != self._answers:
            self._answers = answers
            self._pings.fill()
        return self._pings.take(now_s)

    def may_reset(self, now_s: float) -> bool:
        """Count a call that its client gave up; return False if it is one of a flood."""
        return self._resets.take(now_s)

    def look(self, calls: int, now_s: float) -> Verdict:
        """Return what to do now, with *calls* under way."""
        bounds = self._bounds
        if calls:
            self._busy_s = now_s
        if not self.settled:
            late = now_s - self._began_s >= bounds.handshake_s
            return Verdict.LATE if late else Verdict.NOTHING
        if self._paused_s is not None and now_s - self._paused_s >= bounds.stall_s:
            return Verdict.STUCK
        if self._pinged_s is not None:
            return Verdict.GONE if now_s - self._pinged_s >= bounds.ping_s else Verdict.NOTHING
        if now_s - self._busy_s >= bounds.idle_s:
            return Verdict.LEAVE
        if now_s - self._heard_s >= bounds.ping_after_s:
            self._pinged_s = now_s
            return Verdict.PING
        return Verdict.NOTHING
