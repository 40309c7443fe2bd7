"""Stores how far the spool was replayed and synced, in two slots of one preallocated file.

`save` is durable; `mark` is not, and so is cheap enough to call for every batch. Both write the
slot that was not synced last, so one valid slot is always on the disk. Owned by `Spool`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dledger.errors import CorruptFile
from dledger.files.atomic import replace_file
from dledger.files.checked_json import VersionError
from dledger.files.files import File, Files, Mode
from dledger.spool.format import (
    SLOT_BYTES,
    SLOT_STRIDE_BYTES,
    STATE_BYTES,
    State,
    decode_state,
    encode_state,
)

NAME = "state"


def format_state(files: Files, directory: Path, state: State) -> None:
    """Create the state file, durably. Raises DiskFull or StorageError."""
    replace_file(files, directory / NAME, encode_state(state).ljust(STATE_BYTES, b"\0"))


def read_state(files: Files, directory: Path) -> State:
    """Return the newest valid slot without writing anything; its process may be running.

    Raises:
        CorruptFile: The file is missing, or neither slot is valid.
        VersionError: It has another format version.
        OSError: The disk failed.
    """
    path = directory / NAME
    try:
        with closing(files.open(path, Mode.READ)) as file:
            return _newest(file, path)[0]
    except FileNotFoundError as error:
        raise CorruptFile(str(path), "missing, though every spool has one") from error


class StateFile:
    """The open state file; `state` is what was last written. Calls must be serialized."""

    def __init__(self, file: File, state: State, slot: int) -> None:
        self._file = file
        self._spare = 1 - slot
        self.state = state

    @classmethod
    def open(cls, files: Files, directory: Path) -> StateFile:
        """Read the newest valid slot, and write it durably: it may come from `mark`.

        Raises:
            CorruptFile: The file is missing, or neither slot is valid.
            VersionError: It has another format version.
            OSError: The disk failed.
        """
        path = directory / NAME
        try:
            file = files.open(path, Mode.UPDATE)
        except FileNotFoundError as error:
            raise CorruptFile(str(path), "missing, though every spool has one") from error
        state, slot = _newest(file, path)
        file.pwritev([encode_state(state)], slot * SLOT_STRIDE_BYTES)
        file.fdatasync()
        return cls(file, state, slot)

    def mark(self, *, accepted: int) -> None:
        """Write that messages up to *accepted* were synced; survives a crash of the process only.

        Raises:
            OSError: The write failed.
        """
        self._write(self.state.replayed, accepted)

    def save(self, *, replayed: int, accepted: int) -> None:
        """Write both, durably.

        Raises:
            OSError: The write or sync failed; the disk's contents are unknown.
        """
        self._write(replayed, accepted)
        self._file.fdatasync()
        self._spare = 1 - self._spare

    def _write(self, replayed: int, accepted: int) -> None:
        state = State(number=self.state.number + 1, replayed=replayed, accepted=accepted)
        self._file.pwritev([encode_state(state)], self._spare * SLOT_STRIDE_BYTES)
        self.state = state

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _newest(file: File, path: Path) -> tuple[State, int]:
    found: list[tuple[int, int, State]] = []
    reasons: list[str] = []
    for slot in (0, 1):
        try:
            state = decode_state(file.pread(SLOT_BYTES, slot * SLOT_STRIDE_BYTES))
            found.append((state.number, slot, state))
        except VersionError:
            raise
        except ValueError as error:
            reasons.append(f"slot {slot}: {error}")
    if not found:
        raise CorruptFile(str(path), "; ".join(reasons))
    _, slot, state = max(found, key=lambda item: item[0])
    return state, slot
