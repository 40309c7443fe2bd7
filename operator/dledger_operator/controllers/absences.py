"""What is looked up only while something of a group is missing, since nothing watches it.

Whose claims stand in the way of a pod's own, why Kubernetes does not make a pod, and whether the
disk of a pod that is not ready is still there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.observed.disks import claim_lost, machines_of, volume_lost
from dledger_operator.observed.observed import Observed, Volume

log: Final = logging.getLogger(__name__)

LOOKED_S: Final = 5.0
"""How often, while something is missing."""


@dataclass(slots=True)
class _Found:
    """What was found the last time, each by the name of a claim or a pod."""

    foreign: Mapping[str, str] = field(default_factory=dict)
    uncreated: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)


class Absences:
    """Looks after what is not there, for one group.

    Args:
        cluster: Reads what is asked for.
        monotonic_s: The clock.
    """

    def __init__(self, cluster: Cluster, *, monotonic_s: Callable[[], float]) -> None:
        self._cluster = cluster
        self._monotonic_s = monotonic_s
        self._looked_at_s = float("-inf")
        self._found = _Found()
        self._may_see_machines = True

    async def seen(self, group: BrokerGroup, observed: Observed) -> Observed:
        """Return what is observed, with what is known of what is missing.

        Before there is a StatefulSet, nothing needs it, and making one looks at the claims.
        """
        built = observed.children.get(("StatefulSet", group.name))
        if built is None:
            return observed
        ordinals = range(built["spec"].get("replicas", 1))
        claims = {names.claim(group.name, n) for n in ordinals} - observed.volumes.keys()
        pods = {names.pod(group.name, n) for n in ordinals} - observed.pods.keys()
        idle = _idle_disks(group, observed, ordinals)
        now_s = self._monotonic_s()
        if (claims or pods or idle) and now_s - self._looked_at_s >= LOOKED_S:
            self._looked_at_s = now_s
            try:
                await self._look(group, built, claims, pods, idle)
            except ApiError as error:
                log.warning("group %s/%s: what is missing: %s", group.namespace, group.name, error)
        # What is there again is forgotten: if it goes once more, it may be for another reason.
        found = self._found = _Found(
            foreign={name: why for name, why in self._found.foreign.items() if name in claims},
            uncreated={name: why for name, why in self._found.uncreated.items() if name in pods},
            lost={uid: why for uid, why in self._found.lost.items() if uid in idle},
        )
        lost = {idle[uid].name: why for uid, why in found.lost.items()}
        return replace(observed, foreign=found.foreign, uncreated=found.uncreated, lost=lost)

    async def _look(
        self,
        group: BrokerGroup,
        built: Manifest,
        claims: Collection[str],
        pods: Collection[str],
        idle: Mapping[str, Volume],
    ) -> None:
        foreign = await self._cluster.foreign_claims(group, sorted(claims))
        self._found = _Found(foreign)
        if pods:
            self._found.uncreated = await self._cluster.uncreated_pods(group, built, pods)
        whys = {uid: await self._why_lost(volume) for uid, volume in idle.items()}
        self._found.lost = {uid: why for uid, why in whys.items() if why}

    async def _why_lost(self, claim: Volume) -> str:
        """Return why the disk of a claim cannot come back; empty if it may."""
        if why := claim_lost(claim):
            return why
        if not claim.volume or not self._may_see_machines:
            return ""
        try:
            volume = await self._cluster.volume(claim.volume)
            machines = machines_of(volume) if volume else ()
            present = {name: await self._cluster.machines_named(name) for name in machines}
        except ApiError as error:
            if error.status != 403:
                raise
            # An operator of one namespace has no right to see machines; it is not asked for again.
            self._may_see_machines = False
            log.info("whether machines and volumes are gone is not looked at: %s", error)
            return ""
        return volume_lost(claim.volume, volume, present)


def _idle_disks(
    group: BrokerGroup, observed: Observed, ordinals: Collection[int]
) -> dict[str, Volume]:
    """Return the claims whose pod is not ready, by their uid."""
    found = {}
    for n in ordinals:
        pod, volume = (
            observed.pods.get(names.pod(group.name, n)),
            observed.volumes.get(names.claim(group.name, n)),
        )
        is_idle = pod is None or not pod.ready or pod.terminating
        if is_idle and volume is not None and volume.uid:
            found[volume.uid] = volume
    return found
