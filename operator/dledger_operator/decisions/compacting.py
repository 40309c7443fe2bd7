"""Which topics are compacted, and how the spec asks for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_operator.api.spec import Topic
from dledger_operator.observed.observed import CompactionSeen, TopicSeen

HOUR_MS: Final = 3_600_000


def asked_compaction(topic: Topic) -> CompactionSeen | None:
    """Return how the spec has a topic compacted; None: not at all."""
    asked = topic.compaction
    if not asked.enabled:
        return None
    return CompactionSeen(asked.min_lag_hours * HOUR_MS, asked.tombstone_hours * HOUR_MS)


def compacted_topics(seen: Mapping[str, TopicSeen] | None) -> tuple[str, ...] | None:
    """Return the compacted topics that there are, whoever made them; None while that is unknown."""
    if seen is None:
        return None
    return tuple(sorted(name for name, one in seen.items() if one.compaction))
