"""An object store by URL: ``file://``, ``s3://``, and whatever else obstore opens.

Names are relative to the URL, with ``/`` between parts. Objects appear whole or not at all and are
durable when a call returns; nothing here deletes. `create` and `replace` are atomic against all
other writers, on S3 by conditional writes, on file systems by links and locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """How to sign requests to an S3 store; None of it is needed for ``file://``."""

    access_key_id: str
    secret_access_key: str
    region: str = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object as it was read: its bytes, and the version to give to `Store.replace`."""

    data: pa.Buffer
    version: str


class Store:
    """Objects below one URL. Pickles as URL and endpoint: credentials are each process's own."""

    def __init__(self, url: str, endpoint: str | None = None) -> None:
        self.url = url
        self.endpoint = endpoint

    @classmethod
    def open(
        cls, url: str, endpoint: str | None = None, credentials: Credentials | None = None
    ) -> Store:
        """Open the store; nothing is asked of it yet.

        Args:
            url: ``file:///path`` (created when first written), ``s3://bucket/path``, or another
                that obstore knows.
            endpoint: ``http(s)://host:port`` of an S3 server; default: the environment's
                DLEDGER_STORE_ENDPOINT, else Amazon's.
            credentials: Default: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION.

        Raises:
            StoreError: The URL is none of a store.
        """
        raise NotImplementedError(url, endpoint, credentials)

    def get(self, name: str) -> pa.Buffer:
        """Return an object's bytes. Raises ObjectMissing, StoreDenied, StoreUnavailable."""
        raise NotImplementedError(name)

    def get_versioned(self, name: str) -> Stored:
        """Return an object's bytes and version. Raises like `get`."""
        raise NotImplementedError(name)

    def size(self, name: str) -> int:
        """Return an object's length in bytes. Raises like `get`."""
        raise NotImplementedError(name)

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name. Raises StoreDenied, StoreUnavailable."""
        raise NotImplementedError(name)

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Write an object, replacing one of the same name. Raises StoreDenied, StoreUnavailable."""
        raise NotImplementedError(name, data)

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Write a new object.

        Raises:
            AlreadyExists: There is one of this name; it stays as it is.
        """
        raise NotImplementedError(name, data)

    def replace(self, name: str, data: bytes | memoryview | pa.Buffer, version: str) -> None:
        """Replace an object if it still has *version*: compare and swap.

        Raises:
            VersionConflict: It has another version by now, which stays.
        """
        raise NotImplementedError(name, data, version)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of all objects below the folder *prefix*, sorted."""
        raise NotImplementedError(prefix)
