"""The chain CRC that a log has in the end."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.common.chain import chains_behind
from dledger.types import Entry


def chain_behind(chain: int, entries: Iterable[Entry]) -> int:
    """Return the chain CRC of the last of *entries*, the first of which follows *chain*."""
    return [chain, *chains_behind(chain, entries)][-1]
