"""What changed in the state since the last query: for the one caller that wakes waiting readers.

Not part of the replicated state, and not in a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

QueueKey = tuple[str, str, int]
"""(group, topic, queue id)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanges:
    """The queues and attempts that may have more for a reader than before.

    Attributes:
        arrived: (topic, queue id) that got messages.
        leases: (group, topic, queue id) whose leases began, ended or were changed, or whose acks
            made room for more.
        attempts: (group, topic, attempt id) that was given messages: a repeated call gets them.
        topics_gone: (topic, its number of queues) that was deleted; a new one of the same name may
            exist by now.
        groups_gone: Consumer groups that were deleted, or expired; likewise.
        filters_gone: (group, topic, filter, messages): nobody used the filter for long, and so many
            messages, kept for it or for those that went with it, go.
        filters_full: (group, topic, queue id) where a filter waits for a slower one, because no
            more may be kept.
    """

    arrived: set[tuple[str, int]] = field(default_factory=set)
    leases: set[QueueKey] = field(default_factory=set)
    attempts: set[tuple[str, str, str]] = field(default_factory=set)
    topics_gone: set[tuple[str, int]] = field(default_factory=set)
    groups_gone: set[str] = field(default_factory=set)
    filters_gone: list[tuple[str, str, str, int]] = field(default_factory=list)
    filters_full: set[QueueKey] = field(default_factory=set)

    def take(self) -> StateChanges:
        """Return the changes noted so far, and start over with none."""
        taken = StateChanges(
            arrived=set(self.arrived),
            leases=set(self.leases),
            attempts=set(self.attempts),
            topics_gone=set(self.topics_gone),
            groups_gone=set(self.groups_gone),
            filters_gone=list(self.filters_gone),
            filters_full=set(self.filters_full),
        )
        self.arrived.clear()
        self.leases.clear()
        self.attempts.clear()
        self.topics_gone.clear()
        self.groups_gone.clear()
        self.filters_gone.clear()
        self.filters_full.clear()
        return taken
