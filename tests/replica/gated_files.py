"""Real files whose syncs a test can hold up or fail."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from dledger.files.files import File, Mode, RealFiles
from tests.files.passed_file import PassedFile


class GatedFile(PassedFile):
    """A real file whose fdatasync waits for a gate, or fails."""

    def __init__(self, inner: File, files: GatedFiles) -> None:
        super().__init__(inner)
        self._files = files

    def fdatasync(self) -> None:
        self._files.syncs += 1
        assert self._files.gate.wait(20)
        if self._files.fails:
            raise OSError(errno.EIO, "injected")
        super().fdatasync()


class GatedFiles(RealFiles):
    """Real files; syncs wait while the gate is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.syncs = 0

    def open(self, path: Path, mode: Mode) -> File:
        return GatedFile(super().open(path, mode), self)
