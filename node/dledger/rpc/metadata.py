"""Reads the metadata of a gRPC call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def by_key(
    metadata: Mapping[str, Any] | Iterable[tuple[str, Any]] | None,
) -> Mapping[str, Any]:
    """Return a call's metadata by key; of a repeated key, the last value.

    ``dict(metadata)`` does not work: up to gRPC 1.76, iterating the keys of its type gives pairs.
    """
    return metadata if isinstance(metadata, Mapping) else dict(tuple(metadata or ()))
