"""The metadata of a gRPC call, read and written."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def by_key(
    metadata: Mapping[str, Any] | Iterable[tuple[str, Any]] | None,
) -> Mapping[str, Any]:
    """Return a call's metadata by key; of a repeated key, the last value.

    ``dict(metadata)`` does not work: up to gRPC 1.76, iterating the keys of its type gives pairs.
    """
    return metadata if isinstance(metadata, Mapping) else dict(tuple(metadata or ()))


def pairs(metadata: Sequence[tuple[str, str | bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Return metadata as it is on the wire."""
    return tuple((name.encode(), _on_the_wire(name, value)) for name, value in metadata)


def _on_the_wire(name: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return base64.b64encode(value).rstrip(b"=") if name.endswith("-bin") else value
    return value.encode("ascii", "replace")
