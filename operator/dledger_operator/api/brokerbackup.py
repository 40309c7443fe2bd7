"""A BrokerBackup as a frozen value: the spec of `crds/brokerbackup.yaml`, field for field.

One object is one backup: its spec never changes, and once its phase is final nothing does. Built by
`BrokerBackup.parse` in `controllers`, taken by every pure function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

from dledger_operator.api import names
from dledger_operator.api.objects import common_fields
from dledger_operator.api.spec import Json, Store, read_known

PENDING: Final = "Pending"
RUNNING: Final = "Running"
COMPLETED: Final = "Completed"
FAILED: Final = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSpec:
    """What is to be backed up, and where to; 0 for *last_index* means all that is committed."""

    group: str = ""
    store: Store = field(default_factory=Store)
    last_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBackup:
    """One BrokerBackup object: who it is, what is wanted, what was last recorded of it.

    Attributes:
        namespace: Where it and its group live.
        name: The Job is named after it.
        uid: Kubernetes' id of this object; the Job's owner reference has it.
        generation: Of its spec, which never changes: always 1.
        version: Its resourceVersion, which grows with each write of the object.
        created_at: RFC 3339.
        scheduled_at: The time of the schedule that it was made for, RFC 3339; empty for others.
        spec: What is wanted.
        unreadable: Why the spec could not be read; it is then the default and not acted on.
        status: The last status this operator wrote, as the CRD has it.
    """

    KIND: ClassVar[str] = names.BACKUP_KIND

    namespace: str
    name: str
    uid: str
    generation: int = 1
    version: str = ""
    created_at: str = ""
    scheduled_at: str = ""
    spec: BackupSpec
    unreadable: str = ""
    status: Json = field(default_factory=dict)

    @classmethod
    def parse(cls, body: Json) -> Self:
        """Build it from the API's object; a value of a wrong type makes it *unreadable*."""
        spec, unreadable = read_known(BackupSpec, body.get("spec") or {})
        return cls(**common_fields(body), spec=spec, unreadable=unreadable)

    @property
    def phase(self) -> str:
        """The recorded phase; Pending before one is recorded."""
        return str(self.status.get("phase") or PENDING)

    @property
    def finished(self) -> bool:
        """Whether its phase is final."""
        return self.phase in (COMPLETED, FAILED)

    @property
    def last_index(self) -> int:
        """The last index that it holds; 0 unless it is completed."""
        return int((self.status.get("range") or {}).get("last") or 0)
