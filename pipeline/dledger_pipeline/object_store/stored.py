"""Shared by all kinds of object stores: credentials, and an object that was read.

Used by `store` and by the kinds of stores that it opens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import pyarrow as pa

from dledger_pipeline.errors import CorruptObject, ListingTooLong

MAX_OBJECT_BYTES: Final = 4 << 30
"""No object of ours is larger, so one that is was not written by us."""
MAX_NAMES: Final = 1_000_000
"""In one listing: a store of ours has some thousands, and each takes a quarter of a KiB."""
UNVERSIONED: Final = (None, "null")
"""Ids of versions; the second is of an object from before a bucket had versions, or while it has
none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object as it was read.

    Attributes:
        data: Its bytes.
        version_of: Returns the version: most readers do not want it, and it may take a hash.
    """

    data: pa.Buffer
    version_of: Callable[[], str]

    @property
    def version(self) -> str:
        """What to give to `Store.replace`."""
        return self.version_of()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An object as a listing shows it; *modified_s* is by the store's clock, Unix seconds."""

    name: str
    size_bytes: int
    modified_s: float


class Removal(Enum):
    """What came of removing an object that is old: it is GONE, or it was YOUNG and stays.

    HIDDEN: nobody finds it any more, but the store keeps a version of it, as object lock asks.
    """

    GONE = auto()
    HIDDEN = auto()
    YOUNG = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to sign requests to an S3 store; none are needed for ``file://``."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str = "us-east-1"
    session_token: str = field(default="", repr=False)

    @classmethod
    def from_environment(cls) -> Credentials | None:
        """Return what the AWS_* variables say; None if key or secret are not set."""
        key = os.environ.get("AWS_ACCESS_KEY_ID", "")
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY", "")
        if not key or not secret:
            return None
        region = os.environ.get("AWS_REGION") or "us-east-1"
        token = os.environ.get("AWS_SESSION_TOKEN", "")
        return cls(access_key_id=key, secret_access_key=secret, region=region, session_token=token)


def check_size(name: str, size_bytes: int, max_bytes: int) -> None:
    """Refuse an object that is larger than it may be, before it is read. Raises CorruptObject."""
    if size_bytes > max_bytes:
        raise CorruptObject(
            name, f"it has {size_bytes} bytes, more than the {max_bytes} it may have"
        )


def check_names(where: str, number: int) -> None:
    """Refuse a listing that has so many names already. Raises ListingTooLong."""
    if number > MAX_NAMES:
        raise ListingTooLong(where, f"it has over {MAX_NAMES:,} names")
