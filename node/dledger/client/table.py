"""A compacted topic as a mapping in memory: each key's newest message. Exported from the package.

It takes about 0.5 KiB for each key, and the body, which need not be held.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from dledger.client.table_reader import Change, TableReader
from dledger.types import StoredRecord


class Table(Mapping[str, StoredRecord]):
    """The newest message of each key that is not deleted.

    It changes only while `catch_up` or `changes` is awaited; one at a time. After an error, make
    another. To hold it elsewhere, or to go on after a restart, use `TableReader`.
    """

    def __init__(self, addresses: str | Sequence[str], topic: str, *, bodies: bool = True) -> None:
        """Make an empty table; nothing is asked yet.

        Args:
            addresses: Client ports (8081) of the group's nodes, ``host:port``; one is enough.
            topic: A compacted topic.
            bodies: Whether to hold the messages' bodies; without, each is empty.

        Raises:
            InvalidArgument: There is no address.
        """
        self._reader = TableReader(addresses, topic)
        self._bodies = bodies
        self._newest: dict[str, StoredRecord] = {}

    async def catch_up(self) -> None:
        """Read all that was acknowledged before this call. Raises as `TableReader.catch_up`."""
        async with aclosing(self._reader.catch_up()) as changes:
            async for change in changes:
                self._take(change)

    async def changes(self) -> AsyncGenerator[Change]:
        """Yield each change once it is in the table; never ends.

        Catches up first. Raises as `TableReader.changes`.
        """
        async with aclosing(self._reader.changes()) as changes:
            async for change in changes:
                self._take(change)
                yield change

    def _take(self, change: Change) -> None:
        if change.deleted:
            self._newest.pop(change.key, None)
        elif self._bodies:
            self._newest[change.key] = change.stored
        else:
            record = replace(change.stored.record, body=b"")
            self._newest[change.key] = replace(change.stored, record=record)

    def __getitem__(self, key: str) -> StoredRecord:
        """Return the newest message of *key*. Raises KeyError if there is none."""
        return self._newest[key]

    def __iter__(self) -> Iterator[str]:
        """Return the keys, in no order."""
        return iter(self._newest)

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._newest)
