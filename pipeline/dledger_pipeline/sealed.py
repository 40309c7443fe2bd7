"""JSON objects that carry the SHA-256 of their own fields, so that damage is noticed.

The fields come back checked one by one, since a manifest is input like any other. Used for
manifests and HEAD.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from dledger_pipeline.errors import CorruptManifest

FORMAT_VERSION: Final = 1


def seal(content: Mapping[str, Any]) -> bytes:
    """Return *content* as JSON with its hash and the format's version; the same for the same."""
    versioned = {"format_version": FORMAT_VERSION, **content}
    sealed = {**versioned, "sha256": _sha256(versioned)}
    return json.dumps(sealed, indent=1, sort_keys=True).encode() + b"\n"


def unseal(name: str, data: pa.Buffer) -> dict[str, Any]:
    """Return the fields of what `seal` made.

    Raises:
        CorruptManifest: *name* is not as it was written, or of another format.
    """
    try:
        content = json.loads(data.to_pybytes())
    except (ValueError, RecursionError) as error:
        raise CorruptManifest(name, f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CorruptManifest(name, "not a JSON object")
    found = content.pop("sha256", None)
    if found != _sha256(content):
        raise CorruptManifest(name, f"its SHA-256 is {_sha256(content)}, it says {found}")
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise CorruptManifest(name, f"format version {version}, this reads {FORMAT_VERSION}")
    return content


def field(name: str, content: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return a field of that type.

    Raises:
        CorruptManifest: *name* has no such field.
    """
    value = content.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CorruptManifest(name, f"{key} is {value!r:.80}")
    return value


def _sha256(content: Mapping[str, Any]) -> str:
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(compact.encode()).hexdigest()
