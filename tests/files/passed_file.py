"""An open file that passes every call on: a test's file changes those that it is about."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.files.files import Buffer, File


class PassedFile(File):
    """Another file, under a name of its own."""

    def __init__(self, inner: File) -> None:
        self.inner = inner

    def size(self) -> int:
        return self.inner.size()

    def pread(self, size: int, offset: int) -> bytes:
        return self.inner.pread(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.inner.pwritev(buffers, offset)

    def preallocate(self, size: int) -> None:
        self.inner.preallocate(size)

    def fdatasync(self) -> None:
        self.inner.fdatasync()

    def drop_cached(self, offset: int, size: int) -> None:
        self.inner.drop_cached(offset, size)

    def close(self) -> None:
        self.inner.close()
