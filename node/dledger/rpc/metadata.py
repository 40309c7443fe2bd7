"""Reads the metadata of a gRPC call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def by_key(metadata: Iterable[tuple[str, Any]] | None) -> dict[str, Any]:
    """Return a call's metadata as a dict; of a repeated key, the last value.

    ``dict(metadata)`` does not work: up to gRPC 1.76, iterating the keys of its type gives pairs.
    """
    return dict(tuple(metadata or ()))
