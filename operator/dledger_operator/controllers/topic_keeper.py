"""The topics of one group: what there is, read rarely, and what a plan asks to be made of it.

Used by the group's Reconciler.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from dledger.errors import DledgerError, FeatureNotReady, Refused, UnknownTopic
from dledger_operator.api.reasons import EventReason
from dledger_operator.api.spec import BrokerGroup
from dledger_operator.cluster.nodes import LONGEST_TEXT, Nodes
from dledger_operator.decisions.compacting import asked_compaction
from dledger_operator.decisions.topics import (
    CreateTopic,
    GrowTopic,
    RetainTopic,
    TopicAction,
    dropped_topics,
    unlike,
)
from dledger_operator.observed.observed import Observed, Ref, TopicSeen
from dledger_operator.status.status import Event

log: Final = logging.getLogger(__name__)

MISSING_TOPICS_S: Final = 1.0
TOPICS_S: Final = 60.0
"""The list of topics is read this often: each second while one of the spec is missing or too small,
else rarely, since only `dledger topic` changes it and it may have 2 MiB."""


class TopicKeeper:
    """Knows the topics of a group; what it remembers may be lost, and is then read again.

    Args:
        nodes: Those of the group.
        monotonic_s: A clock.
        post: Posts an Event on the group.
        refuse: Notes what failed and is not tried again at once.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        monotonic_s: Callable[[], float],
        post: Callable[[BrokerGroup, Event], Awaitable[None]],
        refuse: Callable[[BrokerGroup, Ref, str], None],
    ) -> None:
        self._nodes = nodes
        self._monotonic_s = monotonic_s
        self._post = post
        self._refuse = refuse
        self._known: Mapping[str, TopicSeen] | None = None
        self._read_at_s = float("-inf")

    async def seen(self, group: BrokerGroup, observed: Observed) -> Mapping[str, TopicSeen] | None:
        """Return all topics by name, read only if they matter; None while unknown."""
        now_s = self._monotonic_s()
        if not _matter(group, observed) or observed.leader is None:
            return self._known
        pending = any(("Topic", name) not in observed.refusals for name in self._pending(group))
        if now_s - self._read_at_s >= (MISSING_TOPICS_S if pending else TOPICS_S):
            self._read_at_s = now_s
            try:
                self._known = await self._nodes.topics(observed.pods[observed.leader[0]])
            except DledgerError as error:
                log.debug("group %s/%s: no topics: %s", group.namespace, group.name, error)
        return self._known

    def _pending(self, group: BrokerGroup) -> Iterator[str]:
        """Yield the topics that are not as the spec has them, by what is known."""
        known = self._known or {}
        for topic in group.spec.topics:
            seen = known.get(topic.name)
            if seen is None or seen.queues < topic.queues or unlike(topic, seen) is not None:
                yield topic.name
        yield from dropped_topics(group, self._known)

    async def act(self, group: BrokerGroup, observed: Observed, action: TopicAction) -> None:
        """Carry out an action at the leader; without one, nothing happens."""
        if observed.leader is None:
            return
        leader, name = observed.leader[0], action.name
        try:
            match action:
                case CreateTopic():
                    await self._create(group, observed, action, leader)
                case GrowTopic():
                    await self._grow(group, observed, action, leader)
                case RetainTopic():
                    await self._retain(group, observed, action, leader)
        except (Refused, FeatureNotReady) as error:
            self._refuse(group, ("Topic", name), str(error)[:LONGEST_TEXT])
            self._read_at_s = float("-inf")  # what there is may not be what was thought
        except DledgerError as error:
            log.info("group %s/%s: topic %s: %s", group.namespace, group.name, name, error)

    async def delete(self, group: BrokerGroup, observed: Observed, name: str) -> None:
        """Delete a topic with its messages; one that is gone already is fine."""
        if observed.leader is None:
            return
        self._read_at_s = float("-inf")
        try:
            messages = await self._nodes.delete_topic(observed.pods[observed.leader[0]], name)
        except UnknownTopic:
            return
        except Refused as error:
            self._refuse(group, ("Topic", name), str(error)[:LONGEST_TEXT])
        except DledgerError as error:
            log.info("group %s/%s: topic %s: %s", group.namespace, group.name, name, error)
        else:
            message = f"topic {name} and its {messages} messages: it was taken off the spec"
            await self._post(group, Event(EventReason.TOPIC_DELETED, message))

    async def _create(
        self, group: BrokerGroup, observed: Observed, action: CreateTopic, leader: str
    ) -> None:
        topic = action.topic
        created = await self._nodes.create_topic(observed.pods[leader], topic)
        compaction = asked_compaction(topic)
        seen = TopicSeen(topic.type, topic.queues, compaction=compaction)
        self._learn(topic.name, seen)
        if created:
            kind = "compacted topic" if compaction else "topic"
            message = f"{kind} {topic.name} with {topic.queues} queues"
            await self._post(group, Event(EventReason.TOPIC_CREATED, message))

    async def _grow(
        self, group: BrokerGroup, observed: Observed, action: GrowTopic, leader: str
    ) -> None:
        name, queues = action.name, action.queues
        if observed.topics is None:
            return
        before = await self._nodes.grow_topic(observed.pods[leader], name, queues)
        self._learn(name, observed.topics[name]._replace(queues=queues))
        if before < queues:
            message = f"topic {name} has {queues} queues; it had {before}"
            await self._post(group, Event(EventReason.TOPIC_GROWN, message))

    async def _retain(
        self, group: BrokerGroup, observed: Observed, action: RetainTopic, leader: str
    ) -> None:
        name, hours = action.name, action.hours
        if observed.topics is None:
            return
        before = await self._nodes.set_topic_retention(observed.pods[leader], name, hours)
        self._learn(name, observed.topics[name]._replace(retention_hours=hours))
        if before != hours:
            message = (
                f"topic {name} keeps its messages {_in_words(hours)}; before, {_in_words(before)}"
            )
            await self._post(group, Event(EventReason.TOPIC_RETAINED, message))

    def _learn(self, name: str, seen: TopicSeen) -> None:
        self._known = {**(self._known or {}), name: seen}


def _matter(group: BrokerGroup, observed: Observed) -> bool:
    """Whether the spec has or had topics, or rounds of compaction are to be made for any."""
    rounds = (one for one in observed.operations if one.is_round and not one.finished)
    scheduled = bool(group.spec.compaction.schedule)
    return bool(group.spec.topics or group.recorded_topics) or scheduled or any(rounds)


def _in_words(hours: int | None) -> str:
    if hours is None:
        return "as long as the group does"
    return f"for {hours} hours" if hours else "for ever"
