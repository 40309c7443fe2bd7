"""The mark of this operator on one group: set before anything else is done, and told when foreign.

A group that another operator looks after is only looked at: its status is that one's, so an Event,
a metric and the log say so. Used by the group's Reconciler.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dledger_operator.api.reasons import EventReason
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.decisions.ownership import (
    HANDOVER_S,
    Standing,
    elsewhere_sentence,
    standing,
    unmarked_sentence,
)
from dledger_operator.metrics.metrics import Metrics
from dledger_operator.status.status import Event

log: Final = logging.getLogger(__name__)

TOLD_S: Final = 3600.0
"""An Event lives for an hour; who looks later has to find one as well."""


class Claims:
    """Knows whether a group is this operator's; what it remembers saves Events, or may be lost.

    Args:
        mark: Of this operator; empty if it marks nothing.
        cluster: Writes to Kubernetes.
        metrics: Show what is managed elsewhere.
        monotonic_s: A clock.
        post: Posts an Event on the group.
    """

    def __init__(
        self,
        mark: str,
        *,
        cluster: Cluster,
        metrics: Metrics,
        monotonic_s: Callable[[], float],
        post: Callable[[BrokerGroup, Event], Awaitable[None]],
    ) -> None:
        self.mark = mark
        self._cluster = cluster
        self._metrics = metrics
        self._monotonic_s = monotonic_s
        self._post = post
        self._told: tuple[str, float] = ("", float("-inf"))
        self._has_marked = False
        self._acts_from_s = float("-inf")

    @property
    def may_act(self) -> bool:
        """Whether whoever had the group before has had time to let go of it."""
        return self._monotonic_s() >= self._acts_from_s

    async def claim(self, group: BrokerGroup, *, version: str) -> Manifest | None:
        """Put our mark on a group that nobody has, or that was handed to us.

        Returns:
            The object as written; None if it is not that *version* any more.

        Raises:
            ApiError: The API server does not answer, or refused it.
        """
        before = group.operator
        try:
            written = await self._cluster.write_status(
                group, {**group.status, "operator": self.mark}, only_if=version
            )
        except ApiError as error:
            if error.status != 409:
                raise
            return None
        if before:
            self._acts_from_s = self._monotonic_s() + HANDOVER_S
            said = f"operator {self.mark} acts on it from now on, in place of {before}"
            await self._post(group, Event(EventReason.TAKEN_OVER, said))
        elif self._has_marked:
            await self._tell(group, unmarked_sentence(self.mark))
        self._has_marked = True
        self._metrics.show_elsewhere(group.namespace, group.name, is_elsewhere=False)
        return written

    async def tell_elsewhere(self, group: BrokerGroup) -> None:
        """Tell that another operator has the group: once an hour, and when that is another one."""
        self._has_marked = False
        self._metrics.show_elsewhere(group.namespace, group.name, is_elsewhere=True)
        await self._tell(group, elsewhere_sentence(group, self.mark))

    async def _tell(self, group: BrokerGroup, said: str) -> None:
        now_s = self._monotonic_s()
        if said == self._told[0] and now_s - self._told[1] < TOLD_S:
            return
        self._told = said, now_s
        await self._post(group, Event(EventReason.MANAGED_ELSEWHERE, said, warning=True))

    def is_ours(self, group: BrokerGroup) -> bool:
        """Whether the group carries our mark, and no annotation gives it to another operator."""
        return standing(group, self.mark) is Standing.OURS

    def is_elsewhere(self, group: BrokerGroup) -> bool:
        """Whether the group is another operator's."""
        return standing(group, self.mark) is Standing.ELSEWHERE
