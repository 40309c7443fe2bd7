"""What a consumer group still has to consume in a topic, and what each of its filters has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from dledger.broker.consume_queue import ConsumeQueue
from dledger.broker.consumer_group import ConsumerGroup
from dledger.broker.group_filters import TopicFilters
from dledger.common.status import Backlog, FilterBacklog

_RUNS_LOOKED_AT: Final = 4_096
"""Runs of a topic's new messages whose tags one report sees; all filters get what lies behind."""


def backlog(group: ConsumerGroup, topic: str, queues: Sequence[ConsumeQueue]) -> Backlog:
    """Return a group's backlog in a topic with these queues.

    With one filter every new message counts, before the filter. With more each has its own: what
    is kept for it, and the new messages that it names; the group's is that of the slowest.
    """
    filters = group.filters(topic)
    unread = held = 0
    for queue_id, queue in enumerate(queues):
        found = group.peek(topic, queue_id)
        unread += queue.count_from(found.next_offset) if found else group.unread_in(queue)
        if found:
            held += len(found.leases)
            unread += found.passed_count
    by_filter: tuple[FilterBacklog, ...] = ()
    if filters is not None and filters.differ:
        by_filter = _by_filter(group, topic, queues, filters)
        unread = max(each.unread for each in by_filter)
    return Backlog(group=group.name, topic=topic, unread=unread, held=held, filters=by_filter)


def _by_filter(
    group: ConsumerGroup, topic: str, queues: Sequence[ConsumeQueue], filters: TopicFilters
) -> tuple[FilterBacklog, ...]:
    named: Counter[int] = Counter()
    behind, looked_at = 0, 0
    for queue_id, queue in enumerate(queues):
        found = group.peek(topic, queue_id)
        position = found.next_offset if found else group.beginning.in_queue(queue)
        if found and found.kept is not None:
            named.update(dict(found.kept.passed_by_key()))
        for run in islice(queue.runs(position), _RUNS_LOOKED_AT - looked_at):
            named[run.code] += run.end - run.first
            position = run.end
            looked_at += 1
        behind += queue.count_from(position)
    waiting = _waiting(group, topic, queues, filters)
    rows = []
    for codes, use in sorted(filters, key=lambda each: each[1].text):
        count = named.total() if codes is None else sum(named[code] for code in codes)
        waits = codes is not None and not waiting <= codes
        unread = behind + count
        rows.append(FilterBacklog(filter=use.text, unread=unread, waits=waits and unread > 0))
    return tuple(rows)


def _waiting(
    group: ConsumerGroup, topic: str, queues: Sequence[ConsumeQueue], filters: TopicFilters
) -> set[int]:
    """Return the tags of messages that a filter must name to get past them: no more is kept."""
    found: set[int] = set()
    for queue_id, queue in enumerate(queues):
        deliveries = group.peek(topic, queue_id)
        if deliveries and deliveries.waits(frozenset(), queue, filters):
            found.add(next(queue.runs(deliveries.next_offset)).code)
    return found
