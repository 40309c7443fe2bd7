"""What of a group's compactions a store need not keep: all but the newest of each choice of topics.

Nobody can read an older one by name; whoever is reading it has a day, as with manifests. Objects
that no manifest names are of a run that was killed, or of a compaction that was made again. Called
by `expiry`, which deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

from dledger_pipeline.archive import compacted
from dledger_pipeline.errors import BackupError, ObjectMissing
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.object_store.stored import Listed


def unneeded(
    store: Store, group_id: str, before_s: float, told: Callable[[str], None]
) -> list[Listed]:
    """Return manifests and objects of compactions that are not needed and older than *before_s*.

    The objects of a compaction that stays and cannot be read stay as well, and *told* is told why.

    Raises:
        StoreError: The store failed.
    """
    listed = sorted(store.listed(f"{group_id}/{compacted.FOLDER}"), key=lambda each: each.name)
    manifests = [each for each in listed if compacted.topics_hash(each.name)]
    expired = [*_superseded(manifests, before_s)]
    names, folders = set[str](), set[str]()
    for each in manifests:
        if each in expired:
            continue
        names.add(each.name)
        try:
            found = compacted.read(store.trusted(), each.name)
        except (BackupError, ObjectMissing) as error:
            told(f"the objects of a compaction stay, since it cannot be read: {error}")
            folders.add(each.name.removesuffix(".json"))
        else:
            names.update(f"{group_id}/{file.name}" for file in found.files)
    objects = [
        each
        for each in listed
        if each not in manifests
        and each.name not in names
        and each.name.rpartition("/")[0] not in folders
        and each.modified_s < before_s
    ]
    return [*expired, *objects]


def _superseded(manifests: Sequence[Listed], before_s: float) -> Iterator[Listed]:
    """Yield those that a newer one of the same topics replaced before then."""
    by_topics = sorted(manifests, key=lambda each: (compacted.topics_hash(each.name), each.name))
    for _, same in groupby(by_topics, key=lambda each: compacted.topics_hash(each.name)):
        for older, newer in pairwise(same):
            if max(older.modified_s, newer.modified_s) < before_s:
                yield older
