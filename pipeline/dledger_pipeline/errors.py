"""The pipeline's errors: whose fault it is, and what to do next. All are `DledgerError`s.

::

    DledgerError
    ├── CorruptRecord           (of dledger.errors) a record's bytes; names segment and byte offset
    └── PipelineError
        ├── StoreError          the object store
        │   ├── StoreDenied         wrong credentials, or no right to the name
        │   ├── StoreUnavailable    cannot be reached; try again
        │   ├── StoreRedirects      it sends us elsewhere, where we never go
        │   ├── ListingTooLong      a listing has more names, or takes longer, than one of ours
        │   ├── ObjectMissing       no object of that name
        │   ├── AlreadyExists       create-only, and another object has the name
        │   └── VersionConflict     replaced by someone else meanwhile
        ├── BackupError         what the store holds is not a complete backup
        │   ├── NoBackup            nothing was published there
        │   ├── LostManifest        the newest backup's manifest is not there any more
        │   ├── CorruptObject       an object does not have its hash, or is not readable
        │   ├── CorruptManifest     a manifest does not have its hash, or is malformed
        │   ├── NewerBackup         undamaged, but of a newer version's format
        │   ├── NotSigned           there is a key, and a manifest is not signed with it
        │   ├── ForeignManifest     it belongs to another group
        │   ├── BrokenBackup        files that do not join: a gap, an overlap, or another history
        │   └── GapInBackup         it lacks entries in which the group keeps messages
        ├── ExportError         the node that is read from
        │   ├── NodeUnavailable     not reachable or not in a group yet; try again, or another node
        │   ├── RangeNotAvailable   past the commit index, or below the oldest entry kept
        │   │   └── Overtaken           retention has overtaken each attempt of a round
        │   └── ForeignGroup        the node belongs to another group
        ├── RestoreError
        │   ├── DirectoryNotEmpty   a restore never overwrites
        │   └── TargetNotAvailable  the backup does not hold the requested index or time
        ├── MessageError        what the log says about messages
        │   ├── MalformedMessage    a stored payload that cannot be read; names the entry
        │   └── LogIncomplete       entries are missing that decide where later messages are
        ├── TableError              a table that messages are exported to; its library's own words
        ├── TopicError          topics that were asked for by name
        │   ├── NoSuchTopic         the group has none of this name
        │   └── NotCompacted        it is not compacted
        ├── SparkFailed         Spark itself, or a program error in one of its tasks
        └── WorkerFailed        a worker process ended before its work did
"""

from __future__ import annotations

from dledger.errors import DledgerError


class PipelineError(DledgerError):
    """Base of what the pipeline raises on purpose."""


class StoreError(PipelineError):
    """A call to the object store failed."""


class StoreDenied(StoreError):
    """The credentials are wrong, or lack the right to this object."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the store denies access to {name}; check the credentials: {reason}")
        self.name, self.reason = name, reason


class StoreUnavailable(StoreError):
    """The store cannot be reached, or answers with an error of its own; try again."""


class StoreRedirects(StoreError):
    """The server answers that the store is elsewhere; *place* is a server or a region."""

    def __init__(self, name: str, status: int, place: str) -> None:
        super().__init__(
            f"{name}: it answered {status}, a redirect to {place}, and none is followed; if the "
            "store is there, name it: store.endpoint (--store-endpoint), or AWS_REGION"
        )
        self.name, self.status, self.place = name, status, place


class ListingTooLong(StoreError):
    """A listing that does not end where one of ours would have ended long before."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"the listing of {name} was given up: {reason}; give dledger a bucket or a path of its "
            "own, or move away what is not its own"
        )
        self.name, self.reason = name, reason


class ObjectMissing(StoreError):
    """There is no object of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"object {name} is missing from the store")
        self.name = name


class AlreadyExists(StoreError):
    """An object with this name exists; it is unchanged."""

    def __init__(self, name: str) -> None:
        super().__init__(f"object {name} exists already and is never overwritten")
        self.name = name


class VersionConflict(StoreError):
    """Another writer replaced the object first; read it again and decide again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"object {name} was replaced by another writer meanwhile")
        self.name = name


class BackupError(PipelineError):
    """What the store holds is not a backup that can be used."""


class NoBackup(BackupError):
    """No backup was published here."""


class LostManifest(BackupError):
    """HEAD names a backup that is newer than every manifest in the store."""

    def __init__(self, name: str, newest: int | None) -> None:
        older = f"; the newest there is `--manifest {newest}`" if newest else ""
        super().__init__(
            f"manifest {name} is missing, though it was published{older}; "
            "`dledger-pipeline repair` makes one of the objects that are there"
        )
        self.name, self.newest = name, newest


class CorruptObject(BackupError):
    """An object's bytes are not what was written."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"corrupt object {name}: {reason}")
        self.name, self.reason = name, reason


class CorruptManifest(BackupError):
    """A manifest, or HEAD, is damaged or malformed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"corrupt manifest {name}: {reason}")
        self.name, self.reason = name, reason


class NewerBackup(BackupError):
    """What a newer version wrote: it is whole, and this version cannot read it."""

    def __init__(self, name: str, *, found: int | str, known: int | str) -> None:
        super().__init__(
            f"{name} was made by a newer dledger: its format is {found}, this one reads up to "
            f"{known}. Nothing is damaged: use the version that made it, or a newer one"
        )
        self.name, self.found, self.known = name, found, known


class NotSigned(BackupError):
    """A manifest is undamaged, but has no valid signature."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"manifest {name} is not trusted: {reason}; if it is older than the key, sign it with "
            "`dledger-pipeline sign`"
        )
        self.name, self.reason = name, reason


class ForeignManifest(BackupError):
    """A manifest is in another group's folder."""

    def __init__(self, name: str, *, expected: str, found: str) -> None:
        super().__init__(f"manifest {name} belongs to group {found}, not to {expected}")
        self.name, self.expected, self.found = name, expected, found


class BrokenBackup(BackupError):
    """Files do not join: a gap, an overlap, or the log of another history; *name* is the second."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} does not continue the backup: {reason}")
        self.name, self.reason = name, reason


class GapInBackup(BackupError):
    """What is asked needs all that the group keeps, and a backup lacks *gaps* of that."""

    def __init__(self, name: str, *gaps: tuple[int, int]) -> None:
        told = ", ".join(f"[{first}, {last}]" for first, last in gaps)
        super().__init__(
            f"{name} lacks the entries {told}, in which the group keeps messages: the newest of a "
            "key may be among them; make a backup, or go without --store: nodes have all of them"
        )
        self.name, self.gaps = name, gaps


class ExportError(PipelineError):
    """The node does not export these entries."""


class NodeUnavailable(ExportError):
    """The node cannot be reached, or has not joined a group; try again, or another node."""


class RangeNotAvailable(ExportError):
    """The range is past the node's commit index, or below the oldest entry it keeps."""


class Overtaken(RangeNotAvailable):
    """Each attempt of a round of compaction rested on entries that nodes did not have in the end.

    Attributes:
        attempts: How many there were.
    """

    def __init__(self, attempts: int, last: DledgerError) -> None:
        """*last* is what the last attempt failed with."""
        super().__init__(
            f"the round was begun {attempts} times, and each time nodes did not have any more what "
            f"it rests on: {last}; keep messages longer (spec.retention.hours of a BrokerGroup, "
            "retention_hours of a node; more room where disks are above their watermark), or have "
            "the round read faster (a newer backup to read from, more workers, a higher --rate)"
        )
        self.attempts = attempts


class ForeignGroup(ExportError):
    """The node belongs to another group than the requested one."""


class RestoreError(PipelineError):
    """A restore cannot be done."""


class DirectoryNotEmpty(RestoreError):
    """A restore never overwrites; *path* names the directory."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(f"{path} is not empty (it has {found}); restore into an empty directory")
        self.path, self.found = path, found


class TargetNotAvailable(RestoreError):
    """The backup does not hold the requested index or time."""


class MessageError(PipelineError):
    """The log's entries are undamaged, but messages cannot be read from them."""


class MalformedMessage(MessageError):
    """The broker stored a payload that cannot be decoded."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"malformed message in entry {index}: {reason}")
        self.index, self.reason = index, reason


class LogIncomplete(MessageError):
    """Queue offsets follow from all earlier entries, and some are missing."""

    def __init__(self, index: int, expected: int) -> None:
        super().__init__(
            f"expected entry {expected}, found entry {index}: queue offsets need the log without a "
            "gap, from entry 1 or a base on; read a backup, or a node's directory with snapshots"
        )
        self.index, self.expected = index, expected


class TableError(PipelineError):
    """The library of a table's format failed, or the catalogue; the message has its own words."""


class TopicError(PipelineError):
    """Topics that were asked for by name cannot be compacted; nothing was."""


class NoSuchTopic(TopicError):
    """The group has none of these topics."""

    def __init__(self, *names: str) -> None:
        super().__init__(f"the group has no topic {', '.join(names)}; `dledger topic list` has all")
        self.names = names


class NotCompacted(TopicError):
    """Topics keep all their messages: they were not made to be compacted."""

    def __init__(self, *names: str) -> None:
        super().__init__(
            f"not compacted: {', '.join(names)}; that is chosen when a topic is made, and only then"
        )
        self.names = names


class SparkFailed(PipelineError):
    """Spark could not start or run a task; the message has its last line, its log the rest."""


class WorkerFailed(PipelineError):
    """A worker process ended before its work did."""
