"""What a manifest says of its backup by itself, so that a list of backups reads no chunk.

A store may have 10,000 manifests, of which each names a chunk of up to 100 KB that no other names.
Used by `catalog`, which writes and checks it, and by the job `list`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from dledger_pipeline.archive.hashed_json import field
from dledger_pipeline.archive.manifest import Manifest
from dledger_pipeline.errors import CorruptManifest

_NUMBERS: Final = ("first_index", "last_index", "objects", "object_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a backup has.

    Attributes:
        first_index, last_index: Of all its entries.
        objects: How many of data/ it names.
        object_bytes: What it takes in the store, all that goes with data/ included.
        restorable: The stretches [first, last] of indexes that a restore may end at, ascending.
    """

    first_index: int
    last_index: int
    objects: int
    object_bytes: int
    restorable: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, manifest: Manifest) -> Extent:
        """Return what *manifest* has."""
        return cls(
            first_index=manifest.first_index,
            last_index=manifest.last_index,
            objects=len(manifest.files),
            object_bytes=manifest.object_bytes,
            restorable=tuple(manifest.restorable()),
        )

    @classmethod
    def read(cls, name: str, content: Mapping[str, Any]) -> Extent:
        """Return what the manifest *name* states. Raises CorruptManifest."""
        stated = field(name, content, "extent", dict)
        numbers = {key: field(name, stated, key, int) for key in _NUMBERS}
        stretches = field(name, stated, "restorable", list)
        for each in stretches:
            if not isinstance(each, list) or [type(index) for index in each] != [int, int]:
                raise CorruptManifest(name, f"it states to be restorable to {each!r:.80}")
        return cls(**numbers, restorable=tuple((first, last) for first, last in stretches))

    def encode(self) -> dict[str, Any]:
        """Return the field of a manifest that `read` reads."""
        return asdict(self)
