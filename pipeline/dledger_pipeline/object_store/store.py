"""An object store by URL: ``file://``, ``s3://``, and whatever else obstore opens.

Names are relative to the URL, with ``/`` between parts. Objects appear complete or not at all and
are durable when a call returns. `create` and `replace` are atomic against all
other writers: on S3 by conditional writes, on file systems by links and locks. Used by `archive`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from dledger_pipeline.errors import StoreDenied, StoreError
from dledger_pipeline.object_store.directory_objects import DirectoryObjects
from dledger_pipeline.object_store.remote_objects import RemoteObjects
from dledger_pipeline.object_store.s3_objects import S3Objects
from dledger_pipeline.object_store.stored import (
    MAX_OBJECT_BYTES,
    Credentials,
    Listed,
    Removal,
    Stored,
    check_names,
)

T = TypeVar("T")
Data: TypeAlias = bytes | memoryview | pa.Buffer

MIN_KEY_BYTES: Final = 32
"""The length of SHA-256's output; RFC 2104 discourages shorter keys of an HMAC."""

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=%-]*(/[A-Za-z0-9_][A-Za-z0-9._=%-]*)*")
"""Some folders of an exported table are called topic=..., with what others quote quoted."""

_TOLD: Final = 10
"""Foreign names in a listing that are told, each once; more are only told to be there."""


class Objects(Protocol):
    """What a kind of store does; `Store` says what its calls raise."""

    def get(self, name: str, max_bytes: int) -> Stored:
        """Return an object and its version; CorruptObject if it is larger, unread."""

    def size(self, name: str) -> int:
        """Return an object's length in bytes."""

    def put(self, name: str, data: memoryview) -> None:
        """Write an object."""

    def create(self, name: str, data: memoryview) -> None:
        """Write an object unless there is one."""

    def replace(self, name: str, data: memoryview, version: str) -> None:
        """Write an object if it has this version."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects below the folder, in any order."""

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the URL."""

    def delete(self, name: str) -> None:
        """Remove an object; it is no error if it is not there."""

    def delete_old(self, name: str, before_s: float) -> Removal:
        """Remove an object unless it was written since."""

    def sweep(self, before_s: float) -> int:
        """Remove what killed writers left before then; return how much that was."""


class Store:
    """Objects below one URL. Pickles as what `open` took: secrets are each process's own.

    Attributes:
        url, endpoint, allow_http: Where it is, as `open` was told.
        manifest_key: What manifests are signed with; None: they are not.
    """

    def __init__(
        self, url: str, endpoint: str | None, objects: Objects, *, allow_http: bool = False
    ) -> None:
        """Use `open`."""
        self.url = url
        self.endpoint = endpoint
        self.manifest_key = _manifest_key()
        self._objects = objects
        self.allow_http = allow_http
        self._foreign: set[str] = set()

    @classmethod
    def open(
        cls,
        url: str,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        *,
        allow_http: bool = False,
    ) -> Store:
        """Open the store; this sends no request yet.

        Args:
            url: ``file:///path`` (created when first written), ``s3://bucket/path``, or another
                that obstore knows.
            endpoint: ``http(s)://host:port`` of an S3 server; default: the environment's
                DLEDGER_STORE_ENDPOINT, else Amazon's.
            credentials: Default: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION.
            allow_http: Whether to accept ``http://``, which anyone on the network path can read and
                change; default: whether the environment's DLEDGER_STORE_ALLOW_HTTP is 1.

        Raises:
            StoreError: The URL is not a store's, has a # or a ?, or is unencrypted, or
                DLEDGER_MANIFEST_KEY is too short.
            StoreDenied: An S3 server needs credentials and none are set.
        """
        parts = urlsplit(url)
        endpoint = endpoint or os.environ.get("DLEDGER_STORE_ENDPOINT") or None
        allow_http = allow_http or os.environ.get("DLEDGER_STORE_ALLOW_HTTP") == "1"
        for address in (url, endpoint or ""):
            if urlsplit(address).scheme == "http" and not allow_http:
                raise StoreError(
                    f"{address} is not encrypted: anyone on the network path can read messages; "
                    "use https://, or allow it by --allow-http (store.allowHttp: true)"
                )
        if "#" in url or "?" in url:
            raise StoreError(
                f"the URL of a store has no # and no ?: what follows one in {url} would be lost; "
                "in a path write %23 and %3F"
            )
        if parts.scheme == "file":
            if parts.netloc or not parts.path.startswith("/"):
                raise StoreError(f"{url} does not have the form file:///absolute/path")
            return cls(url, endpoint, DirectoryObjects(Path(unquote(parts.path))))
        objects: Objects
        if parts.scheme == "s3":
            objects = _s3(url, endpoint, credentials or Credentials.from_environment())
        else:
            objects = RemoteObjects.other(url, allow_http=allow_http)
        return cls(url, endpoint, objects, allow_http=allow_http)

    @property
    def directory(self) -> Path | None:
        """The directory that it is; None: it is none."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    def trusted(self) -> Store:
        """Return the same store without a key: signatures are not checked."""
        store = copy(self)
        store.manifest_key = None
        return store

    def __reduce__(self) -> tuple[object, tuple[str, str | None]]:
        return partial(Store.open, allow_http=self.allow_http), (self.url, self.endpoint)

    def get(self, name: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> pa.Buffer:
        """Return an object's bytes.

        Raises:
            ObjectMissing, StoreDenied, StoreUnavailable: As they say.
            CorruptObject: It has more than *max_bytes*; nothing was read.
        """
        return self.get_versioned(name, max_bytes=max_bytes).data

    def get_versioned(self, name: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> Stored:
        """Return an object's bytes and version. Raises like `get`."""
        return self._objects.get(_checked(name), max_bytes)

    def size(self, name: str) -> int:
        """Return an object's length in bytes. Raises like `get`."""
        return self._objects.size(_checked(name))

    def put(self, name: str, data: Data) -> None:
        """Write an object, replacing one of the same name. Raises StoreDenied, StoreUnavailable."""
        self._objects.put(_checked(name), memoryview(data).cast("B"))

    def create(self, name: str, data: Data) -> None:
        """Write a new object.

        Raises:
            AlreadyExists: An object of this name exists and stays as it is. It may be this one, if
                the answer to an earlier try was lost: compare.
            StoreDenied, StoreUnavailable: As they say.
        """
        self._objects.create(_checked(name), memoryview(data).cast("B"))

    def replace(self, name: str, data: Data, version: str) -> None:
        """Replace an object if it still has *version*: compare and swap.

        Raises:
            VersionConflict: It has another version by now, which is kept.
            StoreDenied, StoreUnavailable: As they say.
        """
        self._objects.replace(_checked(name), memoryview(data).cast("B"), version)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of all objects below the folder *prefix*, sorted."""
        yield from sorted(listed.name for listed in self.listed(prefix))

    def listed(self, prefix: str = "") -> Iterator[Listed]:
        """Yield all objects below the folder *prefix*, with sizes and times, in any order.

        What others put there under a name that no object of ours can have is left out, and told.

        Raises:
            ListingTooLong: There are more than `stored.MAX_NAMES`, or it does not end.
            StoreDenied, StoreUnavailable: As they say.
        """
        for listed in self._within_bounds(
            self._objects.list(_checked(prefix) if prefix else ""), prefix
        ):
            if _NAME.fullmatch(listed.name):
                yield listed
            else:
                self._tell_foreign(listed.name)

    def _within_bounds(self, names: Iterator[T], prefix: str) -> Iterator[T]:
        """Yield what a listing has, as far as one of ours could go."""
        for number, found in enumerate(names, 1):
            check_names(f"{self.url}/{prefix}", number)
            yield found

    def _tell_foreign(self, name: str) -> None:
        """Log a name once, and of many only some."""
        if name in self._foreign or len(self._foreign) > _TOLD:
            return
        self._foreign.add(name)
        if len(self._foreign) > _TOLD:
            logger.warning("left out of %s: more names that are none of ours", self.url)
        else:
            logger.warning("left out of %s: %r is no name of ours", self.url, name)

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the URL that can hold objects, sorted.

        A volume has others: ``lost+found``, ``.snapshot``. Raises like `listed`.
        """
        found = self._within_bounds(self._objects.folders(), "")
        yield from sorted(name for name in found if _NAME.fullmatch(name))

    def delete(self, name: str) -> None:
        """Remove an object; it is no error if it is not there.

        Raises:
            StoreDenied: It must not be removed, such as one under a lock.
            StoreUnavailable: As it says.
        """
        self._objects.delete(_checked(name))

    def delete_old(self, name: str, before_s: float) -> Removal:
        """Remove an object unless it was written since then (Unix s, the store's clock).

        In a directory no `replace` comes in between; elsewhere it is looked at right before.

        Raises:
            StoreDenied, StoreUnavailable: As `delete`.
        """
        return self._objects.delete_old(_checked(name), before_s)

    def sweep(self, before_s: float) -> int:
        """Remove temporary files that killed writers left before then (Unix s); count them."""
        return self._objects.sweep(before_s)


def _s3(url: str, endpoint: str | None, credentials: Credentials | None) -> Objects:
    """Open a store in S3: by keys, or at Amazon by the role of the machine or pod."""
    if credentials is not None:
        return S3Objects(url, endpoint, credentials)
    if endpoint:
        raise StoreDenied(url, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set")
    return RemoteObjects.amazon(url)


def _manifest_key() -> bytes | None:
    """Return the environment's DLEDGER_MANIFEST_KEY; None if it is not set. Raises StoreError."""
    key = os.environ.get("DLEDGER_MANIFEST_KEY", "").strip().encode()
    if key and len(key) < MIN_KEY_BYTES:
        raise StoreError(
            f"DLEDGER_MANIFEST_KEY has {len(key)} bytes and needs {MIN_KEY_BYTES} or more: "
            "`openssl rand -hex 32` makes one"
        )
    return key or None


def is_folder(name: str) -> bool:
    """Whether a folder right below the URL can have this name, as a group's has its id."""
    return "/" not in name and _NAME.fullmatch(name) is not None


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r} cannot be the name of an object")
    return name
