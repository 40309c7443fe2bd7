"""Says what became of consumers' filters: that one waits for a slower one, and that one has ended.

What a group's filters pass over is kept for the others that are in use, up to a bound. Both events
mean that a group's members have asked for different tags for long: nothing is lost that is not
named here.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import Final

from dledger.broker.group_filters import FILTER_GONE_MS
from dledger.broker.state_changes import StateChanges
from dledger.common.metrics import NodeMetrics
from dledger.requests.engine import Engine

logger = logging.getLogger(__name__)

_SAID_AGAIN_S: Final = 60.0
"""A filter that is held up waits again with each few messages that the slower one takes."""
_REMEMBERED: Final = 1_024


class FilterWatch:
    """Logs and counts at the leader, so that a group's events are told once."""

    def __init__(self, engine: Engine, metrics: NodeMetrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._said: OrderedDict[tuple[str, str], float] = OrderedDict()

    def notify(self, changes: StateChanges) -> None:
        """Tell of what *changes* has of filters."""
        if not (changes.filters_full or changes.filters_gone) or not self._engine.is_leader():
            return
        for group, topic, queue_id in sorted(changes.filters_full):
            self._metrics.filter_waits.inc()
            self._waits(group, topic, queue_id)
        for group, topic, text, messages in changes.filters_gone:
            self._metrics.filter_ended_messages.inc(messages)
            logger.log(
                logging.WARNING if messages else logging.INFO,
                "group %s: consumer group %s asks for topic %s with filter %r no more: nobody did "
                "for %d s; %d messages that were kept for it go",
                self._engine.group,
                group,
                topic,
                text,
                FILTER_GONE_MS // 1_000,
                messages,
            )

    def _waits(self, group: str, topic: str, queue_id: int) -> None:
        now_s = time.monotonic()
        if now_s - self._said.get((group, topic), float("-inf")) < _SAID_AGAIN_S:
            return
        self._said[group, topic] = now_s
        self._said.move_to_end((group, topic))
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        logger.warning(
            "group %s: consumer group %s: a filter of topic %s, queue %d waits for a slower one: "
            "no more is kept for that until it takes some, or nobody asks with it for %d s; "
            "`dledger group list` shows them",
            self._engine.group,
            group,
            topic,
            queue_id,
            FILTER_GONE_MS // 1_000,
        )
