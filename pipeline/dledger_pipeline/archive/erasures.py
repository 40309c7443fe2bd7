"""What a manifest says of the ERASEs among an object's entries. A value only.

They are an object of their own (`erasures_objects`), beside that of the entries. `erased` says what
they mean.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasuresRow:
    """The ERASEs among an object's entries.

    Attributes:
        name: The object: ``erasures/<first>-<last>-<sha256>.parquet``.
        rows: How many messages they name; at least one.
    """

    name: str
    object_bytes: int
    sha256: str
    rows: int


def erasures_name(first_index: int, last_index: int, sha256: str) -> str:
    """Return the name, within the group's folder, of the object with these ERASEs."""
    return f"erasures/{first_index:020}-{last_index:020}-{sha256}.parquet"
