"""What a leader has seen of the messages that a group was handed out nothing of, in a FIFO queue.

A new message of a busy message group is not worth a RECEIVE: it would only be passed. So each is
looked at once, however often a poll asks, until the next RECEIVE goes past it. Derived, and no part
of the replicated state: it decides only what is proposed.
"""

from __future__ import annotations

from dledger.broker.kept_messages import Codes


class GroupsAhead:
    """What lies in offsets ``[start, stop)``, as far as it was looked at.

    Attributes:
        start: Where the group's deliveries go on.
        stop: Where the look goes on.
        seen: How many messages, and runs that the filter passes over, were looked at.
        idle: Groups that a RECEIVE would deliver of.
        busy: Groups of which it would pass some.
        passed: How many messages it would pass.
        skips: Whether the filter passes over some: a RECEIVE does that for good.
    """

    __slots__ = ("_tags", "busy", "idle", "passed", "seen", "skips", "start", "stop")

    def __init__(self) -> None:
        self._begin(0, None)

    def _begin(self, start: int, tags: Codes) -> None:
        self.start = self.stop = start
        self._tags = tags
        self.seen = self.passed = 0
        self.idle: set[int] = set()
        self.busy: set[int] = set()
        self.skips = False

    def follow(self, next_offset: int, tags: Codes) -> None:
        """Begin anew if deliveries have gone on, or somebody asks with another filter."""
        if next_offset != self.start or tags != self._tags:
            self._begin(next_offset, tags)

    def note_idle(self, code: int) -> None:
        """Note that all that was leased or waited of a group is done."""
        if code in self.busy:
            self.busy.remove(code)
            self.idle.add(code)
