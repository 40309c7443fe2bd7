"""Writes down the calls that change a disk, for golden files: a lost sync becomes a diff."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dledger.files.files import Buffer, DiskUsage, File, Files, Mode
from tests.files.passed_file import PassedFile


class RecordingFiles(Files):
    """Passes every call on and writes down those that change the disk, one line each."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.calls: list[str] = []

    def open(self, path: Path, mode: Mode) -> File:
        """Open through; a creation is written down."""
        if mode is Mode.CREATE:
            self.calls.append(f"create {path.name}")
        return _RecordingFile(self._files.open(path, mode), path.name, self.calls)

    def rename(self, source: Path, target: Path) -> None:
        """Rename through."""
        self.calls.append(f"rename {source.name} -> {target.name}")
        self._files.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove through."""
        self.calls.append(f"remove {path.name}")
        self._files.remove(path)

    def list(self, directory: Path) -> list[str]:
        """List through."""
        return self._files.list(directory)

    def make_dirs(self, directory: Path) -> None:
        """Create through."""
        self.calls.append(f"make_dirs {directory.name}")
        self._files.make_dirs(directory)

    def fsync_dir(self, directory: Path) -> None:
        """Sync through."""
        self.calls.append(f"fsync_dir {directory.name}")
        self._files.fsync_dir(directory)

    def disk_usage(self, directory: Path) -> DiskUsage:
        """Ask through."""
        return self._files.disk_usage(directory)

    def lock(self, path: Path) -> File:
        """Lock through."""
        self.calls.append(f"lock {path.name}")
        return self._files.lock(path)


class _RecordingFile(PassedFile):
    def __init__(self, inner: File, name: str, calls: list[str]) -> None:
        super().__init__(inner)
        self._name, self._calls = name, calls

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        total = sum(map(len, buffers))
        self._calls.append(f"pwritev {self._name} {total} bytes at {offset}")
        super().pwritev(buffers, offset)

    def preallocate(self, size: int) -> None:
        self._calls.append(f"preallocate {self._name} {size} bytes")
        super().preallocate(size)

    def fdatasync(self) -> None:
        self._calls.append(f"fdatasync {self._name}")
        super().fdatasync()
