"""What a store need not keep: expired backups, and objects that no kept backup names.

Nothing is deleted that a kept manifest names, since a restore may be reading it, nor what is
younger than a day, since a running backup may be about to publish it. Ages are by the store's own
clock and by the group's, never by this machine's. Used by the jobs `gc` and `backup`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dledger_pipeline.archive.catalog import load, numbers, publish
from dledger_pipeline.archive.manifest import Chunk, ChunkRow, Manifest, manifest_name
from dledger_pipeline.errors import BackupError, ObjectMissing, StoreDenied, VersionConflict
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Listed

_DAY_MS: Final = 86_400_000
_DAY_S: Final = 86_400.0
_BATCH: Final = 100
"""Objects that are deleted before it is looked again whether another backup was published."""
_KINDS: Final = ("data", "bases", "chunks")

Told = Callable[[str], None]
Freed = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How far back a restore must be possible: *keep_days*, and to the newest *keep_last* backups.

    Without both, nothing expires. A manifest is kept until a day after the next one came, so that a
    restore that reads it has a day, and so are the newest *keep_last*: the newest alone restores to
    any time that is kept, older ones are there should it be damaged.
    """

    keep_days: float = 0
    keep_last: int = 0

    def keeps(self, place: int, replaced_s: float) -> bool:
        """Whether a manifest is kept that is the *place*-th newest, counting from 0.

        The one after it is *replaced_s* seconds old.
        """
        forever = not (self.keep_days or self.keep_last)
        return forever or place < self.keep_last or replaced_s <= _DAY_S

    def oldest_ms(self, kept: Sequence[Manifest]) -> int:
        """Return to which time on a restore must be possible; 0: to any.

        *kept* are the newest backups, newest first; to any, if they are fewer than *keep_last*.
        """
        if len(kept) < self.keep_last:
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
        freed_bytes: What all of them take.
        locked: Objects that the store does not let go, such as those under a lock.
        temporary_files: Left by killed writers.
        oldest: The oldest backup that is kept.
    """

    group_id: str
    manifests: tuple[int, ...]
    objects: int
    freed_bytes: int
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
        VersionConflict: Another backup was published meanwhile; what is left to delete stays.
        StoreError: The store failed.
    """
    chunks: dict[ChunkRow, Chunk] = {}
    current = load(store, group_id, chunks=chunks)
    kept, expired = _divided(store, current, retention, chunks)
    trimmed = current.without_before(retention.oldest_ms(kept))
    if trimmed != current and not dry_run:
        current = publish(store, replace(trimmed, number=current.number + 1))
        told(f"published {current.name}, which begins with entry {current.first_index}")
        kept.insert(0, current)
    listed = [each for kind in _KINDS for each in store.listed(f"{group_id}/{kind}")]
    deletion = _Deletion(store, current, _now_s(listed) - _DAY_S, told, freed)
    if not dry_run:
        locked = deletion.of_manifests(expired)
        expired = [number for number in expired if number not in locked]
        kept += _readable(store, group_id, sorted(locked), chunks, told)
    names = {f"{group_id}/{name}" for manifest in kept for name in manifest.objects}
    unneeded = list(_old(listed, names))
    told(f"{len(expired)} backups and {len(unneeded)} objects are not needed any more")
    swept = 0
    if not dry_run:
        unneeded = deletion.of_objects(unneeded)
        swept = store.sweep(deletion.before_s)
    return Expired(
        group_id=group_id,
        manifests=tuple(expired),
        objects=len(unneeded),
        freed_bytes=sum(each.size_bytes for each in unneeded),
        locked=deletion.locked,
        temporary_files=swept,
        oldest=min(each.number for each in kept),
    )


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
        except (BackupError, ObjectMissing) as error:
            told(f"stays, and cannot be read: {error}")


def _divided(
    store: Store, current: Manifest, retention: Retention, chunks: dict[ChunkRow, Chunk]
) -> tuple[list[Manifest], list[int]]:
    """Return the manifests whose objects stay, newest first, and the numbers of those that go.

    Behind one that has expired, all have.
    """
    group_id = current.group_id
    written_s = {each.name: each.modified_s for each in store.listed(f"{group_id}/manifests")}
    now_s = max(written_s.values(), default=0.0)
    older = [number for number in numbers(store, group_id) if number < current.number]
    kept = [current]
    while older:
        next_s = written_s[f"{group_id}/{kept[-1].name}"]
        if not retention.keeps(len(kept), now_s - next_s):
            break
        kept.append(load(store, group_id, older[-1], chunks=chunks))
        older.pop()
    return kept, older


def _old(listed: Sequence[Listed], needed: Collection[str]) -> Iterator[Listed]:
    """Yield what nobody needs and what is older than a day, by the store's clock."""
    now_s = _now_s(listed)
    for each in listed:
        if each.name not in needed and each.modified_s < now_s - _DAY_S:
            yield each


def _now_s(listed: Sequence[Listed]) -> float:
    """Return the time of the newest object: the store's clock was at least there."""
    return max((each.modified_s for each in listed), default=0.0)


@dataclass(slots=True)
class _Deletion:
    """Deletes what the backup *current*, the newest, makes unneeded.

    Nothing goes that was written since *before_s*, by the store's clock: a backup that runs may
    have found it there. *locked* counts what the store does not let go.
    """

    store: Store
    current: Manifest
    before_s: float
    told: Told
    freed: Freed
    locked: int = 0

    def of_manifests(self, expired: Sequence[int]) -> set[int]:
        """Delete manifests; return which of them stay."""
        group_id = self.current.group_id
        by_name = {f"{group_id}/{manifest_name(number)}": number for number in expired}
        listed = self.store.listed(f"{group_id}/manifests")
        gone = self.of_objects([each for each in listed if each.name in by_name])
        return {*expired} - {by_name[each.name] for each in gone}

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
            is_gone = self.store.delete_old(each.name, self.before_s)
        except StoreDenied as error:
            self.told(f"not deleted: {error}")
            self.locked += 1
            return False
        if is_gone:
            self.freed(each.size_bytes)
        return is_gone
