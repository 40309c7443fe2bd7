"""Growing a group's volumes: each claim is asked for more, then the StatefulSet is made anew. Pure.

Its claim template cannot be changed, so it is deleted without its pods, which go on, and is made
again with the new size. Each step shows in what is observed, so it can be interrupted anywhere. A
class that cannot grow refuses the first step, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dledger_operator.api import names, quantity
from dledger_operator.api.spec import BrokerGroup, Json, Manifest
from dledger_operator.observed.observed import Observed, Volume
from dledger_operator.resources.common import hashed, unhashed


@dataclass(frozen=True, slots=True)
class GrowClaim:
    """Ask for more in a volume claim."""

    claim: str
    size: str

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{self.claim} asks for less than {self.size}"


@dataclass(frozen=True, slots=True)
class ReleasePods:
    """Delete the StatefulSet with this *uid*, and nothing of what it made."""

    name: str
    uid: str
    size: str

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"the claim template of {self.name} has another size than {self.size}"


def growth(group: BrokerGroup, observed: Observed) -> Iterator[GrowClaim | ReleasePods]:
    """Yield what comes next: all claims that are too small, or else the StatefulSet."""
    built = observed.children.get(("StatefulSet", group.name))
    if built is None or "deletionTimestamp" in built["metadata"]:
        return
    size, small = group.spec.storage.size, too_small(group, observed)
    for volume in small:
        if ("PersistentVolumeClaim", volume.name) not in observed.refusals:
            yield GrowClaim(volume.name, size)
    if not small and not quantity.same(size, template_size(built)):
        yield ReleasePods(group.name, built["metadata"]["uid"], size)


def too_small(group: BrokerGroup, observed: Observed) -> list[Volume]:
    """Return the replicas' claims that ask for less than the spec, in order."""
    wanted = quantity.parse(group.spec.storage.size)
    claims = [names.claim(group.name, n) for n in range(group.pods)]
    there = (observed.volumes[claim] for claim in claims if claim in observed.volumes)
    return [volume for volume in there if quantity.parse(volume.size) < wanted]


def growing(group: BrokerGroup, observed: Observed) -> list[str]:
    """Return what has not its size yet: claims as asked for or as given, and the StatefulSet."""
    found = [volume.name for volume in too_small(group, observed)]
    built = observed.children.get(("StatefulSet", group.name))
    if built and not quantity.same(group.spec.storage.size, template_size(built)):
        found.append(f"StatefulSet {group.name}")
    return found + [
        f"{volume.name} (has {volume.capacity} so far)"
        for volume in observed.volumes.values()
        if volume.capacity and quantity.parse(volume.capacity) < quantity.parse(volume.size)
    ]


def as_built(wanted: Manifest, present: Json | None) -> Manifest:
    """Return a StatefulSet with the size that it was made with, which no apply can change."""
    if wanted["kind"] != "StatefulSet" or present is None:
        return wanted
    (template,) = wanted["spec"]["volumeClaimTemplates"]
    size = template_size(present)
    if quantity.same(template["spec"]["resources"]["requests"]["storage"], size):
        return wanted
    resources = {"requests": {"storage": size}}
    templates = [{**template, "spec": {**template["spec"], "resources": resources}}]
    kept = {**wanted, "spec": {**wanted["spec"], "volumeClaimTemplates": templates}}
    return hashed(unhashed(kept))


def template_size(stateful_set: Json) -> str:
    """Return the size of the volumes that a StatefulSet makes."""
    (template,) = stateful_set["spec"]["volumeClaimTemplates"]
    return str(template["spec"]["resources"]["requests"]["storage"])
