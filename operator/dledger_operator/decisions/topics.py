"""The topics of a spec: what is made, given more queues and, if the spec says so, deleted. Pure.

A topic that was taken off the spec is deleted only if the status records it as one of the spec's:
topics that others made, and those that were taken off while `topicDeletion` was Retain, are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dledger_operator.api.spec import BrokerGroup, Topic
from dledger_operator.decisions.disruptions import DeleteTopic
from dledger_operator.decisions.facts import Facts
from dledger_operator.observed.observed import TopicSeen

DELETE: Final = "Delete"


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic through the group's client port."""

    topic: Topic

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.topic.name

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"topic {self.topic.name} is asked for, and there is none"


@dataclass(frozen=True, slots=True)
class GrowTopic:
    """Give a topic that has fewer so many queues in all."""

    name: str
    queues: int

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"topic {self.name} has fewer than {self.queues} queues"


@dataclass(frozen=True, slots=True)
class RetainTopic:
    """Keep a topic's messages for so many hours; 0: for ever."""

    name: str
    hours: int

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"topic {self.name} keeps its messages for another time than is asked for"


TopicAction = CreateTopic | GrowTopic | RetainTopic


def topics(facts: Facts) -> Iterator[TopicAction]:
    """Make what is missing, by what the nodes say now; what was refused lately waits."""
    observed = facts.observed
    if observed.topics is None or observed.leader is None:
        return
    for topic in facts.group.spec.topics:
        seen = observed.topics.get(topic.name)
        if ("Topic", topic.name) in observed.refusals:
            continue
        if seen is None:
            yield CreateTopic(topic)
        elif seen.queues < topic.queues:
            yield GrowTopic(topic.name, topic.queues)
        elif (hours := unlike(topic, seen)) is not None:
            yield RetainTopic(topic.name, hours)


def unlike(topic: Topic, seen: TopicSeen) -> int | None:
    """Return the retention that a topic is to get; None: it has it, or the spec says nothing of it.

    Then it stays as it is: what a topic had kept would go with its retention, and a field that is
    left out by mistake says nothing of that.
    """
    hours = topic.retention.hours
    return None if hours is None or hours == seen.retention_hours else hours


def topic_deletion(facts: Facts) -> DeleteTopic | None:
    """Return the next topic to delete, by name; what was refused lately waits."""
    refusals = facts.observed.refusals
    dropped = dropped_topics(facts.group, facts.observed.topics)
    wanted = (name for name in dropped if ("Topic", name) not in refusals)
    name = next(wanted, None)
    return DeleteTopic(name) if name is not None and facts.leader else None


def dropped_topics(group: BrokerGroup, seen: Mapping[str, TopicSeen] | None) -> tuple[str, ...]:
    """Return the topics that are there, were of the spec, and are to be deleted now."""
    asked = _asked(group)
    recorded = recorded_topics(group, seen)
    return tuple(name for name in recorded if name in (seen or {}) and name not in asked)


def recorded_topics(group: BrokerGroup, seen: Mapping[str, TopicSeen] | None) -> tuple[str, ...]:
    """Return what the status records: the spec's topics that exist, and those still to delete.

    *seen* is None while nobody has told which topics exist.
    """
    before, asked = group.recorded_topics, _asked(group)
    there = before if seen is None else frozenset(seen)
    left = before - asked if group.spec.topic_deletion == DELETE else frozenset()
    return tuple(sorted((asked | left) & there))


def _asked(group: BrokerGroup) -> frozenset[str]:
    return frozenset(topic.name for topic in group.spec.topics)
