"""What a plan may ask for, each with its sentence. Pure values; the controllers carry them out."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_operator.api import names
from dledger_operator.api.spec import Json, Manifest
from dledger_operator.decisions.disruptions import Disruption
from dledger_operator.decisions.drift import Drift
from dledger_operator.decisions.growth import GrowClaim, ReleasePods
from dledger_operator.decisions.topics import TopicAction
from dledger_operator.observed.observed import ref_of
from dledger_operator.resources import accepted


@dataclass(frozen=True, slots=True)
class Apply:
    """Bring a child to this form by server-side apply."""

    manifest: Manifest

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{_named(self.manifest)} is not as the spec wants it"


@dataclass(frozen=True, slots=True)
class Repair:
    """Undo what others did to a child: *manifest* is what it should be, *patch* how it gets there.

    Without *drifts*, the child was deleted, and is made again.
    """

    manifest: Manifest
    patch: Manifest | None = None
    drifts: tuple[Drift, ...] = ()

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{_named(self.manifest)} was changed or deleted by somebody else"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object that is never changed afterwards; one that is there already is fine."""

    manifest: Manifest

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{_named(self.manifest)} is wanted, and there is none"


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete a child that is for nothing any more, provided it is the one with *uid*.

    The record of a spec that was accepted before, or the Service of a pod that is gone for good.
    """

    name: str
    uid: str
    kind: str = accepted.KIND

    @property
    def why(self) -> str:
        """Return what it is for."""
        if self.kind == accepted.KIND:
            return f"the spec recorded in {self.name} is no longer the one accepted last"
        return f"{self.kind} {self.name} is of a pod that the group has no more"


@dataclass(frozen=True, slots=True)
class MarkRestored:
    """Mark a volume claim: its Job succeeded, and its contents are the group's from now on."""

    claim: str
    result: Json

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"the backup is restored to {self.claim}"


@dataclass(frozen=True, slots=True)
class RecordGroupId:
    """Write the id into the status, unless someone wrote to the object meanwhile.

    *adopted* is true for an id that volumes carry, false for a new one to found the group with.
    """

    group_id: str
    adopted: bool

    @property
    def why(self) -> str:
        """Return what it is for."""
        whose = "volumes carry" if self.adopted else "the group is to get"
        return f"{whose} the id {self.group_id}"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Tell the node of *pod* to found the group; *members* are (id, name, address)."""

    pod: str
    group_id: str
    members: tuple[tuple[str, str, str], ...]

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"every disk is empty and no leader was ever seen: {self.pod} founds the group"


@dataclass(frozen=True, slots=True)
class LabelRole:
    """Label a pod with its role; an empty role takes the label off."""

    pod: str
    role: str

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"{self.pod} is {self.role or 'not known to take part'}"


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Ask all nodes anew in the next round, before something that cannot be undone is done."""

    action: Disruption

    @property
    def why(self) -> str:
        """Return what it is for."""
        return f"to be sure before: {self.action.why}"


Child = Apply | Repair | Create


def _named(manifest: Manifest) -> str:
    return " ".join(ref_of(manifest))


def is_prerequisite(action: Child) -> bool:
    """Whether later actions rely on what this one makes; none does on a backup or a record."""
    return bool(action.manifest["kind"] not in (names.BACKUP_KIND, accepted.KIND))


VolumeAction = GrowClaim | ReleasePods
Action = (
    Child
    | Forget
    | MarkRestored
    | RecordGroupId
    | Bootstrap
    | LabelRole
    | TopicAction
    | VolumeAction
    | LookAgain
    | Disruption
)
