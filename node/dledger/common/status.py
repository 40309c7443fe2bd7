"""A node's status and that of its group, as frozen values; `dledger.v1` has the same fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dledger.types import Member

CAUGHT_UP_ENTRIES: Final = 1000
"""A node that lacks no more entries than this catches up within a moment: it may serve clients and
lead, and counts towards the quorum margin."""
CLOCK_APART_MS: Final = 5_000
"""How far a member's clock may be from its group's date before that is told."""
MOST_MEMBERS: Final = 64
"""A response with more is not a node's: even nine voters and nine learners are fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """One member as the asked node sees it; *match_index* and *lag* only on the leader.

    *feature_level* is 0 if the member has not reported it since the asked node started.
    """

    member: Member
    role: str
    match_index: int
    lag: int
    connected: bool
    voter: bool = True
    feature_level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverRecord:
    """One change of leader.

    Attributes:
        from_id: The previous leader, if this node knew one.
        to_id: The new leader.
        term: The new leader's term.
        cause: One of `failover.CAUSES`.
        detected_ms: From the old leader's last message to its loss being noticed.
        elected_ms: From the loss being noticed to the election won.
        first_ack_ms: From the election won to the first entry committed.
        at_ms: Unix milliseconds of the election.
    """

    from_id: str
    to_id: str
    term: int
    cause: str
    detected_ms: int
    elected_ms: int
    first_ack_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node's status (`dledger.v1.StatusResponse`).

    *commit_waits_ms* is how long entries in a leader's log have waited for a majority; 0 if none
    wait. *told_group_id* is the group that the node is configured to join while its disk is empty.
    *now_ms* is the leader's log clock in Unix milliseconds; 0 on other nodes. *last_term* is that
    of the entry at *last_index*. *epoch* is how often `force_new_group` made one survivor the
    group: of two leaders of one group, the one of the lower epoch is fenced. *clock_ahead_ms* and
    *clock_behind_ms*: how far its wall clock is from the group's date (`replica.group_date`); both
    0 while that is not known. *log_ahead_ms*: how far a leader's log is ahead of it. *older_copy*
    says what others know that the node had, while its disk has less and it abstains; "" if it
    takes part. *client_certificate_fault* is what is wrong with the certificate that was mounted
    for clients, and the other two are the Unix milliseconds between which the one that they are
    shown holds; 0 without one of a file. *held_waiting*: messages that were held in the log that
    the group was restored from, and wait for a word (`dledger held`).
    """

    node_id: str
    name: str
    group: str
    group_id: str
    role: str
    term: int
    leader_id: str
    commit_index: int
    applied_index: int
    last_index: int
    synced_index: int
    ready: bool
    not_ready_reason: str
    members: tuple[MemberStatus, ...]
    last_failover: FailoverRecord | None
    version: str
    storage_used_bytes: int
    storage_capacity_bytes: int
    writes_refused_reason: str
    recovered_to: int = 0
    faulty_entries: int = 0
    feature_level: int = 0
    commit_waits_ms: int = 0
    told_group_id: str = ""
    now_ms: int = 0
    last_term: int = 0
    epoch: int = 0
    older_copy: str = ""
    clock_ahead_ms: int = 0
    clock_behind_ms: int = 0
    log_ahead_ms: int = 0
    client_certificate_fault: str = ""
    client_certificate_begins_ms: int = 0
    client_certificate_ends_ms: int = 0
    held_waiting: int = 0

    @property
    def clock_apart_ms(self) -> int:
        """How far its wall clock is from the group's date, on either side."""
        return self.clock_ahead_ms + self.clock_behind_ms


def without_counters(status: NodeStatus) -> NodeStatus:
    """Return a status without what moves with each message: two that then differ are news.

    A member's lag is reduced to whether it has caught up (0) or not (1), the volume to whole
    percents in use, a clock to whether it is apart.
    """
    capacity_bytes = status.storage_capacity_bytes or 1
    return replace(
        status,
        commit_index=0,
        applied_index=0,
        last_index=0,
        last_term=0,
        synced_index=0,
        commit_waits_ms=0,
        now_ms=0,
        clock_ahead_ms=int(status.clock_ahead_ms > CLOCK_APART_MS),
        clock_behind_ms=int(status.clock_behind_ms > CLOCK_APART_MS),
        log_ahead_ms=int(status.log_ahead_ms > CLOCK_APART_MS),
        storage_used_bytes=100 * status.storage_used_bytes // capacity_bytes,
        members=tuple(
            replace(row, match_index=0, lag=int(row.lag > CAUGHT_UP_ENTRIES))
            for row in status.members
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBacklog:
    """What one of a consumer group's filters still has to consume in a topic.

    Attributes:
        filter: The filter as its users write it.
        unread: Messages that it names and that were never delivered.
        waits: Whether it waits for a slower filter, because no more is kept for that one.
    """

    filter: str
    unread: int
    waits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a consumer group still has to consume in a topic.

    Attributes:
        unread: Messages that were never delivered to it; with several filters, of the slowest one.
        held: Messages that were delivered to it and are not acknowledged.
        filters: Its filters in use, if there are several, by their text.
    """

    group: str
    topic: str
    unread: int
    held: int
    filters: tuple[FilterBacklog, ...] = ()
