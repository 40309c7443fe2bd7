"""What is looked up only while something of a group is missing, since nothing watches it.

Whose claims stand in the way of a pod's own, why Kubernetes does not make a pod, whether the disk
of a pod that is not ready is still there; what a pod of which nothing runs waits for, and whether
what pods would mount is there before one is restarted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.event_looks import LOOKED_S, EventLooks
from dledger_operator.decisions.starts import GRACE_S, find_stalled, may_restart_soon
from dledger_operator.observed.disks import claim_lost, machines_of, volume_lost
from dledger_operator.observed.observed import Observed, Ref, Volume

log: Final = logging.getLogger(__name__)

CALM_S: Final = 60.0
"""How often it is looked whether what pods mount is there, while none is to start anew."""


@dataclass(slots=True)
class _Found:
    """What was found the last time, each by the name of a claim or a pod."""

    foreign: Mapping[str, str] = field(default_factory=dict)
    uncreated: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Mounts:
    """What was looked for the last time, what of it was not there and why, and when."""

    wanted: tuple[Ref, ...] = ()
    absent: Mapping[Ref, str] = field(default_factory=dict)
    looked_at_s: float = float("-inf")


class Absences:
    """Looks after what is not there, for one group.

    Args:
        cluster: Reads what is asked for.
        monotonic_s: The clock.
        now: The time of day, RFC 3339.
    """

    def __init__(
        self, cluster: Cluster, *, monotonic_s: Callable[[], float], now: Callable[[], str]
    ) -> None:
        self._cluster = cluster
        self._monotonic_s = monotonic_s
        self._now = now
        self._looked_at_s = float("-inf")
        self._found = _Found()
        self._events = EventLooks(monotonic_s)
        self._mounts = _Mounts()
        self._may_see_machines = True
        self._may_see_secrets = True

    async def seen(
        self,
        group: BrokerGroup,
        observed: Observed,
        *,
        wanted: Callable[[], Iterable[Ref]],
        afresh: bool = False,
    ) -> Observed:
        """Return what is observed, with what is known of what is missing.

        Before there is a StatefulSet, nothing needs it, and making one looks at the claims.

        Args:
            group: The group.
            observed: What the watches know.
            wanted: Returns what a pod of the group would mount now.
            afresh: Whether something is about to be done that rests on that.
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
        return replace(
            observed,
            foreign=found.foreign,
            uncreated=found.uncreated,
            lost={idle[uid].name: why for uid, why in found.lost.items()},
            unstarted=await self._waited_for(group, observed),
            absent=await self._absent(group, observed, wanted, afresh=afresh),
        )

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

    async def _waited_for(self, group: BrokerGroup, observed: Observed) -> Mapping[str, str]:
        """Return what Events say of the pods of which nothing has run for nearly too long."""
        pods = observed.pods
        idle = find_stalled(pods, self._now(), for_s=GRACE_S - LOOKED_S)
        uids = {name: pods[name].uid for name in idle if pods[name].uid}
        self._events.keep(uids.values())
        found = {}
        for name, uid in uids.items():
            look = partial(self._cluster.start_failures, group, pod_uid=uid)
            found[name] = await self._events.read(uid, look)
        return {name: said for name, said in found.items() if said}

    async def _absent(
        self,
        group: BrokerGroup,
        observed: Observed,
        wanted: Callable[[], Iterable[Ref]],
        *,
        afresh: bool,
    ) -> Mapping[Ref, str]:
        """Return what of *wanted* is not there, looked for anew if a pod may need it soon."""
        found, now_s = self._mounts, self._monotonic_s()
        age_s = now_s - found.looked_at_s
        is_moving = afresh or may_restart_soon(group, observed)
        if is_moving or age_s >= CALM_S:
            refs = tuple(wanted())
            if afresh or age_s >= LOOKED_S or refs != found.wanted:
                absent = {ref: await self._why_absent(group, observed, ref) for ref in refs}
                found = _Mounts(refs, {ref: why for ref, why in absent.items() if why}, now_s)
                self._mounts = found
        return found.absent

    async def _why_absent(self, group: BrokerGroup, observed: Observed, ref: Ref) -> str:
        """Return why a pod could not mount an object; empty if it could, or nobody may know."""
        kind, name = ref
        if kind != "Secret":
            return "" if ref in observed.children else "does not exist"
        if not self._may_see_secrets:
            return ""
        try:
            return "" if await self._cluster.is_there(group, kind, name) else "does not exist"
        except ApiError as error:
            if error.status != 403:
                unknown = f"could not be looked for: {error}"
                before = self._mounts
                return before.absent.get(ref, "" if ref in before.wanted else unknown)
            # Without peerTls the operator has no right to Secrets; it is not asked for again.
            self._may_see_secrets = False
            log.info("whether Secrets that pods mount are there is not looked at: %s", error)
            return ""

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
