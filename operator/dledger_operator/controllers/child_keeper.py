"""The children of one group: made, set back, and their volumes enlarged, with what is told of it.

Used by the group's Reconciler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.reasons import EventReason
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.decisions.actions import Action, Child, Create, MarkRestored, Repair
from dledger_operator.decisions.growth import GrowClaim, ReleasePods
from dledger_operator.observed.observed import Observed, Ref, ref_of
from dledger_operator.status.status import Event

REPAIRS_TOLD_S: Final = 60.0
_TOLD: Final = 5
"""Of one child, so often and so many fields are told: somebody may write to it all the time."""


class ChildKeeper:
    """Carries out what a plan asks of children; what it remembers only saves writes and Events.

    Args:
        cluster: Writes to Kubernetes.
        monotonic_s: A clock.
        post: Posts an Event on the group.
        refuse: Notes what failed and is not tried again at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        monotonic_s: Callable[[], float],
        post: Callable[[BrokerGroup, Event], Awaitable[None]],
        refuse: Callable[[BrokerGroup, Ref, str], None],
    ) -> None:
        self._cluster = cluster
        self._monotonic_s = monotonic_s
        self._post = post
        self._refuse = refuse
        self._repaired: dict[Ref, str] = {}
        self._told_at_s: dict[Ref, float] = {}

    def is_vain(self, action: Action) -> bool:
        """Whether a repair was done to the same version before, so that it changes nothing.

        What it would remove is then a default, or put there by an admission webhook.
        """
        if not isinstance(action, Repair) or action.patch is None:
            return False
        version = action.patch["metadata"]["resourceVersion"]
        return bool(self._repaired.get(ref_of(action.manifest)) == version)

    async def make(self, group: BrokerGroup, observed: Observed, action: Child) -> bool:
        """Apply or create a child; False if it was refused or must wait, and so must later ones."""
        ref = ref_of(action.manifest)
        if ref in observed.refusals:
            return False
        try:
            if isinstance(action, Create):
                await self._create(group, action.manifest)
                return True
            if isinstance(action, Repair):
                return await self._repair(group, action)
            known = ref in observed.children
            return await self._cluster.apply_child(group, action.manifest, known=known)
        except ApiError as error:
            if not error.refused:
                raise
            self._refuse(group, ref, str(error))
            return False

    async def mark_restored(self, group: BrokerGroup, action: MarkRestored) -> None:
        """Record on the first claim that a backup was restored to it. Raises ApiError."""
        await self._cluster.mark_restored(group, action.claim)
        source, last = (action.result.get(key, "?") for key in ("groupId", "lastIndex"))
        message = f"{action.claim} has the log of group {source} up to entry {last}"
        await self._post(group, Event(EventReason.RESTORED, message))

    async def enlarge(self, group: BrokerGroup, action: GrowClaim | ReleasePods) -> None:
        """Have a volume grow, or the StatefulSet made anew that has larger ones."""
        if isinstance(action, GrowClaim):
            await self._grow(group, action)
        else:
            await self._release(group, action)

    async def _grow(self, group: BrokerGroup, action: GrowClaim) -> None:
        """Ask for a larger volume; whether it can grow only the answer tells."""
        try:
            await self._cluster.grow_claim(group, action.claim, action.size)
        except ApiError as error:
            if not error.refused:
                raise
            self._refuse(group, ("PersistentVolumeClaim", action.claim), str(error))
        else:
            said = f"{action.claim} was asked for {action.size}"
            await self._post(group, Event(EventReason.VOLUME_GROWN, said))

    async def _release(self, group: BrokerGroup, action: ReleasePods) -> None:
        """Delete the StatefulSet alone, whose claim template cannot be changed."""
        if await self._cluster.release_pods(group, action.name, uid=action.uid):
            said = f"StatefulSet {action.name} is made anew for volumes of {action.size}"
            message = f"{said}; its pods go on"
            await self._post(group, Event(EventReason.VOLUME_GROWN, message))

    async def _repair(self, group: BrokerGroup, action: Repair) -> bool:
        """Undo what others did to a child, and tell it once a minute at most for each."""
        kind, name = ref = ref_of(action.manifest)
        if action.patch is None:
            done = await self._cluster.apply_child(group, action.manifest, known=False)
            said = "was missing and was made again"
        else:
            done = await self._cluster.repair_child(group, action.manifest, action.patch)
            self._repaired[ref] = action.patch["metadata"]["resourceVersion"]
            said = f"was changed; set back: {', '.join(map(str, action.drifts[:_TOLD]))}"
        now_s = self._monotonic_s()
        is_news = now_s - self._told_at_s.get(ref, float("-inf")) >= REPAIRS_TOLD_S
        if done and is_news and (action.patch is None or action.drifts):
            self._told_at_s[ref] = now_s
            await self._post(group, Event(EventReason.CHILD_REPAIRED, f"{kind} {name} {said}"))
        return done

    async def _create(self, group: BrokerGroup, manifest: Manifest) -> None:
        created = await self._cluster.create_child(group, manifest)
        kind, name = ref_of(manifest)
        if created and kind == names.BACKUP_KIND:
            await self._post(group, Event(EventReason.BACKUP_SCHEDULED, f"{name} was created"))
        elif created and kind == names.OPERATION_KIND:
            await self._post(group, Event(EventReason.ROUND_SCHEDULED, f"{name} was created"))
        elif created and kind == "Job":
            message = f"Job {name} restores {names.claim(group.name, 0)}"
            await self._post(group, Event(EventReason.RECOVERY_STARTED, message))
