"""Archived entries with every CRC checked, read ahead while earlier ones are worked on.

An object's hash shows that it is what was written; the CRCs show that this is the log.
Used by `restore` and `verify`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from dledger_pipeline.archive.archive import ManifestRow, read_range
from dledger_pipeline.errors import CorruptObject
from dledger_pipeline.log.records import check
from dledger_pipeline.object_store.store import Store

_READERS: Final = 2
"""One waits for the store while the other hashes and decodes, which release the GIL."""


def read_checked(store: Store, group_id: str, row: ManifestRow) -> pa.Table:
    """Return the entries of a row, after checking the object's hash and their own CRCs.

    Raises:
        ObjectMissing: The object is not there.
        CorruptObject: It is damaged, or not the log that *row* states.
    """
    table = read_range(store, group_id, row)
    name = f"{group_id}/{row.name}"
    chain, index = row.first_chain, row.first_index
    for batch in table.to_batches():
        chain = check(batch, name=name, previous_chain=chain, first_index=index)
        index += len(batch)
    if chain != row.last_chain:
        raise CorruptObject(
            name, f"it ends in chain CRC {chain:#010x}, the manifest says {row.last_chain:#010x}"
        )
    return table


def prefetch(store: Store, group_id: str, rows: Iterable[ManifestRow]) -> Iterator[pa.Table]:
    """Yield what `read_checked` returns for each of *rows*; holds three of them at most."""
    with ThreadPoolExecutor(_READERS, "object-reader") as readers:
        reading: deque[Future[pa.Table]] = deque()
        try:
            for row in rows:
                reading.append(readers.submit(read_checked, store, group_id, row))
                if len(reading) > _READERS:
                    yield reading.popleft().result()
            while reading:
                yield reading.popleft().result()
        finally:
            for future in reading:
                future.cancel()
