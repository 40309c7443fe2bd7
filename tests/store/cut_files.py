"""Files in memory whose power can be cut before any call."""

from __future__ import annotations

from pathlib import Path

from dledger.files.memory_files import MemoryFiles


class PowerCutError(Exception):
    """The machine went off before this call."""


class CutFiles(MemoryFiles):
    """Loses power before the file call number `calls_left`."""

    calls_left = 1 << 60

    def strike(self, operation: str, path: Path) -> None:
        """Count every call."""
        self.calls_left -= 1
        if self.calls_left < 0:
            raise PowerCutError(operation)
        super().strike(operation, path)
