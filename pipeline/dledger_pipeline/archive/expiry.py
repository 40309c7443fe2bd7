"""What a store need not keep: expired backups, and objects that no kept backup names.

Nothing is deleted that a kept manifest names, since a restore may be reading it, nor what is
younger than a day, since a running backup may be about to publish it. Ages are by the store's own
clock and by the group's, never by this machine's. Used by the jobs `gc` and `backup`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dledger_pipeline.archive.catalog import load, newest, numbers, publish
from dledger_pipeline.archive.manifest import Manifest, manifest_name
from dledger_pipeline.errors import StoreDenied, VersionConflict
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Listed

_DAY_MS: Final = 86_400_000
_DAY_S: Final = 86_400.0
_BATCH: Final = 100
"""Objects that are deleted before it is looked again whether another backup was published."""
_KINDS: Final = ("data", "places", "bases", "chunks")

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How far back a restore must be possible: *keep_days*, and to the newest *keep_last* backups.

    Without both, nothing expires. Manifests are kept for a day, and the newest *keep_last*: the
    newest one alone restores to any time that is kept, older ones are there should it be damaged.
    """

    keep_days: float = 0
    keep_last: int = 0

    def keeps(self, manifest: Manifest, place: int, newest_ms: int) -> bool:
        """Whether a manifest is kept that is the *place*-th newest, counting from 0."""
        forever = not (self.keep_days or self.keep_last)
        return forever or place < self.keep_last or manifest.as_of_ms >= newest_ms - _DAY_MS

    def oldest_ms(self, kept: Sequence[Manifest]) -> int:
        """Return to which time on a restore must be possible; 0: to any. *kept*: newest first."""
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
    store: Store, group_id: str, retention: Retention, *, dry_run: bool, told: Told
) -> Expired:
    """Delete what *retention* does not keep; with *dry_run* only count it.

    Entries that only expired backups could be restored to leave the newest backup, too: a new
    manifest without them is published first.

    Raises:
        NoBackup, LostManifest: There is nothing to go by; nothing was deleted.
        CorruptManifest, ObjectMissing: A kept backup is damaged; nothing was deleted.
        VersionConflict: Another backup was published meanwhile; what is left to delete stays.
        StoreError: The store failed.
    """
    current = load(store, group_id)
    kept, expired = _divided(store, current, retention)
    trimmed = current.without_before(retention.oldest_ms(kept))
    if trimmed != current and not dry_run:
        current = publish(store, replace(trimmed, number=current.number + 1))
        told(f"published {current.name}, which begins with entry {current.first_index}")
        kept.insert(0, current)
    names = {name for manifest in kept for name in manifest.objects}
    listed = [each for kind in _KINDS for each in store.listed(f"{group_id}/{kind}")]
    unneeded = list(_old(listed, {f"{group_id}/{name}" for name in names}))
    told(f"{len(expired)} backups and {len(unneeded)} objects are not needed any more")
    locked: set[str] = set()
    swept = 0
    if not dry_run:
        manifests = [f"{group_id}/{manifest_name(number)}" for number in expired]
        locked = _delete(store, current, [*manifests, *(each.name for each in unneeded)], told)
        swept = store.sweep(_now_s(listed) - _DAY_S)
    return Expired(
        group_id=group_id,
        manifests=tuple(expired),
        objects=len(unneeded) - len(locked & {each.name for each in unneeded}),
        freed_bytes=sum(each.size_bytes for each in unneeded if each.name not in locked),
        locked=len(locked),
        temporary_files=swept,
        oldest=min(each.number for each in kept),
    )


def _divided(
    store: Store, current: Manifest, retention: Retention
) -> tuple[list[Manifest], list[int]]:
    """Return the manifests whose objects stay, newest first, and the numbers of those that go.

    Behind one that has expired, all have.
    """
    older = [number for number in numbers(store, current.group_id) if number < current.number]
    kept = [current]
    while older:
        manifest = load(store, current.group_id, older[-1])
        if not retention.keeps(manifest, len(kept), current.as_of_ms):
            break
        kept.append(manifest)
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


def _delete(store: Store, current: Manifest, names: Sequence[str], told: Told) -> set[str]:
    """Delete objects; return which of them the store did not let go."""
    locked: set[str] = set()
    for at in range(0, len(names), _BATCH):
        latest = newest(store, current.group_id)
        if latest is None or latest.number != current.number:
            raise VersionConflict(f"{current.group_id}/{current.name}")
        for name in names[at : at + _BATCH]:
            try:
                store.delete(name)
            except StoreDenied as error:
                told(f"not deleted: {error}")
                locked.add(name)
        told(f"deleted {min(at + _BATCH, len(names))} of {len(names)} objects")
    return locked
