"""What a gRPC call carries beside its messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def by_key(metadata: Iterable[tuple[str, Any]] | None) -> dict[str, Any]:
    """Return a call's metadata as a dict; the last value of a key that it has more than once.

    Not by ``dict(metadata)``: the keys of gRPC's own type are pairs in the releases up to 1.76.
    """
    return dict(tuple(metadata or ()))
