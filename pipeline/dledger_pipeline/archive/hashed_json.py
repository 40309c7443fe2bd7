"""JSON objects that carry the SHA-256 of their own fields, and a signature where there is a key.

The hash shows damage; every format has it alike, so that a newer format is told from damage. Anyone
who can write to the store can compute it, too; only the signature, an HMAC-SHA256 with a key that
is not in the store, shows that a backup is ours. If there is a key, an object without a signature
is refused, or a forger could remove it.

Fields are checked one by one, since a manifest is input like any other. Used for manifests and
HEAD.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from dledger_pipeline.errors import CorruptManifest, NewerBackup, NotSigned
from dledger_pipeline.object_store.store import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

FORMAT_VERSION: Final = 2
MAX_JSON_BYTES: Final = 64 << 20
"""Of a manifest, whose chunks hold the objects."""
MAX_NUMBER: Final = 1 << 62
"""Indexes, terms, sizes and times are below, so that sums of two have 64 bits."""
_HASH: Final = "sha256"
_SIGNATURE: Final = "hmac_sha256"


class Signature(StrEnum):
    """What is known about who wrote an object."""

    VALID = "valid"
    UNSIGNED = "unsigned"
    NOT_CHECKED = "not checked"
    """It has a signature, but there is no key to check it."""


def encode_hashed(content: Mapping[str, Any], key: bytes | None = None) -> bytes:
    """Return *content* as JSON with the format's version, its hash, and with a key its signature.

    The same content and key give the same bytes.
    """
    versioned = {"format_version": FORMAT_VERSION, **content}
    sealed = {**versioned, _HASH: _sha256(versioned)}
    if key is not None:
        sealed[_SIGNATURE] = _hmac(versioned, key)
    return json.dumps(sealed, indent=1, sort_keys=True).encode() + b"\n"


def decode_hashed(name: str, data: pa.Buffer, key: bytes | None = None) -> dict[str, Any]:
    """Return the content of an object that `encode_hashed` returned.

    Raises:
        CorruptManifest: *name* is not as it was written, or of an older format.
        NewerBackup: It is as a newer version wrote it.
        NotSigned: There is a key, and *name* has no signature, or one by another key.
    """
    return _opened(name, data, key)[0]


def signature_of(name: str, data: pa.Buffer, key: bytes | None) -> Signature:
    """Return what is known about who wrote *name*. Raises like `decode_hashed`."""
    return _opened(name, data, key)[1]


def _opened(name: str, data: pa.Buffer, key: bytes | None) -> tuple[dict[str, Any], Signature]:
    try:
        content = json.loads(data.to_pybytes())
    except (ValueError, RecursionError) as error:
        raise CorruptManifest(name, f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CorruptManifest(name, "not a JSON object")
    found, signature = content.pop(_HASH, None), content.pop(_SIGNATURE, None)
    if found != _sha256(content):
        raise CorruptManifest(name, f"its SHA-256 is {_sha256(content)}, it states {found!r:.80}")
    version = content.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise NewerBackup(name, found=version, known=FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise CorruptManifest(name, f"format version {version!r:.80}, this reads {FORMAT_VERSION}")
    if key is None:
        return content, Signature.UNSIGNED if signature is None else Signature.NOT_CHECKED
    if signature is None:
        raise NotSigned(name, "it has no signature")
    if not hmac.compare_digest(str(signature).encode(), _hmac(content, key).encode()):
        raise NotSigned(name, "it was signed with another key")
    return content, Signature.VALID


def resign(store: Store, name: str) -> None:
    """Sign *name* as it is in the store with the store's key. Raises like `decode_hashed`."""
    stored = store.get_versioned(name, max_bytes=MAX_JSON_BYTES)
    signed = encode_hashed(decode_hashed(name, stored.data), store.manifest_key)
    store.replace(name, signed, stored.version)


def field(name: str, content: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return a field of this type; whole numbers are from 0 to `MAX_NUMBER`.

    Raises:
        CorruptManifest: *name* has no such field.
    """
    value = content.get(key)
    fits = not isinstance(value, int) or 0 <= value <= MAX_NUMBER
    if not isinstance(value, kind) or isinstance(value, bool) or not fits:
        raise CorruptManifest(name, f"{key} is {value!r:.80}")
    return value


def row_of(kind: type[T], name: str, content: Any, **others: Any) -> T:
    """Return a dataclass of texts and whole numbers out of an object with its fields.

    *others* are fields that were read already.

    Raises:
        CorruptManifest: A field of *name* is missing or of another type.
    """
    kinds = {each.name: str if each.type == "str" else int for each in fields(kind)}
    if not isinstance(content, dict):
        raise CorruptManifest(name, f"a file is {content!r:.80}")
    found = {key: field(name, content, key, of) for key, of in kinds.items() if key not in others}
    return kind(**found, **others)


def _compact(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_compact(content)).hexdigest()


def _hmac(content: Mapping[str, Any], key: bytes) -> str:
    return hmac.digest(key, _compact(content), "sha256").hex()
