"""Which objects make a backup: the manifest, written last, and HEAD, moved to it at the end.

::

    <store url>/<group id>/
        data/<first>-<last>-<sha256>.parquet   entries, 20 digits an index
        manifests/<last>.json                  a whole backup of entries up to <last>
        HEAD                                   which manifest counts; moved by compare-and-swap

A backup is there once HEAD points at it or at a later one. All that no manifest names is an orphan
of a run that was killed. Contents depend on the log only: no clock, no host names.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger_pipeline.archive import ManifestRow
from dledger_pipeline.store import Store

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A backup of entries [first_index, last_index] of one group.

    Attributes:
        group: The BrokerGroup's name.
        group_id: The group's UUID.
        files: The ranges, ascending, without gap.
    """

    group: str
    group_id: str
    files: tuple[ManifestRow, ...]

    @property
    def name(self) -> str:
        """The object's name within the group's folder."""
        return manifest_name(self.last_index)

    @property
    def first_index(self) -> int:
        """The first entry of the backup."""
        return self.files[0].first_index

    @property
    def last_index(self) -> int:
        """The last entry of the backup."""
        return self.files[-1].last_index

    @property
    def term(self) -> int:
        """The term of the last entry."""
        return self.files[-1].last_term

    @property
    def last_timestamp_ms(self) -> int:
        """The highest timestamp of any entry, Unix milliseconds; 0 if none has one."""
        return max(row.last_timestamp_ms for row in self.files)

    @property
    def records(self) -> int:
        """The number of entries."""
        return sum(row.records for row in self.files)

    @property
    def record_bytes(self) -> int:
        """What the entries take in segments, headers and padding included."""
        return sum(row.record_bytes for row in self.files)

    @property
    def object_bytes(self) -> int:
        """What the objects take in the store."""
        return sum(row.object_bytes for row in self.files)


def manifest_name(last_index: int) -> str:
    """Return the name, within the group's folder, of the manifest that ends with *last_index*."""
    return f"manifests/{last_index:020}.json"


def publish(store: Store, manifest: Manifest) -> Manifest:
    """Make *manifest* the group's newest backup, after checking that it is whole.

    Its ranges must join by index and chain, and its objects be there. If another run has published
    the same log up to the same index, that manifest stands. HEAD never moves backwards.

    Returns:
        The manifest that is in the store.

    Raises:
        BrokenBackup: Ranges do not join, or are not the log of the backup before; names the file.
        ObjectMissing: A file is not there. Nothing was published.
        ForeignManifest: The folder's HEAD belongs to another group.
        StoreError: The store failed.
    """
    raise NotImplementedError(store, manifest)


def load(store: Store, group_id: str | None = None, at: int | None = None) -> Manifest:
    """Return a published backup.

    Args:
        store: The store's root.
        group_id: Whose; None if the store holds one group only.
        at: The last index of an earlier backup; None: the newest, that of HEAD.

    Raises:
        NoBackup: There is none, or it takes a *group_id* to say which.
        CorruptManifest: It is damaged.
        ForeignManifest: It belongs to another group.
        ObjectMissing: HEAD names a manifest that is not there, or there is none for *at*.
    """
    raise NotImplementedError(store, group_id, at)


def newest(store: Store, group_id: str) -> Manifest | None:
    """Return the newest backup of the group, the base of an incremental one; None if none.

    Raises:
        CorruptManifest, ForeignManifest, ObjectMissing, StoreError: Like `load`.
    """
    raise NotImplementedError(store, group_id)
