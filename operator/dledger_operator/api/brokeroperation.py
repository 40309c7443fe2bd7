"""A BrokerOperation as a frozen value: the spec of `crds/brokeroperation.yaml`, field for field.

One object is one act on a group: its spec never changes, and once its phase is final nothing does.
Built by `BrokerOperation.parse` in `handlers`, taken by every pure function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from dledger_operator.api import names
from dledger_operator.api.objects import common_fields
from dledger_operator.api.spec import Json, read_known

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

DEADLINE_S: Final = 600
TTL_S: Final = 7 * 86_400


class Kind(StrEnum):
    """What is to be done; the CRD has the same."""

    TRANSFER_LEADER = "TransferLeader"
    RESTART = "Restart"
    REPLACE_MEMBER = "ReplaceMember"
    FORCE_NEW_GROUP = "ForceNewGroup"
    COMPACT = "Compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSpec:
    """Who is to lead: the name of a voter."""

    to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSpec:
    """Which pods are to be restarted: these, or *all*."""

    pods: tuple[str, ...] = ()
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceSpec:
    """Whose disk is to be given up."""

    member: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceSpec:
    """The group's id, typed in to confirm; and the survivor, empty for the most advanced."""

    group_id: str = ""
    survivor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSpec:
    """What is to be done to which group; only the block of the *kind* is set."""

    group: str = ""
    kind: str = ""
    transfer_leader: TransferSpec = field(default_factory=TransferSpec)
    restart: RestartSpec = field(default_factory=RestartSpec)
    replace_member: ReplaceSpec = field(default_factory=ReplaceSpec)
    force_new_group: ForceSpec = field(default_factory=ForceSpec)
    deadline_seconds: int = DEADLINE_S
    ttl_seconds_after_finished: int = TTL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOperation:
    """One BrokerOperation object: who it is, what is wanted, what was last recorded of it.

    Attributes:
        namespace: Where it and its group live.
        name: Its own.
        uid: Kubernetes' id of this object.
        generation: Of its spec, which never changes: always 1.
        version: Its resourceVersion, which grows with each write of the object.
        created_at: RFC 3339.
        scheduled_at: The time of the schedule that it was made for, RFC 3339; empty for others.
        spec: What is wanted.
        unreadable: Why the spec could not be read; it is then the default and not acted on.
        status: The last status this operator wrote, as the CRD has it.
    """

    KIND: ClassVar[str] = names.OPERATION_KIND

    namespace: str
    name: str
    uid: str
    generation: int = 1
    version: str = ""
    created_at: str = ""
    scheduled_at: str = ""
    spec: OperationSpec
    unreadable: str = ""
    status: Json = field(default_factory=dict)

    @classmethod
    def parse(cls, body: Json) -> Self:
        """Build it from the API's object; a value of a wrong type makes it *unreadable*."""
        spec, unreadable = read_known(OperationSpec, body.get("spec") or {})
        if not unreadable and spec.kind not in frozenset(Kind):
            unreadable = f"spec.kind {spec.kind!r} is not known to this version"
        return cls(**common_fields(body), spec=spec, unreadable=unreadable)

    @property
    def phase(self) -> str:
        """The recorded phase; Pending before one is recorded."""
        return str(self.status.get("phase") or PENDING)

    @property
    def finished(self) -> bool:
        """Whether its phase is final."""
        return self.phase in (SUCCEEDED, FAILED)

    @property
    def is_round(self) -> bool:
        """Whether it is a round of compaction: a Job beside the group's other operations."""
        return self.spec.kind == Kind.COMPACT

    @property
    def asks_only(self) -> bool:
        """Whether it is a ForceNewGroup that nobody confirmed: it shows, and never acts."""
        is_force = self.spec.kind == Kind.FORCE_NEW_GROUP
        return is_force and not self.spec.force_new_group.group_id

    def recorded(self, key: str) -> Any:
        """Return what its status has under *key* since it began; an empty object if nothing."""
        return self.status.get(key) or {}
