"""A table of Delta Lake, written by delta-rs (package ``deltalake``).

The last entry is the version of a transaction of ours in the table's log (Delta's ``txn``), which
checkpoints keep and which conflicts with any other that goes on from the same version. Used by the
job `export`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake import DeltaTable as Delta
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from dledger_pipeline.errors import TableError, VersionConflict
from dledger_pipeline.object_store.store import Store
from dledger_pipeline.tables.columns import PARTITIONED_BY
from dledger_pipeline.tables.files import Layout, TableFile
from dledger_pipeline.tables.table import Begun, Owner


class DeltaTable:
    """See the module; an object is for one export."""

    layout: Final = Layout(has_folders=False, has_partitions=False)

    def __init__(self, store: Store, owner: Owner, schema: pa.Schema) -> None:
        """Open the table at *store*, or make it. Raises InvalidArgument, TableError."""
        self._url, self._app, self._schema = store.url, f"dledger-{owner.group_id}", schema
        directory = store.directory
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        with _translate_errors(self._url):
            self._table = Delta.create(
                directory or self._url,
                schema,
                mode="ignore",
                partition_by=[*PARTITIONED_BY],
                description=owner.as_text(),
                storage_options=_options(store),
            )
            owner.check_is(self._table.metadata().description, self._url)
            self.last_index = self._table.transaction_version(self._app) or 0

    def begin(self, wanted: Begun) -> Begun:
        """Return *wanted*: what nobody committed is not in the table."""
        return wanted

    def commit(self, files: Sequence[TableFile], last_index: int) -> None:
        """Add the files by one commit to the table's log."""
        if files:
            now_ms = int(time.time() * 1000)
            properties = CommitProperties(
                custom_metadata={"dledgerLastIndex": str(last_index)},
                app_transactions=[Transaction(self._app, last_index, now_ms)],
            )
            with _translate_errors(self._url):
                self._table.create_write_transaction(
                    [_action(file, now_ms) for file in files],
                    "append",
                    Schema.from_arrow(self._schema),
                    [*PARTITIONED_BY],
                    commit_properties=properties,
                )
        self.last_index = last_index

    def give_up(self) -> None:
        """There is nothing to give up."""


def _action(file: TableFile, now_ms: int) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": {"index": file.first_index, "stored_at_ms": file.first_ms},
        "maxValues": {"index": file.last_index, "stored_at_ms": file.last_ms},
        "nullCount": {"index": 0, "stored_at_ms": 0},
    }
    return AddAction(
        path=file.name,
        size=file.object_bytes,
        partition_values={"topic": file.topic, "date": file.date},
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def _options(store: Store) -> dict[str, str]:
    """Return what delta-rs is to know besides the AWS_* variables, which it reads itself."""
    if store.endpoint is None:
        return {}
    return {"AWS_ENDPOINT_URL": store.endpoint, "AWS_ALLOW_HTTP": str(store.allow_http).lower()}


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    """Raise our errors for delta-rs'."""
    try:
        yield
    except CommitFailedError as error:
        raise VersionConflict(url) from error
    except (DeltaError, OSError) as error:
        raise TableError(f"Delta table {url}: {error}") from error
