"""Opens a spool directory: locks it, loads identity and state, scans the files, repairs the end.

No accepted message is discarded here: damage is reported (`Spool.damage`) and the files are kept; a
lost identity or state is rebuilt from the spool files. Called by `producer`, and by the sidecar.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dledger.errors import (
    CorruptFile,
    CorruptSpool,
    DirectoryLocked,
    InvalidArgument,
    StorageError,
    Unsupported,
    WrongIdentity,
)
from dledger.files.checked_json import VersionError
from dledger.files.files import File, Files
from dledger.spool.format import (
    FILE_HEADER_BYTES,
    MAX_CLIENT_ID_BYTES,
    STAMP_BYTES,
    TOKEN_BYTES,
    State,
    decode_file_header,
)
from dledger.spool.identity import NAME as IDENTITY_NAME
from dledger.spool.identity import SpoolIdentity, load_identity, save_identity
from dledger.spool.rejected import sequences_aside, settle_rejected
from dledger.spool.spool import Limits, Spool
from dledger.spool.spool_files import (
    file_name,
    first_sequences,
    read_file,
    remove_leftovers,
    set_aside,
)
from dledger.spool.spool_scan import SpoolScanner, settle
from dledger.spool.state import NAME as STATE_NAME
from dledger.spool.state import StateFile, format_state

_log = logging.getLogger(__name__)

LOCK_NAME = "lock"
MIN_BYTES = 64 << 10
_MAX_FILE_BYTES = 16 << 20
_FILES_OF_A_SPOOL = 8


def limits_of(max_bytes: int) -> Limits:
    """Return the limits of a spool of at most *max_bytes*. Raises InvalidArgument."""
    if max_bytes < MIN_BYTES:
        raise InvalidArgument(f"a spool needs at least {MIN_BYTES} bytes, not {max_bytes}")
    return Limits(max_bytes, min(_MAX_FILE_BYTES, max_bytes // _FILES_OF_A_SPOOL))


def open_spool(
    files: Files,
    directory: Path,
    *,
    limits: Limits,
    client_id: str = "",
    new_identity: Callable[[str], SpoolIdentity] | None = None,
) -> Spool:
    """Open the spool in *directory*; create it if there is none.

    Args:
        files: The file system.
        directory: The spool's own directory; one process uses it at a time.
        limits: How much disk space it may use.
        client_id: The client id of a new spool; generated if empty.
        new_identity: Creates the identity of a new spool; for tests.

    Raises:
        DirectoryLocked: Another process uses it.
        WrongIdentity: It has another client id, or contains a file of another spool.
        Unsupported: A later version wrote it.
        DiskFull: There is no room to create it.
        StorageError: The disk failed.
    """
    lock = _lock(files, directory)
    try:
        opening = _Opening(files, directory, client_id, new_identity or fresh_identity)
        return opening.spool(lock, limits)
    except VersionError as error:
        lock.close()
        raise Unsupported(f"spool {directory}: {error}") from error
    except OSError as error:
        lock.close()
        raise StorageError(f"cannot open spool {directory}: {error}") from error
    except BaseException:
        lock.close()
        raise


def fresh_identity(client_id: str) -> SpoolIdentity:
    """Return a new spool's identity; the client id is generated if *client_id* is empty."""
    return SpoolIdentity(
        client_id=client_id or f"dledger-spool-{uuid.uuid4()}",
        stamp=secrets.token_bytes(STAMP_BYTES),
        token=secrets.token_bytes(TOKEN_BYTES),
    )


def _lock(files: Files, directory: Path) -> File:
    try:
        files.make_dirs(directory)
        return files.lock(directory / LOCK_NAME)
    except BlockingIOError as error:
        raise DirectoryLocked(str(directory)) from error
    except OSError as error:
        raise StorageError(f"cannot open spool {directory}: {error}") from error


@dataclass
class _Opening:
    files: Files
    directory: Path
    client_id: str
    new_identity: Callable[[str], SpoolIdentity]

    def __post_init__(self) -> None:
        self.damage: list[CorruptSpool] = []

    def spool(self, lock: File, limits: Limits) -> Spool:
        identity = self._identity()
        state, certain = self._state(identity)
        replayed, accepted = state.state.replayed, state.state.accepted
        remove_leftovers(self.files, self.directory)
        self.files.fsync_dir(self.directory)
        rejected = settle_rejected(self.files, self.directory, identity, replayed=replayed)
        surveyor = SpoolScanner(
            self.files, self.directory, identity, rejected=rejected, certain=certain
        )
        found = surveyor.survey(replayed=replayed, accepted=accepted)
        if found.files and not found.files[-1].damaged:
            settle(self.files, found.files[-1], accepted=accepted, stamp=identity.stamp)
        found.damage[:0] = self.damage
        for damage in found.damage:
            _log.error("%s", damage)
        return Spool(
            self.files,
            self.directory,
            lock=lock,
            identity=identity,
            state=state,
            found=found,
            rejected=rejected,
            limits=limits,
        )

    # -- identity -------------------------------------------------------------------------------

    def _identity(self) -> SpoolIdentity:
        try:
            identity = load_identity(self.files, self.directory)
        except CorruptFile as error:
            self._report(IDENTITY_NAME, error.reason)
            identity = None
        if identity is None:
            identity = self._identity_of_files() or self._new_spool()
            save_identity(self.files, self.directory, identity)
        if not identity.token:  # of version 1
            identity = replace(identity, token=self.new_identity(identity.client_id).token)
            save_identity(self.files, self.directory, identity)
        if self.client_id and identity.client_id != self.client_id:
            raise WrongIdentity("client id", expected=self.client_id, found=identity.client_id)
        return identity

    def _identity_of_files(self) -> SpoolIdentity | None:
        """Return the second copy of the identity, from the newest intact file header.

        Raises:
            CorruptFile: There are files, but no intact header: their client id is lost.
        """
        firsts = first_sequences(self.files, self.directory)
        for first in reversed(firsts):  # those of version 1 have no token
            page = read_file(self.files, self.directory / file_name(first))[:FILE_HEADER_BYTES]
            try:
                header = decode_file_header(page)
            except VersionError:
                raise
            except ValueError:
                continue
            return SpoolIdentity(client_id=header.client_id, stamp=header.stamp, token=header.token)
        if firsts:
            path = self.directory / IDENTITY_NAME
            raise CorruptFile(
                str(path), f"missing, and none of {len(firsts)} files has an intact header"
            )
        return None

    def _new_spool(self) -> SpoolIdentity:
        identity = self.new_identity(self.client_id)
        if len(identity.client_id.encode()) > MAX_CLIENT_ID_BYTES:
            raise InvalidArgument(f"a spool's client id has at most {MAX_CLIENT_ID_BYTES} bytes")
        self.files.fsync_dir(self.directory.parent)
        format_state(self.files, self.directory, State(number=0, replayed=0, accepted=0))
        return identity

    # -- state ----------------------------------------------------------------------------------

    def _state(self, identity: SpoolIdentity) -> tuple[StateFile, bool]:
        """Return the state, and whether it is the stored one; else it was rebuilt."""
        try:
            return StateFile.open(self.files, self.directory), True
        except CorruptFile as error:
            self._report(STATE_NAME, error.reason)
        firsts = first_sequences(self.files, self.directory)
        aside = sequences_aside(self.files, self.directory, identity)
        done = firsts[0] - 1 if firsts else max(aside, default=0)
        format_state(self.files, self.directory, State(number=0, replayed=done, accepted=done))
        return StateFile.open(self.files, self.directory), False

    def _report(self, name: str, reason: str) -> None:
        """Report a damaged identity or state file, and set it aside."""
        path = self.directory / name
        if name in self.files.list(self.directory):
            path = set_aside(self.files, path)
        self.damage.append(
            CorruptSpool(str(path), offset=0, size_bytes=0, first=1, last=0, reason=reason)
        )
