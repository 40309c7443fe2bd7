"""Objects where obstore knows who signs and how: Amazon by a role, and the URLs of other clouds.

These servers are not named by users of a cluster (`s3_objects` asks those): obstore follows
redirects, which nothing turns off. Writes are by conditions, as there; only Get, Put, Head, List
and Delete are called. obstore has no fields for a server's status and error code, so these are read
out of its message, and nothing else of it. Used by `store`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import obstore.store
import pyarrow as pa
from obstore import exceptions

from dledger_pipeline.errors import (
    AlreadyExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    VersionConflict,
)
from dledger_pipeline.object_store.stored import UNVERSIONED, Listed, Removal, Stored, check_size

_CODE: Final = re.compile(r"(?:<Code>|\(code: )(\w+)")
"""The second is of a delete, for which obstore asks for many at once."""
_DENIED: Final = "AccessDenied"
_STATUS: Final = re.compile(r"status code: (\d{3})")
_RETRIES: Final[Any] = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
"""Kubernetes retries a Job, so obstore need not wait out a longer failure."""
_CONNECTION: Final[Any] = {"connect_timeout": "5s", "timeout": "300s"}
"""The second is for a whole object: 128 MiB at half a megabyte a second."""
_ANSWERING: Final[Any] = {"read_timeout": "15s"}
"""How long a server may say nothing: until it answers, and between two pieces of what it sends. It
counts while a request's body is sent, too, so large objects are written without."""
_SMALL_BYTES: Final = 1 << 20
"""What is sent within that time even over a slow line."""


class RemoteObjects:
    """Objects of one obstore store, which keeps connections and retries by itself."""

    def __init__(self, url: str, store: Any, writing: Any) -> None:
        """Take the store for all requests but large writes, and one for these."""
        self._url = url.rstrip("/")
        self._store = store
        self._writing = writing

    @classmethod
    def amazon(cls, url: str) -> RemoteObjects:
        """Open ``s3://bucket/path`` at Amazon, where a role of the machine or pod signs.

        Raises:
            StoreError: The URL names no bucket.
        """
        parts = urlsplit(url)
        if not parts.netloc:
            raise StoreError(f"{url} names no bucket; write s3://bucket/path")
        store, writing = (
            obstore.store.S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                client_options=options,
                retry_config=_RETRIES,
            )
            for options in _client_options(allow_http=False)
        )
        return cls(url, store, writing)

    @classmethod
    def other(cls, url: str, *, allow_http: bool) -> RemoteObjects:
        """Open any other URL that obstore supports, with its own environment variables.

        Raises:
            StoreError: obstore does not support the URL.
        """
        try:
            store, writing = (
                obstore.store.from_url(url, client_options=options, retry_config=_RETRIES)
                for options in _client_options(allow_http=allow_http)
            )
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise StoreError(f"{url} is not the URL of a store: {error}") from error
        return cls(url, store, writing)

    def get(self, name: str, max_bytes: int) -> Stored:
        """Return an object and its version."""
        with self._reported(name):
            found = self._store.get(name)
            check_size(name, found.meta["size"], max_bytes)
            meta = {key: found.meta[key] for key in ("e_tag", "version") if found.meta[key]}
            return Stored(data=pa.py_buffer(found.bytes()), version_of=partial(json.dumps, meta))

    def size(self, name: str) -> int:
        """Return an object's length in bytes."""
        with self._reported(name):
            try:
                return int(self._store.head(name)["size"])
            except FileNotFoundError:
                return int(
                    self._store.get(name).meta["size"]
                )  # unlike HEAD's, its answer says whether the bucket is missing

    def put(self, name: str, data: memoryview) -> None:
        """Write an object, replacing one of the same name."""
        with self._reported(name):
            self._for(data).put(name, data)

    def create(self, name: str, data: memoryview) -> None:
        """Write an object unless there is one."""
        with self._reported(name):
            self._for(data).put(name, data, mode="create")

    def replace(self, name: str, data: memoryview, version: str) -> None:
        """Write an object if it has this version."""
        with self._reported(name):
            self._for(data).put(name, data, mode=json.loads(version))

    def _for(self, data: memoryview) -> Any:
        return self._store if data.nbytes <= _SMALL_BYTES else self._writing

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects below the folder, in any order."""
        with self._reported(prefix):
            for batch in self._store.list(prefix or None):
                for found in batch:
                    yield Listed(
                        name=found["path"],
                        size_bytes=found["size"],
                        modified_s=found["last_modified"].timestamp(),
                    )

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the URL."""
        with self._reported(""):
            yield from self._store.list_with_delimiter()["common_prefixes"]

    def delete(self, name: str) -> None:
        """Remove an object; it is no error if it is not there."""
        with self._reported(name), suppress(FileNotFoundError):
            self._store.delete(name)

    def delete_old(self, name: str, before_s: float) -> Removal:
        """Remove an object unless it was written since: no server deletes by age in one call."""
        with self._reported(name):
            try:
                found = self._store.head(name)
            except FileNotFoundError:
                return Removal.GONE
        if found["last_modified"].timestamp() >= before_s:
            return Removal.YOUNG
        self.delete(name)
        return Removal.GONE if found["version"] in UNVERSIONED else Removal.HIDDEN

    def sweep(self, before_s: float) -> int:  # noqa: ARG002 - objects appear whole or not at all
        """Remove what killed writers left; there is nothing."""
        return 0

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Raise the store's error for obstore's."""
        try:
            yield
        except exceptions.AlreadyExistsError as error:
            raise AlreadyExists(name) from error
        except exceptions.PreconditionError as error:
            raise VersionConflict(name) from error
        except (exceptions.BaseError, FileNotFoundError, PermissionError, OSError) as error:
            raise self._meaning(name, error) from error

    def _meaning(self, name: str, error: Exception) -> StoreError:
        """Return our error for obstore's, by the server's error code if there is one."""
        text = str(error)
        status = _first(_STATUS, text)
        code = _first(_CODE, text)
        where = f"{self._url}/{name}"
        reason = code or (f"it answered {status}" if status else "it does not answer as it should")
        if code == "NoSuchBucket":
            return StoreError(f"the bucket of {self._url} does not exist; create it first")
        if status in ("401", "403") or code == _DENIED or "User" in code:
            return StoreDenied(where, reason)
        if isinstance(error, PermissionError | exceptions.UnauthenticatedError):
            return StoreDenied(where, reason)
        if isinstance(error, FileNotFoundError):
            return ObjectMissing(name)
        return StoreUnavailable(f"{where}: {reason}")


def _client_options(*, allow_http: bool) -> tuple[Any, Any]:
    """Return the options for all requests but large writes, and those for these."""
    options = _CONNECTION | {"allow_http": allow_http}
    return options | _ANSWERING, options


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
