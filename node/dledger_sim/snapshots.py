"""The snapshots of one simulated node: a few bytes that name an entry and hold the memberships."""

from __future__ import annotations

import json
from collections.abc import Sequence

from crc32c import crc32c

from dledger.errors import OffsetOutOfRange
from dledger.raft.ready import SnapshotChunk
from dledger.types import Membership, SnapshotInfo


class ModelSnapshots:
    """The newest snapshot, and what has arrived of a leader's. Implements `SnapshotReader`."""

    def __init__(self) -> None:
        self._info: SnapshotInfo | None = None
        self._bytes = b""
        self._arrived = bytearray()

    def newest(self) -> SnapshotInfo | None:
        """Return the newest snapshot, if there is one."""
        return self._info

    def read(self, info: SnapshotInfo, offset: int, max_bytes: int) -> bytes | None:
        """Return bytes of the newest; an older one is gone."""
        if info != self._info:
            raise OffsetOutOfRange(offset, first=0, last=0)
        return self._bytes[offset : offset + max_bytes]

    def take(
        self,
        last_index: int,
        last_term: int,
        last_chain: int,
        memberships: Sequence[tuple[int, Membership]],
    ) -> SnapshotInfo:
        """Make a snapshot that ends in this entry."""
        rows = [[at, one.encode().decode()] for at, one in memberships if at <= last_index]
        return self._keep(last_index, last_term, last_chain, json.dumps(rows).encode())

    def receive(self, chunk: SnapshotChunk) -> None:
        """Keep a piece aside."""
        if chunk.offset == 0:
            self._arrived.clear()
        assert chunk.offset == len(self._arrived), "pieces come in order"  # noqa: S101
        self._arrived += chunk.data

    def rot(self) -> None:
        """Spoil what has arrived."""
        self._arrived[-1] ^= 1

    def install(self, info: SnapshotInfo) -> Sequence[tuple[int, Membership]] | None:
        """Take over what has arrived and return its memberships; None if its CRC is wrong."""
        data = bytes(self._arrived)
        if crc32c(data) != info.crc32c:
            return None
        self._keep(info.last_index, info.last_term, info.last_chain, data)
        return [(at, Membership.decode(text.encode())) for at, text in json.loads(data)]

    def _keep(self, last_index: int, last_term: int, last_chain: int, data: bytes) -> SnapshotInfo:
        self._bytes = data
        self._info = SnapshotInfo(
            last_index=last_index,
            last_term=last_term,
            last_chain=last_chain,
            size_bytes=len(data),
            crc32c=crc32c(data),
        )
        return self._info
