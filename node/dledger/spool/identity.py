"""The identity of a spool directory: its client id, stamp and token, created once and kept.

The client id scopes the idempotency keys, and the token names the lanes: a spool that lost them
could store a message twice. They are in ``spool.json`` and, as a second copy, in the header of
every spool file. Used by `opening`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger.errors import CorruptFile, InvalidArgument
from dledger.files import checked_json
from dledger.files.atomic import load_file, replace_file
from dledger.files.checked_json import VersionError
from dledger.files.files import Files
from dledger.spool.format import (
    FORMAT_VERSION,
    STAMP_BYTES,
    TOKEN_BYTES,
    VERSIONS,
    FileHeader,
    encode_file_header,
)

NAME = "spool.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolIdentity:
    """A spool directory's identity.

    Attributes:
        client_id: The scope of its message ids; it never changes.
        stamp: The random bytes at the start of each of its records.
        token: The random bytes by which the group knows its lanes, a secret: whoever has them can
            make the group take messages of this spool for stored. Empty: version 1 had none.
    """

    client_id: str
    stamp: bytes
    token: bytes = b""


def header_of(identity: SpoolIdentity, *, first_sequence: int) -> FileHeader:
    """Return the header of a spool's file."""
    return FileHeader(
        client_id=identity.client_id,
        stamp=identity.stamp,
        token=identity.token,
        first_sequence=first_sequence,
    )


def load_identity(files: Files, directory: Path) -> SpoolIdentity | None:
    """Return the identity; None if the directory has none.

    Raises:
        CorruptFile: It is damaged.
        VersionError: It has another format version.
    """
    path = directory / NAME
    data = load_file(files, path)
    return None if data is None else _decode(data, path)


def save_identity(files: Files, directory: Path, identity: SpoolIdentity) -> None:
    """Write the identity, durably. Raises DiskFull or StorageError."""
    fields = {
        "client_id": identity.client_id,
        "stamp": identity.stamp.hex(),
        "token": identity.token.hex(),
    }
    replace_file(files, directory / NAME, checked_json.encode(FORMAT_VERSION, fields))


def _decode(data: bytes, path: Path) -> SpoolIdentity:
    try:
        fields = _fields(data)
        found = SpoolIdentity(
            client_id=checked_json.text(fields, "client_id"),
            stamp=bytes.fromhex(fields["stamp"]),
            token=bytes.fromhex(fields.get("token", "")),
        )
        encode_file_header(header_of(found, first_sequence=1))  # its client id may be no Unicode
        sizes = len(found.stamp), len(found.token)
        if sizes not in ((STAMP_BYTES, TOKEN_BYTES), (STAMP_BYTES, 0)):
            raise ValueError(f"stamp and token have {sizes} bytes")
        return found
    except VersionError:
        raise
    except (ValueError, KeyError, TypeError, InvalidArgument) as error:
        raise CorruptFile(str(path), str(error)) from error


def _fields(data: bytes) -> dict[str, Any]:
    """Return the fields, of whichever version is read."""
    try:
        return checked_json.decode(FORMAT_VERSION, data)
    except VersionError:
        with suppress(VersionError):
            return checked_json.decode(VERSIONS[0], data)
        raise
