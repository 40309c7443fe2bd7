"""What the topics of a spec cannot be, by themselves and beside those that there are. Pure.

What only the creation of a topic decides, its type and its compaction, is told by name and left as
it is. Asked by `checks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dledger_operator.api.spec import BrokerGroup, Topic
from dledger_operator.decisions.compacting import HOUR_MS, asked_compaction
from dledger_operator.decisions.problem import Problem, invalid
from dledger_operator.observed.observed import CompactionSeen, Observed, TopicSeen

MOST_HOURS: Final = 8760
"""Of a lag and of tombstones: a year."""
_NORMAL: Final = "NORMAL"
_FIFO: Final = "FIFO"


def topic_contradictions(group: BrokerGroup, observed: Observed) -> Iterator[Problem]:
    """Yield what topics that exist cannot become, and what none can be."""
    for topic in group.spec.topics:
        path = f"spec.topics[{topic.name}]"
        yield from _of_spec(topic, path, least=group.spec.retention.hours)
        if (seen := (observed.topics or {}).get(topic.name)) is not None:
            yield from _of_existing(topic, seen, path)


def _of_spec(topic: Topic, path: str, *, least: int) -> Iterator[Problem]:
    """Yield what no topic can be; *least* is the group's retention in hours."""
    hours, asked = topic.retention.hours, topic.compaction
    if asked.enabled and topic.type != _NORMAL:
        yield invalid(
            f"{path}.compaction.enabled=true: a {topic.type} topic is not compacted, as a key "
            "chooses the queue there; only a topic of type NORMAL is"
        )
    if asked.enabled and hours is not None:
        yield invalid(
            f"{path}.retention.hours={hours}: a compacted topic keeps the newest message of each "
            "key for ever; leave the field out"
        )
    elif hours and hours < least:
        yield invalid(
            f"{path}.retention.hours={hours}: the group keeps all messages for {least} hours "
            "(retention.hours), in one log; set that lower, and more for other topics"
        )
    for name, value in (
        ("minLagHours", asked.min_lag_hours),
        ("tombstoneHours", asked.tombstone_hours),
    ):
        if not 0 <= value <= MOST_HOURS:
            yield invalid(f"{path}.compaction.{name} must be from 0 to {MOST_HOURS}, not {value}")


def _of_existing(topic: Topic, seen: TopicSeen, path: str) -> Iterator[Problem]:
    """Yield what a topic that exists cannot become."""
    if topic.queues < seen.queues:
        yield invalid(
            f"{path}.queues={topic.queues}: the topic has {seen.queues} queues, and its "
            f"messages are in them; set it back to {seen.queues}"
        )
    elif seen.compaction and topic.queues != seen.queues:
        yield invalid(
            f"{path}.queues={topic.queues}: the topic is compacted, and the queue of a key goes by "
            f"their number, {seen.queues}; leave it so, or copy its messages into a new topic"
        )
    elif seen.type == _FIFO and topic.queues != seen.queues:
        yield invalid(
            f"{path}.queues={topic.queues}: the topic is FIFO, and the queue of a message group "
            f"goes by their number, {seen.queues}; leave it so, or make a new topic with more"
        )
    if topic.type != seen.type:
        yield invalid(
            f"{path}.type={topic.type}: the topic is {seen.type}, and so are its messages; "
            f"set it back to {seen.type}"
        )
    asked = asked_compaction(topic)
    if asked != seen.compaction:
        yield invalid(
            f"{path}.compaction: the topic was made {_in_words(seen.compaction)}, not "
            f"{_in_words(asked)}, and that is only chosen when a topic is made; set the field "
            "back, or copy its messages into a new topic"
        )


def _in_words(compaction: CompactionSeen | None) -> str:
    if compaction is None:
        return "without compaction"
    lag, tombstones = (_hours(each) for each in compaction)
    return f"compacted with minLagHours {lag} and tombstoneHours {tombstones}"


def _hours(millis: int) -> str:
    return f"{millis / HOUR_MS:g}"
