"""What a store need not keep: expired backups, and objects that no kept backup names.

Nothing is deleted that a kept manifest names, since a restore may be reading it, nor what is
younger than a day, since a running backup may be about to publish it. Ages are by the store's own
clock and by the group's, never by this machine's. Used by the jobs `gc` and `backup`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dledger.errors import InvalidArgument
from dledger_pipeline.archive.catalog import load, numbers, publish
from dledger_pipeline.archive.manifest import (
    OBJECT_KINDS,
    Chunk,
    ChunkRow,
    Manifest,
    manifest_name,
)
from dledger_pipeline.errors import (
    BackupError,
    NewerBackup,
    ObjectMissing,
    StoreDenied,
    VersionConflict,
)
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Listed, Removal

_DAY_MS: Final = 86_400_000
_DAY_S: Final = 86_400.0
_BATCH: Final = 100
"""Objects that are deleted before it is looked again whether another backup was published."""

Told = Callable[[str], None]
Freed = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How far back a restore must be possible: *keep_days*, and to the newest *keep_last* backups.

    Without both, nothing expires, unless *drop_copies* asks for all times and nothing twice: then
    manifests expire, and no entry does. A manifest is kept until a day after the next one came, so
    that a restore that reads it has a day, and so are the newest *keep_last*: the newest alone
    restores to any time that is kept, older ones are there should it be damaged.
    """

    keep_days: float = 0
    keep_last: int = 0
    drop_copies: bool = False

    def __post_init__(self) -> None:
        """Refuse what asks for all times and for some."""
        if self.drop_copies and self.keep_days:
            raise InvalidArgument("--drop-copies keeps all times: it goes without --keep-days")

    def keeps(self, place: int, replaced_s: float) -> bool:
        """Whether a manifest is kept that is the *place*-th newest, counting from 0.

        The one after it is *replaced_s* seconds old.
        """
        forever = not (self.keep_days or self.keep_last or self.drop_copies)
        return forever or place < self.keep_last or replaced_s <= _DAY_S

    def oldest_ms(self, kept: Sequence[Manifest]) -> int:
        """Return to which time on a restore must be possible; 0: to any.

        *kept* are the newest backups, newest first; to any, if they are fewer than *keep_last*.
        """
        if len(kept) < self.keep_last or self.drop_copies:
            return 0
        times_ms = [manifest.as_of_ms for manifest in kept[: self.keep_last]]
        if self.keep_days:
            times_ms.append(kept[0].as_of_ms - int(self.keep_days * _DAY_MS))
        return min(times_ms, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What was deleted, or would be.

    Attributes:
        manifests: Numbers of expired backups.
        objects: How many other objects.
        freed_bytes: What those that are gone took.
        hidden_bytes: What those take of which the store keeps a version, as object lock asks.
        locked: Objects that the store does not let go, such as those under a lock.
        temporary_files: Left by killed writers.
        oldest: The oldest backup that is kept.
    """

    group_id: str
    manifests: tuple[int, ...]
    objects: int
    freed_bytes: int
    hidden_bytes: int
    locked: int
    temporary_files: int
    oldest: int


def expire(
    store: Store,
    group_id: str,
    retention: Retention,
    *,
    dry_run: bool,
    told: Told,
    freed: Freed = lambda _: None,
) -> Expired:
    """Delete what *retention* does not keep; with *dry_run* only count it.

    Entries that only expired backups could be restored to leave the newest backup, too: a new
    manifest without them is published first. *freed* is told the length of each object that goes.

    Raises:
        NoBackup, LostManifest: There is nothing to go by; nothing was deleted.
        CorruptManifest, ObjectMissing: A kept backup is damaged; nothing was deleted.
        NewerBackup: A newer version wrote it.
        VersionConflict: Another backup was published meanwhile; what is left to delete stays.
        StoreError: The store failed.
    """
    chunks: dict[ChunkRow, Chunk] = {}
    current = load(store, group_id, chunks=chunks)
    listed = [each for kind in OBJECT_KINDS for each in store.listed(f"{group_id}/{kind}")]
    manifests = _manifests(store, current)
    now_s = _now_s([*listed, *manifests.values()])
    kept = _kept(store, current, retention, manifests, now_s=now_s, chunks=chunks)
    expired = {n: each for n, each in manifests.items() if n < kept[-1].number}
    trimmed = current.without_before(retention.oldest_ms(kept))
    if trimmed != current and not dry_run:
        current = publish(store, replace(trimmed, number=current.number + 1))
        told(f"published {current.name}, which begins with entry {current.first_index}")
        kept.insert(0, current)
    deletion = _Deletion(store, current, now_s - _DAY_S, told, freed)
    if not dry_run:
        gone = deletion.of_objects([*expired.values()])
        stay = [number for number, each in expired.items() if each not in gone]
        expired = {number: each for number, each in expired.items() if each in gone}
        kept += _readable(store, group_id, stay, chunks, told)
    names = {f"{group_id}/{name}" for manifest in kept for name in manifest.objects}
    unneeded = [
        each for each in listed if each.name not in names and each.modified_s < deletion.before_s
    ]
    told(f"{len(expired)} backups and {len(unneeded)} objects are not needed any more")
    swept = 0
    if not dry_run:
        unneeded = deletion.of_objects(unneeded)
        swept = store.sweep(deletion.before_s)
    went_bytes = sum(each.size_bytes for each in (*expired.values(), *unneeded))
    return Expired(
        group_id=group_id,
        manifests=tuple(expired),
        objects=len(unneeded),
        freed_bytes=went_bytes - deletion.hidden_bytes,
        hidden_bytes=deletion.hidden_bytes,
        locked=deletion.locked,
        temporary_files=swept,
        oldest=min(each.number for each in kept),
    )


def _manifests(store: Store, current: Manifest) -> dict[int, Listed]:
    """Return the manifests up to *current* by their numbers, ascending."""
    group_id = current.group_id
    listed = {each.name: each for each in store.listed(f"{group_id}/manifests")}
    names = {number: f"{group_id}/{manifest_name(number)}" for number in numbers(store, group_id)}
    return {n: listed[name] for n, name in names.items() if name in listed and n <= current.number}


def _readable(
    store: Store,
    group_id: str,
    numbers: Sequence[int],
    chunks: dict[ChunkRow, Chunk],
    told: Told,
) -> Iterator[Manifest]:
    """Yield manifests that the store did not let go, so that their objects stay as long."""
    for number in numbers:
        try:
            yield load(store, group_id, number, chunks=chunks)
        except NewerBackup:
            raise
        except (BackupError, ObjectMissing) as error:
            told(f"stays, and cannot be read: {error}")


def _kept(
    store: Store,
    current: Manifest,
    retention: Retention,
    manifests: Mapping[int, Listed],
    *,
    now_s: float,
    chunks: dict[ChunkRow, Chunk],
) -> list[Manifest]:
    """Return the manifests whose objects stay, newest first; behind one that goes, all go."""
    kept = [current]
    for number in sorted(manifests, reverse=True)[1:]:
        if not retention.keeps(len(kept), now_s - manifests[kept[-1].number].modified_s):
            break
        kept.append(load(store, current.group_id, number, chunks=chunks))
    return kept


def _now_s(listed: Sequence[Listed]) -> float:
    """Return the time of the newest object: the store's clock was at least there."""
    return max((each.modified_s for each in listed), default=0.0)


@dataclass(slots=True)
class _Deletion:
    """Deletes what the backup *current*, the newest, makes unneeded.

    Nothing goes that was written since *before_s*, by the store's clock: a backup that runs may
    have found it there. *locked* counts what the store does not let go, *hidden_bytes* what it
    keeps as a version.
    """

    store: Store
    current: Manifest
    before_s: float
    told: Told
    freed: Freed
    locked: int = 0
    hidden_bytes: int = 0

    def of_objects(self, unneeded: Sequence[Listed]) -> list[Listed]:
        """Delete objects; return those that are gone."""
        gone = []
        for at in range(0, len(unneeded), _BATCH):
            if numbers(self.store, self.current.group_id)[-1:] != [self.current.number]:
                raise VersionConflict(f"{self.current.group_id}/{self.current.name}")
            gone += [each for each in unneeded[at : at + _BATCH] if self._delete(each)]
            self.told(f"deleted {len(gone)} of {len(unneeded)} objects")
        return gone

    def _delete(self, each: Listed) -> bool:
        try:
            removal = self.store.delete_old(each.name, self.before_s)
        except StoreDenied as error:
            self.told(f"not deleted: {error}")
            self.locked += 1
            return False
        if removal is Removal.HIDDEN:
            self.hidden_bytes += each.size_bytes
        if removal is Removal.GONE:
            self.freed(each.size_bytes)
        return removal is not Removal.YOUNG
