"""Small JSON files that hold a CRC32C of their own fields and a format version.

For files that say what a directory is: read once at start, and readable by people. Used for a
node's `identity.json` and `discarded.json`, and a spool's `spool.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crc32c import crc32c

from dledger.errors import CorruptFile, NewerFormat


class VersionError(ValueError):
    """The file is undamaged, but this program does not read its format version."""


def encode(version: int, fields: Mapping[str, object]) -> bytes:
    """Return *fields* with version and CRC as JSON; equal fields give equal bytes."""
    versioned = {"format_version": version, **fields}
    checked = versioned | {"crc32c": _crc(versioned)}
    return json.dumps(checked, indent=2, sort_keys=True).encode() + b"\n"


def decode(version: int, data: bytes) -> dict[str, Any]:
    """Return the fields that `encode` was given; the caller checks their names and types.

    Raises:
        VersionError: It is undamaged, but has another version.
        ValueError: It is damaged.
    """
    try:
        fields = json.loads(data)
        found = fields.pop("crc32c")
        if found != _crc(fields):
            raise ValueError(f"CRC32C is {_crc(fields)}, the file says {found}")
        stored = fields.pop("format_version")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error) or repr(error)) from error
    if stored != version:
        raise VersionError(f"format version {stored}, this one reads {version}")
    return dict(fields)


def decode_own(version: int, data: bytes, path: Path) -> dict[str, Any]:
    """Return the fields of a file in a node's data directory.

    Raises:
        NewerFormat: It is undamaged, and a newer version of the node wrote it.
        CorruptFile: It is damaged.
    """
    try:
        return decode(version, data)
    except VersionError as error:
        found = json.loads(data)["format_version"]
        if isinstance(found, int) and found > version:
            raise NewerFormat.number(str(path), found=found, known=version) from error
        raise CorruptFile(str(path), str(error)) from error
    except ValueError as error:
        raise CorruptFile(str(path), str(error) or repr(error)) from error


def text(fields: Mapping[str, object], key: str) -> str:
    """Return a string field. Raises KeyError or TypeError."""
    value = fields[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {value!r:.80}")
    return value


def number(fields: Mapping[str, object], key: str) -> int:
    """Return an integer field. Raises KeyError or TypeError."""
    value = fields[key]
    if type(value) is not int:
        raise TypeError(f"{key} is {value!r:.80}")
    return value


def _crc(fields: Mapping[str, object]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True).encode())
